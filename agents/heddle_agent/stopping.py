"""Lets a task find out that it was cancelled, even if a library swallowed the cancellation.

A cancellation that arrives just as a call ends can be lost. gRPC forgets it. ``asyncio.wait_for``
of Python 3.11, on which the Redis client is built, returns the result that arrived at that moment.
A loop that continues after such a call must ask here, or it would run for ever.
"""

from __future__ import annotations

import asyncio


def asked_to_end() -> bool:
    """Whether the current task has been cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
