"""What every room of the agent speaks in.

A match is a plain tuple, because tables key dictionaries by it and build tens of thousands at a
time in C. Entries do not hold next hops of their own but share a ``Group``, as hardware and the
kernel do: a failure then changes one thing a group, however many entries stand behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple, Self, TypeAlias

ANY_PORT = 0

Match: TypeAlias = tuple[str, str, int, int]
"""Source NIC, destination NIC, UDP source port, UDP destination port; ports may be ANY_PORT."""


class Packet(NamedTuple):
    """The fields of a packet that forwarding looks at; it equals the match of its exact entry."""

    source: str
    destination: str
    source_port: int
    destination_port: int = 4791  # RoCE v2


class NextHop(NamedTuple):
    """A neighbour over one link of this switch."""

    node: str
    key: str = "0"
    address: str = ""

    @property
    def port(self) -> tuple[str, str]:
        """What names the link at this switch: neighbour and link key."""
        return (self.node, self.key)


class Link(NamedTuple):
    """One link of the fabric; made by ``between``, so that both directions are one value."""

    source: str
    target: str
    key: str = "0"

    @classmethod
    def between(cls, one: str, other: str, key: str = "0") -> Self:
        """The link between two nodes, named in either order."""
        return cls(one, other, key) if one <= other else cls(other, one, key)

    def __str__(self) -> str:
        return f"{self.source}–{self.target} key {self.key}"


class _Leaving(NamedTuple):
    primary: NextHop
    backup: NextHop | None = None
    risks: tuple[Link, ...] = ()
    """Links beyond this switch whose loss makes the primary useless; sorted, none twice."""
    backup_risks: tuple[Link, ...] = ()
    """Links whose loss makes the backup useless; likewise."""


class Group(_Leaving):
    """Where entries that share it leave. Its identity is its key: the table keeps one of each.

    A tuple, as these too are made by the thousand in C; but two that are alike are still two.
    """

    __slots__ = ()
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


class Choice(IntEnum):
    """What a group forwards by at the moment."""

    PRIMARY = 0
    BACKUP = 1
    UNDERLAY = 2


class Capability(Enum):
    """What a backend can do; names as in the protocol."""

    MATCH_PORTS = "exact match on addresses and UDP ports"
    MATCH_PAIR = "exact match on addresses alone"
    BACKUP = "a second next hop used at once when the first is lost"
    COUNTERS = "packets and bytes per entry"
    ATOMIC_BATCH = "a batch takes effect at once or not at all"


class Reason(Enum):
    """Why one operation failed; names as in the protocol."""

    TABLE_FULL = "table full"
    UNKNOWN_NEXT_HOP = "unknown next hop"
    UNSUPPORTED_MATCH = "unsupported match"
    BACKEND = "backend"


class Failure(NamedTuple):
    """One match that a backend could not set or delete."""

    match: Match
    reason: Reason
    message: str


class Count(NamedTuple):
    """What one entry has carried since it was first programmed."""

    packets: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What a backend shall change: sets take effect no later than deletes.

    Only where the table has no room for both do deletes go first: their flows are on the
    underlay for a moment, which is always safe.
    """

    sets: Mapping[Match, Group] = field(default_factory=dict)
    deletes: Collection[Match] = ()
    diverted: Mapping[Group, Choice] = field(default_factory=dict)
    """Groups that are not on their primary at the moment; all others are."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """IP address by NIC; NICs of fabrics without addresses are missing."""

    def __len__(self) -> int:
        return len(self.sets) + len(self.deletes)


@dataclass(frozen=True, slots=True, eq=False)
class Steering:
    """A failure or its end: what changes for groups, and which links are known down now."""

    choices: Mapping[Group, Choice]
    """Only groups whose choice changes."""
    down: frozenset[Link]
    """All links known down, of this switch and beyond."""
