"""The Protocol of whatever knows the state of this switch's links."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from heddle_agent.fib import NextHop
from heddle_agent.table import LinkObservation


class LinkWatch(Protocol):
    """The links of one switch."""

    @property
    def next_hops(self) -> Sequence[NextHop]:
        """Every link of the switch, as the neighbour behind it. Only addresses may change."""

    def current(self) -> Sequence[LinkObservation]:
        """Return the current state of all links."""

    def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Yield steps of changes as they come.

        Simultaneous changes are in one step, so that one repair sees them all. There is one
        consumer, which has handled a step when it asks for the next.
        """
