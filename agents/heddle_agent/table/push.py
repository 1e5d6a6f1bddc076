"""A push as the table receives it: decoded once, in columns, with groups instead of next hops."""

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
"""Primary, backup, and the risk links of each (sorted, no duplicates). Groups differ in nothing
else."""


class Mode(Enum):
    """What happens to entries that a push does not name."""

    FULL_SYNC = "they turn stale"
    INCREMENTAL = "they stay"


class Status(Enum):
    """How a push as a whole was received; the names are those of the protocol."""

    APPLIED = "applied"
    STALE_EPOCH = "older than one already seen"
    INVALID = "malformed"


class Fence(NamedTuple):
    """The newest (epoch, generation) ever accepted, compared in this order."""

    epoch: int = 0
    generation: int = 0


NO_FENCE = Fence()


class PushTargets(Sequence[GroupKey]):
    """The ways that entries lead to, one row per way; risk links are computed on first use."""

    def __init__(
        self, primaries: Sequence[NextHop], backups: Sequence[NextHop | None], link_risks: LinkRisks
    ) -> None:
        """Take columns of the same length, one row per way."""
        self.link_risks = link_risks
        self._primaries, self._backups = primaries, backups

    @classmethod
    def of(cls, keys: Sequence[GroupKey]) -> PushTargets:
        """Return ``keys`` as columns; a PushTargets is returned unchanged."""
        if isinstance(keys, PushTargets):
            return keys
        link_risks = LinkRisks([key[2:] for key in keys])
        return cls([key[0] for key in keys], [key[1] for key in keys], link_risks)

    def groups(self) -> list[Group]:
        """Make a new group for each way."""
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
    """Sets and deletes, one row each. The row number identifies the operation in answers."""

    matches: Sequence[Match] = ()
    groups: Sequence[int] = ()
    """For each operation, the row of ``keys`` by which the entry forwards, or DELETE."""
    keys: Sequence[GroupKey] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    """IP address by NIC, for the NICs whose address the push gives."""
    hops: Collection[NextHop] | None = None
    """Next hops that include all those in ``keys``. None means that they must be read from
    ``keys``."""


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
    """An operation of a push that did not succeed; ``operation`` is its row."""

    operation: int
    reason: Reason
    message: str


class Receipt(NamedTuple):
    """How the table received a push; failures are single operations of an applied push."""

    status: Status
    failures: tuple[OperationFailure, ...] = ()
    message: str = ""
