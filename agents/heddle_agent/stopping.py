"""Tasks that end when they are asked to, whatever swallows that on the way.

A cancellation that comes just as a call ends is lost in places: gRPC forgets it, and
``asyncio.wait_for`` of Python 3.11, which Redis's client is built on, answers with what came at
that moment. A loop that goes on after such a call asks here, or it would go on for ever.
"""

from __future__ import annotations

import asyncio


def asked_to_end() -> bool:
    """Whether somebody has asked for the end of the present task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
