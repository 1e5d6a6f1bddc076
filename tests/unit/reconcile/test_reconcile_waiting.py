"""Ending a task: who does it can be ended himself at every step of that."""

from __future__ import annotations

import asyncio

import pytest

from heddle_controller.store.applier import end

STEPS = 6
"""That the task takes over its end."""


async def tidy() -> None:
    """Work until cancelled, then put things away."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(STEPS):
            await asyncio.sleep(0)


@pytest.mark.parametrize("steps", range(1, STEPS + 3))
async def test_who_is_cancelled_while_another_ends_is_cancelled(steps: int) -> None:
    """Whenever that is: taken for the other's, it would be lost, and he would go on for ever."""
    other = asyncio.create_task(tidy())
    await asyncio.sleep(0)

    async def close() -> None:
        await end(other)
        await asyncio.Event().wait()

    closing = asyncio.create_task(close())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    for _ in range(2 * STEPS):
        await asyncio.sleep(0)
    assert other.cancelled()
    assert closing.cancelled(), "the cancellation was lost"


async def test_a_task_that_was_over_is_no_trouble() -> None:
    """Whether it came to its end or had been cancelled before."""
    for cancelled in (False, True):
        task = asyncio.create_task(asyncio.sleep(0))
        if cancelled:
            task.cancel()
        await asyncio.wait([task])
        await end(task)
        assert task.cancelled() == cancelled


async def test_what_a_task_failed_with_is_told() -> None:
    """Before it was to end, or while it did."""

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("spilt")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="spilt"):
        await end(task)
    with pytest.raises(RuntimeError, match="spilt"):
        await end(task)
