"""How many bytes collectives send.

By the algorithms of NCCL: a ring carries all but one rank's part of the data, twice for an
all-reduce; each of two trees carries half of it; all-to-all sends each partner its part.
What a group sends between hosts is divided among its channels.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Floats, Ints
from heddle_controller.model.job import Collective, Operation
from heddle_controller.traffic.patterns import TREES, pairwise, pattern_of, runs_on_channels


def buffer_bytes(collective: Collective, members: int) -> float:
    """Bytes of the whole buffer that one rank has in the end, as nccl-tests count them."""
    gathers = collective.operation is Operation.ALL_GATHER
    return float(collective.bytes * (members if gathers else 1))


def hop_bytes(collective: Collective, groups: Ints, gpus_per_host: int, source: Ints) -> Floats:
    """Bytes that each hop between hosts carries each time, shape of ``source``.

    ``source`` are the ranks that hops begin at, as ``patterns.hops_of`` gives them for
    ``groups``; with PXN a hop may stand there several times, and carries the sum.
    """
    pattern, members = pattern_of(collective), groups.shape[1]
    size = buffer_bytes(collective, members)
    if pattern is pairwise:
        each = size / members * (2 if collective.operation is Operation.ALL_REDUCE else 1)
    elif pattern in TREES:
        each = size / 2
    elif collective.operation in _ROUNDS:
        each = _ROUNDS[collective.operation] * size * (members - 1) / members
    else:
        each = size
    if not runs_on_channels(pattern):
        return np.full(len(source), each)
    group_of = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    group_of[groups] = np.arange(len(groups))[:, None]
    shared: Floats = each / _channel_counts(groups, gpus_per_host)[group_of[source]]
    return shared


_ROUNDS = {Operation.ALL_REDUCE: 2, Operation.ALL_GATHER: 1, Operation.REDUCE_SCATTER: 1}
"""How often a ring goes round."""


def _channel_counts(groups: Ints, gpus_per_host: int) -> Ints:
    """Channels of each group: the members on that of its hosts that has fewest."""
    host, row = groups // gpus_per_host, np.arange(len(groups))[:, None]
    width = int(host.max(initial=0)) + 1
    codes, count = np.unique(row * width + host, return_counts=True)
    least = np.full(len(groups), groups.shape[1], dtype=np.int64)
    np.minimum.at(least, codes // width, count)
    return least
