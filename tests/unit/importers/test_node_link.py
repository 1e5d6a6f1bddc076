from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from heddle_controller.importers import ImportOptions, load_fabric, parse_mapping
from heddle_controller.importers.options import gbps_of
from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.files.fabric_file import fabric_document
from tests.support.small_fabrics import clos

THEIRS: dict[str, Any] = {
    "nodes": [
        {"name": "srv1", "role": "Server", "pod": "a"},
        {"name": "srv2", "role": "Server", "pod": "a"},
        {"name": "t1", "role": "Top-of-Rack", "pod": "a"},
        {"name": "t2", "role": "Top-of-Rack", "pod": "a"},
        {"name": "x1", "role": "Agg"},
    ],
    "links": [
        {"from": "srv1", "to": "t1", "bandwidth": "400G"},
        {"from": "srv1", "to": "t2", "bandwidth": "400 Gb/s"},
        {"from": "srv2", "to": "t1", "bandwidth": "0.4T"},
        {"from": "t1", "to": "x1", "bandwidth": "400Gbps"},
        {"from": "x1", "to": "t2", "bandwidth": 400, "status": "maintenance"},
    ],
}


def _loaded(tmp_path: Path, document: object, mapping: str = "", **options: Any) -> Fabric:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(document))
    chosen = ImportOptions(**options)
    return load_fabric(path, mapping=parse_mapping(mapping), options=chosen)


def _kind(fabric: Fabric, node: str) -> NodeKind:
    return NodeKind(fabric.structure.nodes.kind[fabric.structure.index[node]])


def test_common_words_are_understood(tmp_path: Path) -> None:
    """Names, roles, pods, speeds with units and other words for states are read.

    Hosts become NICs.
    """
    fabric = _loaded(tmp_path, THEIRS)
    assert set(fabric.structure.nodes.ids) == {
        *("srv1-nic0", "srv1-nic1", "srv2", "t1", "t2", "x1"),
    }
    assert _kind(fabric, "srv2") == NodeKind.NIC
    assert _kind(fabric, "t1") == NodeKind.LEAF
    assert _kind(fabric, "x1") == NodeKind.SPINE
    assert set(fabric.structure.nics_of_host) == {"srv1", "srv2"}
    assert fabric.structure.zone_names == ("a",)
    assert set(fabric.structure.links.gbps.tolist()) == {400.0}
    (row,) = fabric.find_links("x1", "t2")
    assert fabric.link_state[row] == State.DRAINED


def test_words_can_be_mapped(tmp_path: Path) -> None:
    """Fields are mapped by the attribute's name, kinds by its value."""
    document = {
        "nodes": [
            {"uid": 1, "what": "end"},
            {"uid": 2, "what": "end"},
            {"uid": 3, "what": "low"},
        ],
        "edges": [
            {"p": 1, "q": 3, "cap": 100000000000, "oper": "up"},
            {"p": 2, "q": 3, "cap": "100GbE", "oper": "failed"},
        ],
    }
    mapping = "id=uid,kind=what,nic=end,leaf=low,source=p,target=q,gbps=cap,state=oper"
    fabric = _loaded(tmp_path, document, mapping, speed_unit="bps")
    assert _kind(fabric, "1") == NodeKind.NIC
    assert _kind(fabric, "3") == NodeKind.LEAF
    assert fabric.structure.links.gbps.tolist() == [100.0, 100.0]
    assert fabric.link_state.tolist() == [State.UP, State.DOWN]


@pytest.mark.parametrize("edges", ["links", "edges"])
def test_what_networkx_writes(tmp_path: Path, edges: str) -> None:
    """In a graph without kinds, nodes with one link are NICs. Both names of the list are read."""
    graph = nx.random_regular_graph(3, 8, seed=1)
    for switch in range(8):
        graph.add_edge(switch, f"n{switch}")
    nx.set_edge_attributes(graph, {edge: {"capacity": 100} for edge in graph.edges})
    fabric = _loaded(tmp_path, nx.node_link_data(graph, edges=edges))
    assert len(fabric.rows_of_kind(NodeKind.NIC)) == 8
    assert len(fabric.rows_of_kind(NodeKind.SWITCH)) == 8
    assert fabric.link_count == 12 + 8


