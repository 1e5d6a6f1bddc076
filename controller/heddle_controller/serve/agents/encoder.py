"""Encodes pushes to many agents together.

The loop hands over the pushes of a stage one by one, but in one go, before any stream's writer
has its turn. The first writer that needs its message therefore has it encoded together with
those of the others, as many as take no longer than a turn of the event loop may.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from heddle_controller.reconcile.southbound import Push
from heddle_controller.serve.codec.entries import Encoded, encoded

LARGE_PUSH = 4096
"""Operations from which a push is encoded in a thread, not to hold up the other streams."""
_TOGETHER = 4096
"""Operations after which the rest of those that wait are left for the next turn."""
MOST_PUSHES = 256
"""Likewise pushes: most have no operations."""


class EncodingJob(Protocol):
    """A push that is to be encoded."""

    push: Push
    message: Encoded | None

    @property
    def waits(self) -> bool:
        """Whether it still is."""


class Encoder:
    """Encodes for all streams of a gateway; its methods run in the event loop."""

    def __init__(self) -> None:
        self._queue: deque[EncodingJob] = deque()

    def add(self, pending: EncodingJob) -> None:
        """A push will be asked for soon."""
        if pending.push.operation_count < LARGE_PUSH:
            self._queue.append(pending)

    async def message(self, pending: EncodingJob) -> Encoded:
        """The message of a push."""
        if pending.push.operation_count >= LARGE_PUSH:
            (message,) = await asyncio.to_thread(encoded, [pending.push])
            return message
        together = [pending, *self._others(pending)]
        made = encoded([each.push for each in together])
        for each, message in zip(together, made, strict=True):
            each.message = message
        return made[0]

    def _others(self, first: EncodingJob) -> list[EncodingJob]:
        """Those to be encoded with one; they wait no more."""
        structure, room = first.push.fabric.structure, _TOGETHER - first.push.operation_count
        others: list[EncodingJob] = []
        while self._queue and room > 0 and len(others) < MOST_PUSHES:
            each = self._queue[0]
            if each is not first and each.waits:
                if each.push.fabric.structure is not structure:
                    break
                others.append(each)
                room -= each.push.operation_count
            self._queue.popleft()
        return others
