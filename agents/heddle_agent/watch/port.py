"""The port to whatever knows the state of this switch's links."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from heddle_agent.fib import NextHop
from heddle_agent.table import LinkObservation


class LinkWatch(Protocol):
    """The links of one switch."""

    @property
    def next_hops(self) -> Sequence[NextHop]:
        """Every link of the switch, as the neighbour behind it; fixed while the agent runs."""

    def current(self) -> Sequence[LinkObservation]:
        """All links as they are now."""

    def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Changes as they come, those that come together in one step: one repair sees them all.

        For one consumer, which has dealt with a step when it asks for the next.
        """
