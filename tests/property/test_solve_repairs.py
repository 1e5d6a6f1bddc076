"""A repaired plan is as sound as a new one, whatever has changed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_controller.solve.network import Network
from heddle_controller.solve.unrouted import Reasons
from tests.support.depth import examples
from tests.support.solve_checks import (
    check_backups,
    check_certificate,
    check_paths,
    ways_of,
)
from tests.support.solve_fabrics import EACH, KINDS, damaged, inner_links, switches
from tests.support.solve_flows import any_flows
from tests.support.solve_reference import is_joined

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def other_states(rng: Random, fabric: Fabric) -> Fabric:
    """The fabric with one link, or sometimes one switch, in another state."""
    if rng.random() < 0.15:
        node = rng.choice(switches(fabric).tolist())
        return fabric.with_nodes({node: other(rng, int(fabric.node_state[node]))})
    inner = np.flatnonzero(inner_links(fabric)).tolist()
    link = rng.choice(inner if rng.random() < 0.8 else range(fabric.link_count))
    return fabric.with_links({link: other(rng, int(fabric.link_state[link]))})


def other(rng: Random, state: int) -> State:
    """The next state of a link or switch: up if it was not, else down or drained."""
    return State.UP if state != State.UP else rng.choice([State.DOWN, State.DRAINED])


def some_of(rng: Random, flows: Flows, share: float = 0.7) -> Flows:
    """A random share of the flows, with new row numbers."""
    rows = [row for row in range(len(flows)) if rng.random() < share]
    return flows.take(np.array(rows, dtype=np.int64))


def stays(before: Plan, fabric: Fabric, flow: str, ends: tuple[int, int]) -> bool:
    """Whether usable links, and live links that the flow was on, drained or not, join its ends."""
    row = before.flows.ids.index(flow) if flow in before.flows.ids else NONE
    if row == NONE or row in before.unrouted:
        return False
    held = np.concatenate([way for *_, way in ways_of(before, row)])
    allowed = fabric.plannable.copy()
    allowed[held[fabric.carries[held]]] = True
    structure, reached = fabric.structure, {ends[0]}
    nic = structure.nodes.kind == NodeKind.NIC
    while True:
        step = allowed & np.isin(structure.tail, [*reached])
        further = {n for n in structure.head[step].tolist() if not nic[n] or n == ends[1]}
        if further <= reached:
            return ends[1] in reached
        reached |= further


def check(fabric: Fabric, flows: Flows, repairer: Repairer) -> None:
    """Assert that a repaired plan is valid and routes every flow that can be routed.

    These are the flows whose ends are joined by usable links, or by those and drained links that
    they were on. The reason of each other flow is that of now.
    """
    before = repairer.plan
    plan = repairer.repair(fabric, flows)
    assert plan.fabric is fabric
    assert plan.flows.ids == flows.ids
    check_paths(plan)
    check_backups(plan)
    check_certificate(plan)
    verify_plan(plan)
    ends = zip(flows.source.tolist(), flows.destination.tolist(), strict=True)
    cut_off = {
        row
        for row, (a, b) in enumerate(ends)
        if not is_joined(fabric, a, b) and not stays(before, fabric, flows.ids[row], (a, b))
    }
    reasons = Reasons(Network(fabric))
    due = {row: reasons.of(int(flows.source[row]), int(flows.destination[row])) for row in cut_off}
    assert plan.unrouted == due


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_a_repair_is_a_plan(kind: str, seed: int) -> None:
    """Each repair of a plan is sound while links, switches and flows change."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), 0.05)
    every = any_flows(rng, fabric, examples(5, 10))
    flows = some_of(rng, every)
    plan = solve(fabric, flows)
    for _ in range(3):
        fabric = other_states(rng, fabric)
        flows = flows if rng.random() < 0.5 else some_of(rng, every)
        repairer = Repairer(plan)
        check(fabric, flows, repairer)
        plan = repairer.plan


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_one_repairer_serves_many_changes(kind: str, seed: int) -> None:
    """One repairer stays right over many changes, also when the fabric splits and joins."""
    rng = Random(seed)
    fabric = KINDS[kind](rng)
    flows = any_flows(rng, fabric, examples(5, 10))
    repairer = Repairer(solve(fabric, flows))
    for _ in range(6):
        fabric = other_states(rng, fabric)
        check(fabric, flows, repairer)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_what_carried_nothing_may_go(kind: str, seed: int) -> None:
    """When idle links between switches go down, every flow keeps its exact paths."""
    rng = Random(seed)
    fabric = KINDS[kind](rng)
    flows = any_flows(rng, fabric, 6)
    plan = solve(fabric, flows)
    idle = np.setdiff1d(np.flatnonzero(inner_links(fabric)), plan.paths.arcs >> 1).tolist()
    down = dict.fromkeys(rng.sample(idle, len(idle) // 2), State.DOWN)
    after = Repairer(plan).repair(fabric.with_links(down), flows)
    assert [*after.unrouted] == [*plan.unrouted]
    assert all(ways_of(plan, row) == ways_of(after, row) for row in range(len(flows)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_a_copy_and_the_original_go_their_own_ways(kind: str, seed: int) -> None:
    """A repairer and its copies repair independently while links change and flows are added."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), 0.05)
    flows = any_flows(rng, fabric, examples(5, 10))
    first = flows.take(np.arange(rng.randint(0, len(flows)), dtype=np.int64))
    plan = solve(fabric, first)
    original = Repairer(plan)
    ways = [_changes(rng, fabric, flows, len(first)) for _ in range(3)]
    repairers = [original.copy(), original, original.copy()]
    turns = [which for which, way in enumerate(ways) for _ in way]
    rng.shuffle(turns)
    found: dict[int, list[Plan]] = {which: [] for which in range(len(ways))}
    for which in turns:
        change = ways[which][len(found[which])]
        found[which].append(repairers[which].repair(*change))
    for which, way in enumerate(ways):
        alone = Repairer(plan)
        for change, made in zip(way, found[which], strict=True):
            expected = alone.repair(*change)
            assert np.array_equal(made.paths.arcs, expected.paths.arcs)
            assert np.array_equal(made.paths.first_qp, expected.paths.first_qp)
            assert np.array_equal(made.backups.arcs, expected.backups.arcs)
            assert made.certificate == expected.certificate
            assert made.unrouted == expected.unrouted


def _changes(rng: Random, fabric: Fabric, flows: Flows, known: int) -> list[tuple[Fabric, Flows]]:
    """Draw a sequence of changes, each of the fabric or with more flows."""
    found = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.5:
            fabric = other_states(rng, fabric)
        else:
            known = rng.randint(known, len(flows))
        found.append((fabric, flows.take(np.arange(known, dtype=np.int64))))
    return found
