"""What every plan must satisfy, checked a second time in the plainest way, path by path.

There are also helpers to get an assignment's chunks as paths, and to solve the linear relaxation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.bounds.relaxation import FRESH, Descent, Relaxation
from heddle_controller.solve.commodities import Commodities
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Deadline
from tests.support.solve_reference import is_joined


def way(paths: Paths, row: int) -> list[int]:
    """Return the arcs of one path."""
    return [int(arc) for arc in paths.of(row)]


def check_way(fabric: Fabric, source: int, destination: int, arcs: list[int]) -> None:
    """Check that arcs lead from source to destination.

    There must be no gap, loop, dead link or NIC in between, and links in maintenance only if no
    others join the two.
    """
    structure = fabric.structure
    nodes = [int(structure.tail[arcs[0]]), *(int(structure.head[arc]) for arc in arcs)]
    assert nodes[0] == source
    assert nodes[-1] == destination
    assert all(structure.head[a] == structure.tail[b] for a, b in pairwise(arcs))
    assert len(set(nodes)) == len(nodes)
    assert (structure.nodes.kind[nodes[1:-1]] != NodeKind.NIC).all()
    assert fabric.carries[arcs].all()
    assert fabric.plannable[arcs].all() or not is_joined(fabric, source, destination)


def check_paths(plan: Plan) -> None:
    """Check that each flow has each QP on exactly one usable path, or a reason why not."""
    flows, paths = plan.flows, plan.paths
    for row in range(len(flows)):
        own = np.flatnonzero(paths.flow == row).tolist()
        if row in plan.unrouted:
            assert not own
            assert plan.unrouted[row].strip()
            continue
        qps = [q for p in own for q in range(int(paths.first_qp[p]), int(paths.last_qp[p]) + 1)]
        assert qps == [*range(int(flows.qps[row]))]
        for path in own:
            check_way(
                plan.fabric,
                int(flows.source[row]),
                int(flows.destination[row]),
                way(paths, path),
            )


def check_backups(plan: Plan) -> None:
    """Check that backups are parallel to paths and lead to the same destinations."""
    flows, paths, backups = plan.flows, plan.paths, plan.backups
    for column in ("flow", "first_qp", "last_qp"):
        assert np.array_equal(getattr(paths, column), getattr(backups, column))
    for row in range(len(backups)):
        if spare := way(backups, row):
            flow = int(paths.flow[row])
            source, destination = int(flows.source[flow]), int(flows.destination[flow])
            check_way(plan.fabric, source, destination, spare)


def check_backups_apart(plan: Plan) -> None:
    """Check that a backup shares no link between switches with its path, if that is possible.

    In a fabric of tiers only paths that go up and then down count as possible.
    """
    fabric, flows, paths = plan.fabric, plan.flows, plan.paths
    inner = between_switches(fabric)
    tiered = bool((fabric.structure.nodes.kind != NodeKind.SWITCH).all())
    for row in range(len(paths)):
        used = frozenset(arc >> 1 for arc in way(paths, row) if inner[arc])
        flow = int(paths.flow[row])
        ends = (int(flows.source[flow]), int(flows.destination[flow]))
        if used and is_joined(fabric, *ends, used, up_down=tiered):
            spare = {arc >> 1 for arc in way(plan.backups, row)}
            assert spare
            assert not spare & used


def check_backups_avoid_switches(plan: Plan) -> None:
    """Check that a backup shares no switch with its path except the ends', if that is possible.

    Only paths from the path's first switch on count, because a switch diverts only what reaches it.
    In a fabric of tiers only paths that go up and then down count.
    """
    fabric, flows, paths = plan.fabric, plan.flows, plan.paths
    structure = fabric.structure
    tiered = bool((structure.nodes.kind != NodeKind.SWITCH).all())
    ends_beside = np.stack([structure.tail[::2], structure.head[::2]])
    for row in range(len(paths)):
        nodes = structure.head[way(paths, row)]
        flow = int(paths.flow[row])
        ends = (int(flows.source[flow]), int(flows.destination[flow]))
        passed = nodes[1:-1][_is_passed(plan, nodes[1:-1], ends)]
        barred = np.flatnonzero(np.isin(ends_beside, passed).any(axis=0)).tolist()
        start = int(nodes[0])
        if len(passed) and is_joined(fabric, start, ends[1], frozenset(barred), up_down=tiered):
            assert way(plan.backups, row)[0] == way(paths, row)[0]
            spare = structure.head[way(plan.backups, row)]
            assert len(spare)
            assert not np.isin(spare, passed).any()


def _is_passed(plan: Plan, nodes: Ints, ends: tuple[int, int]) -> Bools:
    """Return which nodes are switches, except one that is an end's only usable neighbour."""
    structure, plannable = plan.fabric.structure, plan.fabric.plannable
    only: list[int] = []
    for end in ends:
        beside = structure.head[(structure.tail == end) & plannable]
        only += beside.tolist() if len(beside) == 1 else []
    return ~np.isin(nodes, only)


