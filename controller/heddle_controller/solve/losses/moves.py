"""Which paths a single loss breaks, and what happens to them before a new plan is made.

Agents switch every path that crosses the lost link or switch to its backup: it is *moved*. If there
is no backup, or the loss breaks it too, the path is *stranded*: nobody can say where it goes until
routing has settled. If the source is cut off at its own NIC, the path is *apart* instead: switches
never see its packets, and only the host can move it, if it has another link. A path is also apart
if its destination is cut off altogether.

Agents can switch to a backup only where some switch has an entry for it. A backup is one entry, at
the switch where it leaves the path. From there on the underlay carries the packets.
``plan.programs`` writes no entry where the underlay would not follow the rest of the backup by
itself, or might send packets back. This happens mostly where links were already down and the backup
is a detour.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct, marked, ranges
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import needs_entry, underlay

Kind: TypeAlias = Literal["link", "switch"]
LOSS_KINDS: tuple[Kind, ...] = get_args(Kind)
UNTOUCHED, MOVED, STRANDED, APART = range(4)


@dataclass(frozen=True, eq=False)
class SingleLosses:
    """All single losses: each link between switches, and each switch, that is in service.

    A loss is a number: the row of a link, or the number of links plus the node row of a switch.
    """

    fabric: Fabric
    served: Bools
    """Marks the losses that can happen, of links and switches in service; (links + nodes,)."""

    @classmethod
    def of(cls, fabric: Fabric) -> SingleLosses:
        """Return the single losses of a fabric in its present state."""
        inner = fabric.structure.inner & fabric.carries
        switches = np.zeros(fabric.node_count, dtype=np.bool_)
        switches[fabric.structure.head[inner]] = True
        return cls(fabric, np.append(inner[::2], switches))

    def kind(self, loss: Ints) -> Ints:
        """Return the kind of each loss, as an index of ``LOSS_KINDS``."""
        return (loss >= self.fabric.link_count).astype(np.int64)

    @cached_property
    def every(self) -> Ints:
        """All losses, ascending: those of links come first."""
        return np.flatnonzero(self.served)

    @cached_property
    def begin(self) -> Ints:
        """Where the losses of each kind begin and end in ``every``, shape (kinds + 1,)."""
        return np.searchsorted(self.every, [0, self.fabric.link_count, len(self.served)])

    def of_kind(self, kind: int) -> Ints:
        """Return all losses of one kind, ascending. ``kind`` is an index of ``LOSS_KINDS``."""
        return self.every[self.begin[kind] : self.begin[kind + 1]]

    def name(self, loss: int) -> str:
        """Return the name of a loss, as the option ``--down`` takes it."""
        links = self.fabric.link_count
        if loss < links:
            return self.fabric.link_name(loss)
        return self.fabric.structure.nodes.ids[loss - links]

    def takes(self, loss: Ints, arc: Ints) -> Bools:
        """Whether each loss takes down the arc in the same position. The shapes broadcast."""
        structure, node = self.fabric.structure, loss - self.fabric.link_count
        ends = (structure.tail[arc] == node) | (structure.head[arc] == node)
        return np.asarray(ends | (arc >> 1 == loss))

    def arcs_of(self, loss: Ints) -> tuple[Ints, Ints]:
        """Return the arcs that some losses take down, as pairs: index in ``loss``, and arc."""
        links = self.fabric.link_count
        one, many = np.flatnonzero(loss < links), np.flatnonzero(loss >= links)
        place, arcs = joined(*self.fabric.structure.out, loss[many] - links)
        arcs = np.append(2 * loss[one], arcs)
        place = np.append(one, many[place])
        return np.append(place, place), np.append(arcs, arcs ^ 1)

    def on(self, arcs: Ints) -> Ints:
        """Return the losses that break paths, one row for each path; ``NONE`` elsewhere.

        They are the links of a path and the switches that it enters. A path has no loops, so no
        loss occurs twice in a row.

        Args:
            arcs: The arcs of each path, padded with ``NONE`` (``arc_tables``).
        """
        inner, into = arcs[:, 1:-1], arcs[:, :-1]
        heads = self.fabric.structure.head[into] + self.fabric.link_count
        loss = np.concatenate([inner >> 1, heads], axis=1)
        loss[~self.served[loss] | (np.concatenate([inner, into], axis=1) == NONE)] = NONE
        return loss

    def cuts_off(self, loss: Ints, begin: Ints, target: Ints) -> Bools:
        """Whether each loss cuts off the source's link, or the destination altogether.

        Each loss is taken with the path in the same position, of which ``begin`` is the first arc
        and ``target`` the destination.
        """
        structure, node = self.fabric.structure, loss - self.fabric.link_count
        place, beside = joined(*structure.out, target)
        left = self.fabric.carries[beside] & (structure.head[beside] != node[place])
        reached = np.bincount(place[left], minlength=len(target)) > 0
        return np.asarray((structure.head[begin] == node) | ~reached)


def arc_tables(plan: Plan, rows: Ints, width: int = 2) -> tuple[Ints, Ints]:
    """Return the arcs of some paths, and those of their backups, one row for each path.

    Both tables are padded with ``NONE`` to the same width, which is at least ``width``.
    """
    both = [(one, one.first[rows], one.first[rows + 1]) for one in (plan.paths, plan.backups)]
    longest = max(int((end - begin).max(initial=width)) for _, begin, end in both)
    step, tables = np.arange(longest), []
    for paths, begin, end in both:
        place = begin[:, None] + step
        there = place < end[:, None]
        table = np.full(place.shape, NONE, dtype=np.int64)
        table[there] = paths.arcs[place[there]]
        tables.append(table)
    return tables[0], tables[1]


def joined(first: Ints, values: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return all values of some rows of a compressed table.

    Args:
        first: Where the values of each row begin, shape (all rows + 1,).
        values: The values of all rows, one row after another.
        rows: The rows to read.

    Returns:
        For each value its index in ``rows``, and the value.
    """
    low, high = first[rows], first[rows + 1]
    place = np.repeat(np.arange(len(rows), dtype=np.int64), high - low)
    return place, values[ranges(low, high)]


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
