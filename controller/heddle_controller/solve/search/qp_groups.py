"""Equal QPs, and how many of them take each path.

Programmes (CP-SAT) count such QPs instead of telling them apart. This module turns their answers
into moves of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.solve.search.search import Search


@dataclass(slots=True)
class QpGroup:
    """Chunks of equal QPs, and the paths that they may take."""

    chunks: list[int]
    paths: Ints
    """Candidate paths, shape (paths, hops)."""
    unit: float
    """Gbit/s of one QP."""


def path_rows(search: Search, group: QpGroup) -> dict[bytes, int]:
    """Return the row of each path of a group, by the bytes of its arcs without padding."""
    trimmed = [search.chains.trimmed(path) for path in group.paths]
    return {path.tobytes(): row for row, path in enumerate(trimmed)}


def put_in_numbers(search: Search, group: QpGroup, count: Ints) -> None:
    """Move chunks of a group so that each path gets its number of QPs; few chunks are split.

    ``count`` is the number of QPs on each path of the group, shape (paths,).
    """
    assignment = search.assignment
    trimmed = [search.chains.trimmed(path) for path in group.paths]
    row_of = path_rows(search, group)
    left = count.copy()
    homeless: list[int] = []
    for chunk in group.chunks:
        row = row_of.get(assignment.path[chunk].tobytes())
        stay = 0 if row is None else min(int(left[row]), assignment.qps(chunk))
        if row is not None:
            left[row] -= stay
        if stay == 0:
            homeless.append(chunk)
        elif stay < assignment.qps(chunk):
            homeless.append(assignment.split(chunk, assignment.qps(chunk) - stay))
    for chunk in sorted(homeless, key=lambda c: -assignment.qps(c)):
        rest = chunk
        while left.any():
            size = assignment.qps(rest)
            fits = np.flatnonzero(left >= size)
            if len(fits):
                row = int(fits[left[fits].argmin()])
                left[row] -= size
                assignment.move(rest, trimmed[row])
                break
            row = int(left.argmax())
            piece = assignment.split(rest, int(left[row]))
            left[row] = 0
            assignment.move(piece, trimmed[row])
