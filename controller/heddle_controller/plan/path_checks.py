"""What every single path of a plan must be, primary or backup.

Each check looks at all paths at once and gives the faulty ones with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heddle_controller.model.arrays import NONE, UNREACHED, Bools, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.underlay import underlay

Fault = tuple[int, str]
"""Row of a path, and what is wrong with it."""


def malformed(plan: Plan, paths: Paths) -> str:
    """Why the arrays are no paths of these flows and this fabric; empty where they are."""
    count = len(paths)
    columns = (paths.flow, paths.first_qp, paths.last_qp)
    if any(column.shape != (count,) for column in columns) or paths.first.shape != (count + 1,):
        return "columns differ in length"
    if (
        paths.first[0] != 0
        or paths.first[-1] != len(paths.arcs)
        or (np.diff(paths.first) < 0).any()
    ):
        return "bounds do not cut the arcs into paths"
    if _outside(paths.arcs, len(plan.fabric.structure.tail)):
        return "an arc is not in the fabric"
    if _outside(paths.flow, len(plan.flows)) or (np.diff(paths.flow) < 0).any():
        return "flows are unknown or out of order"
    return ""


def _outside(rows: Ints, count: int) -> bool:
    return bool(((rows < 0) | (rows >= count)).any())


def path_faults(plan: Plan, paths: Paths, rows: Ints) -> Iterator[Fault]:
    """What is wrong with paths that have arcs, those without passed over.

    Where they lead is asked of some rows, over which links of all.
    """
    some = paths.take(rows)
    ends = np.flatnonzero(np.diff(some.first) > 0)
    for faults in (_end_faults(plan, some, ends), _course_faults(plan, some)):
        yield from ((int(rows[row]), reason) for row, reason in faults)
    yield from _state_faults(plan, paths)


def _end_faults(plan: Plan, paths: Paths, rows: Ints) -> Iterator[Fault]:
    structure, flows = plan.fabric.structure, plan.flows
    ids = structure.nodes.ids
    for what, node, due in (
        ("starts", structure.tail[paths.arcs[paths.first[rows]]], flows.source),
        ("ends", structure.head[paths.arcs[paths.first[rows + 1] - 1]], flows.destination),
    ):
        expected = due[paths.flow[rows]]
        for at in np.flatnonzero(node != expected).tolist():
            yield int(rows[at]), f"{what} at {ids[node[at]]!r}, not at {ids[expected[at]]!r}"


def _course_faults(plan: Plan, paths: Paths) -> Iterator[Fault]:
    """Gaps, NICs on the way, and nodes met twice."""
    structure, owner = plan.fabric.structure, paths.owner()
    ids = structure.nodes.ids
    head, tail = structure.head[paths.arcs], structure.tail[paths.arcs]
    inner = np.flatnonzero(owner[1:] == owner[:-1])
    for at in inner[head[inner] != tail[inner + 1]].tolist():
        yield int(owner[at]), f"jumps from {ids[head[at]]!r} to {ids[tail[at + 1]]!r}"
    for at in inner[structure.nodes.kind[head[inner]] == NodeKind.NIC].tolist():
        yield int(owner[at]), f"passes through the NIC {ids[head[at]]!r}"
    visits = _by_ordinal(paths, head)
    starts = np.where(np.diff(paths.first) > 0, paths.first[:-1], NONE)
    before = [np.where(starts != NONE, np.append(tail, NONE)[starts], NONE)]
    for visit in visits:
        for earlier in before:
            for row in np.flatnonzero((visit == earlier) & (visit != NONE)).tolist():
                yield row, f"meets {ids[visit[row]]!r} twice"
        before.append(visit)


def _by_ordinal(paths: Paths, values: Ints) -> Ints:
    """Values that stand beside arcs, shape (longest path, paths), ``NONE`` past the ends.

    Paths are short, so comparing ordinal with ordinal costs less than any sorting.
    """
    length = np.diff(paths.first)
    table = np.full((int(length.max(initial=0)), len(paths)), NONE, dtype=np.int64)
    within = np.arange(len(values)) - np.repeat(paths.first[:-1], length)
    table[within, paths.owner()] = values
    return table


def _state_faults(plan: Plan, paths: Paths) -> Iterator[Fault]:
    """Links that are down, and links in maintenance where there is a way round."""
    fabric = plan.fabric
    if fabric.plannable.all():
        return
    poor = np.flatnonzero(~fabric.plannable[paths.arcs])
    if not len(poor):
        return
    owner = paths.owner()
    for at in poor[~fabric.carries[paths.arcs[poor]]].tolist():
        yield int(owner[at]), f"crosses {_link(plan, paths, at)}, which is down"
    drained = poor[fabric.carries[paths.arcs[poor]]]
    if not len(drained):
        return
    avoidable = _joined_by_plannable(plan, paths.flow[owner[drained]])
    for at in drained[avoidable].tolist():
        reason = f"crosses {_link(plan, paths, at)}, which is drained, though there is a way round"
        yield int(owner[at]), reason


def _link(plan: Plan, paths: Paths, at: int) -> str:
    return plan.fabric.link_name(int(paths.arcs[at]) >> 1)


def _joined_by_plannable(plan: Plan, flow: Ints) -> Bools:
    """Whether links that take new paths join the ends of each flow."""
    structure, flows = plan.fabric.structure, plan.flows
    reach = underlay(structure, plan.fabric.plannable).reach
    first, arcs = structure.out
    joined: dict[int, bool] = {}
    for row in np.unique(flow).tolist():
        source, place = int(flows.source[row]), int(reach.place[flows.destination[row]])
        own = arcs[first[source] : first[source + 1]]
        seats = structure.head[own[plan.fabric.plannable[own]]]
        hops = reach.distance[reach.row[seats], place] if place >= 0 else np.empty(0)
        joined[row] = bool((hops != UNREACHED).any())
    return np.array([joined[row] for row in flow.tolist()], dtype=np.bool_)


def backup_faults(plan: Plan, rows: Ints) -> Iterator[Fault]:
    """Backups, of some rows, that are the very path they stand in for.

    Sharing some links is no fault: a graph may have no other way, and where the two
    part the backup still helps. No entry sends packets into a link it is at risk of.
    """
    paths, backups = plan.paths, plan.backups
    lengths = np.diff(paths.first)[rows]
    rows = rows[(lengths == np.diff(backups.first)[rows]) & (lengths > 0)]
    ways = paths.take(rows)
    equal = ways.arcs == backups.take(rows).arcs
    if len(rows):
        for row in rows[np.logical_and.reduceat(equal, ways.first[:-1])].tolist():
            yield row, "is the path itself, so it helps against nothing"
