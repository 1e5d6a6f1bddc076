"""QPs of a flow that go the same way all along: with as much to send each, they are one stream."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Bools, Ints
from heddle_controller.model.plan import Paths
from heddle_emulator.fluid.rows import places
from heddle_emulator.strategy.carried import Carried

MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, with its bits well spread: by sums of multiples of it few sets of arcs look alike."""
SHIFT = np.uint64(29)


def same_way(carried: Carried) -> Ints:
    """For each path, the first path of its flow that crosses just the same arcs.

    Where packets are sprayed, each is its own.
    """
    paths = carried.paths
    own = np.arange(len(paths), dtype=np.int64)
    if not len(paths) or (carried.parts != 1).any():
        return own
    looks = _looks(paths)
    order = np.lexsort((own, looks, paths.flow))
    new = np.ones(len(paths), dtype=np.bool_)
    new[1:] = (np.diff(looks[order]) != 0) | (np.diff(paths.flow[order]) != 0)
    first = np.empty_like(own)
    first[order] = order[np.maximum.accumulate(np.where(new, own, 0))]
    return np.where(_is_same(paths, own, first), first, own)


def _looks(paths: Paths) -> Ints:
    """A number of each path, equal for those of equal arcs and hardly for others."""
    mark = (paths.arcs.astype(np.uint64) + np.uint64(1)) * MIXER
    mark ^= mark >> SHIFT
    total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mark)])
    looks: Ints = (total[paths.first[1:]] - total[paths.first[:-1]]).view(np.int64)
    return looks


def _is_same(paths: Paths, one: Ints, other: Ints) -> Bools:
    """Whether paths have the same arcs in the same order."""
    lengths = np.diff(paths.first)
    same = lengths[one] == lengths[other]
    rows = np.flatnonzero(same & (one != other))
    arcs = [paths.arcs[places(paths.first, side[rows])] for side in (one, other)]
    owner = np.repeat(rows, lengths[rows])
    same[owner[arcs[0] != arcs[1]]] = False
    return np.asarray(same)
