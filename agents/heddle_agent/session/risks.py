"""What ways of a push depend on: columns that are checked at once, and read when asked for.

Most ways are gone with the next plan, and no link that they depend on was ever lost: there the
bytes are all that was needed. The checks leave nothing that reading could stumble over.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from operator import le
from sys import byteorder
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Link, Risks
from heddle_agent.session.names import BYTES


def numbers(content: bytes) -> list[int]:
    """A column, whose length is a multiple of ``BYTES``."""
    found = array("I", content)
    if byteorder == "big":
        found.byteswap()
    return found.tolist()


class LinkNames(NamedTuple):
    """What links are called: ends and key, each the row of a text."""

    texts: NDArray[np.object_]
    sources: NDArray[np.intp]
    targets: NDArray[np.intp]
    keys: NDArray[np.intp]

    @classmethod
    def of(
        cls,
        texts: NDArray[np.object_],
        sources: NDArray[np.intp],
        targets: NDArray[np.intp],
        keys: NDArray[np.intp],
    ) -> LinkNames:
        """Columns of one length; ValueError where they are not."""
        if not len(sources) == len(targets) == len(keys):
            raise ValueError
        return cls(texts, sources, targets, keys)

    def links(self) -> list[Link]:
        """The links, row by row."""
        sources, targets, keys = (self.texts[rows].tolist() for rows in self[1:])
        rows = zip(sources, targets, keys, strict=True)
        if all(map(le, sources, targets)):
            return list(map(tuple.__new__, repeat(Link), rows))  # ten thousand at a time, in C
        return [Link.between(*row) for row in rows]


class RiskColumns(NamedTuple):
    """Groups of links, and of each way the group of its primary and of its backup."""

    ends: bytes
    links: bytes
    primaries: bytes
    backups: bytes

    @classmethod
    def of(cls, batch: pb.OperationBatch) -> RiskColumns:
        """Those of a batch."""
        return cls(
            batch.risk_ends,
            batch.risk_links,
            batch.way_risks,
            batch.way_backup_risks,
        )

    def check(self, links: int, ways: int) -> None:
        """Raise ValueError or IndexError where columns do not fit, or point outside a table."""
        if not len(self.primaries) == len(self.backups) == ways * BYTES:
            raise ValueError
        below(links, self.links)
        below(len(self.ends) // BYTES + 1, self.primaries + self.backups)
        if self.ends != _counted(len(self.links)):  # two tiers: one link is ahead of each
            ends = np.append(0, _array(self.ends)).astype(np.int64)
            if ends[-1] != len(self.links) // BYTES or (np.diff(ends) < 0).any():
                raise ValueError

    def read(self, named: LinkNames) -> list[Risks]:
        """Risks of each way, of links that go by these names."""
        groups = [(), *self._groups(named.links())]
        return list(
            zip(
                map(groups.__getitem__, numbers(self.primaries)),
                map(groups.__getitem__, numbers(self.backups)),
                strict=True,
            )
        )

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


def below(limit: int, content: bytes) -> None:
    """Raise ValueError or IndexError unless these are numbers below a limit."""
    if content and _array(content).max() >= limit:
        raise IndexError


def _counted(size: int) -> bytes:
    """Bytes of a column of 1, 2, 3 and so on."""
    return np.arange(1, size // BYTES + 1, dtype="<u4").tobytes()
