"""The Protocol of what a switch's own databases say of its interfaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class PortReports(Protocol):
    """Reports on interfaces from a source other than the kernel."""

    async def watch(self, interfaces: Sequence[str], told: Callable[[str, bool], None]) -> None:
        """Report whether each of these interfaces is up, until cancelled.

        ``told`` is called with interface and state, at first and at every change; unchanged states
        may be repeated. An interface that the databases do not know is reported up, which leaves it
        to the kernel.
        """
