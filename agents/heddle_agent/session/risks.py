"""What ways of a push depend on: columns that are checked at once, and read when asked for.

Most ways are gone with the next plan, and no link that they depend on was ever lost: there the
bytes are all that was needed. The checks leave nothing that reading could stumble over.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, repeat
from operator import le
from sys import byteorder
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Link, Risks

BYTES = 4
"""Of one number."""


def numbers(content: bytes) -> list[int]:
    """A column, whose length is a multiple of ``BYTES``."""
    found = array("I", content)
    if byteorder == "big":
        found.byteswap()
    return found.tolist()


class RiskColumns(NamedTuple):
    """Links, groups of them, and of each way the group of its primary and of its backup."""

    sources: bytes
    targets: bytes
    keys: bytes
    ends: bytes
    links: bytes
    primaries: bytes
    backups: bytes

    @classmethod
    def of(cls, batch: pb.OperationBatch) -> RiskColumns:
        """Those of a batch."""
        return cls(
            batch.link_sources,
            batch.link_targets,
            batch.link_keys,
            batch.risk_ends,
            batch.risk_links,
            batch.way_risks,
            batch.way_backup_risks,
        )

    def check(self, names: int, ways: int) -> None:
        """Raise ValueError or IndexError where columns do not fit, or point outside a table."""
        links = len(self.sources) // BYTES
        if len({len(self.sources), len(self.targets), len(self.keys)}) > 1:
            raise ValueError
        if not len(self.primaries) == len(self.backups) == ways * BYTES:
            raise ValueError
        _below(names, self.sources + self.targets + self.keys)
        _below(links, self.links)
        _below(len(self.ends) // BYTES + 1, self.primaries + self.backups)
        if self.ends != _counted(len(self.links)):  # two tiers: one link is ahead of each
            ends = np.append(0, _array(self.ends)).astype(np.int64)
            if ends[-1] != len(self.links) // BYTES or (np.diff(ends) < 0).any():
                raise ValueError

    def read(self, names: list[str]) -> list[Risks]:
        """Risks of each way; ``names`` are those that links speak by."""
        groups = [(), *self._groups(self._links(names))]
        return list(
            zip(
                map(groups.__getitem__, numbers(self.primaries)),
                map(groups.__getitem__, numbers(self.backups)),
                strict=True,
            )
        )

    def _links(self, names: list[str]) -> list[Link]:
        sources, targets, keys = (
            list(map(names.__getitem__, numbers(column)))
            for column in (self.sources, self.targets, self.keys)
        )
        rows = zip(sources, targets, keys, strict=True)
        if all(map(le, sources, targets)):
            return list(map(tuple.__new__, repeat(Link), rows))  # ten thousand at a time, in C
        return [Link.between(*row) for row in rows]

    def _groups(self, links: Sequence[Link]) -> Iterator[tuple[Link, ...]]:
        members = list(map(links.__getitem__, numbers(self.links)))
        if self.ends == _counted(len(self.links)):
            yield from zip(members, strict=True)
            return
        for begin, end in pairwise([0, *numbers(self.ends)]):
            group = members[begin:end]
            yield tuple(sorted(set(group)) if len(group) > 1 else group)


def _array(content: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(content, dtype="<u4")


def _below(limit: int, content: bytes) -> None:
    """Raise ValueError or IndexError unless these are numbers below a limit."""
    if content and _array(content).max() >= limit:
        raise IndexError


@lru_cache(maxsize=64)
def _counted(size: int) -> bytes:
    """Bytes of a column of 1, 2, 3 and so on."""
    return np.arange(1, size // BYTES + 1, dtype="<u4").tobytes()
