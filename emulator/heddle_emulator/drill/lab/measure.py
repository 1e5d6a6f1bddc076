"""What one run in the lab has shown: numbers from what became of packets, and what cables carried.

Counters of cables are read four times, for heat maps: as packets begin to flow, right before the
first step, half way through what follows the last one, and at the end. So there are three means:
before, during, after. A reading takes milliseconds and is done by a thread of its own. Where cables
have a speed, utilisation is load over that. Where they have none, nothing can be full: then 1.0 is
what the fullest cable carried at first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from heddle_controller.model.arrays import Bools, Floats
from heddle_controller.model.fabric import Fabric
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.notes import Notes
from heddle_emulator.report.maps import Snapshot

LAST = 100_000_000
"""Nanoseconds at the end of a run in which a probe that loses packets is stranded."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is looked at, in nanoseconds by the machine's clock."""

    begin: int
    fault: int | None
    """When the first fault of the timeline struck; None if there is none."""
    end: int
    silent: bool = False
    """Whether it was silent: then it began with the first packet that was lost."""


def lab_measured(
    probes: Mapping[str, Sequence[Notes]], offered: Mapping[str, float], window: Window
) -> dict[tuple[str, str], float]:
    """Values by measure and probe; a probe may be several streams.

    ``offered`` is the Mbit/s that each stream of a probe is to have, where it has a rate.
    """
    found: dict[tuple[str, str], float] = {}
    for name, all_notes in probes.items():
        notes = [one.within(window.begin, window.end) for one in all_notes]
        sent = sum(len(one.sent) for one in notes)
        lost = sum(one.lost_count() for one in notes)
        if sent:
            found["lost", name] = lost
            found["delivered", name] = 1 - lost / sent
        if sent and window.fault is not None:
            found["recovered", name] = max(_recovered(one, window) for one in notes)
            found["stranded", name] = sum(_is_stranded(one, window) for one in notes)
        if offered.get(name):
            rates = [one.mbit(window.begin, window.end) / offered[name] for one in notes]
            found["slowest", name] = min(rates)
            found["carried", name] = sum(rates) / len(rates)
    return found


def _recovered(notes: Notes, window: Window) -> float:
    fault = window.fault
    assert fault is not None
    if window.silent and notes.lost_count():
        fault = int(notes.sent[notes.lost][0])
    return notes.recovered(fault)


def _is_stranded(notes: Notes, window: Window) -> bool:
    return notes.within(window.end - LAST, window.end).lost_count() > 0


COUNTERS = Path("/proc/thread-self/net/dev")
SENT = 8
"""Place of the bytes sent among the counters of an interface."""
TITLES = ("before", "during", "after")
_NANO = 1e9
_BITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was sent over each cable since the lab is there."""

    when: int
    """Nanoseconds."""
    sent: Floats
    """Bytes by arc, shape (2 x links,)."""
    carries: Bools
    """Whether each arc did then."""


def read_counters(lab: Lab, present: Fabric) -> Reading:
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
        seconds = max(last.when - first.when, 1) / _NANO
        rate = np.maximum(last.sent - first.sent, 0.0) * _BITS / seconds
        if capacity is None:
            capacity = speed if lab.options.rate_mbit else np.full(len(rate), _fullest(lab, rate))
        middle = max((first.when + last.when) / 2 - begin, 0.0) / _NANO
        yield Snapshot(title, round(middle, 3), rate / capacity, last.carries)


def _fullest(lab: Lab, rate: Floats) -> float:
    """The greatest rate of a cable between switches; 1 where nothing flows."""
    nodes = lab.layout.fabric.structure
    own = np.isin(np.array(nodes.nodes.ids), np.array(lab.layout.switches))
    between = own[nodes.tail] & own[nodes.head]
    return float(rate[between].max(initial=0.0)) or 1.0
