"""SIGTERM as Ctrl-C: whatever was built is removed on the way out."""

from __future__ import annotations

from types import FrameType
from typing import NoReturn


def interrupted(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - a handler
    """The handler."""
    raise KeyboardInterrupt
