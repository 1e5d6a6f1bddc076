"""Backups that some switch has an entry for: only to these can agents turn.

A backup is one entry, at the switch where it leaves the path; from there on the underlay carries.
``plan.programs`` writes none where the underlay would not take the rest of the backup by itself, or
might bring packets back: most often where links were down already and what is left is a way round.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Ints, among
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import needs_entry, underlay


def turning(plan: Plan, rows: Ints) -> tuple[Bools, Bools]:
    """Whether some switch can turn each of some paths to its backup; and which are in need of that.

    That is, none can turn them, and they cross links between switches: a single loss stops them
    until routing has settled.
    """
    spare = np.flatnonzero(np.diff(plan.backups.first)[rows])
    turns = np.zeros(len(rows), dtype=np.bool_)
    turns[spare] = has_entry(plan, rows[spare])
    some = plan.paths.take(rows)
    inner = plan.fabric.structure.inner[some.arcs]
    return turns, (np.bincount(some.owner()[inner], minlength=len(rows)) > 0) & ~turns


def unprotected_flows(plan: Plan) -> Ints:
    """Rows of flows some QPs of which a single loss stops until routing has settled; ascending."""
    _, bare = turning(plan, np.arange(len(plan.paths), dtype=np.int64))
    return np.unique(plan.paths.flow[bare])


def has_entry(plan: Plan, rows: Ints) -> Bools:
    """Whether the switch at which each backup leaves its path can turn to it, shape (rows,).

    Or a host can, where ports carry the flow. Each path is looked at by itself: QPs that leave a
    switch together and part further down have one entry, and take one backup.

    Args:
        plan: A plan.
        rows: Paths that have a backup.
    """
    structure, paths, backups = plan.fabric.structure, plan.paths, plan.backups
    flow = paths.flow[rows]
    destination, same = plan.flows.destination[flow], _shared_start(plan, rows)
    place, spare = paths.first[rows] + same, backups.first[rows] + same
    left, other = paths.first[rows + 1] - place, backups.first[rows + 1] - spare
    held = (same > 0) & (left > 0) & (other > 0)
    # Two shortest ways from a switch are two next hops of the underlay, which has the rest of both.
    # Two arcs of them are one only if they are as far from the end.
    direct = np.flatnonzero(held & (left == other))
    start = structure.tail[paths.arcs[place[direct]]]
    longer = underlay(structure).is_detour(start, destination[direct], left[direct])
    direct = direct[~longer]
    rest = held.copy()
    rest[direct] = False
    open_, step = direct, 1
    while len(open_):
        open_ = open_[left[open_] > step + 1]  # the last arc is the NIC's
        meets = paths.arcs[place[open_] + step] == backups.arcs[spare[open_] + step]
        held[open_[meets]] = False
        open_, step = open_[~meets], step + 1
    some = np.flatnonzero(rest)
    held[some] = _leads_round(plan, rows[some], same[some])
    return np.asarray(held | plan.by_ports[flow])


def _leads_round(plan: Plan, rows: Ints, same: Ints) -> Bools:
    """As ``has_entry``, of any backups that leave their paths after so many arcs."""
    structure, is_nic = plan.fabric.structure, plan.fabric.structure.nodes.kind == NodeKind.NIC
    ways, others = plan.paths.take(rows), plan.backups.take(rows)
    destination, whole = plan.flows.destination[ways.flow], underlay(structure)
    arc, turn = ways.arcs[ways.first[:-1] + same], others.arcs[others.first[:-1] + same]
    held = needs_entry(structure, arc, destination, np.diff(ways.first) - same)
    held &= ~whole.may_loop(turn, destination)
    owner, after = others.owner(), others.arcs
    within = np.arange(len(after)) - others.first[owner]
    inner = ~is_nic[structure.tail[after]] & ~is_nic[structure.head[after]]
    later = np.flatnonzero(inner & (within > same[owner]))
    held[owner[later[~whole.forwards(after[later], destination[owner[later]])]]] = False
    of, links = ways.owner(), plan.fabric.link_count
    ahead = np.arange(len(ways.arcs)) - ways.first[of] >= same[of]
    risk = np.sort(of[ahead] * links + (ways.arcs[ahead] >> 1))
    there = np.flatnonzero(inner & (within >= same[owner]))
    held[owner[there[among(owner[there] * links + (after[there] >> 1), risk)]]] = False
    return held


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
