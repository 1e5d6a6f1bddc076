from __future__ import annotations

import gzip
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.importers import ImportOptions, load_fabric, parse_mapping
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import arc_loads, worst_by_tier
from heddle_controller.solve.planner import solve
from tests.support.small_fabrics import shared_data

TABLE = """host,leaf,spine,core
h1,S1,P1,G
h2,S1,P1,G
h3,S1,P2,G
h4,S2,P2,G
"""
SMALL = ImportOptions(nics_per_host=2)


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "hosts.csv"
    path.write_text(text)
    return path


def _speeds(fabric: Fabric, tier: str) -> dict[tuple[str, str], list[float]]:
    """Return the speeds of the links of a tier, by their ends."""
    structure = fabric.structure
    found: dict[tuple[str, str], list[float]] = {}
    for row in np.flatnonzero(structure.tier_of_arc[::2] == structure.tiers.index(tier)).tolist():
        a, b = (
            structure.nodes.ids[int(end[row])] for end in (structure.links.a, structure.links.b)
        )
        found.setdefault((a, b), []).append(float(structure.links.gbps[row]))
    return found


def test_leaf_is_known_by_its_spine_group_too(tmp_path: Path) -> None:
    """S1 under P1 and S1 under P2 are two leaves. Zones are the groups of spines."""
    fabric = load_fabric(_written(tmp_path, TABLE), options=SMALL)
    ids, nodes = fabric.structure.nodes.ids, fabric.structure.nodes
    leaves = [ids[row] for row in fabric.rows_of_kind(NodeKind.LEAF)]
    assert leaves == ["P1.S1", "P2.S1", "P2.S2"]
    assert fabric.structure.zone_names == ("P1", "P2")
    assert Counter(nodes.kind.tolist()) == {0: 8, 1: 3, 2: 4, 3: 16}
    nic = fabric.structure.index["h3-nic1"]
    assert fabric.structure.host_names[nodes.host[nic]] == "h3"
    assert nodes.rail[nic] == -1


def test_leaf_uplinks_are_as_fast_as_its_nics(tmp_path: Path) -> None:
    """Two hosts of 2 × 400 under P1.S1 give two cables of 400 to each of the two spines."""
    speeds = _speeds(load_fabric(_written(tmp_path, TABLE), options=SMALL), "leaf-spine")
    assert speeds["P1.S1", "P1-0"] == speeds["P1.S1", "P1-1"] == [400.0] * 2
    assert speeds["P2.S2", "P2-1"] == [400.0]
    assert len(speeds) == 6


def test_cables_can_be_slower_than_nics(tmp_path: Path) -> None:
    """With cables of 200, 800 to a spine need four links."""
    options = ImportOptions(nics_per_host=2, uplink_gbps=200.0)
    speeds = _speeds(load_fabric(_written(tmp_path, TABLE), options=options), "leaf-spine")
    assert speeds["P1.S1", "P1-0"] == [200.0] * 4


def test_uplinks_are_rounded_up_to_whole_nics(tmp_path: Path) -> None:
    """Four NICs over three spines give two NICs' worth each, because a flow has one path."""
    options = ImportOptions(nics_per_host=2, spines_per_group=3)
    speeds = _speeds(load_fabric(_written(tmp_path, TABLE), options=options), "leaf-spine")
    assert speeds["P1.S1", "P1-2"] == [400.0] * 2
    assert speeds["P2.S1", "P2-0"] == [400.0]


def test_cores_join_the_planes(tmp_path: Path) -> None:
    """Spine 0 of each group is joined with the others by the cores of plane 0 alone."""
    options = ImportOptions(nics_per_host=4, cores_per_plane=2, core_taper=2.0)
    fabric = load_fabric(_written(tmp_path, TABLE), options=options)
    speeds = _speeds(fabric, "spine-core")
    assert len(speeds) == 2 * 4 * 2
    assert {spine[-1] == core.split("-")[1] for spine, core in speeds} == {True}
    # 2 hosts × 4 NICs over 4 spines are 800 down, so 400 up at 2:1. Over 2 cores that is 200 each,
    # raised to one NIC's 400.
    assert speeds["P1-0", "G-0-1"] == [400.0]


