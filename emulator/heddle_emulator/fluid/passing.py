"""How long the last packet of a message is still on its way when it has been sent.

A packet passes every link of its path. Where switches send on only what is there whole, it takes
its own length again on each of them; the slowest of them is left out, as the pace of the whole
message is counted there.

Some of that goes by before a message comes to the link that holds it up. Meanwhile those who have
less far to go have that link for themselves, so a message takes its place there as late as its
first packet does, and is complete that much sooner after it has been sent. Of a message's paths
the one counts that holds it up longest, by its fullest link: all that meet there have to reckon
their time alike, or some would use the link before they can have come to it.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
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


def ahead(
    paths: Paths, parts: Floats, loads: Floats, capacity: Floats
) -> tuple[Floats, Floats, Floats]:
    """Links before the fullest of each path, and seconds that each Gbit of a packet takes there.

    Third, how full that one is. ``loads`` says so of each arc, in any unit. Sprayed packets have
    no links before.
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
    seconds = np.bincount(owner, weights=each, minlength=len(paths)).astype(np.float64)
    return links, seconds, fullest


def where_held_up(of_path: Floats, fullest: Floats, flow: Ints, flows: int) -> Floats:
    """The least of those paths of each flow that hold it up; 0 for flows without any.

    Of each path ``flow`` says whose it is, and ``fullest`` how full its fullest arc is.
    """
    most = np.zeros(flows)
    np.maximum.at(most, flow, fullest)
    held = np.flatnonzero(fullest >= most[flow] * (1 - EQUAL))
    least = np.full(flows, np.inf)
    np.minimum.at(least, flow[held], of_path[held])
    return np.where(np.isfinite(least), least, 0.0)


def _summed(paths: Paths, parts: Floats, each: Floats) -> Floats:
    total = np.bincount(paths.owner(), weights=each * parts, minlength=len(paths))
    return total.astype(np.float64)
