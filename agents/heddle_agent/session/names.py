"""The names that the pushes of a session have given so far, by number.

Thousands of pushes name the same NICs, neighbours and links, so each name is sent only once. All
names of a push are looked up together. A table that was read earlier keeps its names, because
arrays are replaced and never changed.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import NextHop

BYTES = 4
"""Size of one number."""


class NamesError(Exception):
    """Names of a push that cannot be accepted; the message says why."""


_Hops: TypeAlias = dict[tuple[bytes, ...], list[NextHop]]


class StringTable(NamedTuple):
    """Texts and their numbers, row by row."""

    numbers: NDArray[np.uint32]
    """Ascending, without duplicates."""
    texts: NDArray[np.object_]
    hops: _Hops
    """Memo of the next hops of the previous push, by the columns that gave them. A switch has few
    next hops, and pushes name the same ones again and again."""

    def rows(self, *columns: bytes) -> list[NDArray[np.intp]]:
        """Return the rows of the texts with these numbers; LookupError if a number is unknown."""
        asked = np.frombuffer(b"".join(columns), dtype="<u4")
        if len(asked) and not len(self.numbers):
            raise LookupError
        rows = self.numbers.searchsorted(asked)
        if len(asked) and not (self.numbers.take(rows, mode="clip") == asked).all():
            raise LookupError
        ends = accumulate((len(column) // BYTES for column in columns), initial=0)
        return [rows[begin:end] for begin, end in pairwise(ends)]

    def __contains__(self, number: object) -> bool:
        return bool((self.numbers == number).any())


def _texts(found: list[str]) -> NDArray[np.object_]:
    column = np.empty(len(found), dtype=np.object_)
    column[:] = found
    return column


def _names(numbers: NDArray[np.uint32], texts: list[str]) -> StringTable:
    return StringTable(numbers, _texts(texts), {})


def _no_names() -> StringTable:
    return _names(np.empty(0, dtype=np.uint32), [])


class ReceivedNames:
    """The names that belong to the numbers of one session."""

    def __init__(self) -> None:
        self._epoch = 0
        self._names = _no_names()

    def names(self, push: pb.Push) -> StringTable:
        """Return the names that are valid for a push, including those that it gives.

        Raises:
            NamesError: The names do not fit their numbers, or contradict earlier ones.
        """
        batch = push.operations
        if batch.names and not batch.name_numbers:
            return _names(np.arange(len(batch.names), dtype=np.uint32), list(batch.names))
        theirs = push.new_names or push.epoch == self._epoch
        known = _no_names() if push.new_names or not theirs else self._names
        if batch.names or batch.name_numbers:
            known = _joined(known, batch)
        if theirs and push.epoch >= self._epoch:  # a push of an older epoch is refused anyway
            self._epoch, self._names = push.epoch, known
        return known


def _joined(known: StringTable, batch: pb.OperationBatch) -> StringTable:
    """Return the known names and those of a batch; NamesError if they do not fit."""
    size = len(batch.name_numbers)
    if size != BYTES * len(batch.names):
        raise NamesError(f"name_numbers has {size} bytes: send {BYTES} for each of names")
    given = np.frombuffer(batch.name_numbers, dtype="<u4")
    if not len(known.numbers) and (given[1:] > given[:-1]).all():  # a session's first push
        return _names(given, list(batch.names))
    texts = np.concatenate([known.texts, _texts(list(batch.names))])
    numbers = np.concatenate([known.numbers, given])
    order = numbers.argsort(kind="stable")
    joined = StringTable(numbers[order], texts[order], known.hops)
    again = np.flatnonzero(joined.numbers[1:] == joined.numbers[:-1])
    if not len(again):
        return joined
    return _once(joined, again)


def _once(names: StringTable, again: NDArray[np.intp]) -> StringTable:
    """Remove repeated names; each row in ``again`` has the same number as the row behind it.

    Raises NamesError if two names have the same number.
    """
    for row in again.tolist():
        one, other = names.texts[row : row + 2]
        if one != other:
            raise NamesError(f"number {names.numbers[row]} is {one!r} already, not {other!r}")
    return StringTable(np.delete(names.numbers, again), np.delete(names.texts, again), names.hops)
