"""Bounds by cuts on fabrics small enough to calculate by hand."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.flows import Flows
from heddle_controller.solve import solve
from heddle_controller.solve.bounds.cuts import Bound, Cuts, cut_bound
from heddle_controller.solve.network import Network
from heddle_emulator.topology import clos, dual_tor, random_regular, three_tier
from tests.support.exact import Exact
from tests.support.small_fabrics import without_zones
from tests.support.solve_fabrics import of_records
from tests.support.solve_flows import Row, flows_of


def bound_of(fabric: Fabric, flows: Flows) -> Bound:
    """The cut bound with all flows counted."""
    return cut_bound(Network(fabric), flows, np.ones(len(flows), dtype=np.bool_))


def tiers(fabric: Fabric, flows: Flows) -> dict[str, float]:
    """The bound of each tier, by name."""
    return dict(zip(fabric.structure.tiers, bound_of(fabric, flows).tiers.tolist(), strict=True))


def one(gbps: float = 400.0, qps: int = 1, job: str = "j", phase: str = "") -> Row:
    """A flow from the first NIC of the first leaf to that of the second."""
    return ("l0-h0-n0", "l1-h0-n0", gbps, qps, job, phase)


def test_whole_flows_are_counted_in_whole() -> None:
    """Three flows of one QP over two uplinks: one of them carries two."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3)
    rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 1, "j", "") for i in range(3)]
    flows = flows_of(fabric, *rows)
    assert tiers(fabric, flows) == {"nic-leaf": 1.0, "leaf-spine": 2.0}
    assert bound_of(fabric, flows).overall == 2.0


def test_qps_make_the_steps_smaller() -> None:
    """Three flows of four QPs are twelve QPs of 100 over two uplinks of 400: six each, 1.5."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3)
    rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 4, "j", "") for i in range(3)]
    assert tiers(fabric, flows_of(fabric, *rows)) == {"nic-leaf": 1.0, "leaf-spine": 1.5}


def test_flows_of_many_rates_come_in_steps_of_what_measures_all() -> None:
    """400 + 100 over two uplinks of 400 is 0.625 each; but loads are multiples of 100: 0.75."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3)
    flows = flows_of(fabric, one(), ("l0-h0-n1", "l1-h0-n1", 100.0, 1, "j", ""))
    assert tiers(fabric, flows) == {"nic-leaf": 1.0, "leaf-spine": 0.75}


def test_a_qp_larger_than_any_uplink_overfills_one() -> None:
    """1,000 Gbit/s over four uplinks of 200 need not exceed 1.5, but a QP of 400 makes it 2."""
    fabric = clos(leaves=2, spines=4, nics_per_leaf=3, uplink_gbps=200.0)
    small = ("l0-h0-n1", "l1-h0-n1", 200.0, 2, "j", "")
    other = ("l0-h0-n2", "l1-h0-n2", 400.0, 4, "k", "")
    flows = flows_of(fabric, one(), small, other)
    assert tiers(fabric, flows) == {"nic-leaf": 1.0, "leaf-spine": 2.0}
    assert solve(fabric, flows).certificate.gap == pytest.approx(0.0)


def test_a_large_qp_follows_the_fastest_uplink() -> None:
    """A QP of 400 fits into a fast uplink until this is lost, and again when it is back."""
    document = fabric_document(clos(leaves=2, spines=2, nics_per_leaf=1, uplink_gbps=200.0))
    for edge in document["edges"]:
        edge["gbps"] = 400.0 if "s0" in (edge["source"], edge["target"]) else edge["gbps"]
    fabric = parse_fabric(document, "test")
    network, flows = Network(fabric), flows_of(fabric, one())
    cuts = Cuts(network, flows, np.ones(1, dtype=np.bool_))
    tier = fabric.structure.tiers.index("leaf-spine")
    link = fabric.find_links("l0", "s0")[0]
    proven = [float(cuts.bound().tiers[tier])]
    for usable in (False, True):
        cuts.change(np.array([2 * link, 2 * link + 1]), usable=usable)
        proven.append(float(cuts.bound().tiers[tier]))
    assert proven == pytest.approx([2 / 3, 2.0, 2 / 3])


