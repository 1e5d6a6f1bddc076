"""What every room of the agent speaks in.

A match is a plain tuple, because tables key dictionaries by it and build tens of thousands at a
time in C. Entries do not hold next hops of their own but share a ``Group``, as hardware and the
kernel do: a failure then changes one thing a group, however many entries stand behind it.
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
        return link_name(self.source, self.target, self.key)


Risks: TypeAlias = tuple[tuple[Link, ...], tuple[Link, ...]]
"""Links beyond this switch whose loss makes a primary useless, and likewise a backup; each sorted,
none twice."""


class LinkRisks:
    """The risks of many groups, by row; worked out when somebody first asks for one of them.

    Most groups are replaced by the next plan, and no link that they depend on was ever lost.
    """

    __slots__ = ("_make", "_rows")

    def __init__(
        self, rows: Sequence[Risks] | None, make: Callable[[], Sequence[Risks]] = tuple
    ) -> None:
        """``rows``, or None where they are what ``make`` will return; it is called once."""
        self._rows = rows
        self._make = make

    @property
    def known(self) -> bool:
        """Whether they have been worked out."""
        return self._rows is not None

    @property
    def rows(self) -> Sequence[Risks]:
        """All of them."""
        return self.read() if self._rows is None else self._rows

    def read(self) -> Sequence[Risks]:
        """Work them out, unless they have been."""
        if self._rows is None:
            self._rows, self._make = self._make(), tuple
        return self._rows


class Group(tuple[NextHop, NextHop | None, LinkRisks, int]):
    """Where entries that share it leave. Two that are alike are still two.

    A tuple, as these too are made by the thousand in C: of the next hops, the risks of many groups,
    and which row of those is this group's.
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
        """A single group."""
        return tuple.__new__(cls, (primary, backup, LinkRisks([(risks, backup_risks)]), 0))

    @staticmethod
    def many(
        primaries: Iterable[NextHop], backups: Iterable[NextHop | None], link_risks: LinkRisks
    ) -> list[Group]:
        """Groups of one length each, at the speed of C; row by row."""
        rows = zip(primaries, backups, repeat(link_risks), count(), strict=False)
        return list(map(_group, rows))

    @property
    def primary(self) -> NextHop:
        """Where they leave while nothing is lost."""
        return self[0]

    @property
    def backup(self) -> NextHop | None:
        """Where they leave when the primary is useless; None is the underlay."""
        return self[1]

    @property
    def known(self) -> bool:
        """Whether the risks have been worked out."""
        return self[2].known

    @property
    def risks(self) -> tuple[Link, ...]:
        """Links beyond this switch whose loss makes the primary useless; sorted, none twice."""
        return self[2].rows[self[3]][0]

    @property
    def backup_risks(self) -> tuple[Link, ...]:
        """Links whose loss makes the backup useless; likewise."""
        return self[2].rows[self[3]][1]

    def like(self, other: Group) -> bool:
        """Whether both lead alike in all cases."""
        if self[0] != other[0] or self[1] != other[1]:
            return False
        return self[2].rows[self[3]] == other[2].rows[other[3]]


_group: Callable[[tuple[object, ...]], Group] = partial(tuple.__new__, Group)


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
    UNMATCHED = "packets and bytes that no entry matches, by pair of NICs"


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


class Nic(NamedTuple):
    """A NIC by its id, by its address, or by both: at least one is not empty."""

    id: str = ""
    address: str = ""


PAIRS_COUNTED = 1024
"""The most pairs of NICs whose unmatched packets are counted at a time."""


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
