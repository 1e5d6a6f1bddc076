"""A forwarding table in memory that evaluates lookups.

Tests and the emulator ask it where a packet really goes. It matches exact ports first, then the
pair of NICs. A match forwards by its primary, its backup or the underlay's hash, as it was steered.
All other packets follow the underlay. Answers depend only on what was programmed and steered, so a
mistake anywhere above shows as a wrong next hop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from heddle_agent.fib.compiled import MISS, SHAPES, Compiled, compiled
from heddle_agent.fib.hashing import Ints
from heddle_agent.fib.names import NicIds, Packets
from heddle_agent.fib.underlay import DROPPED, DirectUnderlay, Ecmp, Underlay
from heddle_agent.fib.values import (
    ANY_PORT,
    PAIRS_COUNTED,
    Batch,
    Capability,
    Choice,
    Count,
    Failure,
    Group,
    Match,
    NextHop,
    Nic,
    Packet,
    Reason,
    Steering,
)

Counted = TypeVar("Counted")

_TO_UNDERLAY = -2
_PRIMARY, _BACKUP = itemgetter(0), itemgetter(1)


class MemoryFib:
    """The table of one switch. Lookups return next hops, or their indices in ``next_hops``."""

    capabilities = frozenset(Capability)

    def __init__(
        self,
        switch: str,
        next_hops: Sequence[NextHop],
        underlay: Underlay | None = None,
        *,
        seed: int = 0,
        names: NicIds | None = None,
        table_size: int = 0,
    ) -> None:
        self.next_hops = tuple(next_hops)
        self.names = NicIds() if names is None else names
        self.table_size = table_size
        self.withdrawn = False
        self._switch = switch
        self._rows = {hop.port: row for row, hop in enumerate(self.next_hops)}
        routes = DirectUnderlay(self.next_hops) if underlay is None else underlay
        self._ecmp = Ecmp(routes, self._rows, seed, self.names)
        self._dead: frozenset[int] = frozenset()
        self._entries: dict[Match, Group] = {}
        self._moved: dict[Group, Choice] = {}  # groups that are not on their primary
        self._counts: dict[Match, Count] = {}
        self._metered: frozenset[str] = frozenset()
        self._unmatched: dict[tuple[str, str], Count] = {}
        self._compiled: Compiled | None = None
        self._matches: list[Match] = []  # rows of _compiled
        self._exits: NDArray[np.int64] | None = None  # where each row of _compiled leaves now

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Program a batch in one step, as ``Fib.apply`` describes."""
        failures = self._refused(batch)
        refused = {failure.match for failure in failures}
        sets = {m: g for m, g in batch.sets.items() if m not in refused} if refused else batch.sets
        if self._moved or batch.diverted:
            self._settle(sets.values(), batch.diverted)
        self._entries.update(sets)
        for match in batch.deletes:
            self._entries.pop(match, None)
            self._counts.pop(match, None)
        self._compiled = self._exits = None
        if len(self._moved) > 2 * len(self._entries) + 64:
            used = set(self._entries.values())
            self._moved = {group: way for group, way in self._moved.items() if group in used}
        return failures

    def steer(self, steering: Steering) -> None:
        """Move groups, and leave next hops over dead links out of the underlay."""
        self._settle(steering.choices, steering.choices)
        self._exits = None
        self._dead = frozenset(
            self._rows[port]
            for link in steering.down
            for port in ((link.source, link.key), (link.target, link.key))
            if self._switch in link and port in self._rows
        )

    def set_overlay(self, *, withdrawn: bool) -> str:
        """Withdraw or restore the overlay; this always succeeds."""
        self.withdrawn = withdrawn
        return ""

    def read_back(self) -> Mapping[Match, Group]:
        """Return all entries, also while the overlay is withdrawn."""
        return dict(self._entries)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Empty: entries go by the names of NICs."""
        return {}

    def refresh(self) -> None:
        """Do nothing, because nobody else changes this memory."""

    def counters(self) -> Mapping[Match, Count]:
        """Return what ``count`` has added to entries that still exist."""
        return dict(self._counts)

    def close(self) -> None:
        """Do nothing, because there is nothing to release."""

    def lookup(self, packet: Packet) -> NextHop | None:
        """Return the next hop of a packet; None if it is dropped."""
        match = self._find(packet)
        leaves = _TO_UNDERLAY if match is None else self._leaves(self._entries[match])
        if leaves == _TO_UNDERLAY:
            leaves = self._ecmp.one(packet, self._dead)
        return None if leaves == DROPPED else self.next_hops[leaves]

    def lookup_batch(self, packets: Packets) -> NDArray[np.int32]:
        """Return each packet's index into ``next_hops``; -1 if it is dropped."""
        leaves = self._overlay(packets)
        rest = np.flatnonzero(leaves == _TO_UNDERLAY)
        if len(rest):
            leaves[rest] = self._ecmp.many(packets.take(rest), self._dead)
        return leaves.astype(np.int32)

    def entry_hits(self, packets: Packets) -> NDArray[np.bool_]:
        """Whether an entry forwards each packet by its primary or backup, not by the underlay."""
        hits: NDArray[np.bool_] = self._overlay(packets) != _TO_UNDERLAY
        return hits

    def count(self, packets: Packets, sizes: int | Ints) -> None:
        """Add packets of ``sizes`` bytes each to the counters of the entries that match them.

        Packets that match no entry are counted for their pair of NICs, if the source is metered.
        """
        each = np.broadcast_to(np.asarray(sizes, dtype=np.int64), packets.source.shape)
        row = self._index().find(packets) if not self.withdrawn else np.full(each.shape, MISS)
        hit = row != MISS
        for position, count in _summed(row[hit], each[hit]):
            _add(self._counts, self._matches[position], count)
        if not self._metered:
            return
        pair = packets.source[~hit] * len(self.names) + packets.destination[~hit]
        for both, count in _summed(pair, each[~hit]):
            source, destination = map(self.names.name, divmod(both, len(self.names)))
            if source in self._metered:
                self._count_unmatched((source, destination), count)

    def _count_unmatched(self, pair: tuple[str, str], count: Count) -> None:
        """Count a pair. If all places are taken, a new pair replaces the one with fewest bytes."""
        known = self._unmatched
        if pair not in known and len(known) >= PAIRS_COUNTED:
            del known[min(known, key=lambda one: known[one].bytes)]
        _add(known, pair, count)

    def meter(self, sources: Collection[Nic]) -> None:
        """Meter NICs by their ids, as ``Metering.meter`` describes."""
        self._metered = frozenset(nic.id for nic in sources)
        self._unmatched = {p: c for p, c in self._unmatched.items() if p[0] in self._metered}

    def unmatched(self) -> Mapping[tuple[Nic, Nic], Count]:
        """Return what ``count`` has added to pairs of NICs without an entry."""
        return {(Nic(one), Nic(other)): c for (one, other), c in self._unmatched.items()}

    def _index(self) -> Compiled:
        if self._compiled is None:
            self._matches = list(self._entries)
            self._compiled = compiled(self._matches, self.names)
        return self._compiled

    def _overlay(self, packets: Packets) -> Ints:
        """Return the index of each packet's next hop by entries, or else _TO_UNDERLAY."""
        if self.withdrawn:
            return np.full(len(packets.source), _TO_UNDERLAY, dtype=np.int64)
        row = self._index().find(packets)
        if self._exits is None:
            leaves = {group: self._leaves(group) for group in set(self._entries.values())}
            exits = [leaves[self._entries[match]] for match in self._matches]
            self._exits = np.array([*exits, _TO_UNDERLAY], dtype=np.int64)  # MISS is the last
        return self._exits[row]

    def _find(self, packet: Packet) -> Match | None:
        if self.withdrawn:
            return None
        source, destination, source_port, destination_port = packet
        for exact_source, exact_destination in SHAPES:
            match = (
                source,
                destination,
                source_port if exact_source else ANY_PORT,
                destination_port if exact_destination else ANY_PORT,
            )
            if match in self._entries:
                return match
        return None

    def _refused(self, batch: Batch) -> list[Failure]:
        """Return the sets that this switch cannot hold: unknown next hop, or no room."""
        strange = self._strange(batch.sets.values())
        rows = batch.sets.items() if strange else ()
        failures = [
            Failure(match, Reason.UNKNOWN_NEXT_HOP, strange[group])
            for match, group in rows
            if group in strange
        ]
        if self.table_size and len(self._entries) + len(batch.sets) > self.table_size:
            failures += self._overflow(batch, {failure.match for failure in failures})
        return failures

    def _strange(self, groups: Collection[Group]) -> dict[Group, str]:
        """Return the groups that name an unknown link, each with a message that names it."""
        hops = {*map(_PRIMARY, groups), *map(_BACKUP, groups)}
        lost = {hop for hop in hops if hop is not None and hop[:2] not in self._rows}
        if not lost:
            return {}
        return {
            group: f"no link to {hop.node} key {hop.key}"
            for group in set(groups)
            for hop in (group.backup, group.primary)  # the primary's message wins
            if hop in lost and hop is not None
        }

    def _settle(self, groups: Iterable[Group], choices: Mapping[Group, Choice]) -> None:
        """Apply ``choices`` to these groups; groups without a choice go to their primary."""
        for group in set(groups):
            choice = choices.get(group, Choice.PRIMARY)
            if choice is not Choice.PRIMARY:
                self._moved[group] = choice
            else:
                self._moved.pop(group, None)

    def choice(self, group: Group) -> Choice:
        """Return the choice that a group uses now."""
        return self._moved.get(group, Choice.PRIMARY)

    def _leaves(self, group: Group) -> int:
        """Return the index in ``next_hops`` by which a group leaves now, or _TO_UNDERLAY."""
        choice = self._moved.get(group, Choice.PRIMARY)
        if choice is Choice.UNDERLAY:
            return _TO_UNDERLAY
        hop = group.primary if choice is Choice.PRIMARY else group.backup
        return _TO_UNDERLAY if hop is None else self._rows[hop[:2]]

    def _overflow(self, batch: Batch, refused: set[Match]) -> list[Failure]:
        new = [m for m in batch.sets if m not in self._entries and m not in refused]
        leaving = sum(match in self._entries for match in set(batch.deletes))
        room = self.table_size - len(self._entries) + leaving
        message = f"the table holds {self.table_size} entries and is full"
        return [Failure(match, Reason.TABLE_FULL, message) for match in new[max(room, 0) :]]


def _summed(key: Ints, sizes: Ints) -> Iterator[tuple[int, Count]]:
    """Yield each distinct key with its packets and bytes."""
    keys, which, number = np.unique(key, return_inverse=True, return_counts=True)
    total = np.zeros(len(keys), dtype=np.int64)
    np.add.at(total, which, sizes)
    for one, seen, size in zip(keys.tolist(), number.tolist(), total.tolist(), strict=True):
        yield one, Count(seen, size)


def _add(counts: dict[Counted, Count], of: Counted, more: Count) -> None:
    before = counts.get(of, Count(0, 0))
    counts[of] = Count(before.packets + more.packets, before.bytes + more.bytes)
