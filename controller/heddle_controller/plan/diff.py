"""Finds the differences between two sets of entries, and between two plans, and what caused them.

The identity of an entry is its switch and its match. Its content is where it sends packets and its
risk links. The stage is neither: it only orders the writing of entries and is not written into a
switch. The causes of a new plan are what changed in fabric, jobs and flows since the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, numbered
from heddle_controller.model.edits import Edit
from heddle_controller.model.fabric import Fabric, State, Structure
from heddle_controller.model.flows import (
    ANY_PHASE,
    PREFIX,
    ROCE_PORT,
    UNANNOUNCED_JOB,
    Flows,
    unannounced_rows,
)
from heddle_controller.model.kept import rows_by_id
from heddle_controller.model.plan import Paths, Plan, differing
from heddle_controller.model.program import ANY_PORT, Entries, known_edit

MATCH = ("switch", "source", "destination", "source_port", "destination_port")
MOST_CODES = np.iinfo(np.int64).max
MOST_BLOCKS = 256
"""Most stretches to compare one by one. With more, all rows are gathered and compared at once."""


def difference(old: Entries, new: Entries, partner: Ints | None = None) -> tuple[Ints, Ints]:
    """Return the changes that turn the old entries into the new ones.

    Both must have the same structure. ``partner`` is the result of ``partners``, if known.

    Returns:
        Rows of ``new`` to set (absent before, or with other content), and rows of ``old`` to delete
        (their match no longer exists), each ascending.
    """
    partner = partners(old, new) if partner is None else partner
    known = np.flatnonzero(partner != NONE)
    orphans = np.ones(len(old), dtype=np.bool_)
    orphans[partner[known]] = False
    edit = known_edit(old, new)
    if edit is None:
        same = np.zeros(len(new), dtype=np.bool_)
        same[known] = _same_content(old, partner[known], new, known)
    else:
        same = np.ones(len(new), dtype=np.bool_)
        same[edit.came] = False
        twins = edit.came[partner[edit.came] != NONE]
        same[twins] = _same_content(old, partner[twins], new, twins)
    return np.flatnonzero(~same), np.flatnonzero(orphans)


def partners(old: Entries, new: Entries) -> Ints:
    """Return for each row of ``new`` the row of ``old`` with its switch and match, or ``NONE``."""
    result = np.full(len(new), NONE, dtype=np.int64)
    if not len(old) or not len(new):
        return result
    edit = known_edit(old, new)
    if edit is not None:
        return _partners_after(old, new, edit)
    blocks = _aligned(old, new)
    if sum(block.length for block in blocks) * 2 < len(new):  # searching everything is then quicker
        return _searched(old, new)
    rest, over = np.ones(len(new), dtype=np.bool_), np.ones(len(old), dtype=np.bool_)
    for was, now, length in blocks:
        result[now : now + length] = np.arange(was, was + length)
        rest[now : now + length] = over[was : was + length] = False
    rows, others = np.flatnonzero(rest), np.flatnonzero(over)
    if len(rows) and len(others):
        found = _searched(_matches(old, others), _matches(new, rows))
        result[rows] = np.where(found == NONE, NONE, others[found])
    return result


def _partners_after(old: Entries, new: Entries, edit: Edit) -> Ints:
    """Do the same as ``partners`` if it is known how the new entries were made from the old."""
    stays = np.ones(len(new), dtype=np.bool_)
    stays[edit.came] = False
    stood = np.ones(len(old), dtype=np.bool_)
    stood[edit.gone] = False
    result = np.full(len(new), NONE, dtype=np.int64)
    result[stays] = np.flatnonzero(stood)
    if len(edit.gone) and len(edit.came):
        found = _searched(_matches(old, edit.gone), _matches(new, edit.came))
        result[edit.came] = np.where(found == NONE, NONE, edit.gone[found])
    return result


class Block(NamedTuple):
    """A stretch of adjacent rows that correspond in old and new entries."""

    old: int
    """First row in the old entries."""
    new: int
    """First row in the new entries."""
    length: int


def _aligned(old: Entries, new: Entries) -> list[Block]:
    """Return blocks of switches that have the same matches in the same order on both sides.

    From one plan to the next this is true of most switches and their neighbours, so blocks are
    long. Returns no blocks if there would be too many, or if rows are not sorted by switch.
    """
    if any((one.switch[1:] < one.switch[:-1]).any() for one in (old, new)):
        return []
    nodes = int(max(old.switch[-1], new.switch[-1])) + 1
    counts = [np.bincount(one.switch, minlength=nodes) for one in (old, new)]
    first = [np.concatenate([[0], np.cumsum(count)]) for count in counts]
    alike: Bools = counts[0] == counts[1]
    for was, now, length in _blocks(alike, first):
        differs = np.zeros(length, dtype=np.bool_)
        for name in MATCH[1:]:
            left, right = getattr(old, name), getattr(new, name)
            differs |= left[was : was + length] != right[now : now + length]
        alike[new.switch[now + np.flatnonzero(differs)]] = False
    return _blocks(alike, first)


def _blocks(alike: Bools, first: list[Ints]) -> list[Block]:
    """Return the blocks of rows of marked switches; none if there are more than ``MOST_BLOCKS``.

    ``first`` says for both sides where the rows of each switch begin.
    """
    edges = np.flatnonzero(np.diff(alike, prepend=False, append=False))
    if len(edges) > 2 * MOST_BLOCKS:
        return []
    ends = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    found = (
        Block(int(first[0][a]), int(first[1][a]), int(first[0][b] - first[0][a])) for a, b in ends
    )
    return [block for block in found if block.length]


class _Matches(NamedTuple):
    """Only the switch and match of entries."""

    switch: Ints
    source: Ints
    destination: Ints
    source_port: Ints
    destination_port: Ints


def _matches(entries: Entries, rows: Ints) -> _Matches:
    return _Matches(*(getattr(entries, name)[rows] for name in MATCH))


def _searched(old: Entries | _Matches, new: Entries | _Matches) -> Ints:
    """Do the same as ``partners`` by searching, for sets that are not empty, in any order."""
    left, right = match_codes([old, new])
    order = None if (left[1:] > left[:-1]).all() else np.argsort(left, kind="stable")
    at = np.minimum(np.searchsorted(left, right, sorter=order), len(left) - 1)
    at = at if order is None else order[at]
    return np.where(left[at] == right, at, NONE)


def match_codes(sets: Sequence[Entries | _Matches]) -> list[Ints]:
    """Return a number for switch and match of each entry, as one array for each set."""
    columns = [np.concatenate([getattr(one, name) for one in sets]) for name in MATCH]
    if ((columns[-1] == ANY_PORT) | (columns[-1] == ROCE_PORT)).all():  # normally true
        columns[-1] = (columns[-1] != ANY_PORT).astype(np.int64)
    widths = [int(column.max(initial=0)) + 1 for column in columns]
    if math.prod(widths) > MOST_CODES:  # renumber, so that numbers stay below the entry count
        columns = [numbered(column)[0] for column in columns]
        code = columns[0]
        for column in columns[1:]:
            code = numbered(code * len(column) + column)[0]
    else:
        code = columns[0]
        for column, width in zip(columns[1:], widths[1:], strict=True):
            code = code * width + column
    return np.split(code, np.cumsum([len(one.switch) for one in sets])[:-1])


def _same_content(old: Entries, old_rows: Ints, new: Entries, new_rows: Ints) -> Bools:
    """Whether pairs of old and new rows have the same primary, backup and risk links.

    ``old_rows`` and ``new_rows`` are parallel, and ``new_rows`` is ascending.
    """
    breaks = np.flatnonzero((np.diff(old_rows) != 1) | (np.diff(new_rows) != 1)) + 1
    if len(breaks) > MOST_BLOCKS:
        return _alike(old, old_rows, new, new_rows)
    same = np.ones(len(new_rows), dtype=np.bool_)
    edges = [0, *breaks.tolist(), len(new_rows)] if len(new_rows) else []
    for begin, end in pairwise(edges):
        block = Block(int(old_rows[begin]), int(new_rows[begin]), end - begin)
        same[begin:end] = _same_block(old, new, block)
    return same


def _same_block(old: Entries, new: Entries, block: Block) -> Bools:
    """Do the same as ``_same_content`` for a block of adjacent rows."""
    there = slice(block.old, block.old + block.length)
    here = slice(block.new, block.new + block.length)
    same: Bools = old.primary[there] == new.primary[here]
    same &= old.backup[there] == new.backup[here]
    was = old.risk_first[block.old : block.old + block.length + 1]
    now = new.risk_first[block.new : block.new + block.length + 1]
    resized = np.flatnonzero(np.diff(was) != np.diff(now))
    if len(resized) > MOST_BLOCKS:
        rows = np.arange(block.length)
        return same & _alike(old, rows + block.old, new, rows + block.new)
    same[resized] = False
    ends = zip([0, *(resized + 1).tolist()], [*resized.tolist(), block.length], strict=True)
    for begin, end in ends:
        left = old.risk_links[was[begin] : was[end]]
        places = np.flatnonzero(left != new.risk_links[now[begin] : now[end]]) + now[begin]
        same[np.searchsorted(now, places, side="right") - 1] = False
    return same


def _alike(old: Entries, old_rows: Ints, new: Entries, new_rows: Ints) -> Bools:
    """Do the same as ``_same_content`` for rows in any place."""
    same: Bools = old.primary[old_rows] == new.primary[new_rows]
    same &= old.backup[old_rows] == new.backup[new_rows]
    begin, end = new.risk_first[new_rows], new.risk_first[new_rows + 1]
    lengths = end - begin
    same &= lengths == old.risk_first[old_rows + 1] - old.risk_first[old_rows]
    rows = np.flatnonzero(same & (lengths > 0))
    begin, end, was = begin[rows], end[rows], old.risk_first[old_rows[rows]]
    same[rows[_unlike_risks(old, was, new, begin, end)]] = False
    return same


def _unlike_risks(old: Entries, was: Ints, new: Entries, begin: Ints, end: Ints) -> Ints:
    """Return the indices of stretches of risk links that differ between old and new.

    ``was`` is where each stretch begins in ``old``, ``begin`` and ``end`` bound it in ``new``. None
    may be empty. Stretches that are adjacent on both sides are compared as one.
    """
    if not len(begin):
        return begin
    breaks = (begin[1:] != end[:-1]) | (was[1:] - begin[1:] != was[:-1] - begin[:-1])
    first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    last = np.append(first[1:], len(begin)) - 1
    starts, lengths = begin[first], end[last] - begin[first]
    offset = np.cumsum(lengths) - lengths
    here = _stretches(new.risk_links, starts, lengths)
    there = _stretches(old.risk_links, was[first], lengths)
    places = np.flatnonzero(here != there)
    run = np.searchsorted(offset, places, side="right") - 1
    unlike: Ints = np.searchsorted(begin, places - offset[run] + starts[run], side="right") - 1
    return unlike


def _stretches(values: Ints, starts: Ints, lengths: Ints) -> Ints:
    """Return some stretches of a column, joined."""
    parts = zip(starts.tolist(), lengths.tolist(), strict=True)
    return np.concatenate([values[start : start + length] for start, length in parts])


def changed_flows(old: Plan, new: Plan) -> Ints:
    """Return rows of ``new``'s flows that the old plan routes, if a QP moved or lost its path.

    A flow that had no path and gets one does not count. Flows are matched by id, and nodes and
    links by id and key, since both fabrics may have been read separately from one file.
    """
    count, now, was = len(new.flows), new.paths, old.paths
    if not new.flows.begins_with(old.flows):
        to_new = rows_by_id(old.flows, new.flows)
        was = replace(was, flow=to_new[was.flow]).take(np.flatnonzero(to_new[was.flow] != NONE))
    if old.fabric.structure is not new.fabric.structure:
        arcs = _translation(old.fabric.structure, new.fabric.structure)[was.arcs]
        return _moved((was, arcs), now, count)
    if (was.flow[1:] >= was.flow[:-1]).all():
        rows = differing(was, now, count)
        was, now = (one.take(np.flatnonzero(rows[one.flow])) for one in (was, now))
    return _moved((was, was.arcs), now, count)


def _moved(old: tuple[Paths, Ints], new: Paths, flows: int) -> Ints:
    """Return the flows that had paths and now have different ones, or none.

    ``old`` are the old paths, for flows in the new rows, and their arcs in the new numbering.
    ``flows`` is the number of new flows.
    """
    way = _ways(*old, new)
    was = _runs(old[0], way[: len(old[0])])
    now = _runs(new, way[len(old[0]) :])
    differs = np.zeros(flows, dtype=np.bool_)
    differs[_unequal(was, now)] = True
    routed = np.zeros(flows, dtype=np.bool_)
    routed[was[0]] = True
    return np.flatnonzero(differs & routed)


def _runs(paths: Paths, way: Ints) -> Ints:
    """Return flow, first QP and way of each run of QPs that go the same way, shape (3, runs).

    This says which QP goes where, even if adjacent paths have the same arcs.
    """
    flow = paths.flow
    starts = np.ones(len(paths), dtype=np.bool_)
    starts[1:] = (flow[1:] != flow[:-1]) | (way[1:] != way[:-1])
    rows = np.flatnonzero(starts)
    return np.stack([flow[rows], paths.first_qp[rows], way[rows]])


def _unequal(was: Ints, now: Ints) -> Ints:
    """Return the flows of runs that exist on one side only."""
    flow, qp, way = np.concatenate([was, now], axis=1)
    ways = int(way.max(initial=0)) + 1
    width = (int(qp.max(initial=0)) + 1) * ways
    code = flow * width + qp * ways + way
    split = was.shape[1]
    return np.setxor1d(code[:split], code[split:], assume_unique=True) // width


def _ways(old: Paths, old_arcs: Ints, new: Paths) -> Ints:
    """Return a number for each path, old paths first; equal numbers mean equal arcs."""
    lengths = np.concatenate([np.diff(old.first), np.diff(new.first)])
    arcs = np.concatenate([old_arcs, new.arcs])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    table = np.full((int(lengths.max(initial=0)), len(lengths)), _END, dtype=np.int64)
    table[within, rows] = arcs
    number = np.zeros(len(lengths), dtype=np.int64)
    for column in table:
        # Fold in one arc after the other. Renumbering keeps the numbers small.
        number = numbered(number * len(lengths) + numbered(column)[0])[0]
    return number


_END = -2
"""Padding after the last arc. ``NONE`` means an old arc that no longer exists."""


def _translation(old: Structure, new: Structure) -> Ints:
    """Return the arc of ``new`` for each arc of ``old``; ``NONE`` if it no longer exists."""
    arcs = {name: arc for arc, name in enumerate(_arc_names(new))}
    return np.array([arcs.get(name, NONE) for name in _arc_names(old)], dtype=np.int64)


def _arc_names(structure: Structure) -> Iterator[tuple[str, str, str]]:
    ids, links = structure.nodes.ids, structure.links
    for a, b, key in zip(links.a.tolist(), links.b.tolist(), links.key, strict=True):
        yield ids[a], ids[b], str(key)
        yield ids[b], ids[a], str(key)


_Value = TypeVar("_Value", int, str)

NAMES_PER_CAUSE = 20
"""Most names that one cause lists."""


class CauseKind(StrEnum):
    """What may have changed."""

    FABRIC_PUT = "fabric-put"
    LINK_LOST = "link-lost"
    LINK_BACK = "link-back"
    LINK_DRAINED = "link-drained"
    LINK_UNDRAINED = "link-undrained"
    SWITCH_LOST = "switch-lost"
    SWITCH_BACK = "switch-back"
    SWITCH_DRAINED = "switch-drained"
    SWITCH_UNDRAINED = "switch-undrained"
    JOB_CAME = "job-came"
    JOB_GONE = "job-gone"
    JOB_SUSPENDED = "job-suspended"
    JOB_RESUMED = "job-resumed"
    FLOWS_CHANGED = "flows-changed"
    TRAFFIC_FOUND = "traffic-found"
    """Flows appeared that nobody announced; they are named by their NICs."""
    TRAFFIC_GONE = "traffic-gone"
    ROLLED_BACK = "rolled-back"
    """An operator went back to an earlier plan, which is named by its generation."""
    BETTER_PLAN = "better-plan"
    """Nothing changed, except perhaps the source ports that hosts found out."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One kind of change, and what it concerns."""

    kind: CauseKind
    names: tuple[str, ...] = ()
    """Links as "a,b" or "a,b,key", switches, jobs or flows; at most ``NAMES_PER_CAUSE``."""
    count: int = 0
    """How many changed, including those not named."""


