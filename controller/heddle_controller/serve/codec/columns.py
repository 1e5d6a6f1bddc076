"""Columns of many pushes at once, cut into messages."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.arrays import Ints

BYTES = 4
"""Of one number in a column."""


class Columns:
    """What is to be written into the batches of many pushes, the *owners* of all items."""

    def __init__(self, into: Sequence[pb.OperationBatch]) -> None:
        self._into = into

    def add(self, first: Ints, **columns: Ints) -> None:
        """Write columns of numbers of one length; ``first`` is where those of each owner begin."""
        bounds = (first * BYTES).tolist()
        data = [(name, values.astype("<u4").tobytes()) for name, values in columns.items()]
        for made, low, high in zip(self._into, bounds, bounds[1:], strict=False):
            if low < high:
                for name, content in data:
                    setattr(made, name, content[low:high])
