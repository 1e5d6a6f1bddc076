"""Columns of many pushes at once, and the names that they speak of, cut into messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.fabric import NONE, Ints
from heddle_controller.serve.codec.distinct import distinct

BYTES = 4
"""Of one number in a column."""


class Columns:
    """What is to be written into the batches of many pushes, the *owners* of all items."""

    def __init__(self, into: Sequence[pb.OperationBatch]) -> None:
        self._into = into
        self._named: list[tuple[str, Ints, Ints, int]] = []

    def add(self, name: str, owner: Ints, values: Ints) -> None:
        """Write a column of numbers; ``owner`` is that of each, ascending."""
        bounds = np.searchsorted(owner, np.arange(len(self._into) + 1)) * BYTES
        first, data = bounds.tolist(), values.astype("<u4").tobytes()
        for made, low, high in zip(self._into, first, first[1:], strict=False):
            if low < high:
                setattr(made, name, data[low:high])

    def name(self, field: str, owner: Ints, texts: Ints, *, plus: int = 0) -> None:
        """Write a column of names likewise, later: ``texts`` are numbers of a lexicon.

        With ``plus`` 1, ``NONE`` is allowed and becomes 0.
        """
        self._named.append((field, owner, texts, plus))

    def write_names(self, texts: list[str]) -> None:
        """Give every owner the names that its columns speak of, and write those columns."""
        owner = np.concatenate([column[1] for column in self._named])
        number = np.concatenate([column[2] for column in self._named])
        some = number != NONE
        names = distinct(owner[some], number[some], len(self._into), len(texts))
        found = list(map(texts.__getitem__, names.value.tolist()))
        first = names.first.tolist()
        for made, low, high in zip(self._into, first, first[1:], strict=False):
            made.names.extend(found[low:high])
        index = np.full(len(number), NONE, dtype=np.int64)
        index[some] = names.within(owner[some])
        begin = 0
        for field, of, column, plus in self._named:
            self.add(field, of, index[begin : begin + len(column)] + plus)
            begin += len(column)
