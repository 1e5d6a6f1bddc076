"""How long the last packet of a message is still on its way when it has been sent.

A packet passes every link of its path. Where switches send on only what is there whole, it takes
its own length again on each of them; the slowest of them is left out, as the pace of the whole
message is counted there.

Some of that goes by before a message comes to the link that holds it up. Meanwhile those who have
less far to go have that link for themselves, so a message takes its place there as late as its
first packet does, and is complete that much sooner after it has been sent.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Floats
from heddle_controller.model.plan import Paths

EQUAL = 1e-9
"""Relative; arcs that are as full as each other."""


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


def ahead(paths: Paths, parts: Floats, loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    """Links before the fullest of each path, and seconds that each Gbit of a packet takes there.

    ``loads`` says how full each arc is, in any unit. Sprayed packets have none before.
    """
    owner, load = paths.owner(), loads[paths.arcs]
    fullest = np.zeros(len(paths))
    np.maximum.at(fullest, owner, load)
    place = np.arange(len(owner))
    first = np.full(len(paths), len(owner))
    full = load >= fullest[owner] * (1 - EQUAL)
    np.minimum.at(first, owner[full], place[full])
    sprayed = np.bincount(owner, weights=parts != 1, minlength=len(paths)) > 0
    before = (place < first[owner]) & ~sprayed[owner]
    links = np.bincount(owner, weights=before, minlength=len(paths)).astype(np.float64)
    each = np.where(before, 1 / capacity[paths.arcs], 0.0)
    return links, np.bincount(owner, weights=each, minlength=len(paths)).astype(np.float64)


def _summed(paths: Paths, parts: Floats, each: Floats) -> Floats:
    total = np.bincount(paths.owner(), weights=each * parts, minlength=len(paths))
    return total.astype(np.float64)