def causes_between(
    before: Plan | None,
    after: Plan,
    *,
    were_suspended: AbstractSet[str] = frozenset(),
    are_suspended: AbstractSet[str] = frozenset(),
) -> tuple[Cause, ...]:
    """Return what changed from one plan to the next.

    ``before`` is None if there was no plan. Links and switches are compared by row, so this takes
    only a few passes over their states. Plans do not say which jobs were suspended when they were
    made: without ``were_suspended`` and ``are_suspended``, such jobs count as gone and come.
    """
    found = [*_of_fabrics(before.fabric if before else None, after.fabric)]
    known, wanted = _jobs(before), _jobs(after)
    came, gone = wanted - known, known - wanted
    found += _named(CauseKind.JOB_CAME, sorted(came - were_suspended))
    found += _named(CauseKind.JOB_RESUMED, sorted(came & were_suspended))
    found += _named(CauseKind.JOB_GONE, sorted(gone - are_suspended))
    found += _named(CauseKind.JOB_SUSPENDED, sorted(gone & are_suspended))
    old, new = _pairs(before), _pairs(after)
    found += _named(CauseKind.TRAFFIC_FOUND, sorted(new - old))
    found += _named(CauseKind.TRAFFIC_GONE, sorted(old - new))
    earlier = _flows_on(before, after) if before else after.flows
    if not after.flows.same_as(earlier):
        changed = _named(CauseKind.FLOWS_CHANGED, sorted(_with_other_flows(earlier, after.flows)))
        same_names = (known, old) == (wanted, new)
        found += changed or [Cause(CauseKind.FLOWS_CHANGED)] * same_names
    return tuple(found) or (Cause(CauseKind.BETTER_PLAN),)


