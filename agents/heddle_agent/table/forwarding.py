"""The one place where a table meets its backend: pure functions decide, the backend acts.

All methods are synchronous and one thread's, so that no other task sees a table that differs from
the backend in anything but its dirty matches.

Meanwhile the backend may be lent to another thread, which brings a long batch into it. Links may
change then too: the table follows at once, and so does ``avoid``, by which no packet leaves towards
a lost link any more, whether its entry is old or part of that batch. Once the backend is given back
it is steered by all that has changed, which also ends what was avoided. So a repair waits for no
batch; what it costs is that flows which only share a next hop with those at risk are on their
backups until the batch is through.

Local repair: a link is lost or comes back, and the groups that depend on it move at once.

Work grows with the groups at risk, not with the entries behind them. Links of this switch and links
far away are the same to it; who reports them (the kernel, a peer, a test) is not its affair.
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
        self.remember = remember
        self._avoiding = fib if isinstance(fib, Avoiding) else None
        self._detouring = fib if isinstance(fib, Detouring) else None
        self._detoured: dict[Group, set[tuple[str, str]]] = {}
        self._lent = False
        self._owed: dict[Group, Choice] | None = None  # steering that waits for the backend
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
        taken, receipt = receive(self.table, push)
        if taken.fence > self.table.fence:
            self.remember(taken.fence)
        self.table = taken
        return receipt

    def follow(self, taken: Table) -> None:
        """Have a table that was worked out from ours, of whose links some changed meanwhile."""
        before, now = taken.down, self.table.down
        changes = {link: link not in now for link in before ^ now}
        self.table, _ = links_changed(taken, changes)

    def program(self, push: Push) -> list[OperationFailure]:
        """Bring everything that is dirty into the backend; return the push's own failures."""
        return self.own_failures(push, self._apply())

    @staticmethod
    def own_failures(push: Push, failures: Sequence[Failure]) -> list[OperationFailure]:
        """Which of a backend's failures are a push's own; others are logged."""
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
        if self._lent:
            self._owed = {**(self._owed or {}), **steering.choices}
        else:
            self.fib.steer(steering)
            self._detour()
        self.flips += len(steering.choices)
        return len(steering.choices)

    @property
    def can_lend(self) -> bool:
        """Whether the backend can be told what to avoid while another thread is at it."""
        return self._avoiding is not None

    def lend(self) -> Table:
        """Leave the backend to another thread; the table that it is to work from."""
        self._lent = True
        return self.table

    def take_back(self, table: Table) -> None:
        """The backend is free, and holds what this table says: bring it up to date with links."""
        self._lent = False
        self.follow(table)
        owed, self._owed = self._owed, None
        if owed is not None:
            self.fib.steer(Steering(owed, self.table.down))
            self._detour()

    def _detour(self) -> None:
        """Lead flows that only the underlay is left for around what it does not know of yet."""
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
        """Links of this switch are left at once, before anybody thinks about single groups.

        While the backend is lent, so are all next hops from which a lost link would be met.
        """
        groups, fresh = self.table.groups, lost - self.table.down
        if self._lent and self._avoiding is not None:
            if fresh:
                self._avoiding.avoid(groups.leading_over(fresh))
        elif any(groups.switch in link[:2] for link in fresh):
            self.fib.steer(Steering({}, self.table.down | lost))

    def withdraw(self) -> None:
        """Take every entry out: all flows fall to the underlay."""
        self.table = withdraw(self.table)
        self._apply()

    def set_overlay(self, *, withdrawn: bool, epoch: int) -> str:
        """Match no packet against the entries, or all again; why not, empty if it was done.

        An order of an epoch older than the highest accepted is not obeyed.
        """
        highest = self.table.fence.epoch
        if epoch < highest:
            return f"the order is of epoch {epoch}, and {highest} was accepted since"
        return self.fib.set_overlay(withdrawn=withdrawn)

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

    def unmatched(self) -> Mapping[tuple[Nic, Nic], Count]:
        """What pairs of metered NICs have sent without an entry, where the backend can tell."""
        return self.fib.unmatched() if isinstance(self.fib, Metering) else {}

    def meter(self, sources: Collection[Nic]) -> None:
        """Whose packets to count where no entry matches them, where the backend can."""
        if isinstance(self.fib, Metering):
            self.fib.meter(sources)

    def _apply(self) -> Sequence[Failure]:
        failures = self.fib.apply(pending(self.table)) if self.table.dirty else ()
        self.table = confirm(self.table, {failure.match for failure in failures})
        return failures


def links_changed(table: Table, changes: Mapping[Link, bool]) -> tuple[Table, Steering | None]:
    """The table after links went up (True) or down (False); None if it knew all of that."""
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