def test_several_groups_are_joined_even_without_a_core_column(tmp_path: Path) -> None:
    """Without cores, several groups would be in pieces. One group needs no cores."""
    rows = "host,leaf,spine\nh1,S1,P1\nh2,S1,P2\n"
    fabric = load_fabric(_written(tmp_path, rows), options=SMALL)
    assert len(fabric.rows_of_kind(NodeKind.CORE)) == 16
    fabric = load_fabric(_written(tmp_path, rows.replace("P2", "P1")), options=SMALL)
    assert len(fabric.rows_of_kind(NodeKind.CORE)) == 0


def test_a_column_of_leaves_is_enough(tmp_path: Path) -> None:
    """All leaves are under one group of spines."""
    fabric = load_fabric(_written(tmp_path, "Hostname, ToR\nh1, S1\nh2, S2\n"), options=SMALL)
    assert fabric.structure.tiers == ("nic-leaf", "leaf-spine")
    assert {"S1", "S2", "spine-0", "spine-1"} <= set(fabric.structure.nodes.ids)


def test_mapped_columns_are_the_only_ones_besides_host_and_leaf(tmp_path: Path) -> None:
    """If some columns are mapped, other layers are left out, even if their names are known."""
    text = "machine,rack,spine,core\nh1,S1,P1,G1\nh2,S2,P1,G2\n"
    mapping = parse_mapping("host=machine, leaf=rack, spine=spine")
    fabric = load_fabric(_written(tmp_path, text), mapping=mapping, options=SMALL)
    assert fabric.structure.tiers == ("nic-leaf", "leaf-spine")


def test_nics_of_a_host_are_in_order(tmp_path: Path) -> None:
    """With 12 NICs, number 10 comes after 9."""
    options = ImportOptions(nics_per_host=12)
    fabric = load_fabric(_written(tmp_path, TABLE), options=options)
    ids = [fabric.structure.nodes.ids[row] for row in fabric.structure.nics_of_host["h1"]]
    assert ids == [f"h1-nic{n:02}" for n in range(12)]


def test_packed_table(tmp_path: Path) -> None:
    """A gzip file is read, whatever its name."""
    path = tmp_path / "hosts.dat"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + TABLE.encode()))
    assert load_fabric(path, options=SMALL).node_count == 31


def _permutation(fabric: Fabric, seed: int) -> Flows:
    """Return flows in which every NIC sends 400 Gbit/s to another and receives from another."""
    nics = fabric.rows_of_kind(NodeKind.NIC)
    rng = np.random.default_rng(seed)
    source, count = rng.permutation(nics), len(nics)
    same = np.zeros(count, dtype=np.int64)
    return Flows(
        ids=tuple(f"f{row}" for row in range(count)),
        source=source,
        destination=np.roll(source, 1),
        gbps=np.full(count, 400.0),
        job=same,
        phase=same + ANY_PHASE,
        qps=same + 1,
        traffic_class=same,
        weight=np.ones(count),
        job_names=("",),
        phase_names=(),
    )


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=30),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_every_permutation_fits(places: list[tuple[int, int]], nics: int, seed: int) -> None:
    """However unevenly hosts are spread over leaves, links below the cores are not overloaded."""
    rows = "".join(f"h{n},S{leaf},P{spine}\n" for n, (spine, leaf) in enumerate(places))
    with tempfile.TemporaryDirectory() as folder:
        path = _written(Path(folder), "host,leaf,spine\n" + rows)
        fabric = load_fabric(path, options=ImportOptions(nics_per_host=nics))
    plan = solve(fabric, _permutation(fabric, seed))
    assert not plan.unrouted
    loads = arc_loads(2 * fabric.link_count, plan.flows, plan.paths)
    worst = worst_by_tier(fabric, loads)
    assert worst["leaf-spine"] <= 1.0 + 1e-9
    assert worst["nic-leaf"] == pytest.approx(1.0)


