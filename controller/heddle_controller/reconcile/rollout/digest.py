"""The digest by which agent and controller know that they mean the same entries.

The rule is in agent.proto, at SessionParameters.table_digest. Text, because it has
to be the same in any language and on any fabric file that names the same things.
"""

from __future__ import annotations

import hashlib

from heddle_controller.model.fabric import NONE, Fabric
from heddle_controller.model.program import Entries


def table_digest(fabric: Fabric, entries: Entries) -> bytes:
    """Digest of the entries of one switch; empty for none."""
    if not len(entries):
        return b""
    ids = fabric.structure.nodes.ids
    matches = sorted(
        zip(
            (ids[row] for row in entries.source.tolist()),
            (ids[row] for row in entries.destination.tolist()),
            entries.source_port.tolist(),
            entries.destination_port.tolist(),
            range(len(entries)),
            strict=True,
        )
    )
    lines = ["\t".join([*map(str, match), _way(fabric, entries, row)]) for *match, row in matches]
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).digest()


def _way(fabric: Fabric, entries: Entries, row: int) -> str:
    backup = int(entries.backup[row])
    fields = [*_hop(fabric, int(entries.primary[row]))]
    fields += ["", ""] if backup == NONE else _hop(fabric, backup)
    fields += sorted(_link(fabric, link) for link in entries.risks(row).tolist())
    return "\t".join(fields)


def _hop(fabric: Fabric, arc: int) -> list[str]:
    structure = fabric.structure
    return [structure.nodes.ids[int(structure.head[arc])], str(structure.links.key[arc >> 1])]


def _link(fabric: Fabric, row: int) -> str:
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    low, high = sorted((ids[int(links.a[row])], ids[int(links.b[row])]))
    return f"{low} {high} {links.key[row]}"
