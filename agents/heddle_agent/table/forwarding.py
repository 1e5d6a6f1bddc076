"""The one place where a table meets its backend: pure functions decide, the backend acts.

All methods are synchronous, so that no other task sees a table that differs from the backend in
anything but its dirty matches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from heddle_agent.fib import Count, Failure, Fib, Group, Link, Match, Steering
from heddle_agent.table import digest
from heddle_agent.table.groups import Groups
from heddle_agent.table.program import adopt, confirm, pending, withdraw
from heddle_agent.table.push import NO_FENCE, Fence, OperationFailure, Push, Receipt
from heddle_agent.table.receive import receive
from heddle_agent.table.repair import links_changed
from heddle_agent.table.state import Table

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Held:
    """What a switch holds."""

    epoch: int
    """Highest accepted."""
    generation: int
    """Held whole; 0 for none."""
    entries: int
    """Programmed."""
    dirty: int
    """Yet to be set or deleted in the backend."""
    stale: int
    """Programmed, not named by the last full sync, not yet swept."""


def keep_in_memory(_: Fence) -> None:
    """Remember the fence no longer than this process lives."""


class Forwarding:
    """The entries of one switch, in the table and in the backend."""

    def __init__(
        self,
        switch: str,
        fib: Fib,
        local: Iterable[tuple[str, str]],
        *,
        down: Collection[Link] = (),
        fence: Fence = NO_FENCE,
        remember: Callable[[Fence], None] = keep_in_memory,
    ) -> None:
        """Adopt what ``fib`` holds.

        ``local`` are the switch's links as (neighbour, key), ``down`` all links known down.
        ``remember`` is told of every newer fence before the push that brought it is answered.
        """
        empty = Table(
            Groups(switch),
            local=frozenset(local),
            capabilities=fib.capabilities,
            table_size=fib.table_size,
            fence=fence,
        )
        self.fib = fib
        self.table, steering = adopt(empty, fib.read_back(), frozenset(down), fib.addresses)
        fib.steer(steering)
        self.mend()
        self.flips = 0  # groups moved by local repair since the start
        self._remember = remember
        self._digest: tuple[Mapping[Match, Group], bytes] = ({}, b"")

    @property
    def held(self) -> Held:
        """What is programmed at the moment."""
        table = self.table
        return Held(
            epoch=table.fence.epoch,
            generation=table.whole,
            entries=len(table.programmed),
            dirty=len(table.dirty),
            stale=len(table.stale),
        )

    def receive(self, push: Push) -> Receipt:
        """Take a push into the table; ``program`` then brings it into the backend."""
        before = self.table.fence
        self.table, receipt = receive(self.table, push)
        if self.table.fence > before:
            self._remember(self.table.fence)
        return receipt

    def program(self, push: Push) -> list[OperationFailure]:
        """Bring everything that is dirty into the backend; return the push's own failures."""
        failures = self._apply()
        if not failures:
            return []
        rows = {match: row for row, match in enumerate(push.operations.matches)}
        for failure in failures:
            if failure.match not in rows:
                _log.warning("entry not programmed", match=failure.match, why=failure.message)
        return [OperationFailure(rows[m], r, text) for m, r, text in failures if m in rows]

    def mend(self) -> None:
        """Try again what the backend has refused before, and put back what others took."""
        self.fib.refresh()
        if self.table.dirty:
            self._apply()

    def links_changed(self, changes: Mapping[Link, bool]) -> int:
        """Repair around links that went down (False) or came up (True); return groups moved."""
        self._leave({link for link, up in changes.items() if not up})
        self.table, steering = links_changed(self.table, changes)
        if steering is None:
            return 0
        self.fib.steer(steering)
        self.flips += len(steering.choices)
        return len(steering.choices)

    def _leave(self, lost: set[Link]) -> None:
        """Links of this switch are left at once, before anybody thinks about single groups."""
        if any(self.table.groups.switch in link[:2] for link in lost - self.table.down):
            self.fib.steer(Steering({}, self.table.down | lost))

    def withdraw(self) -> None:
        """Take every entry out: all flows fall to the underlay."""
        self.table = withdraw(self.table)
        self._apply()

    def digest(self) -> bytes:
        """Digest of what is programmed; worked out once for each table.

        An agent that finds no controller asks at every attempt, while it repairs.
        """
        table, known = self._digest
        if table is not self.table.programmed:
            table = self.table.programmed
            known = digest.table_digest(table)
            self._digest = (table, known)
        return known

    def counters(self) -> Mapping[Match, Count]:
        """What the entries have carried."""
        return self.fib.counters()

    def _apply(self) -> Sequence[Failure]:
        failures = self.fib.apply(pending(self.table)) if self.table.dirty else ()
        self.table = confirm(self.table, {failure.match for failure in failures})
        return failures
