"""The planner counts entries as programs write them, and plans exceed no table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.plan import Paths, Plan, join_paths
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Options, Repairer, solve
from heddle_controller.solve.assignment import with_nics
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from heddle_controller.solve.tables import entry_needs, pairs_of
from heddle_emulator.topology import clos
from tests.support.depth import examples
from tests.support.plan_chance import random_fabric, random_plan, with_failures
from tests.support.solve_checks import check_certificate, check_paths, inner_paths
from tests.support.solve_fabrics import EACH, KINDS, damaged, frayed
from tests.support.solve_flows import Row, crowded_flows, flows_of
from tests.support.solve_reference import is_joined

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
AMPLE = 10**9


def with_tables(fabric: Fabric, sizes: Ints) -> Fabric:
    """The same fabric with other table sizes, shape (nodes,); those of NICs are ignored."""
    nodes = fabric.structure.nodes
    size = np.where(nodes.kind == NodeKind.NIC, NONE, sizes)
    return replace(
        fabric, structure=replace(fabric.structure, nodes=replace(nodes, table_size=size))
    )


def written(plan: Plan) -> Ints:
    """The number of entries at each node in the program, shape (nodes,)."""
    return np.bincount(entries_of(plan).switch, minlength=plan.fabric.node_count)


def counted(plan: Plan) -> Ints:
    """The number of entries at each node by the planner's count, shape (nodes,)."""
    needs = entry_needs(plan.fabric, plan.flows, plan.paths, pairs_of(plan.flows))
    return needs.by_switch(plan.fabric.node_count)


@settings(max_examples=examples(30))
@given(SEEDS)
def test_entries_are_counted_as_written_on_any_paths(seed: int) -> None:
    """On paths drawn at random, shortest or not, each switch's count is that of its program."""
    rng = Random(seed)
    fabric = with_failures(rng, random_fabric(rng))
    fabric = with_tables(fabric, np.full(fabric.node_count, AMPLE))
    plan = random_plan(rng, fabric)
    assert counted(plan).tolist() == written(plan).tolist()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_entries_are_counted_as_written_in_plans(kind: str, seed: int) -> None:
    """In plans of every kind of fabric, whole or damaged, counts are those of programs."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), rng.choice([0.0, 0.15]))
    fabric = with_tables(fabric, np.full(fabric.node_count, AMPLE))
    plan = solve(fabric, crowded_flows(rng, fabric, examples(6, 10)))
    assert counted(plan).tolist() == written(plan).tolist()


def any_tables(rng: Random, fabric: Fabric) -> Fabric:
    """The same fabric with small, large and unlimited tables."""
    sizes = [rng.choice([NONE, 0, 1, 2, 4, 16]) for _ in range(fabric.node_count)]
    return with_tables(fabric, np.array(sizes))


def check(plan: Plan) -> None:
    """Assert that a plan is valid, fits all tables, and gave up no pair that would have fitted."""
    check_paths(plan)
    check_certificate(plan)
    verify_plan(plan)
    size = plan.fabric.structure.nodes.table_size
    assert fits(plan)
    flows, fabric = plan.flows, plan.fabric
    for row, reason in plan.unrouted.items():
        ends = int(flows.source[row]), int(flows.destination[row])
        assert ("table" in reason) == is_joined(fabric, *ends)
        if "table" not in reason:
            continue
        assert (size != NONE).any()
        assert plan.notes
        pair = np.flatnonzero((flows.source == ends[0]) & (flows.destination == ends[1]))
        assert all("table" in plan.unrouted[other] for other in pair.tolist())
        assert not any(fits(other) for other in with_pair(plan, pair))


def fits(plan: Plan) -> bool:
    """Whether every table holds what its switch needs."""
    size = plan.fabric.structure.nodes.table_size
    return bool((written(plan)[size != NONE] <= size[size != NONE]).all())


def with_pair(plan: Plan, rows: Ints) -> Iterator[Plan]:
    """Yield the plan with the flows of a pair on each of their candidate paths in turn."""
    network = Network(plan.fabric)
    candidates = Candidates(network, Options().candidate_limit)
    flows, first = plan.flows, int(rows[0])
    source, destination = network.terminal[[flows.source[first], flows.destination[first]]].tolist()
    strictest = int(flows.traffic_class[rows].max())
    for way in candidates.of_class(source, destination, strictest):
        arcs = way[way != network.pad]
        inner = inner_paths(rows, rows * 0, flows.qps[rows] - 1, [arcs] * len(rows))
        both = join_paths([plan.paths, with_nics(network, flows, inner)])
        paths = both.take(np.argsort(both.flow, kind="stable"))
        bare = Paths(paths.flow, paths.first_qp, paths.last_qp, paths.first * 0, paths.arcs[:0])
        yield replace(plan, paths=paths, backups=bare)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_tables_are_kept_to_and_filled(kind: str, seed: int) -> None:
    """No table is exceeded, and no pair is given up that one of its paths had room for.

    This holds for plans and for one repair after another.
    """
    rng = Random(seed)
    fabric = any_tables(rng, damaged(rng, KINDS[kind](rng), 0.05))
    flows = crowded_flows(rng, fabric, examples(6, 10))
    plan = solve(fabric, flows)
    check(plan)
    repairer = Repairer(plan)
    for _ in range(2):
        fabric = frayed(rng, fabric, 0.1)
        check(repairer.repair(fabric, flows))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_repairs_follow_the_room_in_tables(kind: str, seed: int) -> None:
    """Repairs are the same with and without tables that have room, and fit those that have little.

    Ample tables change no path of one repair after another, and tables with room for hardly more
    than the first plan are never exceeded.
    """
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), 0.05)
    flows = crowded_flows(rng, fabric, examples(6, 10))
    plan = solve(fabric, flows)
    ample = with_tables(fabric, np.full(fabric.node_count, AMPLE))
    tight = with_tables(fabric, written(plan) + rng.choice([0, 1, 2]))
    repairers = [Repairer(replace(plan, fabric=one)) for one in (fabric, ample, tight)]
    for _ in range(3):
        fabric = frayed(rng, fabric, 0.1)
        free, roomy, full = (
            one.repair(replace(fabric, structure=one.plan.fabric.structure), flows)
            for one in repairers
        )
        for name in ("flow", "first_qp", "last_qp", "first", "arcs"):
            pair = getattr(free.paths, name), getattr(roomy.paths, name)
            np.testing.assert_array_equal(*pair, err_msg=f"{seed}: {name}")
        check(full)


@settings(max_examples=examples(4))
@given(SEEDS, st.integers(0, 8))
def test_the_most_important_flows_keep_their_entries(seed: int, size: int) -> None:
    """If each flow needs one entry of one table, the flows of the highest weight get them."""
    rng = Random(seed)
    fabric = clos(leaves=2, spines=3, nics_per_leaf=8, table_size=NONE)
    leaf = fabric.structure.index["l0"]
    sizes = np.full(fabric.node_count, NONE)
    sizes[leaf] = size
    fabric = with_tables(fabric, sizes)
    rows: list[Row] = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 4, f"j{i}", "") for i in range(8)]
    flows = flows_of(fabric, *rows)
    flows.weight[:] = rng.sample(range(1, 9), 8)
    plan = solve(fabric, flows)
    check(plan)
    assert sorted(flows.weight[[*plan.unrouted]].tolist()) == [*range(1, 9 - size)]