def test_directed_graph_has_each_link_once(tmp_path: Path) -> None:
    """Both directions of a link are one link. Parallel links are kept."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for nic in "ab":
        graph.add_node(nic, type="nic")
    graph.add_node("s", type="leaf")
    graph.add_node("t", type="spine")
    for a, b in [("a", "s"), ("b", "s"), ("s", "t"), ("s", "t")]:
        graph.add_edge(a, b, speed=100)
        graph.add_edge(b, a, speed=100)
    fabric = _loaded(tmp_path, nx.node_link_data(graph, edges="edges"))
    assert fabric.link_count == 4
    assert len(fabric.find_links("s", "t")) == 2


def test_undirected_list_of_both_ways(tmp_path: Path) -> None:
    """Without multigraph, swapped ends are one link, and the same order twice is two links."""
    document = {
        "nodes": [
            {"id": "a", "kind": "host"},
            {"id": "b", "kind": "host"},
            {"id": "s", "kind": "tor"},
        ],
        "edges": [
            {"source": "a", "target": "s", "bw": 100},
            {"source": "s", "target": "a", "bw": 100},
            {"source": "b", "target": "s", "bw": 100},
            {"source": "b", "target": "s", "bw": 100},
        ],
    }
    fabric = _loaded(tmp_path, document)
    assert sorted(fabric.structure.nodes.ids) == ["a", "b-nic0", "b-nic1", "s"]
    assert fabric.link_count == 3


def test_links_may_name_ends_by_name_or_place(tmp_path: Path) -> None:
    """Ends may be given by the attribute "name" if the id is another, or by place as in D3."""
    nodes = [
        {"id": "id-a", "name": "a", "kind": "nic"},
        {"id": "id-b", "name": "b", "kind": "nic"},
        {"id": "id-s", "name": "s", "kind": "switch"},
    ]
    by_name = [{"source": n, "target": "s", "gbps": 1} for n in "ab"]
    by_place = [{"source": n, "target": 2, "gbps": 1} for n in (0, 1)]
    for edges in (by_name, by_place):
        fabric = _loaded(tmp_path, {"nodes": nodes, "edges": edges}, "kind=kind")
        assert fabric.structure.links.b.tolist() == [2, 2]
        assert fabric.structure.links.a.tolist() == [0, 1]


def test_our_own_form_goes_straight_through(tmp_path: Path) -> None:
    """What Heddle wrote is read back unchanged in each of these formats."""
    ours = fabric_document(clos(2, 2, rails=True))
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps(ours))
    for name in ("auto", "heddle", "node-link"):
        assert fabric_document(load_fabric(path, format=name)) == ours


def test_link_speed_may_be_given_for_all(tmp_path: Path) -> None:
    """A file without speeds needs the option."""
    document = {
        "nodes": [{"id": n, "kind": "nic"} for n in "ab"] + [{"id": "s", "kind": "switch"}],
        "edges": [{"source": n, "target": "s"} for n in "ab"],
    }
    with pytest.raises(InputError, match=r"edges\[0\] \('a'-'s'\): has no speed; map its att"):
        _loaded(tmp_path, document)
    assert _loaded(tmp_path, document, link_gbps=25.0).structure.links.gbps.tolist() == [25, 25]


def _changed(**changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(THEIRS)), **changes}


@pytest.mark.parametrize(
    ("document", "mapping", "told"),
    [
        (_changed(nodes=[]), "", "nodes: is []; give a list with at least one record"),
        (_changed(nodes=[1]), "", "nodes[0]: is 1; give an object"),
        ({"nodes": [{"id": 1}]}, "", "edges: missing; node-link data has edges or links"),
        (_changed(nodes=[{"role": "x"}]), "", "none has an id; map its attribute, such as id=NAME"),
        (THEIRS, "kind=rolle", "mapping kind=rolle: no node has the attribute 'rolle'; they have"),
        (THEIRS, "gpbs=x", "unknown 'gpbs'; did you mean gbps?"),
        (THEIRS, "state=health", "mapping state=health: no node has the attribute 'health'"),
        (
            _changed(nodes=[{"id": "a", "role": "toaster"}], links=[]),
            "",
            "links: is []; give a list",
        ),
        (
            _changed(nodes=[*THEIRS["nodes"], {"name": "z", "role": "toaster"}]),
            "",
            "nodes[5]: role is 'toaster', which is not a known kind; map it, such as leaf=VALUE",
        ),
        (
            _changed(links=[{"from": "srv1", "to": "t9", "bandwidth": 1}]),
            "",
            "edges[0]: to is 't9', which is not a node; name one",
        ),
        (_changed(links=[{"x": 1}]), "", "none has a source; map its attribute"),
        (
            _changed(links=[{"from": "srv1", "to": "t1", "bandwidth": "fast"}]),
            "",
            "edges[0] ('srv1'-'t1'): 'fast' is not a speed; write one above 0",
        ),
        (
            _changed(links=[{"from": "srv1", "to": "t1", "bandwidth": 4e11}]),
            "",
            "would be 4e+11 Gbit/s; tell the unit of bare numbers (speed_unit=bps?)",
        ),
        (
            _changed(
                links=[
                    {"from": "srv1", "to": "t1", "bandwidth": 400},
                    {"from": "t1", "to": "srv1", "bandwidth": 100},
                ]
            ),
            "",
            "400 Gbit/s one way and 100 back; give one speed",
        ),
        (
            _changed(links=[*THEIRS["links"], {**THEIRS["links"][0], "status": "sleepy"}]),
            "",
            "'sleepy'",
        ),
    ],
)
def test_what_is_no_fabric_is_refused(
    tmp_path: Path, document: object, mapping: str, told: str
) -> None:
    """One line names the file and says what is wrong or what to do."""
    with pytest.raises(InputError) as caught:
        _loaded(tmp_path, document, mapping)
    assert str(caught.value).startswith(f"{tmp_path / 'theirs.json'}: ")
    assert told in str(caught.value)


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    """The error lists the known formats."""
    with pytest.raises(InputError, match=r"unknown; use one of auto, heddle, node-link, csv"):
        load_fabric(tmp_path / "x", format="dot")


@pytest.mark.parametrize(
    ("value", "gbps"),
    [
        (400, 400.0),
        (0.5, 0.5),
        ("400", 400.0),
        ("400G", 400.0),
        ("400GbE", 400.0),
        ("400 Gbit/s", 400.0),
        ("1.6Tbps", 1600.0),
        ("100000M", 100.0),
        ("50GB/s", 400.0),
        ("25e9 bps", 25.0),
    ],
)
def test_speeds_in_words(value: object, gbps: float) -> None:
    """Speeds are in Gbit/s. B means bytes."""
    assert gbps_of(value, "G") == pytest.approx(gbps)


@pytest.mark.parametrize(
    "value", ["", "G", "-4G", "nan", "4X", 0, -1, float("nan"), True, None, []]
)
def test_what_is_no_speed(value: object) -> None:
    """Only a finite speed above 0 is accepted."""
    with pytest.raises(ValueError, match="is not a speed"):
        gbps_of(value, "G")


def test_a_gpu_of_a_nic_is_taken_and_of_others_is_not(tmp_path: Path) -> None:
    """A number on a NIC is the GPU that it serves. A model, or a number elsewhere, is ignored.

    If gpu is mapped, a model is refused.
    """
    nodes: list[dict[str, Any]] = [
        {"id": "a-1", "kind": "nic", "host": "a", "gpu": "1"},
        {"id": "a-2", "kind": "nic", "host": "a", "gpu": 0},
        {"id": "b", "kind": "nic", "host": "b", "gpu": "H100"},
        {"id": "c", "kind": "server", "gpu": 8},
        {"id": "s", "kind": "leaf", "gpu": 3},
    ]
    links = [{"source": n, "target": "s", "gbps": 400} for n in ("a-1", "a-2", "b", "c", "c")]
    document = {"multigraph": True, "nodes": nodes, "links": links}
    structure = _loaded(tmp_path, document).structure
    assert [structure.nodes.ids[nic] for nic in structure.nics_of_host["a"]] == ["a-2", "a-1"]
    assert int(structure.nodes.gpu[structure.index["b"]]) == NONE
    assert len(structure.nics_of_host["c"]) == 2
    with pytest.raises(InputError, match="gpu is 'H100'"):
        _loaded(tmp_path, document, "gpu=gpu")
