"""Backups that some switch has an entry for: only to these can agents turn.

A backup is one entry, at the switch where it leaves the path; from there on the underlay carries.
``plan.programs`` writes none where the underlay would not take the rest of the backup by itself, or
might bring packets back: most often where links were down already and what is left is a way round.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import Bools, Ints, among, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import needs_entry, underlay


def entered(plan: Plan) -> Plan:
    """The plan without the backups that no entry turns to; itself where it has none of these."""
    backups = plan.backups
    there = np.flatnonzero(np.diff(backups.first))
    kept = there[has_entry(plan, there)]
    if len(kept) == len(there):
        return plan
    lengths = np.zeros(len(backups), dtype=np.int64)
    lengths[kept] = np.diff(backups.first)[kept]
    arcs = backups.take(kept).arcs
    return replace(plan, backups=replace(backups, first=starts(lengths), arcs=arcs))


def unprotected_flows(plan: Plan) -> Ints:
    """Rows of flows some QPs of which a single loss stops until routing has settled; ascending.

    Their path crosses links between switches, and no switch on it can turn them to a backup.
    """
    structure, paths = plan.fabric.structure, plan.paths
    inner = (structure.nodes.kind != NodeKind.NIC)[structure.head[paths.arcs]]
    across = np.bincount(paths.owner()[inner], minlength=len(paths)) > 1
    bare = np.diff(entered(plan).backups.first) == 0
    return np.unique(paths.flow[across & bare])


def has_entry(plan: Plan, rows: Ints) -> Bools:
    """Whether the switch at which each backup leaves its path can turn to it, shape (rows,).

    Or a host can, where ports carry the flow. Each path is looked at by itself: QPs that leave a
    switch together and part further down have one entry, and take one backup.

    Args:
        plan: A plan.
        rows: Paths that have a backup.
    """
    structure, paths, backups = plan.fabric.structure, plan.paths, plan.backups
    is_nic = structure.nodes.kind == NodeKind.NIC
    flow = paths.flow[rows]
    destination = plan.flows.destination[flow]
    same = _shared_start(plan, rows)
    place, spare = paths.first[rows] + same, backups.first[rows] + same
    left = paths.first[rows + 1] - place
    held = (same > 0) & (left > 0) & (spare < backups.first[rows + 1])
    some = np.flatnonzero(held)
    arc, turn = paths.arcs[place[some]], backups.arcs[spare[some]]
    whole = underlay(structure)
    held[some] = (
        ~is_nic[structure.tail[arc]]
        & needs_entry(structure, arc, destination[some], left[some])
        & ~whole.may_loop(turn, destination[some])
    )
    some = np.flatnonzero(held)
    ways, round_ = paths.take(rows[some]), backups.take(rows[some])
    width = plan.fabric.link_count
    owner, after = round_.owner(), round_.arcs
    within = np.arange(len(after)) - round_.first[owner]
    inner = ~is_nic[structure.tail[after]] & ~is_nic[structure.head[after]]
    later = np.flatnonzero(inner & (within > same[some][owner]))
    astray = ~whole.forwards(after[later], destination[some][owner[later]])
    held[some[owner[later[astray]]]] = False
    rest = np.flatnonzero(inner & (within >= same[some][owner]))
    ahead = np.arange(len(ways.arcs)) - ways.first[ways.owner()] >= same[some][ways.owner()]
    risk = np.sort(ways.owner()[ahead] * width + (ways.arcs[ahead] >> 1))
    met = among(owner[rest] * width + (after[rest] >> 1), risk)
    held[some[owner[rest[met]]]] = False
    return np.asarray(held | plan.by_ports[flow])


def _shared_start(plan: Plan, rows: Ints) -> Ints:
    """How many arcs each path and its backup begin with alike, shape (rows,)."""
    paths, backups = plan.paths, plan.backups
    both = np.minimum(np.diff(paths.first)[rows], np.diff(backups.first)[rows])
    same = np.zeros(len(rows), dtype=np.int64)
    open_ = np.arange(len(rows))
    while len(open_):
        open_ = open_[same[open_] < both[open_]]
        at = rows[open_]
        alike = (
            paths.arcs[paths.first[at] + same[open_]]
            == backups.arcs[backups.first[at] + same[open_]]
        )
        open_ = open_[alike]
        same[open_] += 1
    return same
