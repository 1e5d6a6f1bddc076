"""What differs between two sets of entries, and between two plans.

An entry's identity is its switch and its match; its content is where it sends
packets and what it is at risk of. The stage is neither: it orders the writing of
entries and is not written into a switch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints, Structure
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.program import Entries


def difference(old: Entries, new: Entries) -> tuple[Ints, Ints]:
    """What makes the old entries into the new.

    Both must be of one structure.

    Returns:
        Rows of ``new`` to set (absent before, or with other content) and rows of
        ``old`` to delete (their match is no longer there), each ascending.
    """
    partner, orphans = _partners(old, new)
    known = np.flatnonzero(partner != NONE)
    same = np.zeros(len(new), dtype=np.bool_)
    same[known] = _same_content(old, partner[known], new, known)
    return np.flatnonzero(~same), np.flatnonzero(orphans)


def _partners(old: Entries, new: Entries) -> tuple[Ints, Bools]:
    """Row of ``old`` with the match of each row of ``new``, and which rows no one asked for."""
    names = ("switch", "source", "destination", "source_port", "destination_port")
    columns = [np.concatenate([getattr(old, name), getattr(new, name)]) for name in names]
    is_new = np.arange(len(old) + len(new)) >= len(old)
    order = np.lexsort([is_new, *columns[::-1]])
    ordered = np.stack([column[order] for column in columns])
    # A match stands at most twice, the old row right before the new one.
    pairs = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).all(axis=0))
    partner = np.full(len(new), NONE, dtype=np.int64)
    partner[order[pairs + 1] - len(old)] = order[pairs]
    orphans = np.ones(len(old), dtype=np.bool_)
    orphans[order[pairs]] = False
    return partner, orphans


def _same_content(old: Entries, old_rows: Ints, new: Entries, new_rows: Ints) -> Bools:
    """Whether rows that stand in parallel send packets the same way at the same risk."""
    a, b = old.take(old_rows), new.take(new_rows)
    same: Bools = (a.primary == b.primary) & (a.backup == b.backup)
    lengths = np.diff(a.risk_first)
    same &= lengths == np.diff(b.risk_first)
    rows = np.flatnonzero(same & (lengths > 0))
    if len(rows):
        left, right = a.take(rows), b.take(rows)
        equal = left.risk_links == right.risk_links
        same[rows] = np.logical_and.reduceat(equal, left.risk_first[:-1])
    return same


def changed_flows(old: Plan, new: Plan) -> Ints:
    """Rows of ``new``'s flows that both plans route, and of which any QP moved.

    Flows are matched by id, nodes and links by id and key: the fabrics may be
    different readings of one file.
    """
    rows = {flow: row for row, flow in enumerate(new.flows.ids)}
    to_new = np.array([rows.get(flow, NONE) for flow in old.flows.ids], dtype=np.int64)
    old_arcs = old.paths.arcs
    if old.fabric.structure is not new.fabric.structure:
        old_arcs = _translation(old.fabric.structure, new.fabric.structure)[old_arcs]
    way = _ways(old.paths, old_arcs, new.paths)
    was = _runs(old.paths, to_new[old.paths.flow], way[: len(old.paths)])
    now = _runs(new.paths, new.paths.flow, way[len(old.paths) :])
    differs = np.zeros(len(new.flows), dtype=np.bool_)
    differs[_unequal(was, now)] = True
    routed = np.zeros((2, len(new.flows)), dtype=np.bool_)
    routed[0, was[0]] = True
    routed[1, now[0]] = True
    return np.flatnonzero(differs & routed.all(axis=0))


def _runs(paths: Paths, flow: Ints, way: Ints) -> Ints:
    """Flow, first QP and way wherever a flow or its way begins, shape (3, runs).

    With the QPs of a flow in order, that says which QP goes where, however many
    paths of the same arcs stand side by side.
    """
    starts = np.ones(len(paths), dtype=np.bool_)
    starts[1:] = (flow[1:] != flow[:-1]) | (way[1:] != way[:-1])
    rows = np.flatnonzero(starts & (flow != NONE))
    return np.stack([flow[rows], paths.first_qp[rows], way[rows]])


def _unequal(was: Ints, now: Ints) -> Ints:
    """Flows of runs that stand on one side only."""
    flow, qp, way = np.concatenate([was, now], axis=1)
    ways = int(way.max(initial=0)) + 1
    width = (int(qp.max(initial=0)) + 1) * ways
    code = flow * width + qp * ways + way
    split = was.shape[1]
    return np.setxor1d(code[:split], code[split:], assume_unique=True) // width


def _ways(old: Paths, old_arcs: Ints, new: Paths) -> Ints:
    """A number for each path of both sets, equal where all arcs are; the old ones first."""
    lengths = np.concatenate([np.diff(old.first), np.diff(new.first)])
    arcs = np.concatenate([old_arcs, new.arcs])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    table = np.full((int(lengths.max(initial=0)), len(lengths)), _END, dtype=np.int64)
    table[within, rows] = arcs
    number = np.zeros(len(lengths), dtype=np.int64)
    for column in table:
        # One arc after the other is folded in; renumbering keeps the numbers small.
        _, code = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(lengths) + code, return_inverse=True)
    return number


_END = -2
"""No arc, and not an arc of another structure that has no like here either."""


def _translation(old: Structure, new: Structure) -> Ints:
    """The arc of ``new`` that each arc of ``old`` is; ``NONE`` where it is gone."""
    arcs = {name: arc for arc, name in enumerate(_arc_names(new))}
    return np.array([arcs.get(name, NONE) for name in _arc_names(old)], dtype=np.int64)


def _arc_names(structure: Structure) -> Iterator[tuple[str, str, str]]:
    ids, links = structure.nodes.ids, structure.links
    for a, b, key in zip(links.a.tolist(), links.b.tolist(), links.key, strict=True):
        yield ids[a], ids[b], str(key)
        yield ids[b], ids[a], str(key)
