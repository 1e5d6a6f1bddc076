"""Making a plan better by moving few of its flows.

A plan from scratch moves most flows, although often a few moves would make a repaired plan as good.
So search begins with the paths of the plan. Arcs above their bounds give up flows, and guided
search goes on where that does not suffice. If that is not good enough, flows exchange QPs until
none can be faster. Each QP that can keeps its path, whatever happens to the other QPs of its flow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, distinct
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan, differing, join_paths
from heddle_controller.solve.assignment import Assignment, exported_paths, inner_paths
from heddle_controller.solve.attempt import PlanningProblem, nearer_bounds
from heddle_controller.solve.bounds.cuts import cut_bound, scaled
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options
from heddle_controller.solve.planner import FINISHING, IMPROVING, finished_plan, unit_of
from heddle_controller.solve.search.search import Search
from heddle_controller.solve.tables import is_told_anew, short_of_ports
from heddle_controller.solve.unrouted import Reasons


def few_moves(plan: Plan, options: Options | None = None) -> Iterator[Plan]:
    """Yield plans of the same flows that search from this one finds, each for more moves.

    In the first, links are emptier. In those after it, links are as full and flows are faster.
    They may be no better than this one. There are none where flows use drained links or share
    source ports, because search would move them like any others.
    """
    options, flows = options or Options(), plan.flows
    network = Network(plan.fabric)
    if short_of_ports(flows).any() or plan.paths.crosses(~network.usable).any():
        return
    routed = attached(network, flows) & Reasons(network).joined(flows)
    left = {row: why for row, why in plan.unrouted.items() if routed[row]}  # tables are full
    routed[[*left]] = False
    deadline = options.deadline().part(IMPROVING)
    candidates = Candidates(network, options.candidate_limit)
    planes = Planes(network) if network.tiered else None
    unit = unit_of(cut_bound(network, flows, routed))
    small = replace(flows, gbps=flows.gbps / unit)
    bound = cut_bound(network, small, routed)
    problem = PlanningProblem(network, candidates, planes, small, routed, bound, deadline)
    problem.notes = tuple(note for note in plan.notes if not is_told_anew(note))

    def with_paths(paths: Paths) -> Plan:
        found = finished_plan(problem, _numbered_as(plan.paths, paths, flows), left)
        return replace(found, flows=flows, certificate=scaled(found.certificate, unit))

    assignment = Assignment(network, small)
    assignment.load_chunks(inner_paths(network, plan.paths))
    Search(assignment, candidates, problem.target(), deadline).run()
    if len(flows) <= options.relaxation_limit:  # guided search gets nowhere among more
        assignment = nearer_bounds(problem, assignment)
    yield with_paths(exported_paths(assignment, renumber=True))
    for step in FINISHING:
        other = step(problem, assignment)
        if other is not None:
            assignment = other
            yield with_paths(exported_paths(assignment, renumber=True))


def _numbered_as(old: Paths, new: Paths, flows: Flows) -> Paths:
    """Return the new paths, each with the QPs of its flow that were on it before, where it can."""
    changed = differing(old, new, len(flows))
    was, now = (paths.take(np.flatnonzero(changed[paths.flow])) for paths in (old, new))
    counts, counts_before = now.qp_count.tolist(), was.qp_count.tolist()
    rows: list[tuple[int, int, int, int]] = []  # row of ``now``, flow, first and last QP
    for flow in distinct(now.flow).tolist():
        mine, before = (range(*np.searchsorted(one.flow, [flow, flow + 1])) for one in (now, was))
        way = {now.of(row).tobytes(): row for row in mine}
        room = {row: counts[row] for row in mine}
        of_qp = np.full(int(flows.qps[flow]), NONE, dtype=np.int64)
        for one in before:
            row, qp = way.get(was.of(one).tobytes(), NONE), int(was.first_qp[one])
            count = min(room.get(row, 0), counts_before[one])
            of_qp[qp : qp + count] = row
            room[row] = room.get(row, 0) - count
        of_qp[of_qp == NONE] = np.repeat([*mine], [room[row] for row in mine])
        last = np.flatnonzero(np.diff(of_qp, append=NONE))
        first = [0, *(last[:-1] + 1).tolist()]
        rows += zip(of_qp[last].tolist(), [flow] * len(last), first, last.tolist(), strict=True)
    kept, flow_of, first_qp, last_qp = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    numbered = replace(now.take(kept), flow=flow_of, first_qp=first_qp, last_qp=last_qp)
    paths = join_paths([new.take(np.flatnonzero(~changed[new.flow])), numbered])
    return paths.take(np.argsort(paths.flow, kind="stable"))