def between_switches(fabric: Fabric) -> Bools:
    """Return which arcs are between two switches."""
    structure = fabric.structure
    nic = structure.nodes.kind == NodeKind.NIC
    result: Bools = ~nic[structure.tail] & ~nic[structure.head]
    return result


def plain_loads(fabric: Fabric, flows: Flows, paths: Paths) -> Floats:
    """Return Gbit/s on each arc by the load rule, computed one flow after another."""
    by_group: dict[tuple[int, int], Floats] = {}
    for row in range(len(paths)):
        flow = int(paths.flow[row])
        phase = int(flows.phase[flow])
        group = (int(flows.job[flow]), phase)
        loads = by_group.setdefault(group, np.zeros(2 * fabric.link_count))
        share = (int(paths.last_qp[row]) - int(paths.first_qp[row]) + 1) / int(flows.qps[flow])
        loads[way(paths, row)] += float(flows.gbps[flow]) * share
    total = np.zeros(2 * fabric.link_count)
    for job in {group[0] for group in by_group}:
        phased = [load for key, load in by_group.items() if key[0] == job and key[1] != ANY_PHASE]
        total += np.max(phased, axis=0) if phased else 0.0
        total += by_group.get((job, ANY_PHASE), 0.0)
    return total


def check_certificate(plan: Plan) -> None:
    """Check that a certificate's figures are those of the paths, and bounds not above them."""
    told, structure = plan.certificate, plan.fabric.structure
    used = plain_loads(plan.fabric, plan.flows, plan.paths) / structure.capacity
    assert np.isclose(told.max_utilization, used.max(initial=0.0), rtol=1e-9, atol=1e-12)
    assert 0 <= told.lower_bound <= told.max_utilization
    assert [tier.tier for tier in told.tiers] == list(structure.tiers)
    for number, tier in enumerate(told.tiers):
        worst = used[structure.tier_of_arc == number].max()
        assert np.isclose(tier.max_utilization, worst, rtol=1e-9, atol=1e-12)
        assert 0 <= tier.lower_bound <= tier.max_utilization


def routed_rows(plan: Plan) -> list[int]:
    """Return the rows of the flows that have paths."""
    return [row for row in range(len(plan.flows)) if row not in plan.unrouted]


def same_plan(first: Plan, second: Plan) -> bool:
    """Return whether two plans are equal to the last bit."""
    columns = ("flow", "first_qp", "last_qp", "first", "arcs")
    pairs = [(first.paths, second.paths), (first.backups, second.backups)]
    return (
        all(np.array_equal(getattr(a, n), getattr(b, n)) for a, b in pairs for n in columns)
        and first.certificate == second.certificate
        and first.unrouted == second.unrouted
    )


def ways_of(plan: Plan, row: int) -> list[tuple[int, int, list[int]]]:
    """Return first QP, last QP and arcs of each path of a flow."""
    paths = plan.paths
    own = np.flatnonzero(paths.flow == row).tolist()
    return [(int(paths.first_qp[p]), int(paths.last_qp[p]), way(paths, p)) for p in own]


def inner_paths(flow: Ints, first_qp: Ints, last_qp: Ints, ways: Sequence[Ints]) -> Paths:
    """Return paths with the given arcs."""
    first = np.concatenate([[0], np.cumsum([len(way) for way in ways])]).astype(np.int64)
    arcs = np.concatenate([*ways, np.empty(0, dtype=np.int64)])
    return Paths(flow, first_qp, last_qp, first, arcs)


def arcs_of_chunks(assignment: Assignment) -> list[list[int]]:
    """Return the arcs of each chunk of an assignment."""
    return [assignment.path[chunk].tolist() for chunk in range(len(assignment.flow))]


def chunks_of(assignment: Assignment) -> Paths:
    """Return all chunks of an assignment as paths, sorted by flow and QP."""
    flow, first, last = (
        np.array(column, dtype=np.int64)
        for column in (assignment.flow, assignment.first_qp, assignment.last_qp)
    )
    order = np.lexsort((first, flow))
    ways = [assignment.path[chunk] for chunk in order.tolist()]
    return inner_paths(flow[order], first[order], last[order], ways)


def relax(
    network: Network, commodities: Commodities, scale: Floats, deadline: Deadline
) -> Relaxation:
    """Solve the linear relaxation; ``scale`` is each tier's proven least, shape (tiers,)."""
    descent = Descent(network, commodities, scale)
    descent.refine(FRESH, deadline)
    return descent.relaxation()
