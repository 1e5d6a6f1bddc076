"""The names that an agent has been told in one session: a push gives only those that it has not.

Numbers are those of the structure's string table. So pushes can be encoded together before anybody
knows which of them an agent meets for the first time. That is seen when a push is on its way, in
the order in which the agent reads. A byte for each node and link key of the fabric is kept for each
session.
"""

from __future__ import annotations

from weakref import ref

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import StringTable, Structure


class SentNames:
    """Which names of a structure an agent knows, by pushes of one epoch."""

    def __init__(self) -> None:
        self._of: ref[Structure] | None = None
        self._epoch = 0
        self._told: Bools = np.zeros(0, dtype=np.bool_)

    def forget(self) -> None:
        """Nobody knows what it knows: the next push begins anew."""
        self._of = None

    def complete(self, push: pb.Push, structure: Structure, used: Ints) -> None:
        """Give in a push the names that its columns use and that the agent has not been told.

        Args:
            push: About to be sent, behind all that were completed before.
            structure: Of the fabric that it speaks of.
            used: Numbers of nodes and keys, in any order and number.
        """
        words = structure.strings
        if self._of is None or self._of() is not structure or self._epoch != push.epoch:
            self._of, self._epoch = ref(structure), push.epoch
            self._told = np.zeros(len(words.address), dtype=np.bool_)
            self._told[used] = push.new_names = True
            _give(push.operations, words, np.flatnonzero(self._told))
            return
        new = used[~self._told[used]]
        if len(new):
            self._told[new] = True
            _give(push.operations, words, np.unique(new))


def _give(batch: pb.OperationBatch, words: StringTable, new: Ints) -> None:
    """Write names, none twice, each with its number, and the addresses of those that have one."""
    address = words.address[new]
    has = address != NONE
    numbers = np.append(new, np.unique(address[has]))
    batch.names.extend(map(words.texts.__getitem__, numbers.tolist()))
    batch.name_numbers = _column(numbers)
    nics = words.is_nic[new] & has
    batch.nics, batch.nic_addresses = _column(new[nics]), _column(address[nics])


def _column(numbers: Ints) -> bytes:
    return numbers.astype("<u4").tobytes()
