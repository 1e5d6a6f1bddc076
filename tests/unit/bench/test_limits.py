"""Limits, outcomes and makespans of fabrics small enough to calculate by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Paths
from heddle_emulator.fluid.rates import path_rates
from heddle_emulator.strategy import Outcome, ideal, spray, strategy, whole
from heddle_emulator.strategy.compare import least_utilization
from heddle_emulator.topology import clos, dragonfly, dual_tor, random_regular, three_tier
from heddle_emulator.traffic import flows_between
from tests.unit.bench.bench_flows import flows_of, without


def _load(fabric: Fabric, outcome: Outcome, tail: str, head: str) -> float:
    """Return the Gbit/s from one node to another, over all parallel links together."""
    structure = fabric.structure
    index = structure.index
    arcs = (structure.tail == index[tail]) & (structure.head == index[head])
    return float(outcome.loads[arcs].sum())


def test_spray_divides_evenly_at_every_switch() -> None:
    """400 over two spines is 200 each, up and down.

    No utilisation is over 1 and nothing is slow.
    """
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    outcome = Outcome(fabric, spray(fabric, flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0))))
    for tail, head in (("l0", "s0"), ("l0", "s1"), ("s0", "l1"), ("s1", "l1")):
        assert _load(fabric, outcome, tail, head) == 200.0
    assert _load(fabric, outcome, "l1", "l1-h0-n0") == 400.0
    assert outcome.max_utilization == outcome.slowest_flow == outcome.makespan_seconds == 1.0


def test_spray_is_blind_to_what_lies_ahead() -> None:
    """Half of a flow goes on a link that another flow needs whole, though it had another way."""
    fabric = without(clos(leaves=3, spines=2, nics_per_leaf=2), ("s0", "l1"))
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l2-h0-n0")]
    outcome = Outcome(fabric, spray(fabric, flows_of(fabric, *((a, b, 400.0) for a, b in ends))))
    # s1 gets all of the first flow and half of the second, which could have gone over s0 alone.
    assert _load(fabric, outcome, "l0", "s1") == 600.0
    assert outcome.max_utilization == 1.5
    # Fair on the shared 400: x + x / 2 = 400.
    assert outcome.ratios == pytest.approx([2 / 3, 2 / 3])


def test_spray_uses_every_core() -> None:
    """Across zones of planes, the load of each tier is even."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=4)
    outcome = Outcome(fabric, spray(fabric, flows_between(fabric, "shift")))
    assert outcome.worst == pytest.approx({"nic-leaf": 1.0, "leaf-spine": 1.0, "spine-core": 1.0})


@pytest.mark.parametrize(
    "fabric",
    [
        clos(leaves=3, spines=2, nics_per_leaf=3, parallel=2),
        random_regular(switches=8, degree=3, nics_per_switch=2),
        dragonfly(routers=2, global_links=2, nics_per_switch=2),
    ],
    ids=["clos", "regular", "dragonfly"],
)
def test_spray_is_what_many_hashed_qps_come_to(fabric: Fabric) -> None:
    """With 2,000 QPs a flow, hashing loads every link as spraying does, within a tenth of a NIC."""
    flows = flows_between(fabric, "permutation", seed=1, qps=2000)
    sprayed = Outcome(fabric, spray(fabric, flows)).loads
    assert np.abs(strategy("ecmp")(fabric, flows, 3).loads - sprayed).max() < 40.0


def test_ideal_is_a_crossbar() -> None:
    """One spine for four NICs slows every plan down, but not the ideal.

    Incast slows the ideal, too.
    """
    fabric = clos(leaves=2, spines=1, nics_per_leaf=4)
    ends = [(f"l0-h0-n{i}", f"l1-h0-n{i}") for i in range(4)]
    flows = flows_of(fabric, *((a, b, 400.0) for a, b in ends))
    assert Outcome(fabric, ideal(fabric, flows)).slowest_flow == 1.0
    assert Outcome(fabric, spray(fabric, flows)).slowest_flow == 0.25
    incast = flows_of(fabric, *((a, "l1-h0-n0", 400.0) for a, _ in ends))
    assert Outcome(fabric, ideal(fabric, incast)).slowest_flow == 0.25
    assert Outcome(fabric, ideal(fabric, incast)).max_utilization == 4.0