def _with_other_flows(before: Flows, after: Flows) -> set[str]:
    """Return the names of jobs of both whose flows differ in number, order or content."""
    jobs = sorted({*before.job_names, *after.job_names})
    phases = sorted({*before.phase_names, *after.phase_names})
    (old_job, old), (new_job, new) = (_by_job(one, jobs, phases) for one in (before, after))
    differs = np.bincount(old_job, minlength=len(jobs)) != np.bincount(new_job, minlength=len(jobs))
    left, right = ~differs[old_job], ~differs[new_job]
    job = new_job[right]
    for was, now in zip(old, new, strict=True):
        differs[job[was[left] != now[right]]] = True
    stayed = {*before.job_names} & {*after.job_names} - {UNANNOUNCED_JOB, ""}
    return {jobs[row] for row in np.flatnonzero(differs).tolist()} & stayed


def _by_job(
    flows: Flows, jobs: Sequence[str], phases: Sequence[str]
) -> tuple[Ints, list[Ints | Floats]]:
    """Return the jobs of flows, ascending, and columns with their content, in the same order.

    Jobs and phases are numbered as in the lists. Ids are left out: those of a job's flows follow
    from its columns, and there are many of them to compare.
    """
    job = np.searchsorted(jobs, flows.job_names)[flows.job]
    phase = np.append(np.searchsorted(phases, flows.phase_names), ANY_PHASE)[flows.phase]
    columns = [flows.source, flows.destination, flows.gbps, phase, flows.qps, flows.traffic_class]
    order = np.argsort(job, kind="stable")
    return job[order], [column[order] for column in (*columns, flows.weight, flows.bytes)]