def test_dead_and_drained_uplinks_carry_nothing() -> None:
    """With two of four uplinks gone, four flows need two on each of the rest."""
    fabric = clos(leaves=2, spines=4, nics_per_leaf=4)
    rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 1, "j", "") for i in range(4)]
    lost = {
        fabric.find_links("l0", "s0")[0]: State.DOWN,
        fabric.find_links("l0", "s1")[0]: State.DRAINED,
    }
    fabric = fabric.with_links(lost)
    assert tiers(fabric, flows_of(fabric, *rows))["leaf-spine"] == 2.0


def test_incast_is_bound_inwards() -> None:
    """Three leaves send to one receiver, whose link is asked for three times its rate."""
    fabric = clos(leaves=4, spines=2, nics_per_leaf=1)
    rows = [(f"l{i}-h0-n0", "l3-h0-n0", 400.0, 1, "j", "") for i in range(3)]
    flows = flows_of(fabric, *rows)
    assert tiers(fabric, flows) == {"nic-leaf": 3.0, "leaf-spine": 2.0}
    assert bound_of(fabric, flows).overall == 3.0


def test_phases_of_a_job_take_turns() -> None:
    """Two phases of 400 count once, another job's 400 adds to them, as does unphased traffic."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1)
    flows = flows_of(fabric, one(phase="p"), one(phase="q"))
    assert tiers(fabric, flows)["leaf-spine"] == 1.0
    flows = flows_of(fabric, one(phase="p"), one(phase="q"), one(job="k", phase="q"))
    assert tiers(fabric, flows)["leaf-spine"] == 2.0
    flows = flows_of(fabric, one(phase="p"), one(phase="q"), one(gbps=200.0))
    assert tiers(fabric, flows)["leaf-spine"] == 1.5


def test_phases_differ_in_what_is_worst() -> None:
    """The worst phase is found for each cut by itself."""
    fabric = clos(leaves=3, spines=1, nics_per_leaf=2)
    flows = flows_of(
        fabric,
        ("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", "p"),
        ("l0-h0-n1", "l1-h0-n1", 400.0, 1, "j", "p"),
        ("l0-h0-n0", "l2-h0-n0", 400.0, 1, "j", "q"),
    )
    assert tiers(fabric, flows) == {"nic-leaf": 1.0, "leaf-spine": 2.0}


def test_a_zone_is_bound_by_its_cores() -> None:
    """Four flows leave a zone that tapers 1:2 to two core links of 400 Gbit/s.

    The bound is the same if the fabric does not say which nodes are in which zone.
    """
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2, taper=2.0)
    pairs = [(leaf, nic) for leaf in range(2) for nic in range(2)]
    rows = [(f"z0-l{a}-h0-n{b}", f"z1-l{a}-h0-n{b}", 400.0, 1, "j", "") for a, b in pairs]
    speed = fabric.structure.links.gbps[fabric.find_links("z0-s0", "c0")[0]]
    assert speed == 400.0
    found = tiers(fabric, flows_of(fabric, *rows))
    assert found == {"nic-leaf": 1.0, "leaf-spine": 1.0, "spine-core": 2.0}
    same = without_zones(fabric)
    assert tiers(same, flows_of(same, *rows)) == found


def test_mixed_speeds_are_summed() -> None:
    """A leaf with uplinks of 100 and 300 Gbit/s is full at 400 Gbit/s."""
    nodes = [{"id": n, "kind": "nic"} for n in ("a", "b")]
    nodes += [{"id": n, "kind": "leaf"} for n in ("l0", "l1")]
    nodes += [{"id": n, "kind": "spine"} for n in ("s0", "s1")]
    edges = [("a", "l0"), ("b", "l1"), ("l0", "s0"), ("l1", "s0")]
    edges += [("l0", "s1")] * 3 + [("l1", "s1")] * 3
    fabric = of_records(nodes, edges)
    flows = flows_of(fabric, ("a", "b", 400.0, 4, "j", ""))
    assert tiers(fabric, flows) == {"nic-leaf": 4.0, "leaf-spine": 1.0}


def test_flows_not_counted_do_not_count() -> None:
    """Flows that are not counted, as they have no path, add nothing to the bound."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1)
    flows = flows_of(fabric, one(), one())
    bound = cut_bound(Network(fabric), flows, np.array([True, False]))
    assert bound.overall == 1.0
    none = cut_bound(Network(fabric), flows, np.array([False, False]))
    assert none.overall == 0.0
    assert none.tiers.tolist() == [0.0, 0.0]


