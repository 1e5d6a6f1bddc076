"""Examines exactly the few arcs on which the worst single losses show.

Arcs are examined in order of their bounds, a few at a time. Each is examined after every loss that
moves something to it, and after one that leaves it unchanged. This ends when no other arc can be
worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct, starts
from heddle_controller.solve.losses.moves import LOSS_KINDS, UNTOUCHED
from heddle_controller.solve.losses.screen import LossScreen
from heddle_controller.solve.losses.standing import PathUses

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
    uses: PathUses
    """The uses of each arc."""


class Suspects:
    """Arcs in order of their bounds, the results for examined arcs, and bounds for all others.

    It is a context: inside it, the screen's bounds of examined arcs are 0, so that nothing has to
    be copied.
    """

    def __init__(self, screen: LossScreen) -> None:
        self.screen, self.losses = screen, screen.standing.losses
        self._batch = FIRST_ARCS
        none = np.empty(0, dtype=np.int64)
        self.loss, self.arc, self.used = none, none, np.empty(0)
        """Losses, arcs, and utilisation of the arcs, for all that was examined."""

    def __enter__(self) -> Self:
        """Begin to examine arcs."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the screen the bounds of the examined arcs back."""
        for bounds in (self.screen.now, self.screen.used, self.screen.slow):
            bounds.show()

    def fullest(self, kind: int) -> float:
        """Return the utilisation that no arc not yet examined exceeds after a loss of a kind."""
        return self.screen.used.most(kind)

    def slowest(self, kind: int) -> float:
        """Return the part of its demand that any flow gets at least after a loss of a kind.

        This holds for flows that only arcs not yet examined slow down.
        """
        return 1 / max(self.screen.slow.most(kind), 1.0)

    def look(self, fullest: list[int], slowest: list[int]) -> Look:
        """Examine the next arcs, more with each call.

        They are those with the greatest bounds on utilisation for the kinds ``fullest``, and on
        slowing down flows for the kinds ``slowest``.
        """
        used, slow = self.screen.used, self.screen.slow
        wanted = [used.greatest(kind, self._batch) for kind in fullest]
        wanted += [slow.greatest(kind, self._batch) for kind in slowest]
        arcs = distinct(np.concatenate(wanted))
        self._batch *= GROWTH
        used.hide(arcs)
        slow.hide(arcs)
        look = looked(self.screen, *pairs_on(self.screen, arcs))
        self.loss, self.arc = np.append(self.loss, look.loss), np.append(self.arc, look.arc)
        self.used = np.append(self.used, look.used)
        return look


def looked(screen: LossScreen, loss: Ints, arc: Ints) -> Look:
    """Return the state of each arc after the loss in the same position."""
    standing = screen.standing
    capacity = standing.plan.fabric.structure.capacity[arc]
    place, slot = standing.members(loss, arc)
    uses = PathUses(standing, place, slot, len(arc))
    return Look(loss, arc, uses.load / capacity, uses)


def pairs_on(screen: LossScreen, arcs: Ints) -> tuple[Ints, Ints]:
    """Return pairs of loss and arc, ordered by arc, for losses that move something to the arc.

    For each arc and kind, one loss that changes nothing there is added; if there is none, all
    losses of the kind. ``arcs`` is ascending.
    """
    losses = screen.standing.losses
    width = len(losses.served)
    place, _, loss = screen.standing.turns(arcs)
    idle = idle_losses(screen, arcs, place * width + loss)
    every = [place * width + loss]
    for kind in range(len(LOSS_KINDS)):
        calm = idle[:, kind] != NONE
        there, bare = np.flatnonzero(calm), np.flatnonzero(~calm)
        every.append(there * width + idle[there, kind])
        if len(bare):
            every.append((bare[:, None] * width + losses.of_kind(kind)).ravel())
    code = distinct(np.concatenate(every))
    return code % width, arcs[code // width]


def idle_losses(screen: LossScreen, arcs: Ints, turned: Ints) -> Ints:
    """Return, for each kind, the first loss that changes nothing on each arc.

    Args:
        screen: The screen of the plan.
        arcs: The arcs.
        turned: Codes ``place * len(served) + loss`` of losses that move something to the arc
            ``arcs[place]``.

    Returns:
        The losses, shape (arcs, kinds), ``NONE`` where there is none.
    """
    standing, losses = screen.standing, screen.standing.losses
    width, links, structure = len(losses.served), losses.fabric.link_count, losses.fabric.structure
    own = np.stack([arcs >> 1, structure.tail[arcs] + links, structure.head[arcs] + links])
    own += np.arange(len(arcs)) * width
    place, slot = standing.uses(arcs)
    met = standing.routes.losses.take(slot, axis=0)
    busy = (met + place[:, None] * width)[met != NONE]
    code = distinct(np.concatenate([turned, busy, own.ravel()]))
    code = code[losses.served[code % width]]
    kind, first = losses.kind(code % width), losses.begin[:-1]
    cell = code // width * len(first) + kind
    begins = starts(np.bincount(cell, minlength=len(arcs) * len(first)))
    # Losses are idle from the first one on that is not the next of its kind.
    rank = np.searchsorted(losses.every, code % width) - first[kind]
    next_ = rank == np.arange(len(cell)) - begins[cell]
    ahead = np.bincount(cell[next_], minlength=len(begins) - 1).reshape(len(arcs), len(first))
    idle = np.full(ahead.shape, NONE, dtype=np.int64)
    calm = ahead < np.diff(losses.begin)
    idle[calm] = losses.every[(ahead + first)[calm]]
    return idle


def left_at_least(screen: LossScreen) -> Floats:
    """Return the utilisation of the fullest arc after any loss, without backups, shape (kinds,)."""
    losses, capacity = screen.standing.losses, screen.standing.plan.fabric.structure.capacity
    found, batch, none = np.zeros(len(LOSS_KINDS)), 1, np.empty(0, dtype=np.int64)
    while screen.now.most(0) > found.min():
        arcs = np.sort(screen.now.greatest(0, batch))
        (bound,), batch = screen.now.hide(arcs), batch * GROWTH
        idle = idle_losses(screen, arcs, none)
        for kind in range(len(LOSS_KINDS)):
            calm = idle[:, kind] != NONE
            found[kind] = max(found[kind], bound[calm].max(initial=0.0))
            if not calm.all():
                served, rest = losses.of_kind(kind), arcs[~calm]
                loss, arc = np.tile(served, len(rest)), np.repeat(rest, len(served))
                others = _without_broken(screen, loss, arc) / capacity[arc]
                found[kind] = max(found[kind], others.max(initial=0.0))
    screen.now.show()
    return found


def _without_broken(screen: LossScreen, loss: Ints, arc: Ints) -> Floats:
    """Return the Gbit/s on each arc after the loss in the same position, without backups."""
    standing = screen.standing
    place, slot = standing.uses(arc)
    stays = standing.fates(loss[place], slot) == UNTOUCHED
    place, slot = place[stays], slot[stays]
    return PathUses(standing, place, slot, len(arc)).load
