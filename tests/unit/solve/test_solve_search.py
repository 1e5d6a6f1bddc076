"""Local search makes plans better, never worse, and loses no QP."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import arc_loads
from heddle_controller.solve import Options
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.bounds.cuts import cut_bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from heddle_controller.solve.search.search import LoadTarget, Search, SearchLimits
from heddle_emulator.topology import clos
from tests.support.depth import examples
from tests.support.solve_checks import arcs_of_chunks, between_switches, chunks_of
from tests.support.solve_fabrics import EACH, KINDS, SEEDS, frayed
from tests.support.solve_flows import any_flows, flows_of, permutations
from tests.support.solve_reference import least_over_paths


class Trial:
    """Flows placed on random candidates, and a search over them."""

    def __init__(
        self,
        fabric: Fabric,
        flows: Flows,
        rng: Random,
        bound: float = 0.0,
        limits: SearchLimits | None = None,
    ) -> None:
        self.fabric, self.flows = fabric, flows
        self.network = Network(fabric)
        self.candidates = Candidates(self.network, 64)
        self.assignment = Assignment(self.network, flows)
        for row in range(len(flows)):
            ways = self.ways(row)
            if ways:
                chunk = self.assignment.place(row, 0, int(flows.qps[row]) - 1)
                self.assignment.move(chunk, np.array(rng.choice(ways), dtype=np.int64))
        target = LoadTarget(np.full(len(fabric.structure.tiers), bound), bound)
        deadline = Options().deadline()
        self.search = Search(self.assignment, self.candidates, target, deadline, limits)

    def ways(self, row: int) -> list[list[int]]:
        """The candidates of a flow without padding; none if the flow is cut off."""
        ends = [
            int(self.network.terminal[e[row]]) for e in (self.flows.source, self.flows.destination)
        ]
        if min(ends) < 0:
            return []
        found = self.candidates.between(*ends).tolist()
        return [[arc for arc in path if arc != self.network.pad] for path in found]

    def worst(self) -> float:
        """Worst utilisation between switches."""
        used = self.assignment.utilization()[:-1]
        return float(used[between_switches(self.fabric)].max(initial=0.0))

    def fullest(self) -> float:
        """Worst utilisation of the arcs that flows have a choice about."""
        return float(self.assignment.utilization()[self.network.chosen].max(initial=0.0))

    def check_whole(self) -> None:
        """Assert that each QP is placed once, on a candidate, and that loads are the sums."""
        assignment = self.assignment
        for row in range(len(self.flows)):
            own = [c for c, flow in enumerate(assignment.flow) if flow == row]
            ranges = [(assignment.first_qp[c], assignment.last_qp[c]) for c in own]
            held = sorted(q for first, last in ranges for q in range(first, last + 1))
            ways = self.ways(row)
            assert held == ([*range(int(self.flows.qps[row]))] if ways else [])
            assert all(assignment.path[c].tolist() in ways for c in own)
        loads = arc_loads(self.network.arc_count, self.flows, chunks_of(assignment))
        assert np.allclose(loads, assignment.load[:-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_the_worst_is_never_raised(kind: str, seed: int) -> None:
    """From any start, no arc ends fuller than the fullest was, and no QP is lost."""
    rng = Random(seed)
    fabric = frayed(rng, KINDS[kind](rng))
    trial = Trial(fabric, any_flows(rng, fabric, examples(8, 14)), rng)
    before = trial.fullest()
    trial.search.run()
    assert trial.fullest() <= before + 1e-9
    trial.check_whole()


@pytest.mark.parametrize("effort", [1, 5, 50])
@pytest.mark.parametrize("kind", ["two-tiers", "mesh", "regular"])
def test_a_search_cut_short_is_no_worse_either(kind: str, effort: int) -> None:
    """Wherever the effort runs out, the fullest arc is no fuller and no QP is lost."""
    for seed in range(8):
        rng = Random(seed)
        fabric = KINDS[kind](rng)
        trial = Trial(fabric, any_flows(rng, fabric, 14), rng, limits=SearchLimits(effort=effort))
        before = trial.fullest()
        trial.search.run()
        assert trial.fullest() <= before + 1e-9
        trial.check_whole()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(3, EACH))
@given(SEEDS)
def test_proven_bounds_as_targets_raise_nothing_above_the_worst(kind: str, seed: int) -> None:
    """With a target for each tier, the fullest arc is no fuller than before or than the bound."""
    rng = Random(seed)
    fabric = frayed(rng, KINDS[kind](rng))
    flows = any_flows(rng, fabric, examples(8, 14))
    trial = Trial(fabric, flows, rng)
    routed = np.array([bool(trial.ways(row)) for row in range(len(flows))], dtype=np.bool_)
    bound = cut_bound(trial.network, flows, routed)
    target = LoadTarget(bound.tiers, bound.overall)
    search = Search(trial.assignment, trial.candidates, target, Options().deadline())
    before = trial.fullest()
    search.run()
    assert trial.fullest() <= max(before, bound.overall) + 1e-9
    trial.check_whole()


def test_what_is_at_its_target_is_left_alone() -> None:
    """If the worst link is at its target, nothing moves."""
    rng = Random(5)
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4)
    flows = permutations(fabric, rng, 2)
    worst = Trial(fabric, flows, Random(6)).worst()
    trial = Trial(fabric, flows, Random(6), bound=worst)
    before = arcs_of_chunks(trial.assignment)
    trial.search.run()
    assert arcs_of_chunks(trial.assignment) == before


def test_two_flows_on_one_link_part() -> None:
    """By hand: two spines, both flows start on one of them, and end on one each."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 1, "j", "") for i in range(2)]
    trial = Trial(fabric, flows_of(fabric, *rows), Random(0))
    for chunk in range(2):
        trial.assignment.move(chunk, np.array(trial.ways(0)[0], dtype=np.int64))
    assert trial.worst() == 2.0
    trial.search.run()
    assert trial.worst() == 1.0


def test_one_flow_is_split_where_that_pays() -> None:
    """By hand: a flow of two QPs alone on two spines ends up on both."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    trial = Trial(fabric, flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0, 2, "j", "")), Random(0))
    trial.search.run()
    assert trial.worst() == 0.5


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(examples(2, 6)))
def test_random_starts_come_near_the_relaxation(seed: int) -> None:
    """From random paths on a damaged zone the search gets to within two QPs of the limit."""
    rng = Random(seed)
    fabric = frayed(rng, clos(leaves=5, spines=5, nics_per_leaf=5), 0.1)
    flows = permutations(fabric, rng, 1, qps=4)
    trial = Trial(fabric, flows, rng)
    trial.search.run()
    limit = least_over_paths(fabric, flows, trial.ways, range(len(flows)), between_switches(fabric))
    assert limit - 1e-9 <= trial.worst() <= limit + 2 * 0.25
