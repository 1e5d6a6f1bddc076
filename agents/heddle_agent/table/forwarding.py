"""The one place where a table meets its backend: pure functions decide, the backend acts.

All methods are synchronous and run in one thread, so no other task sees a table that differs from
the backend in anything but its dirty matches.

The backend may be lent to another thread, which programs a long batch. Links may change meanwhile.
The table then changes at once, and ``avoid`` makes the backend stop sending packets towards a lost
link, by old entries and by entries of the batch. When the backend is returned, it is steered by all
that has changed, which also ends the avoiding. So no repair waits for a batch. The cost is that
flows which merely share a next hop with those at risk use their backups until the batch is done.

Local repair: when a link is lost or comes back, the groups that depend on it move at once. The work
grows with the number of groups at risk, not with the entries that use them. Local repair treats
links of this switch and links far away alike. It does not matter whether the kernel, a peer or a
test reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from heddle_agent.fib import (
    Avoiding,
    Choice,
    Count,
    Detouring,
    Failure,
    Fib,
    Group,
    Link,
    Match,
    Metering,
    Nic,
    Steering,
)
from heddle_agent.table import digest
from heddle_agent.table.groups import Groups
from heddle_agent.table.program import adopt, confirm, pending, withdraw
from heddle_agent.table.push import NO_FENCE, Fence, OperationFailure, Push, Receipt
from heddle_agent.table.receive import receive
from heddle_agent.table.state import Table

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Held:
    """Summary of what a switch holds."""

    epoch: int
    """Highest accepted epoch."""
    generation: int
    """Generation held whole; 0 for none."""
    entries: int
    """Number of programmed entries."""
    dirty: int
    """Number of entries yet to be set or deleted in the backend."""
    stale: int
    """Number of entries that the last full sync did not name and that are not swept yet."""


def keep_in_memory(_: Fence) -> None:
    """Do not store the fence, so that it lasts only as long as this process."""


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
        """Adopt the entries that ``fib`` holds.

        ``local`` are the switch's links as (neighbour, key), ``down`` all links known to be down.
        ``remember`` is called with every newer fence, before the push that brought it is answered.
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
        self.remember = remember
        self._avoiding = fib if isinstance(fib, Avoiding) else None
        self._detouring = fib if isinstance(fib, Detouring) else None
        self._detoured: dict[Group, set[tuple[str, str]]] = {}
        self._lent = False
        self._owed: dict[Group, Choice] | None = None  # steering that waits for the backend
        self._digest: tuple[Mapping[Match, Group], bytes] = ({}, b"")

    @property
    def held(self) -> Held:
        """Summary of what is programmed at the moment."""
        table = self.table
        return Held(
            epoch=table.fence.epoch,
            generation=table.whole,
            entries=len(table.programmed),
            dirty=len(table.dirty),
            stale=len(table.stale),
        )

    def receive(self, push: Push) -> Receipt:
        """Take a push into the table. Call ``program`` to bring it into the backend."""
        taken, receipt = receive(self.table, push)
        if taken.fence > self.table.fence:
            self.remember(taken.fence)
        self.table = taken
        return receipt

    def follow(self, taken: Table) -> None:
        """Replace the table by one computed from an older copy, updated for links changed since."""
        before, now = taken.down, self.table.down
        changes = {link: link not in now for link in before ^ now}
        self.table, _ = links_changed(taken, changes)

    def program(self, push: Push) -> list[OperationFailure]:
        """Bring everything dirty into the backend; return the failures of this push."""
        return self.own_failures(push, self._apply())

    @staticmethod
    def own_failures(push: Push, failures: Sequence[Failure]) -> list[OperationFailure]:
        """Return those of a backend's failures that belong to the push; log the others."""
        if not failures:
            return []
        rows = {match: row for row, match in enumerate(push.operations.matches)}
        for failure in failures:
            if failure.match not in rows:
                _log.warning("entry not programmed", match=failure.match, why=failure.message)
        return [OperationFailure(rows[m], r, text) for m, r, text in failures if m in rows]

    def mend(self) -> None:
        """Restore what others changed in the backend, and retry operations that it refused."""
        self.fib.refresh()
        if self.table.dirty:
            self._apply()

    def links_changed(self, changes: Mapping[Link, bool]) -> int:
        """Repair around links that went down (False) or came up (True); return groups moved."""
        self._leave({link for link, up in changes.items() if not up})
        self.table, steering = links_changed(self.table, changes)
        if steering is None:
            return 0
        if self._lent:
            self._owed = {**(self._owed or {}), **steering.choices}
        else:
            self.fib.steer(steering)
            self._detour()
        self.flips += len(steering.choices)
        return len(steering.choices)

    @property
    def can_lend(self) -> bool:
        """Whether the backend can avoid next hops while another thread is using it."""
        return self._avoiding is not None

    def lend(self) -> Table:
        """Leave the backend to another thread, and return the table for that thread."""
        self._lent = True
        return self.table

    def take_back(self, table: Table) -> None:
        """Take the backend back, which holds ``table``, and apply link changes made meanwhile."""
        self._lent = False
        self.follow(table)
        owed, self._owed = self._owed, None
        if owed is not None:
            self.fib.steer(Steering(owed, self.table.down))
            self._detour()

    def _detour(self) -> None:
        """Lead flows on the underlay around lost links that routing does not know of yet."""
        if self._detouring is None:
            return
        down, groups, local = self.table.down, self.table.groups, self.table.local
        alike: dict[frozenset[Link], set[tuple[str, str]]] = {}
        wanted: dict[Group, set[tuple[str, str]]] = {}
        for group, choice in self.table.diverted.items():
            if choice is Choice.UNDERLAY:
                lost = down.intersection(group.risks) | down.intersection(group.backup_risks)
                if lost not in alike:
                    alike[lost] = groups.meeting(lost, down, local)
                wanted[group] = alike[lost]
        if wanted != self._detoured:
            self._detoured = wanted
            self._detouring.detour(wanted)

    def _leave(self, lost: set[Link]) -> None:
        """Stop sending over lost links of this switch, before single groups are considered.

        While the backend is lent, avoid all next hops that lead over any newly lost link.
        """
        groups, fresh = self.table.groups, lost - self.table.down
        if self._lent and self._avoiding is not None:
            if fresh:
                self._avoiding.avoid(groups.leading_over(fresh))
        elif any(groups.switch in link[:2] for link in fresh):
            self.fib.steer(Steering({}, self.table.down | lost))

    def withdraw(self) -> None:
        """Delete every entry, so that all flows follow the underlay."""
        self.table = withdraw(self.table)
        self._apply()

    def set_overlay(self, *, withdrawn: bool, epoch: int) -> str:
        """Withdraw or restore the overlay; return why that failed, or an empty string.

        An order with an epoch below the highest accepted one is refused.
        """
        highest = self.table.fence.epoch
        if epoch < highest:
            return f"the order is of epoch {epoch}, and {highest} was accepted since"
        return self.fib.set_overlay(withdrawn=withdrawn)

    def digest(self) -> bytes:
        """Return the digest of the programmed entries, computed once per table.

        An agent that finds no controller asks at every attempt, even while it repairs.
        """
        table, known = self._digest
        if table is not self.table.programmed:
            table = self.table.programmed
            known = digest.table_digest(table)
            self._digest = (table, known)
        return known

    def counters(self) -> Mapping[Match, Count]:
        """Return what the entries have carried."""
        return self.fib.counters()

    def unmatched(self) -> Mapping[tuple[Nic, Nic], Count]:
        """Return what pairs of metered NICs sent without an entry; empty without Metering."""
        return self.fib.unmatched() if isinstance(self.fib, Metering) else {}

    def meter(self, sources: Collection[Nic]) -> None:
        """Set the source NICs whose unmatched packets the backend counts, if it can."""
        if isinstance(self.fib, Metering):
            self.fib.meter(sources)

    def _apply(self) -> Sequence[Failure]:
        failures = self.fib.apply(pending(self.table)) if self.table.dirty else ()
        self.table = confirm(self.table, {failure.match for failure in failures})
        return failures


def links_changed(table: Table, changes: Mapping[Link, bool]) -> tuple[Table, Steering | None]:
    """Return the table after links went up (True) or down (False), and the steering it needs.

    The steering is None if the table already knew all of these states.
    """
    up = {link for link, state in changes.items() if state}
    down = (table.down - up) | (changes.keys() - up)
    news = down ^ table.down
    if not news:
        return table, None
    choices = {}
    for group in table.groups.touched(news):
        choice = table.groups.choose(group, down)
        if choice is not table.diverted.get(group, Choice.PRIMARY):
            choices[group] = choice
    merged = {**table.diverted, **choices}
    diverted = {group: choice for group, choice in merged.items() if choice is not Choice.PRIMARY}
    return table._replace(down=down, diverted=diverted), Steering(choices, down)