def test_what_has_no_way_is_lost_by_limits_too() -> None:
    """The flow of a NIC that is cut off has no rate, and the makespan is None."""
    fabric = without(clos(leaves=2, spines=2, nics_per_leaf=2), ("l1-h0-n0", "l1"))
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l1-h0-n1")]
    flows = flows_of(fabric, *((a, b, 400.0) for a, b in ends))
    for limit in (spray, ideal):
        outcome = Outcome(fabric, limit(fabric, flows))
        assert outcome.ratios.tolist() == [0.0, 1.0]
        assert outcome.lost_flows == 1
        assert outcome.makespan_seconds is None


def test_makespan_lets_others_take_what_the_first_leaves() -> None:
    """100 and 300 Gbit share a link of 200: both at 100 for a second, then one at 200."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2, uplink_gbps=200.0)
    ends = [("l0-h0-n0", "l1-h0-n0", 100.0), ("l0-h0-n1", "l1-h0-n1", 300.0)]
    flows = flows_of(fabric, *ends)
    outcome = Outcome(fabric, whole(flows, strategy("ecmp")(fabric, flows, 0).paths))
    assert outcome.ratios == pytest.approx([1.0, 1 / 3])
    assert outcome.makespan_seconds == pytest.approx(2.0)


def test_makespan_plays_phases_one_after_the_other() -> None:
    """Two phases of a job take a second each, one after the other. Another job shares with both."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=3)
    turns = [
        ("l0-h0-n0", "l1-h0-n0", 400.0, "a", "first"),
        ("l0-h0-n1", "l1-h0-n1", 400.0, "a", "second"),
    ]
    flows = flows_of(fabric, *turns)
    alone = Outcome(fabric, whole(flows, strategy("ecmp")(fabric, flows, 0).paths))
    assert alone.slowest_flow == 1.0
    assert alone.makespan_seconds == pytest.approx(2.0)
    flows = flows_of(fabric, *turns, ("l0-h0-n2", "l1-h0-n2", 400.0, "b"))
    shared = Outcome(fabric, whole(flows, strategy("ecmp")(fabric, flows, 0).paths))
    # Half each until the other job and the first phase are done after 2 s, then the second.
    assert shared.makespan_seconds == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(4))
def test_makespan_against_every_single_event(seed: int) -> None:
    """For hashed flows of unlike rates, the result equals a calculation event by event."""
    fabric = clos(leaves=6, spines=3, nics_per_leaf=6)
    flows = flows_between(fabric, "uniform", seed=seed)
    rates = np.random.default_rng(seed).uniform(50.0, 400.0, len(flows))
    flows = replace(flows, gbps=rates)
    paths = strategy("ecmp")(fabric, flows, seed).paths
    found = Outcome(fabric, whole(flows, paths)).makespan_seconds
    left, exact = rates.copy(), 0.0
    while left.any():
        own = paths.take(np.flatnonzero(left[paths.flow] > 0))
        rate = np.bincount(
            own.flow, path_rates(fabric.structure.capacity, flows, own), minlength=len(flows)
        )
        going = np.flatnonzero(left)
        first = going[np.argmin(left[going] / rate[going])]
        step = left[first] / rate[first]
        exact += step
        left = np.maximum(left - rate * step, 0.0)
        left[first] = 0.0
    assert found == pytest.approx(exact)


