"""A push as the table takes it: decoded once, as columns, with groups instead of next hops."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import NamedTuple, TypeAlias, overload

from heddle_agent.fib import Group, Link, LinkRisks, Match, NextHop, Reason

DELETE = -1
_FIRST, _SECOND = itemgetter(0), itemgetter(1)

GroupKey: TypeAlias = tuple[NextHop, NextHop | None, tuple[Link, ...], tuple[Link, ...]]
"""Primary, backup, risk links of each (sorted, none twice): all in which groups differ."""


class Mode(Enum):
    """What becomes of entries that a push does not name."""

    FULL_SYNC = "they turn stale"
    INCREMENTAL = "they stay"


class Status(Enum):
    """How a push was taken as a whole; names as in the protocol."""

    APPLIED = "applied"
    STALE_EPOCH = "older than one already seen"
    INVALID = "malformed"


class Fence(NamedTuple):
    """The newest (epoch, generation) ever accepted; compares as the two in this order."""

    epoch: int = 0
    generation: int = 0


NO_FENCE = Fence()


class PushTargets(Sequence[GroupKey]):
    """What entries lead to, way by way; risk links are worked out when they are first looked at."""

    def __init__(
        self, primaries: Sequence[NextHop], backups: Sequence[NextHop | None], link_risks: LinkRisks
    ) -> None:
        """Columns of one length."""
        self.link_risks = link_risks
        self._primaries, self._backups = primaries, backups

    @classmethod
    def of(cls, keys: Sequence[GroupKey]) -> PushTargets:
        """Those whose keys are there already."""
        if isinstance(keys, PushTargets):
            return keys
        link_risks = LinkRisks([key[2:] for key in keys])
        return cls([key[0] for key in keys], [key[1] for key in keys], link_risks)

    def groups(self) -> list[Group]:
        """A new group of each way."""
        return Group.many(self._primaries, self._backups, self.link_risks)

    def __len__(self) -> int:
        return len(self._primaries)

    def __iter__(self) -> Iterator[GroupKey]:
        risks = self.link_risks.rows
        return zip(
            self._primaries, self._backups, map(_FIRST, risks), map(_SECOND, risks), strict=True
        )

    @overload
    def __getitem__(self, row: int) -> GroupKey: ...
    @overload
    def __getitem__(self, row: slice) -> list[GroupKey]: ...
    def __getitem__(self, row: int | slice) -> GroupKey | list[GroupKey]:
        if isinstance(row, slice):
            return list(self)[row]
        return (self._primaries[row], self._backups[row], *self.link_risks.rows[row])


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Sets and deletes, one row each; the row number names the operation in answers."""

    matches: Sequence[Match] = ()
    groups: Sequence[int] = ()
    """Row of ``keys`` that the entry shall forward by, or DELETE."""
    keys: Sequence[GroupKey] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    """IP address by NIC, where the push gives one."""
    hops: Collection[NextHop] | None = None
    """Next hops, all that ``keys`` name among them; None: whoever asks has to look there."""


NO_OPERATIONS = Operations()


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """One batch for one switch."""

    mode: Mode
    version: Fence
    nonce: int = 0
    operations: Operations = NO_OPERATIONS
    sweep_stale: bool = False
    completes_generation: bool = False


class OperationFailure(NamedTuple):
    """One operation of a push that did not succeed."""

    operation: int
    reason: Reason
    message: str


class Receipt(NamedTuple):
    """What became of a push in the table; failures name single operations of an applied push."""

    status: Status
    failures: tuple[OperationFailure, ...] = ()
    message: str = ""
