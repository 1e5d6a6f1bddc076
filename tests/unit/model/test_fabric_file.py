"""Reading and writing fabric.json."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.model.files.fabric_file import (
    fabric_document,
    load_fabric_file,
    parse_fabric,
    save_fabric_file,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "fabric.json"


def golden() -> dict[str, Any]:
    """The golden document, which has every field of the format."""
    document: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return document


def test_golden_fabric_is_read_field_by_field() -> None:
    """Every field of the format lands in its column, and absent ones are NONE or empty."""
    fabric = load_fabric_file(GOLDEN)
    nodes, index = fabric.structure.nodes, fabric.structure.index
    nic, leaf, spine = index["h1n0"], index["leaf1"], index["spine2"]
    assert fabric.name == "golden"
    assert nodes.kind[[nic, leaf, spine, index["core1"]]].tolist() == [0, 1, 2, 3]
    assert fabric.structure.zone_names[nodes.zone[nic]] == "z1"
    assert fabric.structure.host_names[nodes.host[nic]] == "h1"
    assert (nodes.rail[nic], nodes.plane[index["core1"]]) == (0, 1)
    assert (nodes.gpu[nic], nodes.gpu[index["h2n0"]], nodes.gpu[leaf]) == (0, NONE, NONE)
    assert (nodes.table_size[leaf], nodes.table_size[spine]) == (128, NONE)
    assert (nodes.address[nic], nodes.address[spine]) == ("10.0.1.1", "")
    assert fabric.node_state[spine] == State.DRAINED
    (link,) = fabric.find_links("leaf2", "spine2")
    assert fabric.link_state[link] == State.DOWN
    assert fabric.structure.links.gbps[fabric.find_links("spine1", "core1")[0]] == 57.5


def test_keys_stay_as_they_are() -> None:
    """Integer and string keys keep their type; either form finds the link."""
    fabric = load_fabric_file(GOLDEN)
    keys = fabric.structure.links.key
    assert [keys[row] for row in fabric.find_links("leaf1", "spine1")] == [7, "b", 0]
    assert fabric.find_links("leaf1", "spine1", "7") == fabric.find_links("leaf1", "spine1", 7)
    assert fabric.links_named("spine1,leaf1") == fabric.find_links("leaf1", "spine1")
    assert fabric.links_named("leaf1,spine1,b") == fabric.find_links("leaf1", "spine1", "b")
    for text in (
        "",
        ",",
        "leaf1",
        "leaf1,spine1,",
        "leaf1,spine1,c",
        "leaf1,leaf2",
        "leaf1,spine1,b,",
    ):
        assert fabric.links_named(text) == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([None, None, None], [0, 1, 2]),
        ([None, 0, None], [1, 0, 2]),
        (["1", None, None], ["1", 0, 2]),
    ],
)
def test_missing_keys_are_ordinals(given: list[Any], expected: list[Any]) -> None:
    """Parallel links without keys are numbered, skipping the keys that are given."""
    document = golden()
    for edge, key in zip(document["edges"][4:7], given, strict=True):
        edge["key"] = key
    assert [*parse_fabric(document, "x").structure.links.key[4:7]] == expected


def test_written_fabric_is_the_golden_file(tmp_path: Path) -> None:
    """A written fabric is byte for byte the golden file, which outside tools read."""
    save_fabric_file(load_fabric_file(GOLDEN), tmp_path / "out.json")
    assert (tmp_path / "out.json").read_bytes() == GOLDEN.read_bytes()


def test_gzip_is_known_by_content_not_by_name(tmp_path: Path) -> None:
    """A packed file is read under any name, and a plain file even if it is called .gz."""
    (tmp_path / "packed.json").write_bytes(gzip.compress(GOLDEN.read_bytes()))
    (tmp_path / "plain.json.gz").write_bytes(GOLDEN.read_bytes())
    expected = fabric_document(load_fabric_file(GOLDEN))
    for name in ("packed.json", "plain.json.gz"):
        assert fabric_document(load_fabric_file(tmp_path / name)) == expected


def test_saved_gz_is_packed_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """A file named .gz is written as gzip, always the same bytes, with no left-over file."""
    fabric = load_fabric_file(GOLDEN)
    save_fabric_file(fabric, tmp_path / "a.json.gz")
    save_fabric_file(fabric, tmp_path / "b.json.gz")
    first = (tmp_path / "a.json.gz").read_bytes()
    assert gzip.decompress(first) == GOLDEN.read_bytes()
    assert first == (tmp_path / "b.json.gz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz"]


def test_links_serve_as_edges() -> None:
    """Edges may be called "links", as in files of older networkx."""
    document = golden()
    document["links"] = document.pop("edges")
    assert fabric_document(parse_fabric(document, "x")) == golden()


def test_integer_ids_and_zones_become_strings() -> None:
    """Integer ids and zones, as networkx writes them, become strings."""
    document = {
        "nodes": [
            {"id": 0, "kind": "switch", "zone": 4},
            {"id": 1, "kind": "nic"},
            {"id": "2", "kind": "nic"},
        ],
        "edges": [
            {"source": 1, "target": 0, "gbps": 100},
            {"source": "0", "target": 2, "gbps": 100},
        ],
    }
    fabric = parse_fabric(document, "x")
    assert fabric.structure.nodes.ids == ("0", "1", "2")
    assert fabric.structure.zone_names == ("4",)
    assert fabric.structure.links.key == (0, 0)


def test_a_fabric_all_down_is_not_malformed() -> None:
    """A fabric with every link down is still read, since the check ignores states."""
    document = golden()
    for edge in document["edges"]:
        edge["state"] = "down"
    fabric = parse_fabric(document, "x")
    assert not fabric.carries.any()


def test_nics_in_two_planes_count_as_joined() -> None:
    """Two planes that are joined only by NICs are one valid fabric."""
    nodes = [{"id": f"n{i}", "kind": "nic"} for i in range(3)]
    nodes += [{"id": f"plane{i}", "kind": "leaf"} for i in range(2)]
    edges = [
        {"source": f"n{i}", "target": f"plane{j}", "gbps": 200} for i in range(3) for j in range(2)
    ]
    fabric = parse_fabric({"nodes": nodes, "edges": edges}, "x")
    assert np.count_nonzero(fabric.structure.nodes.kind == NodeKind.NIC) == 3


def test_problems_name_every_faulty_record() -> None:
    """One reading reports several faulty records; the message is one line about the first."""
    document = deepcopy(golden())
    document["edges"][0]["gbps"] = -1
    document["edges"][1]["gbps"] = "fast"
    document["edges"][2]["state"] = "broken"
    with pytest.raises(InputError) as caught:
        parse_fabric(document, "fab.json")
    assert len(caught.value.problems) == 2
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("fab.json: edge ")


def test_a_large_fabric_comes_back_whole(tmp_path: Path) -> None:
    """A fabric of 3,072 NICs is read, written packed, and read again without a difference."""
    nodes: list[dict[str, Any]] = [{"id": f"leaf{r}", "kind": "leaf"} for r in range(192)]
    nodes += [{"id": f"spine{s}", "kind": "spine"} for s in range(16)]
    nodes += [{"id": f"n{n}", "kind": "nic", "host": f"h{n // 8}"} for n in range(3072)]
    edges = [
        {"source": f"leaf{r}", "target": f"spine{s}", "key": 0, "gbps": 400.0}
        for r in range(192)
        for s in range(16)
    ]
    edges += [
        {"source": f"n{n}", "target": f"leaf{n // 16}", "key": 0, "gbps": 400.0}
        for n in range(3072)
    ]
    (tmp_path / "in.json").write_bytes(orjson.dumps({"nodes": nodes, "edges": edges}))
    fabric = load_fabric_file(tmp_path / "in.json")
    save_fabric_file(fabric, tmp_path / "out.json.gz")
    again = fabric_document(load_fabric_file(tmp_path / "out.json.gz"))
    assert again["nodes"] == nodes
    assert again["edges"] == edges
