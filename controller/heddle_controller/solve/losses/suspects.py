"""Examines exactly the few arcs on which the worst single losses show.

Arcs are examined in order of their bounds, a few at a time. Each is examined after every loss that
moves something to it, and after one that leaves it unchanged. This ends when no other arc can be
worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct, starts
from heddle_controller.solve.losses.moves import LOSS_KINDS
from heddle_controller.solve.losses.screen import LossScreen
from heddle_controller.solve.losses.standing import Turned, arc_table

SLACK = 1e-9
"""Relative difference below which values count as equal."""
FIRST_ARCS = 4
"""Number of arcs in the first batch."""
GROWTH = 8
"""Factor by which each further batch is larger than the one before."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The state of some arcs after losses, and the uses of these arcs then."""

    loss: Ints
    arc: Ints
    """The arc that is looked at after the loss in the same position."""
    used: Floats
    """Utilisation of the arc."""
    level: Floats
    """Even share of a QP on the arc in Gbit/s; infinite where the arc has room for all."""
    place: Ints
    """For each use of an arc, the index of the arc in the columns above."""
    path: Ints
    """Path of each use."""


class Suspects:
    """Arcs in order of their bounds, the results for examined arcs, and bounds for all others."""

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
        """Losses, arcs, and utilisation of the arcs, for all that was examined."""

    def fullest(self, kind: int) -> float:
        """Return the utilisation that no arc not yet examined exceeds after a loss of a kind."""
        return float(self._used[kind].max())

    def slowest(self, kind: int) -> float:
        """Return the part of its demand that any flow gets at least after a loss of a kind.

        This holds for flows that only arcs not yet examined slow down.
        """
        return 1 / max(float(self._slow[kind].max()), 1.0)

    def look(self, fullest: list[int], slowest: list[int]) -> Look:
        """Examine the next arcs, more with each call.

        They are those with the greatest bounds on utilisation for the kinds ``fullest``, and on
        slowing down flows for the kinds ``slowest``.
        """
        bounds = [self._used[kind] for kind in fullest] + [self._slow[kind] for kind in slowest]
        arcs = distinct(np.concatenate([_greatest(one, self._batch) for one in bounds]))
        self._batch *= GROWTH
        self._used[:, arcs], self._slow[:, arcs] = 0.0, 0.0
        look = looked(self.screen, *pairs_on(self.screen, arcs))
        self.loss, self.arc = np.append(self.loss, look.loss), np.append(self.arc, look.arc)
        self.used = np.append(self.used, look.used)
        return look


def _greatest(bound: Floats, count: int) -> Ints:
    """Return the indices of the ``count`` greatest bounds above 0.

    If at least ``count`` bounds share the maximum, return the first of these.
    """
    found = np.flatnonzero(bound >= bound.max() * (1 - SLACK))[:count]
    if len(found) < count < len(bound):
        found = np.argpartition(bound, -count)[-count:]
    return found[bound[found] > 0]


def looked(screen: LossScreen, loss: Ints, arc: Ints) -> Look:
    """Return the state of each arc after the loss in the same position."""
    standing, capacity = screen.standing, screen.losses.fabric.structure.capacity[arc]
    place, path = standing.members(screen.losses, loss, arc)
    load = standing.total(standing.gbps(path), place, path, len(arc))
    count = standing.total(standing.qps(path), place, path, len(arc))
    level = np.full(len(arc), np.inf)
    np.divide(capacity, count, out=level, where=load > capacity * (1 + SLACK))
    return Look(loss, arc, load / capacity, level, place, path)


def pairs_on(screen: LossScreen, arcs: Ints) -> tuple[Ints, Ints]:
    """Return pairs of loss and arc, ordered by arc, for losses that move something to the arc.

    For each arc and kind, one loss that changes nothing there is added; if there is none, all
    losses of the kind. ``arcs`` is ascending.
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
    """Return, for each kind, the first loss that changes nothing on each arc, where one exists.

    Args:
        screen: The screen of the plan.
        arcs: The arcs, ascending.
        turned: Codes ``place * len(served) + loss`` of losses that move something to the arc
            ``arcs[place]``.

    Returns:
        For each kind, the indices in ``arcs`` that have such a loss, and the losses.
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
    """Return the utilisation of the fullest arc after any loss, without backups, shape (kinds,)."""
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
    """Return the Gbit/s on each arc after the loss in the same position, without backups."""
    standing = screen.standing
    arcs = distinct(arc)
    place, path = standing.uses(arcs).on(arc)
    stays = ~screen.losses.breaks(loss[place], standing.plan.paths.take(path))
    place, path = place[stays], path[stays]
    return standing.total(standing.gbps(path), place, path, len(arc))
