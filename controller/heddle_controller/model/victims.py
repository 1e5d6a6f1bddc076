"""Victim flows: flows that cross no over-full link, but that PFC slows down all the same.

In a lossless fabric, a flow towards an over-full link is paused on every link before it, and so is
every flow that shares one of these links (Zhu et al., DCQCN, SIGCOMM 2015).
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.plan import Paths


def exposed_paths(job: Ints, paths: Paths, full: Bools) -> Bools:
    """Mark paths that cross no over-full link but share one with another job's path to such a link.

    Args:
        job: Job of each flow, shape (flows,).
        paths: Paths of these flows, from NIC to NIC.
        full: Marks the over-full arcs, shape (arcs,).

    Returns:
        A mark for each path, shape (paths,).
    """
    owner, arcs = paths.owner(), paths.arcs
    over = full[arcs]
    if not over.any():
        return np.zeros(len(paths), dtype=np.bool_)
    before: Ints = np.cumsum(over) - over
    until = np.append(before, np.count_nonzero(over))[paths.first]
    ahead = until[1:][owner] - before - over > 0
    of_path = job[paths.flow[owner]]
    least = np.full(len(full), np.iinfo(np.int64).max)
    most = np.full(len(full), -1, dtype=np.int64)
    np.minimum.at(least, arcs[ahead], of_path[ahead])
    np.maximum.at(most, arcs[ahead], of_path[ahead])
    fed = (most[arcs] >= 0) & ((least[arcs] != of_path) | (most[arcs] != of_path))
    at_risk = np.bincount(owner[fed], minlength=len(paths)) > 0
    exposed: Bools = at_risk & (until[1:] == until[:-1])
    return exposed
