"""The values that all packages of the agent exchange.

A match is a plain tuple, because tables use it as a dictionary key and C code builds tens of
thousands at a time. Entries do not hold next hops of their own but share a ``Group``, as in
hardware and in the kernel. So a failure changes one value per group, however many entries use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import partial
from itertools import count, repeat
from typing import NamedTuple, Self, TypeAlias

from heddle.names import link_name

ANY_PORT = 0

Match: TypeAlias = tuple[str, str, int, int]
"""Source NIC, destination NIC, UDP source port, UDP destination port; ports may be ANY_PORT."""


class Packet(NamedTuple):
    """The fields of a packet that forwarding uses; equal to the match of an exact entry for it."""

    source: str
    destination: str
    source_port: int
    destination_port: int = 4791  # RoCE v2


class NextHop(NamedTuple):
    """A neighbour of this switch, reached over one link."""

    node: str
    key: str = "0"
    address: str = ""

    @property
    def port(self) -> tuple[str, str]:
        """Neighbour and link key, which together identify the link at this switch."""
        return (self.node, self.key)


class Link(NamedTuple):
    """One link of the fabric. Make it with ``between``, so that both directions are the same."""

    source: str
    target: str
    key: str = "0"

    @classmethod
    def between(cls, one: str, other: str, key: str = "0") -> Self:
        """Return the link between two nodes, given in either order."""
        return cls(one, other, key) if one <= other else cls(other, one, key)

    def __str__(self) -> str:
        return link_name(self.source, self.target, self.key)


Risks: TypeAlias = tuple[tuple[Link, ...], tuple[Link, ...]]
"""Two tuples of links beyond this switch: those whose loss makes a primary useless, and those whose
loss makes a backup useless. Each is sorted and without duplicates."""


class LinkRisks:
    """The risks of many groups, one row per group, computed on first use.

    Most groups are replaced by the next plan before any link that they depend on is lost.
    """

    __slots__ = ("_make", "_rows")

    def __init__(
        self, rows: Sequence[Risks] | None, make: Callable[[], Sequence[Risks]] = tuple
    ) -> None:
        """Take ``rows``, or None to have ``make`` compute them. ``make`` is called at most once."""
        self._rows = rows
        self._make = make

    @property
    def known(self) -> bool:
        """Whether the rows have been computed."""
        return self._rows is not None

    @property
    def rows(self) -> Sequence[Risks]:
        """The risks of all groups, computed if necessary."""
        return self.read() if self._rows is None else self._rows

    def read(self) -> Sequence[Risks]:
        """Return the risks of all groups, computed if necessary."""
        if self._rows is None:
            self._rows, self._make = self._make(), tuple
        return self._rows


class Group(tuple[NextHop, NextHop | None, LinkRisks, int]):
    """The next hops that many entries share. Two groups with equal contents are still different.

    It is a tuple of primary, backup, the risks of many groups, and the row of this group among
    those risks. It is a tuple because C code makes groups by the thousand.
    """

    __slots__ = ()
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    def __new__(
        cls,
        primary: NextHop,
        backup: NextHop | None = None,
        risks: tuple[Link, ...] = (),
        backup_risks: tuple[Link, ...] = (),
    ) -> Self:
        """Make a single group."""
        return tuple.__new__(cls, (primary, backup, LinkRisks([(risks, backup_risks)]), 0))

    @staticmethod
    def many(
        primaries: Iterable[NextHop], backups: Iterable[NextHop | None], link_risks: LinkRisks
    ) -> list[Group]:
        """Make one group per row, in C. ``primaries`` and ``backups`` have the same length."""
        rows = zip(primaries, backups, repeat(link_risks), count(), strict=False)
        return list(map(_group, rows))

    @property
    def primary(self) -> NextHop:
        """The next hop while nothing is lost."""
        return self[0]

    @property
    def backup(self) -> NextHop | None:
        """The next hop when the primary is useless; None is the underlay."""
        return self[1]

    @property
    def known(self) -> bool:
        """Whether the risks have been computed."""
        return self[2].known

    @property
    def risks(self) -> tuple[Link, ...]:
        """Links beyond this switch whose loss makes the primary useless; sorted, no duplicates."""
        return self[2].rows[self[3]][0]

    @property
    def backup_risks(self) -> tuple[Link, ...]:
        """Links beyond this switch whose loss makes the backup useless; sorted, no duplicates."""
        return self[2].rows[self[3]][1]

    def like(self, other: Group) -> bool:
        """Whether both groups have the same next hops and the same risks."""
        if self[0] != other[0] or self[1] != other[1]:
            return False
        return self[2].rows[self[3]] == other[2].rows[other[3]]


_group: Callable[[tuple[object, ...]], Group] = partial(tuple.__new__, Group)


class Choice(IntEnum):
    """Which of its ways a group forwards by at the moment."""

    PRIMARY = 0
    BACKUP = 1
    UNDERLAY = 2


class Capability(Enum):
    """What a backend can do; the names are those of the protocol."""

    MATCH_PORTS = "exact match on addresses and UDP ports"
    MATCH_PAIR = "exact match on addresses alone"
    BACKUP = "a second next hop used at once when the first is lost"
    COUNTERS = "packets and bytes per entry"
    ATOMIC_BATCH = "a batch takes effect at once or not at all"
    UNMATCHED = "packets and bytes that no entry matches, by pair of NICs"


class Reason(Enum):
    """Why one operation failed; the names are those of the protocol."""

    TABLE_FULL = "table full"
    UNKNOWN_NEXT_HOP = "unknown next hop"
    UNSUPPORTED_MATCH = "unsupported match"
    BACKEND = "backend"


class Failure(NamedTuple):
    """A match that a backend could not set or delete."""

    match: Match
    reason: Reason
    message: str


class Count(NamedTuple):
    """What one entry, or one pair of NICs, has carried since it was first counted."""

    packets: int
    bytes: int


class Nic(NamedTuple):
    """A NIC by its id, its address, or both; at least one is not empty."""

    id: str = ""
    address: str = ""


PAIRS_COUNTED = 1024
"""The most pairs of NICs whose unmatched packets are counted at the same time."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Changes for a backend to make; sets take effect no later than deletes.

    Only where the table has no room for both do deletes go first. Their flows are then on the
    underlay for a moment, which is always safe.
    """

    sets: Mapping[Match, Group] = field(default_factory=dict)
    deletes: Collection[Match] = ()
    diverted: Mapping[Group, Choice] = field(default_factory=dict)
    """Groups that are not on their primary at the moment; all other groups are."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """IP address by NIC. NICs without an address are missing."""

    def __len__(self) -> int:
        return len(self.sets) + len(self.deletes)


@dataclass(frozen=True, slots=True, eq=False)
class Steering:
    """A failure or its end: new choices of groups, and all links that are now known to be down."""

    choices: Mapping[Group, Choice]
    """Only groups whose choice changes."""
    down: frozenset[Link]
    """All links known to be down, at this switch and beyond."""
