"""Minimal switches: a table that takes pushes as agent.proto says.

The table is keyed by names, like a real one, so it outlives the fabric that its entries came from.
Its digest is computed by the agent's own code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from heddle_agent.fib import Group, Link, NextHop
from heddle_agent.session.listing import listing
from heddle_agent.table import table_digest
from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.ports import Push, PushMode, PushStatus
from heddle_controller.serve.codec.agent import entries_from_pb

Match = tuple[str, str, int, int]
Way = tuple[NextHop, NextHop | None, tuple[Link, ...], tuple[Link, ...]]


def match_of(fabric: Fabric, entries: Entries, row: int) -> Match:
    """Return the match of an entry."""
    ids = fabric.structure.nodes.ids
    return (
        ids[entries.source[row]],
        ids[entries.destination[row]],
        int(entries.source_port[row]),
        int(entries.destination_port[row]),
    )


def way_of(fabric: Fabric, entries: Entries, row: int) -> Way:
    """Return where an entry sends packets: next hop, backup, and the risk links of both."""
    backup = int(entries.backup[row])
    risks, spare = (
        tuple(sorted(_link(fabric, link) for link in links.tolist()))
        for links in (entries.risks(row), entries.backup_risks(row))
    )
    return (
        _hop(fabric, int(entries.primary[row])),
        None if backup == NONE else _hop(fabric, backup),
        risks,
        spare,
    )


def _hop(fabric: Fabric, arc: int) -> NextHop:
    structure = fabric.structure
    return NextHop(structure.nodes.ids[structure.head[arc]], str(structure.links.key[arc >> 1]))


def _link(fabric: Fabric, row: int) -> Link:
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    return Link.between(ids[links.a[row]], ids[links.b[row]], str(links.key[row]))


@dataclass
class SwitchTable:
    """What one switch holds."""

    entries: dict[Match, Way] = field(default_factory=dict)
    stale: set[Match] = field(default_factory=set)
    fence: tuple[int, int] = (0, 0)
    whole: int = 0
    """Generation that it holds completely; 0 for none."""
    size: int = 0
    """Most entries; 0 for no limit."""

    def digest(self) -> bytes:
        """Return the digest, computed by the agent's own code."""
        return table_digest({match: Group(*way) for match, way in self.entries.items()})

    def listed(self, fabric: Fabric, switch: str) -> Entries | None:
        """Return every entry as it arrives over the wire."""
        told = listing({match: Group(*way) for match, way in self.entries.items()})
        return entries_from_pb(told, fabric, switch)

    def refuses(self, push: Push) -> PushStatus:
        """Return whether the fence admits a push; if it does, raise the fence."""
        if (push.epoch, push.generation) < self.fence:
            return PushStatus.STALE_EPOCH
        self.fence = (push.epoch, push.generation)
        return PushStatus.APPLIED

    def take(self, push: Push, failing: Collection[int] = ()) -> Iterator[None]:
        """Apply a push; yield after each operation; skip operations in ``failing``."""
        sets, deletes, fabric = push.sets, push.deletes, push.fabric
        if push.mode == PushMode.FULL_SYNC:
            self.stale = set(self.entries)
        if push.operation_count or push.mode == PushMode.FULL_SYNC:
            self.whole = 0
        for row in range(len(sets)):
            match = match_of(fabric, sets, row)
            self.stale.discard(match)
            if row not in failing:
                self.entries[match] = way_of(fabric, sets, row)
                yield
        for row in range(len(deletes)):
            if len(sets) + row not in failing:
                self.entries.pop(match_of(fabric, deletes, row), None)
                yield
        if push.sweep_stale:
            for match in sorted(self.stale & self.entries.keys()):
                del self.entries[match]
                yield
            self.stale = set()
        if push.completes_generation and not failing:
            self.whole = push.generation

    def crowded(self, push: Push) -> list[int]:
        """Return the sets of a push for which the table has no room."""
        if not self.size:
            return []
        room = self.size - len(self.entries)
        gone = {match_of(push.fabric, push.deletes, r) for r in range(len(push.deletes))}
        room += len(gone & self.entries.keys())
        new = [
            row
            for row in range(len(push.sets))
            if match_of(push.fabric, push.sets, row) not in self.entries
        ]
        return new[max(0, room) :]