def test_a_switch_of_a_plain_graph_is_a_cut() -> None:
    """Four flows that leave a switch of three links put two on one of them."""
    fabric = random_regular(switches=6, degree=3, nics_per_switch=2, seed=1)
    rows = [(f"x0-h0-n{i % 2}", f"x{1 + i}-h0-n0", 400.0, 1, "j", "") for i in range(4)]
    assert tiers(fabric, flows_of(fabric, *rows)) == {"nic-switch": 2.0, "switch-switch": 2.0}


@pytest.mark.parametrize("leaves", [2, 5])
def test_within_a_leaf_only_nics_are_bound(leaves: int) -> None:
    """Flows within a leaf need no uplink, whatever they send."""
    fabric = clos(leaves=leaves, spines=2, nics_per_leaf=2)
    flows = flows_of(fabric, ("l0-h0-n0", "l0-h0-n1", 800.0, 1, "j", ""))
    assert tiers(fabric, flows) == {"nic-leaf": 2.0, "leaf-spine": 0.0}


def test_rates_without_a_common_measure_are_only_summed() -> None:
    """Without a common measure of rates, the bound is just their sum over the uplinks' capacity."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3)
    flows = flows_of(fabric, one(), ("l0-h0-n1", "l1-h0-n1", 100.0 * np.pi, 1, "j", ""))
    assert tiers(fabric, flows)["leaf-spine"] == pytest.approx((400 + 100 * np.pi) / 800)


def hurt_pair(local: int) -> tuple[Fabric, Flows]:
    """A pair of leaves with one of its 8 uplinks down; ``local`` of its 8 NICs send within it."""
    fabric = dual_tor(pairs=2, spines=4, nics_per_pair=8)
    nics = fabric.rows_of_kind(NodeKind.NIC)
    ids = [fabric.structure.nodes.ids[row] for row in nics.tolist()]
    to = [*ids[1 : local + 1], *ids[8 : 16 - local]]
    rows = [(ids[i], to[i], 400.0, 8, "j", "") for i in range(8)]
    first = int(Network(fabric).out(int(nics[0]))[0])
    leaf = int(Network(fabric).head[first])
    up = int(Network(fabric).up(leaf)[0])
    return fabric.with_links({up >> 1: State.DOWN}), flows_of(fabric, *rows)


@pytest.mark.parametrize(("local", "least"), [(0, 1.25), (1, 1.25), (2, 1.0), (3, 1.0)])
def test_other_links_of_nics_that_send_below_their_leaf_are_no_way_out(
    local: int, least: float
) -> None:
    """A leaf with 3 of 4 uplinks raises the bound unless two of eight flows stay below it.

    Each NIC fills half of the capacity that it has at both leaves. With one local flow, 1,400 of
    2,800 Gbit/s climb over 1,200. In QPs of 50 Gbit/s some link then has at least 1.25, which is
    also the next possible load of a NIC's link.
    """
    fabric, flows = hurt_pair(local)
    bound = bound_of(fabric, flows)
    assert bound.overall == pytest.approx(least)
    assert Exact(fabric, flows).least().high == pytest.approx(least)
    assert solve(fabric, flows).certificate.gap == pytest.approx(0.0)