def test_makespan_waits_for_the_slowest_qp() -> None:
    """A flow of two QPs, one of them beside another flow, is done with its slower QP."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=2)
    ends = [("l0-h0-n0", "l1-h0-n0", 400.0), ("l0-h0-n1", "l1-h0-n1", 400.0)]
    flows = replace(flows_of(fabric, *ends), qps=np.array([2, 1]))
    (s0,), (s1,) = fabric.find_links("l0", "s0"), fabric.find_links("l0", "s1")
    nics = [fabric.find_links(nic, "l0")[0] for nic in ("l0-h0-n0", "l0-h0-n1")]
    paths = Paths(
        flow=np.array([0, 0, 1]),
        first_qp=np.array([0, 1, 0]),
        last_qp=np.array([0, 1, 0]),
        first=np.array([0, 2, 4, 6]),
        arcs=2 * np.array([nics[0], s0, nics[0], s1, nics[1], s0]),
    )
    # Half of the NIC for each QP: 1 s, with s0 full. The other flow gets 200 of s0 until then, and
    # has 200 Gbit left to send at 400.
    assert Outcome(fabric, whole(flows, paths)).makespan_seconds == pytest.approx(1.5)
    # Beside two other flows on s0, the first QP gets 400 / 3 there, so the second gets 400 * 2 / 3.
    third = flows_of(fabric, *ends, ends[1])
    flows = replace(third, qps=np.array([2, 1, 1]), gbps=np.array([400.0, 400.0, 400.0]))
    more = Paths(
        flow=np.append(paths.flow, 2),
        first_qp=np.append(paths.first_qp, 0),
        last_qp=np.append(paths.last_qp, 0),
        first=np.append(paths.first, 7),
        arcs=np.append(paths.arcs, 2 * s0),
    )
    # The second QP ends at 0.75 s, and the first at 1.5 s with the 100 Gbit that it then has left.
    # After that the others share s0: each has 200 Gbit left, at 200.
    assert Outcome(fabric, whole(flows, more)).makespan_seconds == pytest.approx(2.5)


def test_makespan_of_nothing_is_no_time() -> None:
    """Without flows the makespan is 0, and no link is full and no flow slow."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1)
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 1.0)).take(np.empty(0, dtype=np.int64))
    outcome = Outcome(fabric, whole(flows, strategy("ecmp")(fabric, flows, 0).paths))
    assert (outcome.makespan_seconds, outcome.slowest_flow, outcome.max_utilization) == (0, 1, 0)
    assert Outcome(fabric, spray(fabric, flows)).max_utilization == 0.0


def test_least_utilization_by_hand() -> None:
    """Six flows out of a leaf with two live uplinks of 400 come to 3. So do six flows into it."""
    fabric = without(clos(leaves=3, spines=3, nics_per_leaf=6), ("l0", "s0"))
    ends = [(f"l0-h0-n{i}", f"l{1 + i % 2}-h0-n{i}") for i in range(6)]
    outwards = flows_of(fabric, *((a, b, 400.0) for a, b in ends))
    inwards = flows_of(fabric, *((b, a, 400.0) for a, b in ends))
    assert least_utilization(fabric, outwards) == least_utilization(fabric, inwards) == 3.0


def test_least_utilization_leaves_out_flows_without_a_path() -> None:
    """Six flows to a leaf that is cut off cross nothing; a flow among the others remains.

    A NIC on leaves of two separate planes joins neither of them to the other.
    """
    fabric = without(clos(leaves=3, spines=1, nics_per_leaf=6), ("l1", "s0"))
    lost = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0) for i in range(6)]
    assert least_utilization(fabric, flows_of(fabric, *lost)) == 0.0
    stay = ("l0-h0-n0", "l2-h0-n0", 100.0)
    assert least_utilization(fabric, flows_of(fabric, *lost, stay)) == 0.25
    planes = dual_tor(pairs=2, spines=2, nics_per_pair=2, planes=2)
    planes = without(planes, ("p0-h0-n0", "p0a"), ("p1-h0-n0", "p1b"))
    apart = [("p0-h0-n0", "p1-h0-n0", 200.0), ("p0-h0-n1", "p1-h0-n1", 200.0)]
    assert least_utilization(planes, flows_of(planes, apart[0])) == 0.0
    assert least_utilization(planes, flows_of(planes, *apart)) == 0.5


def test_least_utilization_is_below_what_any_strategy_comes_to() -> None:
    """Hashing and spraying are never below the bound, on whole and on damaged fabrics."""
    whole_fabric = three_tier(zones=2, leaves=3, spines=2, nics_per_leaf=3, cores=2, taper=2.0)
    for fabric in (whole_fabric, without(whole_fabric, ("z0-l0", "z0-s1"), ("z1-s0", "c0"))):
        for seed in range(3):
            flows = flows_between(fabric, "permutation", seed=seed, qps=4)
            least = least_utilization(fabric, flows)
            assert least >= 1.0
            for carried in (
                spray(fabric, flows),
                whole(flows, strategy("ecmp")(fabric, flows, seed).paths),
            ):
                assert Outcome(fabric, carried).max_utilization >= least - 1e-9
