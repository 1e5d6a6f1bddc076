"""Which backups some switch has an entry for. Agents can switch to these only.

A backup is one entry, at the switch where it leaves the path. From there on the underlay carries
the packets. ``plan.programs`` writes no entry where the underlay would not follow the rest of the
backup by itself, or might send packets back. This happens mostly where links were already down and
the backup is a detour.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct, marked
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import needs_entry, underlay
from heddle_controller.solve.losses.moves import arc_tables


def turning(plan: Plan, rows: Ints, ways: Ints, spares: Ints) -> tuple[Bools, Bools]:
    """Mark the paths that some switch can move to their backup, and those left unprotected.

    Unprotected paths cross links between switches and no switch can move them. A single loss stops
    them until routing has settled. Both results have shape (rows,).

    Args:
        plan: A plan.
        rows: Rows of some paths.
        ways: Their arcs (``arc_tables``).
        spares: The arcs of their backups.
    """
    turns = np.zeros(len(rows), dtype=np.bool_)
    spare = np.flatnonzero(spares[:, 0] != NONE)
    turns[spare] = _has_entry(plan, plan.paths.flow[rows[spare]], ways[spare], spares[spare])
    inner = plan.fabric.structure.inner[ways] & (ways != NONE)
    return turns, inner.any(axis=1) & ~turns


def unprotected_flows(plan: Plan) -> Ints:
    """Return rows, ascending, of flows with QPs that some single loss stops.

    They stay stopped until routing has settled.
    """
    rows = np.arange(len(plan.paths), dtype=np.int64)
    _, bare = turning(plan, rows, *arc_tables(plan, rows))
    return distinct(plan.paths.flow[bare])


def _has_entry(plan: Plan, flow: Ints, ways: Ints, spares: Ints) -> Bools:
    """Whether the switch where each backup leaves its path has an entry for it, shape (paths,).

    Always true where UDP source ports carry the flow, since the host can switch. Each path is
    judged by itself, although QPs that leave a switch together and part further down have one entry
    and one backup.

    Args:
        plan: A plan.
        flow: Flow of each path.
        ways: Arcs of the paths (``arc_tables``).
        spares: Arcs of their backups. Every path has one.
    """
    structure, destination = plan.fabric.structure, plan.flows.destination[flow]
    step = np.arange(ways.shape[1])
    there = ways != NONE
    length = np.count_nonzero(there, axis=1)
    alike = (ways == spares) & there
    same = np.count_nonzero(np.logical_and.accumulate(alike, axis=1), axis=1)
    left, other = length - same, np.count_nonzero(spares != NONE, axis=1) - same
    held = (same > 0) & (left > 0) & (other > 0)
    # Two shortest ways from a switch are two next hops of the underlay, which can carry the rest of
    # both. They can share an arc only at equal distance from the end.
    direct = np.flatnonzero(held & (left == other))
    start = structure.tail[ways[direct, same[direct]]]
    longer = underlay(structure).is_detour(start, destination[direct], left[direct])
    direct = direct[~longer]
    some = held.copy()
    some[direct] = False
    # The last arc is the NIC's.
    later = (step > same[direct, None]) & (step < length[direct, None] - 1)
    held[direct] = ~(alike[direct] & later).any(axis=1)
    rest = np.flatnonzero(some)
    if len(rest):
        held[rest] = _leads_round(plan, destination[rest], ways[rest], spares[rest], same[rest])
    return np.asarray(held | plan.by_ports[flow])


def _leads_round(plan: Plan, destination: Ints, ways: Ints, spares: Ints, same: Ints) -> Bools:
    """Do the same as ``_has_entry`` for backups that may be detours.

    ``same`` is the number of arcs that each path and its backup share at the start.
    """
    structure, is_nic = plan.fabric.structure, plan.fabric.structure.nodes.kind == NodeKind.NIC
    whole, row, step = underlay(structure), np.arange(len(ways)), np.arange(ways.shape[1])
    left = np.count_nonzero(ways != NONE, axis=1) - same
    held = needs_entry(structure, ways[row, same], destination, left)
    held &= ~whole.may_loop(spares[row, same], destination)
    after = (spares != NONE) & ~is_nic[structure.tail[spares]] & ~is_nic[structure.head[spares]]
    of, at = marked(after & (step > same[:, None]))
    held[of[~whole.forwards(spares[of, at], destination[of])]] = False
    risk = np.where((ways != NONE) & (step >= same[:, None]), ways >> 1, NONE)
    of, at = marked(after & (step >= same[:, None]))
    held[of[((spares[of, at] >> 1)[:, None] == risk[of]).any(axis=1)]] = False
    return held
