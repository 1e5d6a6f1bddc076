"""Giving up what is waited for, and ending."""

from __future__ import annotations

import asyncio


def end_if_asked() -> None:
    """Go on being cancelled, where an error that came with it has taken its place.

    So it does in a group of tasks where one failed meanwhile, and wherever what is given up
    fails in being closed. Whoever catches such errors and tries again asks here first.

    The body of such a group has to last as long as its tasks. A group that is only waiting for them
    when one fails asks its own task to end and, before Python 3.13, never takes that back: then all
    that has happened is that the task failed, and here it would be taken for the end.

    Raises:
        CancelledError: somebody has asked for the end of this task.
    """
    if asked_to_end():
        raise asyncio.CancelledError


def asked_to_end() -> int:
    """How often the present task was asked to end, and was not told to go on after all."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


async def end(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait until it is over.

    To await it, and to take the cancellation that comes of that for its own, would lose one of our
    own that comes meanwhile: then whoever asked us to end waits for ever.

    Raises:
        CancelledError: somebody has asked for the end of the present task.
        Exception: whatever the task failed with.
    """
    task.cancel()
    await asyncio.wait([task])  # raises only if it is we who are cancelled
    if not task.cancelled():
        task.result()
