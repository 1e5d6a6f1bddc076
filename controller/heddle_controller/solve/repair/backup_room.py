"""Moves backups to where links have room, in fabrics of tiers.

Colouring spreads the load of one lost link evenly over all others, whatever these already carry. So
some backups fall on links that are fuller than others. This module sets a limit: how full some link
must be after a loss. A backup that would push a link above the limit tries other spines and cores
in turns, all such backups at once. It moves where its links have room, and where no loss turns more
load to one link than it turned to some link before. So the even share that colouring promises is
kept. The limit is a guess, made from what each path could reach at best by itself. Where backups
cannot keep to it, it is raised a little and they try again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, among, stable_order, starts
from heddle_controller.solve.colouring.planes import Planes

_EQUAL = 1e-9
_LEVELS = 4
"""Limits to try. Each is above the last by the least that a remaining path adds to its uplink."""
_PATIENCE = 8
"""Turns in a row in which no backup moves, after which turns end."""
_FEW, _SOME = 16, 64
"""Up to ``_FEW`` rows skip the turns and look at many ways at once.

So do up to ``_SOME`` rows that turns have not helped.
"""
_WAYS = 512
"""Ways that each of these rows looks at."""
_MOST_CELLS = 10_000_000
"""Most pairs of a possible loss and a cable beside it. With more, no loads are kept for them."""

UP, CLIMB, FALL, DOWN = range(4)
"""Lanes: the cables of a path over a spine or a core, all as upward arcs.

