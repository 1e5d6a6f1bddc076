"""Notes to other replicas, gathered into letters.

What is said in one turn of the event loop goes out as one letter to each box, in the
order in which it was said. A letter that cannot be sent is dropped: whoever misses it
sees the gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import structlog
from google.protobuf.message import DecodeError

from heddle.v1 import relay_pb2 as pb
from heddle_controller.reconcile.replicas import Relay
from heddle_controller.state.errors import Unavailable

log = structlog.stdlib.get_logger(__name__)

COMMON = "all"
"""The box that every replica reads."""
CALL_SECONDS = 0.25
"""How often the leader calls, and replicas answer."""
LETTER_BYTES = 1 << 20
"""A letter is closed once it has so much in it."""


class Post:
    """Sending and reading for one replica."""

    def __init__(self, relay: Relay, box: str, pace: float = CALL_SECONDS) -> None:
        """``box`` is this process's own, and no other's before or after.

        ``pace`` is the time between two calls of a leader, in seconds, by which silence is
        judged too.
        """
        self.box = box
        self.pace = pace
        self._relay = relay
        self._unsent: list[tuple[str, pb.Note]] = []
        self._wake = asyncio.Event()

    def put(self, box: str, note: pb.Note) -> None:
        """Send a note soon."""
        self._unsent.append((box, note))
        self._wake.set()

    async def run(self) -> None:
        """Send what is put, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            unsent, self._unsent = self._unsent, []
            for box, letter in self._letters(unsent):
                await self._send(box, letter)

    async def _send(self, box: str, letter: pb.Letter) -> None:
        try:
            await self._relay.send(box, letter.SerializeToString())
        except Unavailable as error:
            log.debug("letter not sent", box=box, notes=len(letter.notes), why=str(error))

    def _letters(self, unsent: list[tuple[str, pb.Note]]) -> Iterator[tuple[str, pb.Letter]]:
        """Notes that follow each other to one box, together."""
        letter, to, size = pb.Letter(sender=self.box), "", 0
        for box, note in unsent:
            if letter.notes and (box != to or size > LETTER_BYTES):
                yield to, letter
                letter, size = pb.Letter(sender=self.box), 0
            to = box
            letter.notes.append(note)
            size += note.ByteSize()
        if letter.notes:
            yield to, letter

    async def letters(self) -> AsyncIterator[pb.Letter | None]:
        """Letters to us and to all; None where some may have been lost."""
        async for body in self._relay.letters(COMMON, self.box):
            if body is None:
                yield None
                continue
            try:
                yield pb.Letter.FromString(body)
            except DecodeError:
                log.warning("letter cannot be read", size=len(body))
