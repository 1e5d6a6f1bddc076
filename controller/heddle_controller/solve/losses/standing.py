"""Which paths and backups use which arcs of a plan, and what single losses do to them.

What is known of a path stays in one *slot* of some columns from plan to plan. Only paths of flows
that changed are examined again. Questions about arcs and losses take time in proportion to the arcs
and losses that they name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    among,
    distinct,
    marked,
    numbered,
    stable_order,
    starts,
)
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import PhasedSums, PhasedUses, Plan
from heddle_controller.solve.losses.moves import (
    APART,
    LOSS_KINDS,
    MOVED,
    STRANDED,
    UNTOUCHED,
    SingleLosses,
    arc_tables,
    joined,
    turning,
)


class Users:
    """The paths on each arc, as slots in order of their rows, kept from plan to plan.

    The new list of a changed arc is appended. The old list stays behind until the array is full and
    is compacted.
    """

    def __init__(self, arcs: int) -> None:
        self._begin: Ints = np.zeros(arcs, dtype=np.int64)
        self._count: Ints = np.zeros(arcs, dtype=np.int64)
        self._slot: Ints = np.empty(0, dtype=np.int64)
        self._end = 0

    def on(self, arcs: Ints) -> tuple[Ints, Ints]:
        """Return the users of some arcs as pairs: index in ``arcs``, and slot. Arcs may repeat."""
        count = self._count[arcs]
        place = np.repeat(np.arange(len(arcs), dtype=np.int64), count)
        shift = self._begin[arcs] - np.cumsum(count) + count
        return place, self._slot[np.arange(len(place)) + shift[place]]

    def change(self, arcs: Ints, gone: Bools, places: Ints, slots: Ints, row: Ints) -> None:
        """Replace some users of arcs.

        Args:
            arcs: All arcs that any replaced path used, and any new one uses, ascending.
            gone: Marks slots that held another path before, shape (slots,).
            places: Index in ``arcs`` of each new use.
            slots: The slot of its path.
            row: Row of the path in each slot, shape (slots,).
        """
        place, slot = self.on(arcs)
        stays = np.flatnonzero(~gone[slot])
        place, slot = np.append(place[stays], places), np.append(slot[stays], slots)
        slot = slot[stable_order(place * len(row) + row[slot])]
        count = np.bincount(place, minlength=len(arcs))
        self._count[arcs] = 0
        if self._end + len(slot) > len(self._slot):
            every = self.on(np.arange(len(self._count)))[1]
            self._slot = np.empty(2 * (len(every) + len(slot)), dtype=np.int64)
            self._slot[: len(every)], self._end = every, len(every)
            self._begin = np.cumsum(self._count) - self._count
        self._begin[arcs], self._count[arcs] = self._end + np.cumsum(count) - count, count
        self._slot[self._end : self._end + len(slot)] = slot
        self._end += len(slot)


@dataclass(slots=True, eq=False)
class PathRoutes:
    """Columns with one row for each slot of a path."""

    row: Ints
    """Row of the path in the plan."""
    flow: Ints
    arcs: Ints
    """Arcs of the path, padded with ``NONE``."""
    spares: Ints
    """Arcs of its backup, padded to the same width."""
    losses: Ints
    """Losses that break the path, padded with ``NONE`` (``SingleLosses.on``)."""
    fates: Ints
    """Fate of the path after each of these losses; ``UNTOUCHED`` where there is none."""
    moves: Ints
    """Losses that move the path to its backup; ``NONE`` elsewhere."""
    turns: Bools
    """Marks paths whose backup has an entry in some switch."""
    bare: Bools
    """Marks unprotected paths (``entered.turning``)."""
    strands: Bools
    """Whether any loss of each kind strands the path, shape (slots, kinds)."""
    weak: Bools
    """Marks paths that some loss strands, and those of flows with QPs that have no path."""
    gbps: Floats
    """Rate of the path in Gbit/s."""
    qps: Floats
    """Number of its QPs."""
    unit: Floats
    """Gbit/s that one of its QPs asks for."""
    wants: Floats
    """The same, divided by the share of the flow's QPs that have a path."""

    def put(self, slots: Ints, size: int, new: PathRoutes) -> None:
        """Put new rows into some slots, of ``size`` in all. All other slots keep their rows."""
        for field in fields(self):
            name = field.name
            column, fresh = getattr(self, name), getattr(new, name)
            if column.shape != (size, *fresh.shape[1:]):
                pad = NONE if fresh.dtype == np.int64 else 0
                grown = np.full((size, *fresh.shape[1:]), pad, dtype=fresh.dtype)
                grown[tuple(map(slice, column.shape))] = column
                setattr(self, name, grown)
                column = grown
            column[slots] = fresh


