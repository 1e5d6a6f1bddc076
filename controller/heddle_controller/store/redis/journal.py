"""The writes of intent that this replica has had acknowledged, newest last.

They are kept for one case: a server that comes back without them (its disk was a second
behind, a replica took over that had not heard of them, a backup was put in place). They
are then offered again, word for word. Bounded by number and bytes: what is older than
that is older than any server should ever be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from heddle_controller.state.change import Ask, Change

MOST_WRITES, MOST_BYTES = 10_000, 64 << 20


class Written(NamedTuple):
    """One write that was acknowledged."""

    number: int
    token: str
    change: Change
    ask: Ask


class Journal:
    """What we know to have been written by us."""

    def __init__(self, most_writes: int = MOST_WRITES, most_bytes: int = MOST_BYTES) -> None:
        self._writes: deque[Written] = deque()
        self._most_writes = most_writes
        self._most_bytes = most_bytes
        self._bytes = 0

    def add(self, written: Written) -> None:
        """A write of a client's intent was acknowledged."""
        self._writes.append(written)
        self._bytes += written.change.size()
        while len(self._writes) > self._most_writes or self._bytes > self._most_bytes:
            self._bytes -= self._writes.popleft().change.size()

    def lost(self, first: int, tokens: Collection[str]) -> list[Written]:
        """Those that a server does not have, oldest first.

        Args:
            first: Number of the oldest write that the server's log tells of; 0: of none.
            tokens: Of all writes that it tells of.
        """
        return [w for w in self._writes if w.number >= first and w.token not in tokens]

    def forget(self, written: Written) -> None:
        """It is in the server under another number now, or never will be."""
        self._writes.remove(written)
        self._bytes -= written.change.size()
