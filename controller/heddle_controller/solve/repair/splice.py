"""A plan's paths with those of some flows replaced, at little more than the cost of a copy.

What stands between the flows that change is taken over in pieces. Where all rows keep
their place, and all paths their length, only what differs is written over.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Ints, starts
from heddle_controller.model.plan import Paths


def with_flows_replaced(
    paths: Paths, backups: Paths, flows: Ints, fresh: tuple[Paths, Paths]
) -> tuple[Paths, Paths]:
    """Paths and backups of a plan with all those of some flows, ascending, replaced.

    ``fresh`` are paths and backups of the same flows; some may be new, and some have
    none any more. Backups are parallel to paths, here as there.
    """
    cut = _Cut(paths.flow, fresh[0].flow, flows)
    new = fresh[0]
    flow, first_qp = cut.rows(paths.flow, new.flow), cut.rows(paths.first_qp, new.first_qp)
    last_qp = cut.rows(paths.last_qp, new.last_qp)
    return (
        Paths(flow, first_qp, last_qp, *cut.arcs(paths, new)),
        Paths(flow, first_qp, last_qp, *cut.arcs(backups, fresh[1])),
    )


class _Cut:
    """Which rows go out and which come in, in runs of rows that stand together."""

    def __init__(self, old: Ints, new: Ints, flows: Ints) -> None:
        """``old``, ``new`` and ``flows`` are flow rows, ascending."""
        low, high = np.searchsorted(old, flows), np.searchsorted(old, flows, side="right")
        new_low, new_high = np.searchsorted(new, flows), np.searchsorted(new, flows, side="right")
        begins = np.flatnonzero(np.append(True, low[1:] != high[:-1])[: len(flows)])
        ends = np.append(begins[1:], len(flows))[: len(begins)] - 1
        self._out = low[begins], high[ends]
        self._in = new_low[begins], new_high[ends]
        self._in_place = np.array_equal(high - low, new_high - new_low)

    def rows(self, old: Ints, new: Ints) -> Ints:
        """A column of one number a row."""
        if not self._in_place:
            return self._joined(old, new, self._out, self._in)
        rows = ranges(*self._out)
        if np.array_equal(old[rows], new):
            return old
        patched = old.copy()
        patched[rows] = new
        return patched

    def arcs(self, old: Paths, new: Paths) -> tuple[Ints, Ints]:
        """Where the arcs of each row begin, and the arcs."""
        (low, high), (new_low, new_high) = self._out, self._in
        out = old.first[low], old.first[high]
        rows = ranges(low, high)
        lengths = old.first[rows + 1] - old.first[rows]
        if self._in_place and np.array_equal(lengths, np.diff(new.first)):
            patched = old.arcs.copy()
            patched[ranges(*out)] = new.arcs
            return old.first, patched
        first = starts(self._joined(np.diff(old.first), np.diff(new.first), self._out, self._in))
        come = new.first[new_low], new.first[new_high]
        return first, self._joined(old.arcs, new.arcs, out, come)

    @staticmethod
    def _joined(old: Ints, new: Ints, out: tuple[Ints, Ints], come: tuple[Ints, Ints]) -> Ints:
        """The old numbers with some runs of them replaced by runs of the new."""
        stays = zip([0, *out[1].tolist()], [*out[0].tolist(), len(old)], strict=True)
        pieces = [old[begin:end] for begin, end in stays]
        comes = zip(come[0].tolist(), come[1].tolist(), strict=True)
        fresh = [new[begin:end] for begin, end in comes]
        line = [piece for pair in zip(pieces, fresh, strict=False) for piece in pair]
        return np.concatenate([*line, pieces[-1]])


def ranges(low: Ints, high: Ints) -> Ints:
    """All numbers from each low to below each high, in order."""
    lengths = high - low
    offset = np.cumsum(lengths) - lengths
    return np.repeat(low - offset, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