def _flows_on(before: Plan, after: Plan) -> Flows:
    """Return the flows of a plan with their NICs in the rows that these have in another plan."""
    nodes, index = before.fabric.structure.nodes, after.fabric.structure.index
    if before.fabric.structure is after.fabric.structure:
        return before.flows
    row = np.array([index.get(node, NONE) for node in nodes.ids], dtype=np.int64)
    ends = row[before.flows.source], row[before.flows.destination]
    return replace(before.flows, source=ends[0], destination=ends[1])


def _jobs(plan: Plan | None) -> set[str]:
    """Return the names of the jobs that flows belong to; some flows belong to none."""
    return {*plan.flows.job_names} - {UNANNOUNCED_JOB, ""} if plan else set()


def _pairs(plan: Plan | None) -> set[str]:
    """Return the pairs of NICs of flows that nobody announced, as names."""
    if plan is None:
        return set()
    rows = unannounced_rows(plan.flows).tolist()
    return {plan.flows.ids[row].removeprefix(PREFIX) for row in rows}


def _of_fabrics(before: Fabric | None, after: Fabric) -> list[Cause]:
    if before is None or before.structure is not after.structure:
        return [Cause(CauseKind.FABRIC_PUT)]
    ids = after.structure.nodes.ids
    return [
        *_of_states(_LINK_KINDS, before.link_state, after.link_state, after.link_name),
        *_of_states(_SWITCH_KINDS, before.node_state, after.node_state, ids.__getitem__),
    ]


