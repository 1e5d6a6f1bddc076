"""How full arcs are over time: mean load in steps of equal length."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats


class Timeline:
    """Hears how long which load stood, and keeps Gbit by step and arc."""

    def __init__(self, step_seconds: float) -> None:
        if not step_seconds > 0:
            raise ValueError(f"a step of {step_seconds:g} s; give more than 0")
        self.step_seconds = step_seconds
        self._gbit: list[Floats] = []
        self._end = 0.0

    def stood(self, begin: float, end: float, load: Floats) -> None:
        """Notes that from ``begin`` to ``end``, seconds, arcs had this load in Gbit/s."""
        step = int(begin / self.step_seconds)
        while begin < end:
            until = min((step + 1) * self.step_seconds, end)
            while len(self._gbit) <= step:
                self._gbit.append(np.zeros(len(load)))
            if until > begin:
                self._gbit[step] += load * (until - begin)
            begin, step = max(begin, until), step + 1
        self._end = max(self._end, end)

    @property
    def begins(self) -> Floats:
        """When each step begins, seconds, shape (steps,)."""
        return np.arange(len(self._gbit), dtype=np.float64) * self.step_seconds

    def loads(self) -> Floats:
        """Mean Gbit/s in each step, shape (steps, arcs); the last step ends with the run."""
        if not self._gbit:
            return np.zeros((0, 0))
        length = np.minimum(self.begins + self.step_seconds, self._end) - self.begins
        return np.stack(self._gbit) / np.maximum(length, np.finfo(float).tiny)[:, None]
