"""The digest by which agent and controller know that they mean the same entries.

The rule is in agent.proto, at SessionParameters.table_digest. Text, because it has
to be the same in any language and on any fabric file that names the same things.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.program import Entries


def table_digest(fabric: Fabric, entries: Entries) -> bytes:
    """Digest of the entries of one switch; empty for none."""
    if not len(entries):
        return b""
    ids = fabric.structure.nodes.ids
    ways = _ways(fabric, entries)
    lines = [
        f"{source}\t{destination}\t{source_port}\t{destination_port}\t{way}\n"
        for source, destination, source_port, destination_port, way in sorted(
            zip(
                map(ids.__getitem__, entries.source.tolist()),
                map(ids.__getitem__, entries.destination.tolist()),
                entries.source_port.tolist(),
                entries.destination_port.tolist(),
                ways,
                strict=True,
            )
        )
    ]
    return hashlib.sha256("".join(lines).encode()).digest()


def _ways(fabric: Fabric, entries: Entries) -> Iterator[str]:
    """The part of each line that says where an entry sends packets; most are alike."""
    first, links = entries.risk_first.tolist(), entries.risk_links.tolist()
    hops = cache(lambda arc: _hop(fabric, arc))
    labels = cache(lambda link: _link(fabric, link))
    own = cache(lambda rows: "".join(sorted(f"\t{labels(row)}" for row in rows)))
    arcs = zip(entries.primary.tolist(), entries.backup.tolist(), strict=True)
    for (primary, backup), start, end in zip(arcs, first, first[1:], strict=False):
        spare = "\t" if backup == NONE else hops(backup)
        at_risk = own(tuple(link for link in links[start:end] if link >= 0))
        beyond = own(tuple(~link for link in links[start:end] if link < 0))
        yield f"{hops(primary)}\t{spare}{at_risk}" + (f"\t{beyond}" if beyond else "")


def _hop(fabric: Fabric, arc: int) -> str:
    structure = fabric.structure
    return f"{structure.nodes.ids[int(structure.head[arc])]}\t{structure.links.key[arc >> 1]}"


def _link(fabric: Fabric, row: int) -> str:
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    low, high = sorted((ids[int(links.a[row])], ids[int(links.b[row])]))
    return f"{low} {high} {links.key[row]}"