def test_lingjun() -> None:
    """847 hosts under 119 pairs of PSW and ASW: 1:1 from NICs to spines, joined by cores."""
    mapping = parse_mapping("host=ip,leaf=ASW,spine=PSW,core=DSW")
    fabric = load_fabric(shared_data("lingjun2023_topo.csv"), mapping=mapping)
    structure = fabric.structure
    kinds = Counter(structure.nodes.kind.tolist())
    assert kinds == {0: 847 * 8, 1: 119, 2: 3 * 8, 3: 8 * 8}
    assert len(structure.host_names) == 847
    speed = {
        tier: structure.links.gbps[structure.tier_of_arc[::2] == row].sum()
        for row, tier in enumerate(structure.tiers)
    }
    assert speed["nic-leaf"] == speed["leaf-spine"] == 847 * 8 * 400
    assert 1.0 <= speed["spine-core"] / speed["leaf-spine"] < 1.03
    down, up = (np.zeros(fabric.node_count) for _ in range(2))
    np.add.at(down, structure.links.b, structure.links.gbps)
    np.add.at(up, structure.links.a, structure.links.gbps)
    leaves = fabric.rows_of_kind(NodeKind.LEAF)
    assert (down[leaves] == up[leaves]).all()
    plan = solve(fabric, _permutation(fabric, 1))
    loads = arc_loads(2 * fabric.link_count, plan.flows, plan.paths)
    assert worst_by_tier(fabric, loads)["leaf-spine"] == pytest.approx(1.0)
    same = load_fabric(shared_data("lingjun2023_topo.csv"))
    assert same.structure.nodes.ids == structure.nodes.ids


@pytest.mark.parametrize(
    ("text", "mapping", "told"),
    [
        (TABLE, "leef=leaf", "mapping leef=leaf: unknown 'leef'; did you mean leaf?"),
        (TABLE, "leaf=laef", "line 1: no column 'laef' for leaf; did you mean leaf?"),
        ("a,b\n1,2\n", "", "line 1: no column for host in ['a', 'b']; map one, such as host=NAME"),
        ("host,leaf\n", "", "no host below the header"),
        ("host,leaf\nh1,\n", "", "line 2: leaf is empty; fill it in"),
        ("host,leaf\nh1\n", "", "line 2: leaf is empty; fill it in"),
        (
            TABLE + "h1,S9,P9,G\n",
            "",
            "line 6, host 'h1': stands in line 2 too; give each",
        ),
        (TABLE + "h9,S9,P9,F\n", "", "line 6: core 'F', but hosts above are under 'G'"),
        ('host,leaf\n"h1,S1\n', "", "malformed CSV"),
    ],
)
def test_what_is_no_host_table_is_refused(
    tmp_path: Path, text: str, mapping: str, told: str
) -> None:
    """One line names the file, the line or column, and what to do."""
    path = _written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_fabric(path, format="csv", mapping=parse_mapping(mapping), options=SMALL)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_garbage_is_refused(tmp_path: Path) -> None:
    """Random bytes are neither JSON nor CSV. Files that are too large or empty are refused, too."""
    path = tmp_path / "fabric"
    path.write_bytes(b"\xff" + os.urandom(1 << 16))
    with pytest.raises(InputError, match="neither JSON nor UTF-8 text"):
        load_fabric(path)
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(InputError, match="the file is 2048 MiB, the ceiling is 1024 MiB"):
        load_fabric(path)
    path.write_text("")
    with pytest.raises(InputError, match="the file is empty"):
        load_fabric(path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (ImportOptions(nics_per_host=0), "option nics_per_host: is 0; give 1 or more"),
        (ImportOptions(nic_gbps=float("nan")), "option nic_gbps: is nan; give a finite number"),
        (ImportOptions(core_taper=-1.0), "option core_taper: is -1.0"),
        (ImportOptions(speed_unit="X"), "option speed_unit: is 'X'; give one of bps, K, M, G, T"),
        (ImportOptions(nics_per_host=1 << 20), "at most 1,048,576 NICs"),
    ],
)
def test_options_that_cannot_be_built_are_refused(
    tmp_path: Path, options: ImportOptions, told: str
) -> None:
    """The error names the option."""
    with pytest.raises(InputError) as caught:
        load_fabric(_written(tmp_path, TABLE), options=options)
    assert told in str(caught.value)


def test_mapping_in_words() -> None:
    """The form is OURS=THEIRS, separated by commas. Anything else is refused."""
    assert parse_mapping(" host=ip, leaf=ASW,") == {"host": "ip", "leaf": "ASW"}
    assert parse_mapping("") == {}
    for text, told in (("host", "give OURS=THEIRS"), ("a=b,a=c", "a is given twice")):
        with pytest.raises(InputError, match=told):
            parse_mapping(text)
