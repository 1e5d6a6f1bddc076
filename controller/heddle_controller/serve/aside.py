"""Answers of many items are made in a thread, so that others are answered meanwhile.

A link or a job takes ten to a hundred microseconds to tell; a page may hold ten thousand. What is
told has to be immutable, as the records of the store are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Answer = TypeVar("Answer")

FEW = 50
"""Items that take no longer than to hand them to a thread and back may, while a plan is made."""


async def aside(
    items: int, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs
) -> Answer:
    """What the function gives; called in a thread where it is about more than a few items."""
    if items <= FEW:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
