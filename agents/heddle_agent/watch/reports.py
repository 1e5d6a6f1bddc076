"""The port to what a switch's own databases say of its interfaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class PortReports(Protocol):
    """What is told of interfaces by others than the kernel."""

    async def watch(self, interfaces: Sequence[str], told: Callable[[str, bool], None]) -> None:
        """Tell of each of these interfaces whether it is up, until cancelled.

        At first, and with every change; what has not changed may be told again. Of an interface
        that the databases do not know it is told that it is up: that is left to the kernel.
        """
