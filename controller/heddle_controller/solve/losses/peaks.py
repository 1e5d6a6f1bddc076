"""Columns with a value for each arc, of which the greatest values are found without a full pass."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, distinct

SLACK = 1e-9
"""Relative difference below which values count as equal."""
_RUN = 256
"""Number of arcs in a row of which the greatest value is kept."""


class Peaks:
    """Some columns, and the greatest value of each run of arcs. All values are at least 0."""

    def __init__(self, columns: int, arcs: int) -> None:
        """Begin with zeros."""
        runs = -(-max(arcs, 1) // _RUN)
        padded: Floats = np.zeros((columns, runs * _RUN))
        self.values = padded[:, :arcs]
        """The values, shape (columns, arcs). ``put`` changes them."""
        self._runs = padded.reshape(columns, runs, _RUN)
        self._peaks: Floats = np.zeros((columns, runs))
        self._begin = np.arange(0, runs * _RUN, _RUN)
        self._hidden: list[tuple[Ints, Floats]] = []

    def put(self, arcs: Ints, values: Floats) -> None:
        """Change the values of some arcs, given in ascending order; shape (columns, arcs)."""
        for column, some in zip(self.values, values, strict=True):
            column[arcs] = some
        if len(arcs) > self._peaks.shape[1]:
            for peaks, column in zip(self._peaks, self._runs, strict=True):
                np.maximum.reduceat(column.ravel(), self._begin, out=peaks)
            return
        runs = distinct(arcs // _RUN)
        for peaks, column in zip(self._peaks, self._runs, strict=True):
            peaks[runs] = column[runs].max(axis=1)

    def hide(self, arcs: Ints) -> Floats:
        """Set the values of some arcs to 0 until ``show``, and return them; arcs ascend."""
        values = self.values[:, arcs]
        self._hidden.append((arcs, values))
        self.put(arcs, np.zeros_like(values))
        return values

    def show(self) -> None:
        """Give all hidden arcs their values back."""
        while self._hidden:
            self.put(*self._hidden.pop())

    def most(self, column: int) -> float:
        """Return the greatest value of a column."""
        return float(self._peaks[column].max())

    def greatest(self, column: int, count: int) -> Ints:
        """Return the arcs of the ``count`` greatest values above 0, in no order.

        If at least ``count`` values are equal to the greatest, return the first of these.
        """
        peaks = self._peaks[column]
        least = peaks.max() * (1 - SLACK)
        runs = np.flatnonzero(peaks >= least)[:count]
        if len(runs) < count:
            runs = np.sort(np.argsort(-peaks, kind="stable")[:count])
        values = self._runs[column, runs].ravel()
        found = np.flatnonzero(values >= least)[:count]
        if len(found) < count:
            found = np.argpartition(values, -min(count, len(values)))[-count:]
        found = found[values[found] > 0]
        return np.asarray(runs[found // _RUN] * _RUN + found % _RUN)
