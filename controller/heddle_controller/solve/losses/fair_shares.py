"""What single arcs give to QPs, which is a floor of max-min fair rates over all arcs."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.solve.losses.standing import PathUses, Standing

SLACK = 1e-9
"""Relative difference below which values count as equal."""
_MOST_STEPS = 8
"""Most steps towards the rate at which an arc is full. Each ends where QPs get what they ask."""


class FairShares:
    """The rate at which QPs that rise together fill each of some arcs.

    No QP rises above what it asks for. In max-min fair rates over all arcs, a QP gets no less than
    what the arcs of its path give it one by one.
    """

    level: Floats
    """Gbit/s at which each arc is full for QPs that it slows most; infinite where there is room."""
    exact: Bools
    """Marks arcs that are exactly full at that rate."""

    def __init__(
        self, standing: Standing, capacity: Floats, uses: PathUses, extra: Floats | None = None
    ) -> None:
        """Fill the arcs.

        Args:
            standing: The plan.
            capacity: Gbit/s of each arc.
            uses: The uses of the arcs.
            extra: Gbit/s and QPs on each arc beside its uses, at most; shape (2, arcs).
        """
        self._standing, self._capacity, self._simple = standing, capacity, True
        self._extra = np.zeros((2, len(capacity))) if extra is None else extra
        full: Bools = uses.asked.totals[0] + self._extra[0] > capacity * (1 + SLACK)
        self.level, self.exact = np.full(len(capacity), np.inf), full
        self._row = np.cumsum(full) - 1
        """Where full arcs stand among themselves."""
        if full.any():
            self._fill(np.flatnonzero(full), uses.on(full), uses.asked.totals[1][full])

    def _fill(self, arc: Ints, uses: PathUses, own: Floats) -> None:
        """Raise the rate of QPs on full arcs, ``own`` on each, until the arcs are full."""
        phased, routes, capacity = uses.phased, self._standing.routes, self._capacity[arc]
        self._simple = phased.simple
        asks, qps, load = (of[uses.slot] for of in (routes.unit, routes.qps, routes.gbps))
        gbps, others = self._extra[:, arc]
        # At first nobody has what he asks for, so all rise.
        least = capacity / (own + others)
        uneven = (asks < least[phased.place]).any() or (others * least > gbps).any()
        steps = _MOST_STEPS if uneven or not phased.simple else 0
        for step in range(steps):
            # No phase rises faster than the one with the most QPs, so no step goes too far.
            now = least[phased.place]
            send, rise = np.minimum(asks, now) * qps, np.where(asks > now, qps, 0.0)
            self._sums = phased.sums(send, rise, load)
            sent, rising, _ = self._with_extra(self._sums.totals, arc, least)
            room = capacity - sent
            self.exact[arc] = done = (room <= capacity * SLACK) | (rising == 0)
            if step == steps - 1 or done.all():
                break
            least = least + np.divide(room, rising, out=np.zeros_like(room), where=~done)
        self.level[arc] = least

    def _with_extra(
        self, sums: list[Floats], arc: Ints, now: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Add what others on arcs send at a rate, how many QPs ask for more, and what all ask."""
        (gbps, qps), (sent, rising, load) = self._extra[:, arc], sums
        more = qps * now
        sent, rising = sent + np.minimum(more, gbps), rising + np.where(more < gbps, qps, 0.0)
        return sent, rising, load + gbps

    def of(self, place: Ints, slot: Ints) -> Floats:
        """Return the rate for QPs of some paths in Gbit/s, infinite where there is room.

        ``place`` and ``slot`` have one element for each path.
        """
        rate = self.level[place]
        slowed = np.flatnonzero(np.isfinite(rate))
        if self._simple or not len(slowed):
            return rate
        place, least, capacity = place[slowed], rate[slowed], self._capacity[place[slowed]]
        met = self._sums.met_by(self._row[place], *self._standing.turn(slot[slowed]))
        sent, rising, load = self._with_extra(met, place, least)
        room = capacity - sent
        rises = (room > capacity * SLACK) & (rising > 0)
        more = np.divide(room, rising, out=np.zeros_like(room), where=rises)
        rate[slowed] = np.where(load > capacity * (1 + SLACK), least + more, np.inf)
        return rate