class Standing:
    """A plan with its users of arcs, and the fate of its paths after single losses."""

    def __init__(self, plan: Plan) -> None:
        """Examine all paths of a plan."""
        arcs, rows = 2 * plan.fabric.link_count, np.arange(len(plan.paths), dtype=np.int64)
        self._adopt(plan, SingleLosses.of(plan.fabric))
        self._users, self._turned = Users(arcs), Users(arcs)
        self._free: Ints = rows[:0]
        """Slots of no path."""
        self.routes = self._examined(rows)
        self._number(rows)
        self._record(rows, rows[:0], rows[:0])

    def follow(self, plan: Plan, losses: SingleLosses, changed: Bools) -> Ints:
        """Bring another plan, and return all arcs, ascending, that its changes touch.

        Args:
            plan: The plan. Its flows are those of the plan before, or begin with them.
            losses: The single losses of its fabric.
            changed: Marks flows whose paths, backups, or fates after losses may differ from before.
        """
        before, routes = self.plan.paths, self.routes
        same = len(plan.flows) == len(self.plan.flows)
        same &= before.flow is plan.paths.flow or np.array_equal(before.flow, plan.paths.flow)
        self._adopt(plan, losses)
        rows = np.flatnonzero(changed[plan.paths.flow])
        gone = self.slot[rows if same else np.flatnonzero(changed[before.flow])]
        left = np.append(routes.arcs[gone], routes.spares[gone])
        new = self._examined(rows, routes.arcs.shape[1])
        size, more = len(routes.row), len(rows) - len(gone) - len(self._free)
        if more > 0:
            size += max(more, size // 8)
        unused = np.arange(len(routes.row), size, dtype=np.int64)
        pool = np.concatenate([gone, self._free, unused])
        slots, self._free = pool[: len(rows)], pool[len(rows) :]
        for mark in (routes.bare, routes.weak):
            mark[gone] = False
        routes.put(slots, size, new)
        if not same:
            slot = np.empty(len(plan.paths), dtype=np.int64)
            slot[rows] = slots
            slot[~changed[plan.paths.flow]] = self.slot[~changed[before.flow]]
            self._number(slot)
        return self._record(slots, gone, left)

    def keep(self, rest: Plan, row: Ints) -> Ints:
        """Forget flows that are not kept, and return all arcs, ascending, that they touch.

        ``rest`` is what is kept of the plan, and ``row`` the row of each flow there, or ``NONE``.
        What the flows that are kept ask for is not looked at again.
        """
        flow, routes = row[self.plan.paths.flow], self.routes
        gone, slot = self.slot[flow == NONE], self.slot[flow != NONE]
        left = np.append(routes.arcs[gone], routes.spares[gone])
        for mark in (routes.bare, routes.weak):
            mark[gone] = False
        routes.flow[slot] = flow[flow != NONE]
        self._free = np.append(self._free, gone)
        self._adopt(rest, self.losses)
        self._number(slot)
        return self._record(slot[:0], gone, left)

    def _adopt(self, plan: Plan, losses: SingleLosses) -> None:
        self.plan, self.losses = plan, losses
        self.takes_turns = bool((plan.flows.phase != ANY_PHASE).any())
        """Whether any flow has a phase."""

    def _number(self, slot: Ints) -> None:
        self.slot = slot
        """Slot of each path of the plan, shape (paths,)."""
        self.routes.row[slot] = np.arange(len(slot))
        self._first = starts(np.bincount(self.plan.paths.flow, minlength=len(self.plan.flows)))

    def _examined(self, rows: Ints, width: int = 2) -> PathRoutes:
        """Return new columns for some paths of the plan; paths of a flow come together."""
        plan, losses, flows = self.plan, self.losses, self.plan.flows
        arcs, spares = arc_tables(plan, rows, width)
        turns, bare = turning(plan, rows, arcs, spares)
        met, others = losses.on(arcs), losses.on(spares)
        fates = np.where(turns[:, None] & ~_shared(met, others), MOVED, STRANDED)
        fates[met == NONE] = UNTOUCHED
        flow = plan.paths.flow[rows]
        row, step = marked(fates == STRANDED)
        apart = losses.cuts_off(met[row, step], arcs[row, 0], flows.destination[flow[row]])
        fates[row[apart], step[apart]] = APART
        row, step = row[~apart], step[~apart]
        strands = np.zeros((len(rows), len(LOSS_KINDS)), dtype=np.bool_)
        strands[row, losses.kind(met[row, step])] = True
        count = (plan.paths.last_qp[rows] - plan.paths.first_qp[rows] + 1).astype(np.float64)
        routed = np.bincount(flow, count, len(flows))[flow]
        gbps, qps = flows.gbps[flow], flows.qps[flow]
        return PathRoutes(
            rows,
            flow,
            arcs,
            spares,
            met,
            fates,
            np.where(fates == MOVED, met, NONE),
            turns,
            bare,
            strands,
            strands.any(axis=1) | (routed < qps),
            gbps * count / qps,
            count,
            gbps / qps,
            gbps / qps * qps / routed,
        )

    def _record(self, slots: Ints, gone: Ints, left: Ints) -> Ints:
        """Add new paths to the users of their arcs; return all arcs that changed, ascending.

        Args:
            slots: Slots of the new paths.
            gone: Slots of paths that are no longer there; some may be in use again.
            left: The arcs of these and of their backups, padded.
        """
        routes = self.routes
        was = np.zeros(len(routes.row), dtype=np.bool_)
        was[gone] = True
        ways, spares = routes.arcs.take(slots, axis=0), routes.spares.take(slots, axis=0)
        owner, step = marked(ways != NONE)
        used, user = ways[owner, step], slots[owner]
        onto, step = marked((spares != NONE) & ~_shared(spares, ways) & routes.turns[slots, None])
        turned = spares[onto, step]
        arcs = distinct(np.concatenate([left, used, turned]))
        arcs = arcs[np.searchsorted(arcs, 0) :]
        place = np.empty(2 * self.plan.fabric.link_count, dtype=np.int64)
        place[arcs] = np.arange(len(arcs))
        self._users.change(arcs, was, place[used], user, routes.row)
        self._turned.change(arcs, was, place[turned], slots[onto], routes.row)
        return arcs

    def slots(self, flow: Ints) -> tuple[Ints, Ints]:
        """Return all paths of some flows as pairs: index in ``flow``, and slot."""
        return joined(self._first, self.slot, flow)

    def path_count(self, flow: Ints) -> Ints:
        """Return the number of paths of each of some flows."""
        return self._first[flow + 1] - self._first[flow]

    def uses(self, arcs: Ints) -> tuple[Ints, Ints]:
        """Return the uses of arcs by paths as pairs: index in ``arcs``, and slot; by both."""
        return self._users.on(arcs)

    def spares(self, arcs: Ints) -> tuple[Ints, Ints]:
        """Return the same for backups that have an entry, on arcs that their path does not use."""
        return self._turned.on(arcs)

    def turns(self, arcs: Ints) -> tuple[Ints, Ints, Ints]:
        """Return moves of paths to backups over arcs that the path itself does not use.

        The results are triples: index in ``arcs``, slot, and a loss that causes the move.
        """
        place, slot = self.spares(arcs)
        moves = self.routes.moves.take(slot, axis=0)
        there = np.flatnonzero(moves != NONE)
        of = there // max(moves.shape[1], 1)
        return place[of], slot[of], moves.ravel()[there]

    def turn(self, slot: Ints) -> tuple[Ints, Ints]:
        """Return job and phase of the path in each of some slots."""
        if not self.takes_turns:
            none = np.broadcast_to(np.int64(ANY_PHASE), len(slot))
            return none, none
        flows, flow = self.plan.flows, self.routes.flow[slot]
        return flows.job[flow], flows.phase[flow]

    def fates(self, loss: Ints, slot: Ints) -> Ints:
        """Return the fate of each path after the loss in the same position.

        It is ``UNTOUCHED``, ``MOVED``, ``STRANDED`` or ``APART``.
        """
        fate = np.full(len(slot), UNTOUCHED)
        hit, step = marked(self.routes.losses.take(slot, axis=0) == loss[:, None])
        fate[hit] = self.routes.fates[slot[hit], step]
        return fate

    def touches(self, loss: Ints, arc: Ints) -> Bools:
        """Whether each loss changes who uses the arc in the same position."""
        place, first = numbered(arc)
        width, arcs = len(self.losses.served) + 1, arc[first]
        at, slot = self.uses(arcs)
        met = self.routes.losses.take(slot, axis=0)
        onto, _, turning = self.turns(arcs)
        gone = (at[:, None] * width + met)[met != NONE]
        codes = distinct(np.append(gone, onto * width + turning))
        return among(place * width + loss, codes)

    def members(self, loss: Ints, arc: Ints) -> tuple[Ints, Ints]:
        """Return who uses each arc after the loss in the same position, moved paths included.

        The results are pairs: index in ``arc``, and slot.
        """
        place, slot = self.uses(arc)
        fate = self.fates(loss[place], slot)
        stays, moved = fate == UNTOUCHED, np.flatnonzero(fate == MOVED)
        on = self.routes.spares.take(slot[moved], axis=0) == arc[place[moved], None]
        stays[moved[on.any(axis=1)]] = True
        spare, turned = self.spares(arc)
        comes = self.fates(loss[spare], turned) == MOVED
        return (
            np.concatenate([place[stays], spare[comes]]),
            np.concatenate([slot[stays], turned[comes]]),
        )

    def broken(self, loss: Ints) -> tuple[Ints, Ints]:
        """Return the paths that losses break, as pairs: index in ``loss``, and slot; by both."""
        place, arc = self.losses.arcs_of(loss)
        at, slot = self.uses(arc)
        return self.once(place[at], slot)

    def once(self, place: Ints, slot: Ints) -> tuple[Ints, Ints]:
        """Return each of some pairs of a number and a slot once, ordered by number and path."""
        width = max(len(self.slot), 1)
        code = distinct(place * width + self.routes.row[slot])
        return code // width, self.slot[code % width]


class PathUses:
    """Uses of some places by paths. What the paths ask for adds up as loads do."""

    def __init__(self, standing: Standing, place: Ints, slot: Ints, count: int) -> None:
        """Index the uses of ``count`` places: the place of each use, and the slot of its path."""
        self._standing, self.slot = standing, slot
        self.phased = PhasedUses(count, place, *standing.turn(slot))

    @property
    def load(self) -> Floats:
        """Gbit/s in each place."""
        return self.phased.sums(self._standing.routes.gbps[self.slot]).totals[0]

    @cached_property
    def asked(self) -> PhasedSums:
        """Gbit/s and QPs in each place."""
        routes = self._standing.routes
        return self.phased.sums(routes.gbps[self.slot], routes.qps[self.slot])

    def on(self, chosen: Bools) -> PathUses:
        """Return the uses of the marked places. These are numbered anew."""
        if chosen.all():
            return self
        place, number = self.phased.place, np.cumsum(chosen)
        some = np.flatnonzero(chosen[place])
        return PathUses(self._standing, number[place[some]] - 1, self.slot[some], int(number[-1]))


def _shared(table: Ints, other: Ints) -> Bools:
    """Mark elements of a table that also occur in the same row of another one."""
    found = np.zeros(table.shape, dtype=np.bool_)
    for column in range(other.shape[1]):
        found |= table == other[:, column, None]
    return found
