"""No plan needs more entries than a switch holds, and notes tell what that cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Collective, Group, Job, Operation
from heddle_controller.model.plan import Plan
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Options, solve
from heddle_controller.traffic.jobs import flows_of_job, flows_of_jobs
from heddle_emulator.topology import clos
from tests.support.depth import examples, fresh_seeds
from tests.support.solve_checks import check_certificate, check_paths
from tests.support.solve_fabrics import EACH, KINDS
from tests.support.solve_flows import Row, any_flows, flows_of
from tests.support.solve_reference import is_joined


def patient(looks: int) -> Options:
    """Options with a clock that fails after ``looks`` readings, so that no planning is endless."""
    return Options(time_limit_seconds=1e9, clock=partial(next, iter(range(looks))))


def zone(table_size: int) -> Fabric:
    """Two leaves of four NICs and two spines, with tables of this size."""
    return clos(leaves=2, spines=2, nics_per_leaf=4, table_size=table_size)


def across(count: int, qps: int = 1, gbps: float = 400.0) -> list[Row]:
    """``count`` flows from NICs of the first leaf to those of the second, each its own job."""
    return [(f"l0-h0-n{i}", f"l1-h0-n{i}", gbps, qps, f"j{i}", "") for i in range(count)]


def check(plan: Plan) -> None:
    """Assert that a plan is valid and fits all tables, and lacks flows only for tables or cuts."""
    check_paths(plan)
    check_certificate(plan)
    verify_plan(plan)
    size = plan.fabric.structure.nodes.table_size
    held = np.bincount(entries_of(plan).switch, minlength=len(size))
    assert (held[size != NONE] <= size[size != NONE]).all()
    flows = plan.flows
    for row, reason in plan.unrouted.items():
        joined = is_joined(plan.fabric, int(flows.source[row]), int(flows.destination[row]))
        assert ("table" in reason) == joined
    assert bool(plan.notes) >= any("table" in reason for reason in plan.unrouted.values())


def test_without_tables_there_is_nothing_to_say() -> None:
    """Tables without a limit, or with room for all, cost nothing."""
    for size in (NONE, 100):
        fabric = zone(size)
        plan = solve(fabric, flows_of(fabric, *across(4, qps=4)))
        check(plan)
        assert plan.notes == ()
        assert not plan.unrouted


def test_no_table_at_all_leaves_everything_to_the_underlay() -> None:
    """With tables of size 0, flows with a choice are given up; flows within a leaf are not.

    Each reason names the switch.
    """
    fabric = zone(0)
    local: Row = ("l0-h0-n0", "l0-h0-n1", 400.0, 1, "j", "")
    plan = solve(fabric, flows_of(fabric, *across(2), local))
    check(plan)
    assert {*plan.unrouted} == {0, 1}
    assert all("l0" in reason for reason in plan.unrouted.values())
    assert plan.paths.flow.tolist() == [2]


def test_splits_are_given_up_before_flows() -> None:
    """Splits are given up before flows.

    Three flows of four QPs on two uplinks need one split, and three entries allow none.
    """
    roomy, tight = zone(32), zone(3)
    free, bound = (solve(f, flows_of(f, *across(3, qps=4))) for f in (roomy, tight))
    check(free)
    check(bound)
    assert free.certificate.max_utilization == 1.5
    assert len(free.paths) > 3
    assert not bound.unrouted
    assert len(bound.paths) == 3
    assert bound.certificate.max_utilization == 2.0
    assert bound.notes


def test_the_least_important_flow_goes_first() -> None:
    """With room for two of three flows, the one of least priority is left to the underlay."""
    fabric = zone(2)
    for least in range(3):
        flows = flows_of(fabric, *across(3))
        flows.weight[:] = [1.0 if row == least else 5.0 for row in range(3)]
        plan = solve(fabric, flows)
        check(plan)
        assert [*plan.unrouted] == [least]
        assert "table" in plan.unrouted[least]


def test_of_equal_priority_the_fewest_bytes_go_first() -> None:
    """Of equal priority, the flow with the fewest bytes is given up first, whatever its rate."""
    fabric = zone(2)
    for least in range(3):
        flows = flows_of(fabric, *across(3))
        size = np.array([float(1 << 30) if row == least else float(1 << 40) for row in range(3)])
        flows = replace(flows, bytes=size, gbps=np.where(size < size.max(), 400.0, 50.0))
        plan = solve(fabric, flows)
        check(plan)
        assert [*plan.unrouted] == [least]
        assert "sending 1 GiB at a time" in plan.unrouted[least]
        assert any("fewest bytes" in note for note in plan.notes)
        flows.weight[least] = 2.0
        other = solve(fabric, flows)
        assert least not in other.unrouted


def test_a_tiny_collective_takes_no_entry_from_a_large_one() -> None:
    """A tiny collective takes no entry from a large one, in one job or two, at any priority."""
    fabric = clos(leaves=4, spines=2, nics_per_leaf=2, nics_per_host=2, table_size=4)
    hosts = tuple(fabric.structure.nics_of_host)
    tiny = Collective(Operation.ALL_TO_ALL, Group.DP, 1024)
    large = Collective(Operation.ALL_REDUCE, Group.DP, 1 << 40)
    for rank_order in (hosts, (hosts[0], hosts[2], hosts[1], hosts[3])):
        job = Job("both", rank_order, 2, collectives=(tiny, large), priority=10.0)
        flows = flows_of_job(job, fabric)
        plan = solve(fabric, flows)
        check(plan)
        lost = {flows.phase_names[flows.phase[row]] for row in plan.unrouted}
        assert lost == {"dp-pairwise"}
        assert plan.certificate.max_utilization == pytest.approx(1.0, abs=0.05)
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2, nics_per_host=1, table_size=1)
    jobs = [
        Job("tiny", ("l0-h0", "l1-h0"), 1, collectives=(tiny,), priority=10.0),
        Job("large", ("l0-h1", "l1-h1"), 1, collectives=(large,)),
    ]
    for order in (jobs, jobs[::-1]):
        flows = flows_of_jobs(order, fabric)
        plan = solve(fabric, flows)
        check(plan)
        lost = {flows.job_names[flows.job[row]] for row in plan.unrouted}
        assert lost == {"tiny"}


def test_flows_of_one_pair_share_an_entry() -> None:
    """Two flows between the same two NICs on one path need one entry, and one is enough."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=4, table_size=1)
    plan = solve(
        fabric, flows_of(fabric, *across(1, gbps=100.0), *across(1, gbps=100.0)), patient(500)
    )
    check(plan)
    assert not plan.unrouted


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["mesh", "homed-twice"])
def test_a_choice_on_the_way_down_needs_entries_too(kind: str) -> None:
    """Plans avoid top switches with tables of size 0 that have a choice on the way down."""
    for seed in fresh_seeds(2, EACH):
        rng = Random(seed)
        fabric = KINDS[kind](rng)
        nodes = fabric.structure.nodes
        top = nodes.kind == nodes.kind.max()
        tables = replace(nodes, table_size=np.where(top, 0, NONE))
        fabric = replace(fabric, structure=replace(fabric.structure, nodes=tables))
        check(solve(fabric, any_flows(rng, fabric, examples(6, 12)), patient(1_000_000)))
