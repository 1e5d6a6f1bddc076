"""Loads that are kept while a plan is made always follow the project's load rule."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import arc_loads
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from tests.support.solve_checks import arcs_of_chunks, chunks_of, inner_paths
from tests.support.solve_fabrics import KINDS
from tests.support.solve_flows import any_flows, flows_of

State = tuple[list[int], list[int], list[int], list[list[int]], list[float]]


class Desk:
    """An assignment, the candidates of its flows, and a random generator."""

    def __init__(self, kind: str, seed: int) -> None:
        self.rng = Random(seed)
        fabric = KINDS[kind](self.rng)
        self.flows: Flows = any_flows(self.rng, fabric, 12)
        self.network = Network(fabric)
        self.candidates = Candidates(self.network, 64)
        self.assignment = Assignment(self.network, self.flows)

    def path(self, flow: int) -> Ints:
        """Draw a candidate path of a flow, without padding."""
        terminal, flows = self.network.terminal, self.flows
        found = self.candidates.between(
            int(terminal[flows.source[flow]]), int(terminal[flows.destination[flow]])
        )
        drawn = found[self.rng.randrange(len(found))]
        result: Ints = drawn[drawn != self.network.pad]
        return result

    def load_some(self) -> None:
        """Load the first half of the flows at once."""
        rows = np.arange(len(self.flows) // 2)
        ways = [self.path(row) for row in rows.tolist()]
        last = self.flows.qps[rows] - 1
        self.assignment.load_chunks(inner_paths(rows, np.zeros_like(rows), last, ways))

    def place_rest(self) -> None:
        """Place the other half one by one."""
        for row in range(len(self.flows) // 2, len(self.flows)):
            chunk = self.assignment.place(row, 0, int(self.flows.qps[row]) - 1)
            self.assignment.move(chunk, self.path(row))

    def put_in_again(self) -> None:
        """Take some chunks off their paths, then put each chunk without a path on one."""
        assignment, nowhere = self.assignment, np.empty(0, dtype=np.int64)
        for chunk in range(len(assignment.flow)):
            if self.rng.random() < 0.3:
                assignment.move(chunk, nowhere)
        bare = [chunk for chunk, way in enumerate(arcs_of_chunks(assignment)) if not way]
        ways = [self.path(assignment.flow[chunk]) for chunk in bare]
        columns = (assignment.flow, assignment.first_qp, assignment.last_qp)
        flow, first, last = (
            np.array([column[chunk] for chunk in bare], dtype=np.int64) for column in columns
        )
        assignment.put(bare, inner_paths(flow, first, last, ways))

    def shuffle(self, steps: int) -> None:
        """Move and split chunks at random."""
        assignment = self.assignment
        for _ in range(steps if assignment.flow else 0):
            chunk = self.rng.randrange(len(assignment.flow))
            qps = assignment.qps(chunk)
            if qps > 1 and self.rng.random() < 0.4:
                chunk = assignment.split(chunk, self.rng.randint(1, qps - 1))
            assignment.move(chunk, self.path(assignment.flow[chunk]))

    def check(self) -> None:
        """Assert that loads follow the rule, the padding is empty, and all chunks are told."""
        told, a = self.assignment.chunks(), self.assignment
        ways = [told.arcs[low:high].tolist() for low, high in pairwise(told.first.tolist())]
        columns = [column.tolist() for column in (told.flow, told.first_qp, told.last_qp)]
        assert (ways, columns) == (arcs_of_chunks(a), [a.flow, a.first_qp, a.last_qp])
        assert np.allclose(self.assignment.load[:-1], self.expected(), rtol=0, atol=1e-6)
        assert self.assignment.load[-1] == 0.0

    def expected(self) -> Floats:
        """Loads by the rule of the model."""
        assignment = self.assignment
        return arc_loads(self.network.arc_count, self.flows, chunks_of(assignment))

    def state(self) -> State:
        """Everything that a roll-back has to restore."""
        a = self.assignment
        return [*a.flow], [*a.first_qp], [*a.last_qp], arcs_of_chunks(a), a.load.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_loads_follow_the_rule(kind: str, seed: int) -> None:
    """Loads follow the rule after loading, placing, splitting and moving, with phases or not."""
    desk = Desk(kind, seed)
    desk.load_some()
    desk.check()
    desk.place_rest()
    desk.check()
    for _ in range(4):
        desk.shuffle(10)
        desk.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_a_roll_back_leaves_no_trace(kind: str, seed: int) -> None:
    """A roll-back restores chunks, ranges of QPs, paths and loads; moves before it stay."""
    desk = Desk(kind, seed)
    desk.load_some()
    desk.place_rest()
    desk.assignment.journal.clear()
    desk.shuffle(5)
    length, before = len(desk.assignment.journal), desk.state()
    desk.shuffle(20)
    desk.assignment.roll_back(length)
    after = desk.state()
    assert after[:4] == before[:4]
    assert np.allclose(after[4], before[4], rtol=0, atol=1e-6)
    desk.check()


@pytest.mark.parametrize("seed", range(6))
def test_members_of_an_arc_are_those_that_use_it(seed: int) -> None:
    """``members`` gives the chunks that use an arc after any moves, splits and roll-backs."""
    desk = Desk("two-tiers", seed)
    desk.load_some()
    desk.place_rest()
    for turn in range(3):
        desk.shuffle(10)
        if turn == 1:
            desk.assignment.roll_back(len(desk.assignment.journal) // 2)
        ways = arcs_of_chunks(desk.assignment)
        for arc in range(desk.network.arc_count):
            held = [chunk for chunk, way in enumerate(ways) if arc in way]
            assert desk.assignment.members(arc) == held


@pytest.mark.parametrize("seed", range(6))
def test_members_follow_chunks_that_are_put_in_at_once(seed: int) -> None:
    """``members`` stays right when chunks are put in at once, and when a copy is changed."""
    desk = Desk("two-tiers", seed)
    desk.load_some()
    desk.assignment.place_whole(list(range(len(desk.flows) // 2, len(desk.flows))))
    first, kept = desk.assignment, [[0]]
    for turn in range(8):
        desk.put_in_again()
        desk.shuffle(turn % 3)
        desk.check()
        ways = arcs_of_chunks(desk.assignment)
        for arc in range(desk.network.arc_count):
            held = [chunk for chunk, way in enumerate(ways) if arc in way]
            assert desk.assignment.members(arc) == held
        if turn == 3:  # the first assignment does not change any more
            kept = [first.members(arc) for arc in range(desk.network.arc_count)]
            desk.assignment = first.copy()
    assert [first.members(arc) for arc in range(desk.network.arc_count)] == kept


@pytest.mark.parametrize("kind", ["two-tiers", "regular"])
def test_a_trial_tells_what_a_move_would_do(kind: str) -> None:
    """A trial gives the utilisation that a path would have after a move, and moves nothing."""
    for seed in range(10):
        desk = Desk(kind, seed)
        desk.load_some()
        desk.place_rest()
        assignment = desk.assignment
        for chunk in range(len(assignment.flow)):
            path, size = (
                desk.path(assignment.flow[chunk]),
                desk.rng.randint(1, assignment.qps(chunk)),
            )
            before = desk.state()
            told = assignment.used_after_move(chunk, size, path[None, :])[0]
            assert np.allclose(desk.state()[4], before[4], rtol=0, atol=1e-9)
            assignment.journal.clear()
            whole = size == assignment.qps(chunk)
            assignment.move(chunk if whole else assignment.split(chunk, size), path)
            assert np.allclose(told, assignment.utilization()[path], rtol=0, atol=1e-9)
            assignment.roll_back(0)


def test_phases_of_a_job_share_what_they_leave_each_other() -> None:
    """By hand: 100 and 40 in turns, 10 at any time, another job's 5: 115 on the arc."""
    fabric = KINDS["two-tiers"](Random(1))
    nics = [fabric.structure.nodes.ids[n] for n in fabric.rows_of_kind(0)[[0, -1]]]  # type: ignore[arg-type]
    rows = [(100.0, "j", "p"), (40.0, "j", "q"), (10.0, "j", ""), (5.0, "k", "p")]
    flows = flows_of(
        fabric, *((nics[0], nics[1], gbps, 1, job, phase) for gbps, job, phase in rows)
    )
    network = Network(fabric)
    assignment = Assignment(network, flows)
    ends = (int(network.terminal[flows.source[0]]), int(network.terminal[flows.destination[0]]))
    path = Candidates(network, 8).between(*ends)[0]
    for row, load in enumerate([100.0, 100.0, 110.0, 115.0]):
        assignment.move(assignment.place(row, 0, 0), path)
        assert assignment.load[path].tolist() == [load] * len(path)