``UP`` leaves the source's leaf and ``CLIMB`` the spine above it. ``DOWN`` leaves the destination's
leaf and ``FALL`` the spine above that one.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Paths over a spine or a core, by the cables of their lanes, and their backups."""

    own: Ints
    """Cables of each path, ``NONE`` for none, shape (4, paths)."""
    spare: Ints
    """Cables of its backup, ``NONE`` for none, shape (4, paths)."""
    gbps: Floats
    """Rate of each path, shape (paths,)."""


def with_room(planes: Planes, loads: Floats, turns: Turns) -> tuple[Ints, Ints]:
    """Return the rows whose backups move, and their new cables, shape (4, rows).

    ``loads`` are Gbit/s on each arc while nothing is lost, shape (arcs,). ``turns.spare`` is
    changed in place.
    """
    room, over = _Room(planes, loads, turns), turns.own[CLIMB] != NONE
    other = _other_slots(planes, turns)
    room.settle(np.flatnonzero(~over), (UP, DOWN), _within(planes, other))
    room.settle(np.flatnonzero(over), (UP, CLIMB, FALL, DOWN), _between(planes, turns, other))
    rows = np.flatnonzero(room.moved)
    return rows, room.spare[:, rows]


_Propose: TypeAlias = Callable[[Ints, Ints], tuple[Ints, Bools]]
"""Maps rows and a turn for each to the cables to try, shape (4, rows), and marks valid ones."""


_Slots: TypeAlias = Callable[[Ints, Ints], tuple[Ints, Ints]]
"""Maps rows and a turn for each to the cables to another slot, at the first and the last leaf."""


def _other_slots(planes: Planes, turns: Turns) -> _Slots:
    layer, tail = planes.spines, planes.network.tail
    slot = layer.slot_of_arc
    width = np.maximum(layer.width[layer.part[tail[turns.own[UP]]]], 2)
    begun = (slot[turns.spare[UP]] - slot[turns.own[UP]] - 1) % width

    def other(rows: Ints, turn: Ints) -> tuple[Ints, Ints]:
        wide, step = width[rows], begun[rows] + turn
        shift, cable = 1 + step % (wide - 1), step // (wide - 1)
        up, down = (
            layer.cables(tail[own], (slot[own] + shift) % wide, cable)
            for own in (turns.own[UP, rows], turns.own[DOWN, rows])
        )
        return up, down

    return other


def _within(planes: Planes, other: _Slots) -> _Propose:
    """Return a function that proposes other spines for paths over one spine."""
    head = planes.network.head_or_none

    def propose(rows: Ints, turn: Ints) -> tuple[Ints, Bools]:
        to = np.full((4, len(rows)), NONE, dtype=np.int64)
        to[UP], to[DOWN] = other(rows, turn)
        fits = (to[UP] != NONE) & (head[to[UP]] == head[to[DOWN]])
        return to, np.asarray(fits)

    return propose


def _between(planes: Planes, turns: Turns, other: _Slots) -> _Propose:
    """Return a function that proposes other spines and cores for paths over a core."""
    network, layer = planes.network, planes.cores
    head = network.head_or_none
    begun, part = layer.slot_of_arc[turns.spare[CLIMB]], np.append(layer.part, NONE)

    def propose(rows: Ints, turn: Ints) -> tuple[Ints, Bools]:
        to, own = np.full((4, len(rows)), NONE, dtype=np.int64), turns.own[:, rows]
        to[UP], to[DOWN] = other(rows, turn)
        low, high = head[to[UP]], head[to[DOWN]]
        fits = (low != NONE) & (high != NONE) & (low != high) & (part[low] == part[high])
        fits &= (part[low] != NONE) & (low != network.tail[own[FALL]])
        fits &= high != network.tail[own[CLIMB]]
        some = np.flatnonzero(fits)
        place = (begun[rows[some]] + rows[some] + turn[some]) % layer.width[part[low[some]]]
        for lane, spine in ((CLIMB, low[some]), (FALL, high[some])):
            to[lane, some] = layer.cables(spine, place, rows[some] + turn[some])
        fits &= (to[CLIMB] != NONE) & (to[FALL] != NONE)
        fits &= head[to[CLIMB]] != head[own[CLIMB]]
        return to, np.asarray(fits)

    return propose


class _Room:
    """Moves backups within a limit on how full links may be after a loss.

    The limit is what some link must reach in any case. At first it is the utilisation of the
    fullest link while nothing is lost.
    """

    def __init__(self, planes: Planes, loads: Floats, turns: Turns) -> None:
        network = planes.network
        tail, head = network.tail, network.head
        self.spare, self._own, self._gbps = turns.spare, turns.own, turns.gbps
        self.moved = np.zeros(len(turns.gbps), dtype=np.bool_)
        self._per_gbps = network.per_gbps[:-1]
        self._must = float((loads * self._per_gbps).max(initial=0.0))
        leafs, cores = (
            np.flatnonzero((layer.slot_of_arc != NONE) & network.usable)
            for layer in (planes.spines, planes.cores)
        )
        zone, of_spine, of_core = planes.spines.part, *np.full((2, len(network.level)), NONE)
        cores = cores[zone[tail[cores]] != NONE]  # no path climbs from a spine without leaves
        of_spine[tail[cores]] = zone[tail[cores]]
        of_core[head[cores]] = 0  # all cores are one group: backups may use any other core
        rising = {UP: _Ways(leafs, tail, head), CLIMB: _Ways(cores, zone[tail], tail)}
        self._ways = rising | {DOWN: rising[UP], FALL: rising[CLIMB]}
        # ``FALL`` and ``DOWN`` name upward arcs; their traffic is on the opposite arc of the link.
        falling = loads.reshape(-1, 2)[:, ::-1].ravel()
        self._carried = {UP: loads, CLIMB: loads, FALL: falling, DOWN: falling}
        self._falls: dict[int, list[_Fallen]] = {lane: [] for lane in self._ways}
        for beside, lost, lanes in (
            (_Beside.of(leafs, tail[leafs], tail), np.arange(len(tail)), (UP, DOWN)),
            (_Beside.of(cores, zone[tail[cores]], of_spine), tail, (CLIMB, FALL)),
            (_Beside.of(cores, np.zeros_like(cores), of_core), head, (CLIMB, FALL)),
        ):
            for lane in lanes if beside.cells <= _MOST_CELLS else ():
                turned = self._own[lane], self.spare[lane], self._gbps
                stands = self._carried[lane], self._per_gbps
                self._falls[lane].append(_Fallen(beside, lost, turned, stands))
        self._claim = np.empty(
            max((fall.cells for falls in self._falls.values() for fall in falls), default=0),
            dtype=np.int64,
        )

    def settle(self, rows: Ints, lanes: tuple[int, ...], propose: _Propose) -> None:
        """Move backups of some rows, which all use the given lanes, until none breaks the limit."""
        falls = [(lane, fall) for lane in lanes for fall in self._falls[lane]]
        open_ = rows[self._over(rows, falls)]
        if not len(open_):
            return
        for lane in lanes:
            ways, used = self._ways[lane], self._carried[lane] * self._per_gbps
            adds = self._gbps[open_] * float(self._per_gbps[ways.arcs].min())
            self._must = max(self._must, ways.least(used, self._own[lane, open_], adds))
        for _ in range(_LEVELS):
            open_ = open_[self._over(open_, falls)]
            if not len(open_):
                break
            for _, fall in falls:
                fall.limit()
            open_ = self._moved(open_, falls, propose)
            adds = self._gbps[open_] * self._per_gbps[self._own[UP, open_]]
            self._must += float(adds.min(initial=np.inf)) if len(open_) else 0.0

    def _over(self, rows: Ints, falls: list[tuple[int, _Fallen]]) -> Bools:
        """Mark the rows after whose loss some link of their backup is above the limit."""
        over = np.zeros(len(rows), dtype=np.bool_)
        for _, fall in falls:
            over |= fall.over(rows, self._must * (1 + _EQUAL))
        return over

    def _moved(self, rows: Ints, falls: list[tuple[int, _Fallen]], propose: _Propose) -> Ints:
        """Move the rows that find room; return the rest."""
        turn, idle = 0, 0
        while len(rows) > _FEW and idle < _PATIENCE:
            turn += 1
            to, fits = propose(rows, np.full(len(rows), turn))
            at = self._roomy(rows, to, np.flatnonzero(fits), falls)
            for lane, fall in falls:
                at = at[fall.is_first(rows[at], to[lane, at], self._claim)]
            self._move(rows[at], to[:, at], falls)
            idle = 0 if len(at) else idle + 1
            stay = np.ones(len(rows), dtype=np.bool_)
            stay[at] = False
            rows = rows[stay]
        return rows if len(rows) > _SOME else self._sought(rows, falls, propose)

    def _sought(self, rows: Ints, falls: list[tuple[int, _Fallen]], propose: _Propose) -> Ints:
        """Move the rows that find room among many ways tried at once; return the rest."""
        while len(rows):
            many, turns = np.repeat(rows, _WAYS), np.tile(np.arange(1, _WAYS + 1), len(rows))
            to, fits = propose(many, turns)
            at = self._roomy(many, to, np.flatnonzero(fits), falls)
            at = at[np.diff(many[at], prepend=NONE) != 0]  # the first of each row
            for lane, fall in falls:
                at = at[fall.is_first(many[at], to[lane, at], self._claim)]
            if not len(at):
                break
            self._move(many[at], to[:, at], falls)
            rows = rows[~among(rows, np.sort(many[at]))]
        return rows

    def _roomy(self, rows: Ints, to: Ints, at: Ints, falls: list[tuple[int, _Fallen]]) -> Ints:
        """Return the elements of ``at`` whose rows have room on all cables proposed in ``to``."""
        for lane, fall in falls:
            at = at[fall.has_room(rows[at], to[lane, at], self._must * (1 + _EQUAL))]
        return at

    def _move(self, rows: Ints, to: Ints, falls: list[tuple[int, _Fallen]]) -> None:
        self.spare[:, rows], self.moved[rows] = to, True
        for lane, fall in falls:
            fall.move(rows, to[lane])


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """Cables that lead out of places, such as leaves or zones, by several ways, such as spines."""

    arcs: Ints
    """The cables, as arcs."""
    place: Ints
    """Place that each arc of the fabric leaves, shape (arcs,)."""
    way: Ints
    """Way that each arc of the fabric belongs to, shape (arcs,)."""

    def least(self, used: Floats, own: Ints, adds: Floats) -> float:
        """Return how full some cable is at least when each row in turn avoids its own way.

        Args:
            used: Utilisation of each arc, shape (arcs,).
            own: The cable that each row uses now.
            adds: Utilisation that each row adds at least.
        """
        arcs, place, way = self.arcs, self.place, self.way
        lowest, next_ = (np.full(int(place[arcs].max(initial=0)) + 1, np.inf) for _ in range(2))
        np.minimum.at(lowest, place[arcs], used[arcs])
        best = np.full(len(lowest), NONE)
        found = arcs[used[arcs] == lowest[place[arcs]]]
        best[place[found]] = way[found]
        rest = arcs[way[arcs] != best[place[arcs]]]
        np.minimum.at(next_, place[rest], used[rest])
        at = place[own]
        other = np.where(way[own] == best[at], next_[at], lowest[at]) + adds
        return float(other[np.isfinite(other)].max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Beside:
    """Numbers the cells of a table: one for each possible loss and each cable beside it."""

    within: Ints
    """Position of each arc among the arcs of its group."""
    first: Ints
    """First cell of each possible loss, and the number of cells, shape (losses + 1,)."""

    @classmethod
    def of(cls, arcs: Ints, group: Ints, group_of_lost: Ints) -> _Beside:
        """Number the cells, given the group of each cable and of each possible loss.

        The cables beside a loss are those of its group. A loss of group ``NONE`` has no cells.
        """
        order = stable_order(group)
        count = np.bincount(group, minlength=int(group_of_lost.max(initial=0)) + 1)
        within = np.zeros(int(arcs.max(initial=0)) + 1, dtype=np.int64)
        within[arcs[order]] = np.arange(len(arcs)) - starts(count)[group[order]]
        return cls(within, starts(np.where(group_of_lost == NONE, 0, count[group_of_lost])))

    @property
    def cells(self) -> int:
        """Number of cells."""
        return int(self.first[-1])


class _Fallen:
    """Load in Gbit/s that falls on the cables of one lane after each loss."""

    def __init__(
        self,
        beside: _Beside,
        lost: Ints,
        turned: tuple[Ints, Ints, Floats],
        stands: tuple[Floats, Floats],
    ) -> None:
        """Count what falls on each cable.

        Args:
            beside: The cells of possible losses and cables.
            lost: The loss that takes down each cable, by arc.
            turned: Each row's own cable, the cable of its backup (``NONE`` for none), and its rate
                in Gbit/s. The backups' array is shared: the caller updates it before ``move``.
            stands: Gbit/s on each cable while nothing is lost, and the utilisation that one Gbit/s
                adds to it, both by arc.
        """
        own, spare, self._gbps = turned
        self._beside, self._loads, self._per_gbps = beside, *stands
        self._there = np.flatnonzero(own != NONE)
        self._spare = spare
        self._lost, self._cell = (np.zeros(len(own), dtype=np.int64) for _ in range(2))
        self._lost[self._there] = lost[own[self._there]]
        cell = self._cells(self._lost[self._there], spare[self._there])
        self._cell[self._there] = cell
        self._fallen = np.bincount(cell, self._gbps[self._there], beside.cells)
        self._most: Floats | None = None
        """The most that may fall on one cable after each loss; None while there is no limit."""

    @property
    def cells(self) -> int:
        """Number of pairs of a loss and a cable beside it."""
        return len(self._fallen)

    def _cells(self, lost: Ints, arcs: Ints) -> Ints:
        return np.asarray(self._beside.first[lost] + self._beside.within[arcs])

    def over(self, rows: Ints, full: float) -> Bools:
        """Mark rows whose backup cable has a utilisation above ``full`` after their loss."""
        spare = self._spare[rows]
        after = self._loads[spare] + self._fallen[self._cell[rows]]
        return np.asarray(after * self._per_gbps[spare] > full)

    def limit(self) -> None:
        """From now on, let no loss put more on a cable than it now puts on its fullest one.

        Only the first call has an effect.
        """
        if self._most is not None:
            return
        self._most = np.zeros(len(self._beside.first) - 1)
        there = self._there
        np.maximum.at(self._most, self._lost[there], self._fallen[self._cell[there]])
        self._most *= 1 + _EQUAL

    def has_room(self, rows: Ints, to: Ints, full: float) -> Bools:
        """Mark rows that may turn to the cables ``to``.

        No cable may then have a utilisation above ``full`` or more load than ``limit`` allows.
        """
        lost, gbps = self._lost[rows], self._gbps[rows]
        cell = self._cells(lost, to)
        # A row that stays with its cable in this lane adds nothing to it.
        fallen = self._fallen[cell] + np.where(cell == self._cell[rows], 0.0, gbps)
        after = (self._loads[to] + fallen) * self._per_gbps[to]
        good = after <= full
        return np.asarray(good if self._most is None else good & (fallen <= self._most[lost]))

    def is_first(self, rows: Ints, to: Ints, claim: Ints) -> Bools:
        """Mark one row of each set that would turn to the same cable after the same loss.

        ``claim`` is a scratch array with an element for each cell.
        """
        cell, place = self._cells(self._lost[rows], to), np.arange(len(rows))
        claim[cell] = place
        return np.asarray(claim[cell] == place)

    def move(self, rows: Ints, to: Ints) -> None:
        """Record that rows now turn to the cables ``to``."""
        np.subtract.at(self._fallen, self._cell[rows], self._gbps[rows])
        self._cell[rows] = self._cells(self._lost[rows], to)
        np.add.at(self._fallen, self._cell[rows], self._gbps[rows])
