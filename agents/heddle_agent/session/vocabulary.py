"""Names that the pushes of a session have given, by number.

Thousands of pushes speak of the same NICs, neighbours and links. Each name comes once, and all that
a push speaks of are found together. What was read before keeps the names that held then: arrays are
replaced, never changed.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import NextHop

BYTES = 4
"""Of one number."""


class NamesError(Exception):
    """Names of a push that cannot be taken; says why."""


Hops: TypeAlias = dict[tuple[bytes, ...], list[NextHop]]


class Names(NamedTuple):
    """Texts and their numbers."""

    numbers: NDArray[np.uint32]
    """Ascending, none twice."""
    texts: NDArray[np.object_]
    hops: Hops
    """The next hops of the push before, by the columns that told them: a memo. A switch has few,
    and pushes name the same again and again."""

    def rows(self, *columns: bytes) -> list[NDArray[np.intp]]:
        """Of columns of numbers, the rows of their texts; LookupError where one has none."""
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


def _names(numbers: NDArray[np.uint32], texts: list[str]) -> Names:
    column = np.empty(len(texts), dtype=np.object_)
    column[:] = texts
    return Names(numbers, column, {})


def _no_names() -> Names:
    return _names(np.empty(0, dtype=np.uint32), [])


class Vocabulary:
    """What the numbers of one session stand for."""

    def __init__(self) -> None:
        self._epoch = 0
        self._names = _no_names()

    def names(self, push: pb.Push) -> Names:
        """The names that hold for a push, with those that it gives.

        Raises:
            NamesError: names that do not fit their numbers, or those given before.
        """
        batch = push.operations
        if batch.names and not batch.name_numbers:
            return _names(np.arange(len(batch.names), dtype=np.uint32), list(batch.names))
        theirs = push.new_names or push.epoch == self._epoch
        known = _no_names() if push.new_names or not theirs else self._names
        if batch.names or batch.name_numbers:
            known = _joined(known, batch)
        if theirs and push.epoch >= self._epoch:  # an older one is refused in any case
            self._epoch, self._names = push.epoch, known
        return known


def _joined(known: Names, batch: pb.OperationBatch) -> Names:
    """Names and those of a batch."""
    size = len(batch.name_numbers)
    if size != BYTES * len(batch.names):
        raise NamesError(f"name_numbers has {size} bytes: send {BYTES} for each of names")
    given = np.frombuffer(batch.name_numbers, dtype="<u4").tolist()
    told = dict(zip(known.numbers.tolist(), known.texts.tolist(), strict=True))
    for number, name in zip(given, batch.names, strict=True):
        if told.setdefault(number, name) != name:
            raise NamesError(f"number {number} is {told[number]!r} already, not {name!r}")
    numbers = np.array(sorted(told), dtype=np.uint32)
    return _names(numbers, list(map(told.__getitem__, numbers.tolist())))