_LINK_KINDS = (
    (CauseKind.LINK_LOST, State.UP, State.DOWN),
    (CauseKind.LINK_BACK, State.DOWN, State.UP),
    (CauseKind.LINK_DRAINED, State.UP, State.DRAINED),
    (CauseKind.LINK_UNDRAINED, State.DRAINED, State.UP),
)
_SWITCH_KINDS = (
    (CauseKind.SWITCH_LOST, State.UP, State.DOWN),
    (CauseKind.SWITCH_BACK, State.DOWN, State.UP),
    (CauseKind.SWITCH_DRAINED, State.UP, State.DRAINED),
    (CauseKind.SWITCH_UNDRAINED, State.DRAINED, State.UP),
)
"""Each kind, with the states before and after."""


def _of_states(
    kinds: Sequence[tuple[CauseKind, State, State]],
    before: Ints,
    after: Ints,
    name: Callable[[int], str],
) -> Iterator[Cause]:
    changed = np.flatnonzero(before != after)
    was, now = before[changed], after[changed]
    for kind, old, new in kinds:
        yield from _named(kind, changed[(was == old) & (now == new)].tolist(), name)


def _named(
    kind: CauseKind, changed: Sequence[_Value], name: Callable[[_Value], str] = str
) -> list[Cause]:
    if not changed:
        return []
    return [Cause(kind, tuple(name(one) for one in changed[:NAMES_PER_CAUSE]), len(changed))]
