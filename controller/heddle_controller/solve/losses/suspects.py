"""The few arcs at which the worst single losses show, looked at exactly.

Arcs are looked at in order of their bounds, a few at a time: after each loss that turns something
to them, and after one that leaves them as they are. That ends when no other arc can be worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct, starts
from heddle_controller.solve.losses.moves import LOSS_KINDS
from heddle_controller.solve.losses.screen import LossScreen
from heddle_controller.solve.losses.standing import Turned, arc_table

SLACK = 1e-9
"""Relative; what is this close is equal."""
FIRST_ARCS = 4
"""Arcs that are looked at together at first."""
GROWTH = 8
"""How many times as many each time after that."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Some arcs after losses that change them."""

    loss: Ints
    arc: Ints
    used: Floats
    """Utilisation."""
    level: Floats
    """The even part of a QP there, Gbit/s; infinite where the arc has room."""
    place: Ints
    """Which of these each use is of."""
    path: Ints


class Suspects:
    """Arcs by their bounds; the worst that were looked at; what all others are not beyond."""

    def __init__(self, screen: LossScreen) -> None:
        self.screen, self.losses = screen, screen.losses
        self.capacity = screen.losses.fabric.structure.capacity
        load = screen.gbps + screen.most_gbps
        self._used = load / self.capacity
        wants = np.maximum(screen.wants, screen.spare_wants) / self.capacity
        self._slow = np.where(
            load > self.capacity * (1 + SLACK), (screen.qps + screen.most_qps) * wants, 0.0
        )
        self._batch = FIRST_ARCS
        none = np.empty(0, dtype=np.int64)
        self.loss, self.arc, self.used = none, none, np.empty(0)
        """All that was looked at."""

    def fullest(self, kind: int) -> float:
        """No arc that was not looked at is fuller after any loss of a kind."""
        return float(self._used[kind].max())

    def slowest(self, kind: int) -> float:
        """No flow over such an arc alone gets less than this part of its demand then."""
        return 1 / max(float(self._slow[kind].max()), 1.0)

    def look(self, fullest: list[int], slowest: list[int]) -> Look:
        """Look at the next arcs by their bounds for some kinds; at more each time."""
        bounds = [self._used[kind] for kind in fullest] + [self._slow[kind] for kind in slowest]
        arcs = distinct(np.concatenate([_greatest(one, self._batch) for one in bounds]))
        self._batch *= GROWTH
        self._used[:, arcs], self._slow[:, arcs] = 0.0, 0.0
        look = looked(self.screen, *pairs_on(self.screen, arcs))
        self.loss, self.arc = np.append(self.loss, look.loss), np.append(self.arc, look.arc)
        self.used = np.append(self.used, look.used)
        return look


def _greatest(bound: Floats, count: int) -> Ints:
    """The places of the greatest so many, or of fewer that are all as great as any."""
    found = np.flatnonzero(bound >= bound.max() * (1 - SLACK))[:count]
    if len(found) < count < len(bound):
        found = np.argpartition(bound, -count)[-count:]
    return found[bound[found] > 0]


def looked(screen: LossScreen, loss: Ints, arc: Ints) -> Look:
    """Arcs, each after the loss beside it."""
    standing, capacity = screen.standing, screen.losses.fabric.structure.capacity[arc]
    place, path = standing.members(screen.losses, loss, arc)
    load = standing.total(standing.gbps(path), place, path, len(arc))
    count = standing.total(standing.qps(path), place, path, len(arc))
    level = np.full(len(arc), np.inf)
    np.divide(capacity, count, out=level, where=load > capacity * (1 + SLACK))
    return Look(loss, arc, load / capacity, level, place, path)


def pairs_on(screen: LossScreen, arcs: Ints) -> tuple[Ints, Ints]:
    """Loss and arc: the losses that turn something to some ascending arcs, ordered by arc.

    And for each arc and kind a loss that changes nothing there; where there is none, all.
    """
    losses, width = screen.losses, len(screen.losses.served)
    made = Turned.on(screen.standing, screen.standing.spares(arcs))
    turn, loss = made.after(losses)
    code = made.place[turn] * width + loss
    every = [code]
    for kind, (there, idle) in enumerate(idle_losses(screen, arcs, code)):
        bare = np.ones(len(arcs), dtype=np.bool_)
        bare[there] = False
        rest = np.flatnonzero(bare)
        every.append(there * width + idle)
        if len(rest):
            every.append((rest[:, None] * width + losses.of_kind(kind)).ravel())
    code = distinct(np.concatenate(every))
    return code % width, arcs[code // width]


def idle_losses(screen: LossScreen, arcs: Ints, turned: Ints) -> list[tuple[Ints, Ints]]:
    """For each kind, place in ``arcs`` and the first loss that changes nothing there.

    Where there is one. ``turned`` are codes of places and losses that turn something there.
    """
    standing, losses = screen.standing, screen.losses
    width, structure = len(losses.served), losses.fabric.structure
    uses = standing.uses(arcs)
    met = losses.on(arc_table(standing.plan.paths.take(uses.path)))
    of_kind, row, step = np.nonzero(met != NONE)
    place, links = np.arange(len(arcs), dtype=np.int64), losses.fabric.link_count
    own = np.concatenate(
        [arcs >> 1, structure.tail[arcs] + links, structure.head[arcs] + links]
    ) + np.tile(place * width, 3)
    busy = uses.place()[row] * width + met[of_kind, row, step]
    code = distinct(np.concatenate([turned, busy, own]))
    found = []
    for kind in range(len(LOSS_KINDS)):
        served = losses.of_kind(kind)
        some = code[losses.served[code % width] & (losses.kind(code % width) == kind)]
        at, loss = some // width, some % width
        begins = starts(np.bincount(at, minlength=len(arcs)))
        rank = np.searchsorted(served, loss)
        ahead = np.bincount(at[rank == np.arange(len(some)) - begins[at]], minlength=len(arcs))
        there = np.flatnonzero(ahead < len(served))
        found.append((there, served[ahead[there]]))
    return found


def left_at_least(screen: LossScreen) -> Floats:
    """For each kind the fullest arc after any loss, were nothing that it breaks carried."""
    losses, capacity = screen.losses, screen.losses.fabric.structure.capacity
    bound, none = screen.gbps / capacity, np.empty(0, dtype=np.int64)
    found, batch = np.zeros(len(LOSS_KINDS)), 1
    while bound.max(initial=0.0) > found.min():
        arcs = np.sort(_greatest(bound, batch))
        bound[arcs], batch = 0.0, batch * GROWTH
        for kind, (there, _) in enumerate(idle_losses(screen, arcs, none)):
            rest = np.ones(len(arcs), dtype=np.bool_)
            rest[there] = False
            served = losses.of_kind(kind)
            loss, arc = np.tile(served, int(rest.sum())), np.repeat(arcs[rest], len(served))
            left = screen.gbps[arcs[there]] / capacity[arcs[there]]
            others = _without_broken(screen, loss, arc) / capacity[arc]
            found[kind] = max(found[kind], left.max(initial=0.0), others.max(initial=0.0))
    return found


def _without_broken(screen: LossScreen, loss: Ints, arc: Ints) -> Floats:
    """Gbit/s of arcs, each after the loss beside it, were it not for backups."""
    standing = screen.standing
    arcs = distinct(arc)
    place, path = standing.uses(arcs).on(arc)
    stays = ~screen.losses.breaks(loss[place], standing.plan.paths.take(path))
    place, path = place[stays], path[stays]
    return standing.total(standing.gbps(path), place, path, len(arc))
