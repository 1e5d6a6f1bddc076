"""Which backups some switch has an entry for. Agents can switch to these only.

A backup is one entry, at the switch where it leaves the path. From there on the underlay carries
the packets. ``plan.programs`` writes no entry where the underlay would not follow the rest of the
backup by itself, or might send packets back. This happens mostly where links were already down and
the backup is a detour.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Ints, among, distinct
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import needs_entry, underlay


def turning(plan: Plan, rows: Ints) -> tuple[Bools, Bools]:
    """Mark the paths that some switch can move to their backup, and those left unprotected.

    Unprotected paths cross links between switches and no switch can move them. A single loss stops
    them until routing has settled. Both results have shape (rows,).
    """
    spare = np.flatnonzero(np.diff(plan.backups.first)[rows])
    turns = np.zeros(len(rows), dtype=np.bool_)
    turns[spare] = has_entry(plan, rows[spare])
    some = plan.paths.take(rows)
    inner = plan.fabric.structure.inner[some.arcs]
    return turns, (np.bincount(some.owner()[inner], minlength=len(rows)) > 0) & ~turns


def unprotected_flows(plan: Plan) -> Ints:
    """Return rows, ascending, of flows with QPs that some single loss stops.

    They stay stopped until routing has settled.
    """
    _, bare = turning(plan, np.arange(len(plan.paths), dtype=np.int64))
    return distinct(plan.paths.flow[bare])


def has_entry(plan: Plan, rows: Ints) -> Bools:
    """Whether the switch where each backup leaves its path has an entry for it, shape (rows,).

    Always true where UDP source ports carry the flow, since the host can switch. Each path is
    judged by itself, although QPs that leave a switch together and part further down have one entry
    and one backup.

    Args:
        plan: A plan.
        rows: Rows of paths that have a backup.
    """
    structure, paths, backups = plan.fabric.structure, plan.paths, plan.backups
    flow = paths.flow[rows]
    destination, same = plan.flows.destination[flow], _shared_start(plan, rows)
    place, spare = paths.first[rows] + same, backups.first[rows] + same
    left, other = paths.first[rows + 1] - place, backups.first[rows + 1] - spare
    held = (same > 0) & (left > 0) & (other > 0)
    # Two shortest ways from a switch are two next hops of the underlay, which can carry the rest of
    # both. They can share an arc only at equal distance from the end.
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
    """Do the same as ``has_entry`` for backups that may be detours.

    ``same`` is the number of arcs that each path and its backup share at the start.
    """
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
    """Return how many arcs each path and its backup share at the start, shape (rows,)."""
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
