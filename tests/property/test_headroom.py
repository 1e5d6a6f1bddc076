"""Headroom for local repair costs no fuller link, and takes no table room that others need."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Options, Repairer, after_losses, solve
from heddle_controller.solve.headroom import LEFT, MOST_CROWDED_NAMED
from heddle_emulator.topology import clos, random_regular, three_tier
from heddle_emulator.traffic import flows_between
from tests.support.depth import fresh_seeds
from tests.support.plan_chance import with_failures

ECONOMY, HEADROOM = Options(objective="economy"), Options(objective="headroom")


def _drawn(seed: int) -> tuple[Fabric, Flows]:
    """A small fabric, with table sizes or without, and flows that rarely overload it."""
    random = np.random.default_rng(seed)
    size = int(random.choice([NONE, 40, 200, 4000]))
    spines, nics = int(random.integers(2, 6)), int(random.integers(1, 5))
    kind = random.integers(6)
    if kind < 3:
        leaves = int(random.integers(2, 7))
        fabric = clos(leaves=leaves, spines=spines, nics_per_leaf=nics, table_size=size)
    elif kind < 5:
        fabric = three_tier(
            zones=2, leaves=2, spines=spines, nics_per_leaf=nics, cores=spines, table_size=size
        )
    else:
        fabric = random_regular(switches=6, degree=3, nics_per_switch=1, seed=seed, table_size=size)
    qps = int(random.choice([1, 2, 4, 8]))
    flows = flows_between(fabric, "permutation", seed=seed, qps=qps, gbps=300.0)
    flows = replace(flows, gbps=flows.gbps * random.choice([0.25, 0.5, 1.0], len(flows)))
    return fabric, flows


def _tiers(plan: Plan) -> list[float]:
    return [tier.max_utilization for tier in plan.certificate.tiers]


@pytest.mark.deep
def test_room_never_costs_a_fuller_link() -> None:
    """Headroom makes no tier's fullest link fuller, and the same flows have a path.

    Each plan is compared with the plan of fewest entries (``economy``).
    """
    for seed in fresh_seeds(12):
        fabric, flows = _drawn(seed)
        fabric = with_failures(Random(seed), fabric, 0.1) if seed % 3 == 0 else fabric
        few, roomy = solve(fabric, flows, ECONOMY), solve(fabric, flows, HEADROOM)
        verify_plan(roomy)
        told = f"seed {seed}"
        assert roomy.certificate.max_utilization <= few.certificate.max_utilization + 1e-9, told
        pairs = zip(_tiers(roomy), _tiers(few), strict=True)
        assert all(one <= other + 1e-6 for one, other in pairs), told
        assert roomy.unrouted.keys() == few.unrouted.keys(), told


def test_links_below_line_rate_are_evened_out() -> None:
    """When half of the NICs send, the leaves spread the load down to the tier's lower bound."""
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4)
    flows = flows_between(fabric, "permutation", seed=3, qps=4, gbps=300.0)
    flows = flows.take(np.arange(0, len(flows), 2, dtype=np.int64))
    few, roomy = solve(fabric, flows, ECONOMY), solve(fabric, flows, HEADROOM)
    assert few.certificate.tiers[1].max_utilization == 0.75
    tier = roomy.certificate.tiers[1]
    assert tier.max_utilization == pytest.approx(tier.lower_bound)
    assert tier.max_utilization < 0.5


def test_small_pieces_leave_room_after_a_loss_where_tables_tell_of_room() -> None:
    """With known table sizes, flows are split so that a loss on full links costs less.

    A whole flow falls on one other flow, but its four parts fall on four.
    """
    fabric = clos(leaves=8, spines=8, nics_per_leaf=8, table_size=1000)
    flows = flows_between(fabric, "permutation", seed=3, qps=4, gbps=400.0)
    few, roomy = (after_losses(solve(fabric, flows, one)) for one in (ECONOMY, HEADROOM))
    assert [one.slowest_flow for one in few] == [0.5, 0.5]
    assert min(one.slowest_flow for one in roomy) >= 0.75
    assert max(one.worst_utilization for one in roomy) <= 1.25 + 1e-9


@pytest.mark.parametrize("size", [16, 24, 40, 80])
def test_half_of_each_table_stays_for_others(size: int) -> None:
    """Parts of flows fill at most half of a table; fewer or none are made if it is small."""
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4, table_size=size)
    flows = flows_between(fabric, "permutation", seed=3, qps=4, gbps=400.0)
    few, roomy = solve(fabric, flows, ECONOMY), solve(fabric, flows, HEADROOM)
    most = max(_entries(few).max(), size // LEFT)
    assert _entries(roomy).max() <= most
    assert not roomy.unrouted


def test_switches_without_room_for_more_parts_are_named() -> None:
    """A note names switches whose tables all parts would fill more than half.

    Without table sizes or without such switches there is no note.
    """
    fabrics = {
        size: clos(leaves=4, spines=4, nics_per_leaf=4, table_size=size)
        for size in (NONE, 16, 24, 40, 1000)
    }
    flows = flows_between(fabrics[1000], "permutation", seed=3, qps=4, gbps=400.0)
    ids = np.array(fabrics[1000].structure.nodes.ids)
    switches = ids[fabrics[1000].structure.nodes.kind != NodeKind.NIC]
    parted = _entries(solve(fabrics[1000], flows, HEADROOM))
    lacking = {size: switches[parted * LEFT > size].tolist() for size in (16, 24, 40, 1000)}
    assert {size: len(names) for size, names in lacking.items()} == {16: 4, 24: 2, 40: 0, 1000: 0}
    for size, fabric in fabrics.items():
        assert solve(fabric, flows, ECONOMY).notes == ()
        told = [note.rpartition("taken at ")[2] for note in solve(fabric, flows, HEADROOM).notes]
        names = lacking.get(size, [])
        more = (
            f" and {len(names) - MOST_CROWDED_NAMED} more"
            if len(names) > MOST_CROWDED_NAMED
            else ""
        )
        assert told == ([", ".join(names[:MOST_CROWDED_NAMED]) + more] if names else [])


def test_repairs_keep_what_a_plan_gave_up() -> None:
    """A repair keeps the plan's note after a loss, its return, and the end of a flow.

    No note appears twice.
    """
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4, table_size=16)
    flows = flows_between(fabric, "permutation", seed=3, qps=4, gbps=400.0)
    plan = solve(fabric, flows, HEADROOM)
    assert len(plan.notes) == 1
    repairer = Repairer(plan, HEADROOM)
    (lost,) = fabric.find_links("l0", "s1")
    some = flows.take(np.arange(len(flows) - 1))
    for state, wanted in ((State.DOWN, flows), (State.UP, flows), (State.UP, some)):
        repaired = repairer.repair(fabric.with_links({lost: state}), wanted)
        assert repaired.notes[0] == plan.notes[0]
        assert len({*repaired.notes}) == len(repaired.notes)


def _entries(plan: Plan) -> Ints:
    """The number of entries of each switch, shape (switches,)."""
    switches = plan.fabric.structure.nodes.kind != NodeKind.NIC
    counts = np.bincount(entries_of(plan).switch, minlength=len(switches))
    held: Ints = counts[switches]
    return held
