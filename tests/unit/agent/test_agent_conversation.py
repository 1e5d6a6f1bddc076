"""A conversation by itself. The test decides what the far end does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

import grpc
import pytest

from heddle_agent.fib import MemoryFib
from heddle_agent.session.conversation import Call, Conversation
from heddle_agent.table import Forwarding, TableWorker
from tests.support.agent_worlds import HOPS, SWITCH, FixedUnderlay
from tests.support.waiting import PATIENCE


class Over:
    """A stream that the controller has ended."""

    async def read(self) -> object:
        """Return the end of the stream."""
        return grpc.aio.EOF

    async def write(self, _message: object) -> None:
        """Fail, because nobody reads any more."""
        raise asyncio.InvalidStateError


@pytest.mark.parametrize("steps", range(5))
async def test_who_is_cancelled_as_the_stream_ends_is_cancelled(steps: int) -> None:
    """A cancelled session must end, at whichever step of the stream's end the cancellation comes.

    An agent that lost the cancellation would run for ever.
    """
    fib = MemoryFib(SWITCH, HOPS, FixedUnderlay(HOPS[2:4]), seed=1)
    conversation = Conversation(
        cast("Call", Over()),
        TableWorker(Forwarding(SWITCH, fib, ())),
        links=list,
        answered=Counter(),
        introduced=lambda _peers, _keys: None,
        overlay_told=lambda _report: None,
    )
    cancelled = False

    async def session() -> None:
        nonlocal cancelled
        try:
            await conversation.run(0.0)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    task = asyncio.create_task(session())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE)
    if steps:
        assert cancelled, "the cancellation was lost"
    assert done
