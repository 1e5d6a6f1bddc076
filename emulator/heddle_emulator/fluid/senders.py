"""How fast QPs send: at line rate, by a window, or by a rate, controlled by acknowledgements.

All QPs are updated at once in each step of ``queues``. A row stands for QPs that behave alike on
the same path; its bytes are those of all these QPs together.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from heddle_controller.model.arrays import Bools, Floats

SOME = 1.0
"""Smallest number of bytes that counts; less is rounding."""


class Senders(Protocol):
    """Decides how much QPs may send; arrays are by row."""

    def most(self, flying: Floats, seconds: float) -> Floats:
        """Return the bytes that each row may send in ``seconds``, with ``flying`` on the way."""

    def acknowledged(self, now: float, came: Floats, marked: Floats) -> None:
        """Take in acknowledgements of bytes that arrived, and how many of them were marked."""


class AtLineRate:
    """Only NICs and PFC limit the QPs."""

    def most(self, flying: Floats, seconds: float) -> Floats:  # noqa: ARG002 - a Senders
        """Implement ``Senders.most``."""
        return np.full(len(flying), np.inf)

    def acknowledged(self, now: float, came: Floats, marked: Floats) -> None:
        """Implement ``Senders.acknowledged``."""


class Windows:
    """A window for each QP, which shrinks in proportion to the marked part of it.

    After Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010.
    """

    GAIN = 1 / 16

    def __init__(self, packet: float, most: Floats, qps: Floats) -> None:
        """Start; ``most`` bytes fill the path of a QP that is alone, and windows begin there."""
        self._packet, self._most, self._qps = packet, most, qps
        self._window, self._part = most.copy(), np.ones(len(most))
        self._came, self._marked = np.zeros(len(most)), np.zeros(len(most))

    def most(self, flying: Floats, seconds: float) -> Floats:  # noqa: ARG002 - a Senders
        """Implement ``Senders.most``. Whole packets are sent, at least one per window."""
        packets = np.maximum(np.floor(self._window / self._packet), 1.0)
        found: Floats = np.maximum(packets * self._packet * self._qps - flying, 0.0)
        return found

    def acknowledged(self, now: float, came: Floats, marked: Floats) -> None:  # noqa: ARG002
        """Implement ``Senders.acknowledged``.

        A window is adjusted when all of it is acknowledged.
        """
        self._came += came / self._qps
        self._marked += marked / self._qps
        over = np.flatnonzero(self._came >= self._window - SOME)
        part = self._part[over]
        part += self.GAIN * (self._marked[over] / self._came[over] - part)
        self._part[over] = part
        window = self._window[over]
        less = np.maximum(window * (1 - part / 2), self._packet)
        more = np.minimum(window + self._packet, self._most[over])
        self._window[over] = np.where(self._marked[over] > SOME, less, more)
        self._came[over] = self._marked[over] = 0.0


class Rates:
    """A rate for each QP, which marks cut and which then recovers by halves.

    After Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (DCQCN), SIGCOMM 2015.
    """

    CUT_SECONDS, RAISE_SECONDS, GAIN, HALVES = 50e-6, 55e-6, 1 / 16, 5
    LEAST, STEP = 1 / 1000, 1 / 20
    """Fractions of line rate: a QP's slowest rate, and what is added per raise after ``HALVES``."""

    def __init__(self, line: Floats, qps: Floats) -> None:
        """Start; ``line`` is bytes per second of each row's NIC, and QPs begin at that rate."""
        self._line, self._qps = line, qps
        self._rate, self._target = line.copy(), line.copy()
        self._part, self._rounds = np.ones(len(line)), np.zeros(len(line))
        self._cut_at, self._raised_at = np.full(len(line), -1.0), np.zeros(len(line))
        self._came = np.zeros(len(line))
        """Bytes acknowledged since the last cut or raise; a slow QP sends few in a step."""

    def most(self, flying: Floats, seconds: float) -> Floats:  # noqa: ARG002 - a Senders
        """Implement ``Senders.most``."""
        found: Floats = self._rate * self._qps * seconds
        return found

    def acknowledged(self, now: float, came: Floats, marked: Floats) -> None:
        """Implement ``Senders.acknowledged``."""
        self._came += came
        cut = (marked > SOME) & (now >= self._cut_at + self.CUT_SECONDS)
        due = (self._came > SOME) & (now >= self._raised_at + self.RAISE_SECONDS)
        self._cut(cut, now)
        self._raise(due & ~cut, now)

    def _cut(self, rows: Bools, now: float) -> None:
        part = self._part[rows]
        part += self.GAIN * (1 - part)
        rate = self._rate[rows]
        self._part[rows], self._target[rows] = part, rate
        self._rate[rows] = np.maximum(rate * (1 - part / 2), self._line[rows] * self.LEAST)
        self._cut_at[rows] = self._raised_at[rows] = now
        self._rounds[rows] = self._came[rows] = 0

    def _raise(self, rows: Bools, now: float) -> None:
        self._part[rows] *= 1 - self.GAIN
        self._rounds[rows] += 1
        far = rows & (self._rounds > self.HALVES)
        self._target[far] = np.minimum(
            self._target[far] + self._line[far] * self.STEP, self._line[far]
        )
        self._rate[rows] = (self._rate[rows] + self._target[rows]) / 2
        self._raised_at[rows], self._came[rows] = now, 0
