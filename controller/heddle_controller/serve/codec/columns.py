"""Columns of many pushes at once, cut into messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.fabric import Ints

BYTES = 4
"""Of one number in a column."""


class Columns:
    """What is to be written into the batches of many pushes, the *owners* of all items."""

    def __init__(self, into: Sequence[pb.OperationBatch]) -> None:
        self._into = into
        self._owners = np.arange(len(into) + 1)

    def add(self, name: str, owner: Ints, values: Ints) -> None:
        """Write a column of numbers; ``owner`` is that of each, ascending."""
        first = (np.searchsorted(owner, self._owners) * BYTES).tolist()
        data = values.astype("<u4").tobytes()
        for made, low, high in zip(self._into, first, first[1:], strict=False):
            if low < high:
                setattr(made, name, data[low:high])
