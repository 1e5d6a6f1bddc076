"""The risk links of a push's ways, as columns that are checked at once and decoded on demand.

Most ways are replaced by the next plan before any link that they depend on is lost, so their
columns are never decoded. Columns that pass the checks can be decoded without an error.
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
    """Return the numbers of a column, whose length must be a multiple of ``BYTES``."""
    found = array("I", content)
    if byteorder == "big":
        found.byteswap()
    return found.tolist()


class LinkNames(NamedTuple):
    """The names of links: for each link, the rows in ``texts`` of both ends and of the key."""

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
        """Check that the columns have the same length; ValueError if not."""
        if not len(sources) == len(targets) == len(keys):
            raise ValueError
        return cls(texts, sources, targets, keys)

    def links(self) -> list[Link]:
        """Return the links, row by row."""
        sources, targets, keys = (self.texts[rows].tolist() for rows in self[1:])
        rows = zip(sources, targets, keys, strict=True)
        if all(map(le, sources, targets)):
            return list(map(tuple.__new__, repeat(Link), rows))  # in C: there may be ten thousand
        return [Link.between(*row) for row in rows]


class RiskColumns(NamedTuple):
    """Sets of links, and for each way the set of its primary and the set of its backup."""

    ends: bytes
    links: bytes
    primaries: bytes
    backups: bytes

    @classmethod
    def of(cls, batch: pb.OperationBatch) -> RiskColumns:
        """Return the columns of a batch."""
        return cls(
            batch.risk_ends,
            batch.risk_links,
            batch.way_risks,
            batch.way_backup_risks,
        )

    def check(self, links: int, ways: int) -> None:
        """Raise ValueError or IndexError if columns do not fit together or point outside a table.

        ``links`` and ``ways`` are the numbers of links and ways in the push.
        """
        if not len(self.primaries) == len(self.backups) == ways * BYTES:
            raise ValueError
        below(links, self.links)
        below(len(self.ends) // BYTES + 1, self.primaries + self.backups)
        if self.ends != _counted(len(self.links)):  # equal in two tiers: each set has one link
            ends = np.append(0, _array(self.ends)).astype(np.int64)
            if ends[-1] != len(self.links) // BYTES or (np.diff(ends) < 0).any():
                raise ValueError

    def read(self, named: LinkNames) -> list[Risks]:
        """Return the risks of each way; ``named`` gives the links."""
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
    """Raise ValueError or IndexError unless a column holds numbers below a limit."""
    if content and _array(content).max() >= limit:
        raise IndexError


def _counted(size: int) -> bytes:
    """Return the bytes of a column with the numbers 1, 2, 3 and so on.

    ``size`` is its length in bytes.
    """
    return np.arange(1, size // BYTES + 1, dtype="<u4").tobytes()
