"""A plan is made better by moving few of its flows, and never worse."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.plan import Plan
from heddle_controller.plan.diff import changed_flows
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.planner.planning import better_plan
from heddle_controller.solve import Repairer, improvements, plan_anew, solve
from heddle_emulator.topology import three_tier
from tests.property.test_solve_repairs import other_states, some_of
from tests.support.depth import examples
from tests.support.drawn import drawn
from tests.support.plan_chance import Draft, Wish, clos, wishes
from tests.support.reconcile_world import ENGINE
from tests.support.solve_checks import check_backups, check_certificate, check_paths, ways_of
from tests.support.solve_fabrics import EACH, KINDS, damaged, switches
from tests.support.solve_flows import any_flows, flows_of, nic_ids, plain_flows

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
TOLERANCE = 1e-6
WORTH = 0.02
"""Share by which a plan must be better to replace another."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_an_improved_plan_is_sound_and_no_worse(kind: str, seed: int) -> None:
    """After changes and repairs, search yields a valid plan with no fuller worst link or tier."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), 0.05)
    every = any_flows(rng, fabric, examples(5, 10))
    flows = some_of(rng, every)
    plan = solve(fabric, flows)
    for _ in range(3):
        fabric = other_states(rng, fabric)
        flows = flows if rng.random() < 0.5 else some_of(rng, every)
        plan = Repairer(plan).repair(fabric, flows)
        found = [*improvements(plan)]
        assert found or fabric.link_state.max() > 0 or fabric.node_state.max() > 0
        for better in found:
            check_paths(better)
            check_backups(better)
            check_certificate(better)
            verify_plan(better, (plan, entries_of(plan)))
            assert {*better.unrouted} == {*plan.unrouted}
            assert not plan.beats(better, TOLERANCE), seed
            worst = plan.certificate.max_utilization
            assert better.certificate.max_utilization <= worst + TOLERANCE, seed


@settings(max_examples=examples(10))
@given(SEEDS)
def test_plans_of_all_kinds_can_be_improved(seed: int) -> None:
    """Limited tables, unannounced flows and hashing switches are no obstacle to a valid plan."""
    case = drawn(seed)
    plan = plan_anew(case.fabric, case.flows)
    for better in improvements(plan):
        verify_plan(better, (plan, entries_of(plan)))
        check_certificate(better)
        assert better.unrouted == plan.unrouted


def test_flows_left_to_the_underlay_keep_their_reason() -> None:
    """A flow without an entry, because a table is full, still has this reason, and a note."""
    fabric = parse_fabric(
        {
            "nodes": [
                {"id": "l0", "kind": "leaf", "table_size": 1},
                {"id": "l1", "kind": "leaf"},
                *({"id": f"s{row}", "kind": "spine"} for row in range(2)),
                *({"id": f"n{row}", "kind": "nic"} for row in range(4)),
            ],
            "edges": [
                *(
                    {"source": f"l{a}", "target": f"s{b}", "gbps": 400}
                    for a in (0, 1)
                    for b in (0, 1)
                ),
                *({"source": f"n{row}", "target": f"l{row // 2}", "gbps": 400} for row in range(4)),
            ],
        },
        "test",
    )
    both = [("n0", "n2", 100.0, 1, "j", ""), ("n1", "n3", 100.0, 1, "j", "")]
    plan = solve(fabric, flows_of(fabric, *both))
    assert "table of l0 is full" in next(iter(plan.unrouted.values()))
    for better in improvements(plan):
        assert better.unrouted == plan.unrouted
        assert better.notes == plan.notes


def test_jobs_that_come_and_go_move_few_flows_of_others() -> None:
    """In quiet, far fewer flows move than to a plan from scratch, whose gain is reached."""
    moved = moved_anew = 0
    for seed in range(6):
        rng = Random(seed)
        fabric = three_tier(zones=4, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=4.0)
        jobs = some_jobs(rng, fabric)
        kept = {*rng.sample(range(len(jobs)), len(jobs) - 2)}
        plan = solve(fabric, concatenate([jobs[row] for row in kept]))
        plan = Repairer(plan).repair(fabric, concatenate(jobs[1:]))
        found = better_plan(plan, ENGINE, WORTH)
        anew = better_plan(plan, replace(ENGINE, improvements=lambda _: iter(())), WORTH)
        assert (found is None) == (anew is None), seed
        if found is not None and anew is not None:
            assert not anew.plan.beats(found.plan, WORTH), seed
            moved += found.changed_count
            moved_anew += anew.changed_count
    assert 0 < moved < moved_anew / 2


def some_jobs(rng: Random, fabric: Fabric) -> list[Flows]:
    """Ten jobs on random NICs that share none, each with flows from every NIC to every other."""
    nics = nic_ids(fabric)
    rng.shuffle(nics)
    jobs = []
    for job in range(10):
        own = nics[6 * job : 6 * job + 6]
        ends = [(one, other) for one in own for other in own if one != other]
        names = tuple(f"job{job}-{a}-{b}" for a, b in ends)
        rows = [(a, b, 80.0, 4, f"job{job}", "") for a, b in ends]
        jobs.append(flows_of(fabric, *rows, names=names))
    return jobs


def test_qps_that_need_not_move_stay_where_they_are() -> None:
    """Of a flow that is split, only as many QPs move as a link is over-full by."""
    fabric = clos(leaves=2, spines=2, nics=4)
    line = float(fabric.structure.capacity[0])
    flows = wishes(fabric, long=Wish("n0", "n4", 2 * line, qps=4), other=Wish("n1", "n5", line))
    way = "n0 leaf0 spine{} leaf1 n4"
    ways = {
        "long": [(0, 0, way.format(0)), (1, 1, way.format(1)), (2, 3, way.format(0))],
        "other": [(0, 0, "n1 leaf0 spine0 leaf1 n5")],
    }
    plan = Draft(fabric, flows, ways).plan()
    better = next(improvements(plan))
    before, after = spine_of_qps(plan, 0), spine_of_qps(better, 0)
    assert sorted(after) == ["spine0", "spine1", "spine1", "spine1"]
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 2
    assert changed_flows(plan, better).tolist() == [0]


def spine_of_qps(plan: Plan, row: int) -> list[str]:
    """The spine that each QP of a flow crosses."""
    structure = plan.fabric.structure
    found = {}
    for first, last, way in ways_of(plan, row):
        for qp in range(first, last + 1):
            found[qp] = structure.nodes.ids[int(structure.head[way[1]])]
    return [found[qp] for qp in sorted(found)]


def test_flows_on_drained_links_are_left_to_the_repair() -> None:
    """Nothing is improved while a flow has to stay on a drained link."""
    fabric = clos(leaves=2, spines=1, nics=2)
    plan = solve(fabric, plain_flows(fabric, Random(1), 4, 1))
    drained = fabric.with_nodes({switches(fabric)[0]: State.DRAINED})
    assert not [*improvements(Repairer(plan).repair(drained, plan.flows))]
