"""Columns of many pushes at once, and the names that they speak of, cut into messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.fabric import Ints

BYTES = 4
"""Of one number in a column."""


class Columns:
    """What is to be written into the batches of many pushes, the *owners* of all items."""

    def __init__(self, into: Sequence[pb.OperationBatch]) -> None:
        self._into = into
        self._owners = np.arange(len(into) + 1)
        self._named = np.zeros(len(into), dtype=np.int64)
        self._texts: list[tuple[Ints, Ints]] = []

    def add(self, name: str, owner: Ints, values: Ints) -> None:
        """Write a column of numbers; ``owner`` is that of each, ascending."""
        first = (np.searchsorted(owner, self._owners) * BYTES).tolist()
        data = values.astype("<u4").tobytes()
        for made, low, high in zip(self._into, first, first[1:], strict=False):
            if low < high:
                setattr(made, name, data[low:high])

    def name(self, owner: Ints, texts: Ints) -> Ints:
        """Send names: numbers of a lexicon, ``owner`` ascending. The index of each in its batch."""
        first = np.searchsorted(owner, self._owners)
        index = np.arange(len(owner)) - (first[:-1] - self._named)[owner]
        self._named += np.diff(first)
        self._texts.append((first, texts))
        return index

    def write_names(self, texts: list[str]) -> None:
        """Write all names that were given."""
        kinds = [
            (first.tolist(), list(map(texts.__getitem__, numbers.tolist())))
            for first, numbers in self._texts
        ]
        for row, made in enumerate(self._into):
            names: list[str] = []
            for first, found in kinds:
                names += found[first[row] : first[row + 1]]
            made.names.extend(names)
