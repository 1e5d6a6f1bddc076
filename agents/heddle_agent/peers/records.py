"""The newest record of every switch's links: the state that peers replicate.

Only the record with the highest version of each origin counts. So records may be lost, duplicated
and reordered: agents that have received the same set of records know the same. Records of origins
that are gone are kept, because older records are refused by comparison with them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from heddle_agent.fib import Link
from heddle_agent.peers.wire import (
    MOST_NUMBER,
    ROWS_A_DATAGRAM,
    Record,
    Versions,
    digest_of,
    encode_versions,
    origin_id,
)

MOST_ORIGINS = 65_536
_LAST_ID = 2**64 - 1


class Records:
    """The newest record of each origin."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._ids: list[int] = []  # sorted
        self._summary = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def summary(self) -> tuple[int, int]:
        """Number of records, and a digest that is equal if all versions are equal."""
        return len(self._records), self._summary

    def get(self, origin: str) -> Record | None:
        """Return the newest record of a switch, None if there is none."""
        return self._records.get(origin_id(origin))

    def take(self, record: Record) -> tuple[Link, ...] | None:
        """Keep a record if it is newer than the known one; return the links that were down before.

        Returns None if the record is not newer, or if there are too many origins.
        """
        at = origin_id(record.origin)
        before = self._records.get(at)
        if before is None:
            if len(self._records) >= MOST_ORIGINS:
                return None
            insort(self._ids, at)
        elif before.version >= record.version or before.origin != record.origin:
            return None
        else:
            self._summary ^= digest_of(before)
        self._records[at] = record
        self._summary ^= digest_of(record)
        return () if before is None else before.down

    def versions(self) -> Iterator[bytes]:
        """Yield bodies of VERSIONS that together cover all possible origin ids."""
        starts = range(0, max(len(self._ids), 1), ROWS_A_DATAGRAM)
        first = 0
        for start in starts:
            chunk = self._ids[start : start + ROWS_A_DATAGRAM]
            last = chunk[-1] if start + ROWS_A_DATAGRAM < len(self._ids) else _LAST_ID
            yield encode_versions(first, last, self._rows(chunk))
            first = last + 1

    def newer_than(self, theirs: Versions) -> Iterator[Record]:
        """Yield records in their range that the other side lacks or has in an older version."""
        low, high = bisect_left(self._ids, theirs.first), bisect_right(self._ids, theirs.last)
        for at in self._ids[low:high]:
            record = self._records[at]
            if theirs.rows.get(at, (-1, -1)) < record.version:
                yield record

    def _rows(self, ids: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        for at in ids:
            yield (at, *self._records[at].version)


def after(boot: int) -> int:
    """Return a boot number above one that was seen."""
    return min(boot + 1, MOST_NUMBER)
