"""A relay in memory that several replicas of one process share, and that can lose letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from heddle_controller.state.errors import Unavailable


class Office:
    """Implements ``Relay`` for all replicas of a test."""

    def __init__(self) -> None:
        self.loses: Callable[[str, bytes], bool] = lambda _box, _letter: False
        """Whether a letter to a box is lost without a trace."""
        self.closed = False
        """Nothing can be sent."""
        self.letters_sent = 0
        self._readers: dict[asyncio.Queue[bytes | None], tuple[str, ...]] = {}

    async def send(self, box: str, letter: bytes) -> int:
        """See the port."""
        if self.closed:
            raise Unavailable("the office is closed")
        self.letters_sent += 1
        if self.loses(box, letter):
            return 0
        readers = [queue for queue, boxes in self._readers.items() if box in boxes]
        for queue in readers:
            queue.put_nowait(letter)
        return len(readers)

    async def letters(self, *boxes: str) -> AsyncIterator[bytes | None]:
        """See the port."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._readers[queue] = boxes
        queue.put_nowait(None)
        try:
            while True:
                yield await queue.get()
        finally:
            del self._readers[queue]

    def interrupt(self) -> None:
        """Every reader is told that something may have been lost."""
        for queue in self._readers:
            queue.put_nowait(None)
