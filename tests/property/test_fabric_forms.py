"""Fabrics written in the formats of other programs are read back as the same fabrics."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from heddle_controller.importers import ImportOptions, clab_text, load_fabric
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from tests.support.depth import fresh_seeds
from tests.support.drawn import drawn as case_of

ODD = ("", "-", "é", "1e5", "012", "yes", "a b", 'q"', "x:y", "null", "\\", "#", "~", "1:30", "\t")


def parts(fabric: Fabric) -> tuple[object, ...]:
    """Name, nodes and edges of a fabric, sorted, to compare fabrics regardless of order."""
    told = fabric_document(fabric)
    return fabric.name, sorted(map(repr, told["nodes"])), sorted(map(repr, told["edges"]))


def strangely_named(fabric: Fabric, random: Random) -> Fabric:
    """The same fabric with names that other formats have to quote."""
    told = fabric_document(fabric)
    names: dict[Any, str] = {}

    def name(old: str) -> str:
        return names.setdefault(old, f"{random.choice(ODD)}{len(names)}{random.choice(ODD)}")

    for node in told["nodes"]:
        node["id"] = name(node["id"])
        for word in ("host", "zone"):
            if word in node:
                node[word] = name((word, node[word]))  # type: ignore[arg-type]
    for edge in told["edges"]:
        edge["source"], edge["target"] = names[edge["source"]], names[edge["target"]]
    told["graph"]["name"] = random.choice(ODD)
    return parse_fabric(told, "drawn")


@pytest.mark.deep
def test_containerlab_gives_back_what_was_written(tmp_path: Path) -> None:
    """A containerlab file keeps names, kinds, speeds, keys, states and parallel links."""
    for seed in fresh_seeds(40):
        fabric = strangely_named(case_of(seed).fabric, Random(seed))
        path = tmp_path / "lab.clab.yml"
        path.write_text(clab_text(fabric), encoding="utf-8")
        assert parts(load_fabric(path)) == parts(fabric), f"seed {seed}"


def subnet(fabric: Fabric, random: Random) -> str:
    """A fabric as ibnetdiscover prints it, with its nodes in random order."""
    structure = fabric.structure
    ids, nic = structure.nodes.ids, structure.nodes.kind == NodeKind.NIC
    guids = [f"{'H' if nic[row] else 'S'}-{random.getrandbits(60) * 256 + row:016x}"
             for row in range(len(ids))]  # fmt: skip
    count = [0] * len(ids)
    cables: dict[int, list[str]] = {row: [] for row in range(len(ids))}
    for a, b in zip(structure.links.a.tolist(), structure.links.b.tolist(), strict=True):
        count[a], count[b] = count[a] + 1, count[b] + 1
        for here, there in ((a, b), (b, a)):
            cables[here].append(
                f'[{count[here]}](1) \t"{guids[there]}"[{count[there]}](2)\t\t'
                f'# lid 3 lmc 0 "{ids[there]}" lid 4 4xNDR'
            )
    rows = list(range(len(ids)))
    random.shuffle(rows)
    blocks = [
        "\n".join([
            "vendid=0x2c9", f"{'ca' if nic[row] else 'switch'}guid=0x1",
            f'{"Ca" if nic[row] else "Switch"}\t{count[row]} "{guids[row]}"\t\t# "{ids[row]}"'
            + ("" if nic[row] else " base port 0 lid 0 lmc 0"),
            *cables[row],
        ])
        for row in rows
    ]  # fmt: skip
    return "#\n# Topology file: generated on Mon Nov 23\n#\n" + "\n\n".join(blocks) + "\n"


def lldp(fabric: Fabric, random: Random) -> dict[str, Any]:
    """A fabric as lldpctl prints it on each machine.

    Every node, also a NIC, is a machine of its own. Some switch ports have not heard from their NIC
    yet.
    """
    structure = fabric.structure
    ids, nic = structure.nodes.ids, structure.nodes.kind == NodeKind.NIC
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in ids}
    for row, (a, b) in enumerate(
        zip(structure.links.a.tolist(), structure.links.b.tolist(), strict=True)
    ):
        for here, there in ((a, b), (b, a)):
            if random.random() < 0.05 and not nic[here] and nic[there]:
                continue  # some ports have not heard anything yet
            able = [{"type": "Bridge", "enabled": not nic[there]}]
            far = {"id": {"type": "mac", "value": f"02:00:{row}"}, "descr": f"p{row}"}
            named = {"id": {"type": "ifname", "value": f"p{row}"}}
            seen[ids[here]].append({
                f"p{row}": {
                    "via": "LLDP",
                    "chassis": {ids[there]: {"id": {}, "capability": able}},
                    "port": random.choice([far, named]),
                }
            })  # fmt: skip
    return {
        name: {"lldp": {"interface": views[0] if len(views) == 1 else views} if views else {}}
        for name, views in seen.items()
    }


def joined(fabric: Fabric) -> list[tuple[str, ...]]:
    """The sorted pairs of node names that a link joins, one pair for each link."""
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    ends = zip(links.a.tolist(), links.b.tolist(), strict=True)
    return sorted(tuple(sorted((ids[a], ids[b]))) for a, b in ends)


@pytest.mark.deep
def test_discovered_cables_are_the_fabrics(tmp_path: Path) -> None:
    """Each cable gives one link, whichever ends report it, and NICs are recognised."""
    options = ImportOptions(link_gbps=400.0)
    for seed in fresh_seeds(30):
        random = Random(seed)
        drawn = case_of(seed).fabric
        path = tmp_path / "found"
        told = fabric_document(drawn)
        one_link = {
            node["id"]
            for node in told["nodes"]
            if node["kind"] != "nic"
            or sum(node["id"] in (e["source"], e["target"]) for e in told["edges"]) == 1
        }
        if len(one_link) < len(told["nodes"]):
            continue  # discovery takes a NIC with two links for two NICs
        path.write_text(subnet(drawn, random))
        found = load_fabric(path)
        assert joined(found) == joined(drawn), f"seed {seed}"
        assert set(found.structure.links.gbps.tolist()) == {400.0}
        path.write_text(json.dumps(lldp(drawn, random)))
        found = load_fabric(path, options=options)
        assert joined(found) == joined(drawn), f"seed {seed}"
        nics = {drawn.structure.nodes.ids[row] for row in drawn.rows_of_kind(NodeKind.NIC)}
        assert {found.structure.nodes.ids[r] for r in found.rows_of_kind(NodeKind.NIC)} == nics
