"""Ending a task, when the one that ends it is itself cancelled at any step."""

from __future__ import annotations

import asyncio

import pytest

from heddle_controller.store.applier import end

STEPS = 6
"""Steps that the task takes to end."""


async def tidy() -> None:
    """Work until cancelled, then clean up in several steps."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(STEPS):
            await asyncio.sleep(0)


@pytest.mark.parametrize("steps", range(1, STEPS + 3))
async def test_who_is_cancelled_while_another_ends_is_cancelled(steps: int) -> None:
    """A task that is cancelled while it ends another is cancelled itself, at whatever step.

    If the cancellation were taken for that of the other task, the task would run for ever.
    """
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
    """The task may have come to its end or have been cancelled before."""
    for cancelled in (False, True):
        task = asyncio.create_task(asyncio.sleep(0))
        if cancelled:
            task.cancel()
        await asyncio.wait([task])
        await end(task)
        assert task.cancelled() == cancelled


async def test_what_a_task_failed_with_is_told() -> None:
    """The error is raised, whether the task failed before or while it was ended."""

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
