"""Streams under way, and whether whoever has them may still have them.

A call is let in once, and a stream lasts for hours. So streams are asked about again when a file
of tokens or revoked certificates has changed, and now and then for tokens that have run out. One
that may not go on is told why, and ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog
from grpc import aio

from heddle_controller.serve import errors
from heddle_controller.serve.interceptors.around import Context

log = structlog.stdlib.get_logger(__name__)

_LOOK_SECONDS = 2.0
"""Between two looks at the files."""
ROUND_LOOKS = 15
"""After so many looks all streams are asked about, whatever the files say."""
_AT_ONCE = 100
"""Streams that are asked about before anybody else gets his turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One of them."""

    context: Context
    peer: str
    """Where it comes from, for people."""
    task: asyncio.Task[object]
    check: Callable[[], None]
    """Raises ``Refusal`` where it may not go on; asks nothing of the call, which may have ended."""


class OpenStreams:
    """All streams of one server."""

    def __init__(self, stamp: Callable[[], object]) -> None:
        """``stamp`` changes with the files that say who may call."""
        self._stamp = stamp
        self._streams: set[Stream] = set()

    @contextmanager
    def having(self, context: Context, peer: str, check: Callable[[], None]) -> Iterator[None]:
        """Count the call of this task as a stream meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        stream = Stream(context, peer, task, check)
        self._streams.add(stream)
        try:
            yield
        finally:
            self._streams.discard(stream)

    async def run(self) -> None:
        """Ask again where there is a reason to, until cancelled."""
        before, looks = self._stamp(), 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            stamp, looks = self._stamp(), looks + 1
            if stamp != before or looks >= ROUND_LOOKS:
                before, looks = stamp, 0
                await self.look()

    async def look(self) -> None:
        """End those that may not go on."""
        for number, stream in enumerate(list(self._streams)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                stream.check()
            except errors.Refusal as refusal:
                await self._end(stream, refusal)

    async def _end(self, stream: Stream, refusal: errors.Refusal) -> None:
        if stream not in self._streams or stream.task.done():
            return  # it ended by itself meanwhile
        log.warning("stream ended", peer=stream.peer, why=refusal.message)
        with suppress(aio.AbortError, aio.BaseError, aio.UsageError):
            status = errors.with_request(errors.refused(refusal), "")
            await stream.context.abort_with_status(status)
        stream.task.cancel()
