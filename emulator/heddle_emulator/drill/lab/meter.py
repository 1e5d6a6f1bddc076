"""What cables of the lab carry, by the counters of their interfaces, for heat maps.

A run is read four times: as packets begin to flow, right before its first step, half way through
what follows the last one, and at its end. So there are three means: before, during, after. A
reading takes milliseconds and is done by a thread of its own.

Where cables have a speed, utilisation is load over that. Where they have none, nothing can be
full: then 1.0 is what the fullest cable carried at first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from heddle_controller.model.fabric import Bools, Fabric, Floats
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.report.maps import Snapshot

COUNTERS = Path("/proc/thread-self/net/dev")
SENT = 8
"""Place of the bytes sent among the counters of an interface."""
TITLES = ("before", "during", "after")
NANO = 1e9
BITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was sent over each cable since the lab is there."""

    when: int
    """Nanoseconds."""
    sent: Floats
    """Bytes by arc, shape (2 x links,)."""
    carries: Bools
    """Whether each arc did then."""


def read(lab: Lab, present: Fabric) -> Reading:
    """Read the counters of all switches; cables of NICs are read at one end only."""
    structure, sent = lab.layout.fabric.structure, np.zeros(2 * len(lab.layout.cables))
    counted = {switch: inside(lab.spaces[switch], _counters) for switch in lab.layout.switches}
    when = time.time_ns()
    for cable in lab.layout.cables:
        for port in cable.ends:
            if port.namespace in counted:
                first = int(structure.tail[2 * cable.link]) == structure.index[port.node]
                arc = 2 * cable.link + (0 if first else 1)
                sent[arc] = counted[port.namespace].get(port.name, 0)
    return Reading(when, sent, present.carries)


def _counters() -> dict[str, int]:
    """Bytes sent by interface, of the namespace of the calling thread."""
    lines = (line.partition(":") for line in COUNTERS.read_text().splitlines())
    return {name.strip(): int(told.split()[SENT]) for name, colon, told in lines if colon}


def snapshots(lab: Lab, readings: Sequence[Reading], begin: int) -> Iterator[Snapshot]:
    """The means between readings, times from ``begin``; a run without steps has one alone."""
    capacity: Floats | None = None
    speed = np.repeat([cable.gbps for cable in lab.layout.cables], 2) * lab.mbit_per_gbps * 1e6
    titles = TITLES if len(readings) > len(TITLES) else ("all the time",)
    for title, (first, last) in zip(titles, pairwise(readings), strict=False):
        seconds = max(last.when - first.when, 1) / NANO
        rate = np.maximum(last.sent - first.sent, 0.0) * BITS / seconds
        if capacity is None:
            capacity = speed if lab.options.rate_mbit else np.full(len(rate), _fullest(lab, rate))
        middle = max((first.when + last.when) / 2 - begin, 0.0) / NANO
        yield Snapshot(title, round(middle, 3), rate / capacity, last.carries)


def _fullest(lab: Lab, rate: Floats) -> float:
    """The greatest rate of a cable between switches; 1 where nothing flows."""
    nodes = lab.layout.fabric.structure
    own = np.isin(np.array(nodes.nodes.ids), np.array(lab.layout.switches))
    between = own[nodes.tail] & own[nodes.head]
    return float(rate[between].max(initial=0.0)) or 1.0
