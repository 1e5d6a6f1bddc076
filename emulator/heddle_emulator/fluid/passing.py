"""How long the last packet of a message is still on its way when it has been sent.

A packet passes every link of its path. Where switches send on only what is there whole, it takes
its own length again on each of them; the slowest of them is left out, as the pace of the whole
message is counted there.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Floats
from heddle_controller.model.plan import Paths


def crossed(paths: Paths, parts: Floats) -> Floats:
    """Links that packets of each path cross; where they are sprayed, the mean."""
    return _summed(paths, parts, np.ones(len(parts)))


def repeated(paths: Paths, parts: Floats, capacity: Floats) -> Floats:
    """Seconds that each Gbit of a packet takes again on each path; ``capacity`` is of arcs."""
    each = 1 / capacity[paths.arcs]
    slowest = np.zeros(len(paths))
    np.maximum.at(slowest, paths.owner(), each)
    found: Floats = np.maximum(_summed(paths, parts, each) - slowest, 0.0)
    return found


def _summed(paths: Paths, parts: Floats, each: Floats) -> Floats:
    total = np.bincount(paths.owner(), weights=each * parts, minlength=len(paths))
    return total.astype(np.float64)
