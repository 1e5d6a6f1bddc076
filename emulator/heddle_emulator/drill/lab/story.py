"""The values and the story of one run in the lab: what happened when, and its effect on packets.

Everything comes from what is recorded anyway: probes' notes, agents' logs and the controller's own
times. All times come from the clock of one machine. The story is told for the worst run of a
variant.

For heat maps the counters of cables are read four times: when packets begin to flow, right before
the first step, half-way between the last step and the end, and at the end. This gives three means:
before, during and after. A reading takes milliseconds and has its own thread. If cables have a
speed, utilisation is load over speed. If they have none, 1.0 is the load of the fullest cable
before the first step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from heddle.names import link_name
from heddle.v1 import common_pb2
from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric
from heddle_emulator.client import ControllerView
from heddle_emulator.drill.lab.control import Sighting
from heddle_emulator.drill.lab.fabric import DoneStep
from heddle_emulator.drill.scenario import Scenario
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.handle import Notes
from heddle_emulator.report.evidence import Chart, Event, Mark, Story, TimeSeries
from heddle_emulator.report.maps import Snapshot, heat_maps

_NANO = 1e9
_BINS = 250
"""Most points of a line over time."""
PER_BIN = 4
"""Least mean number of packets for each point."""
_MOST_LINES = 8


@dataclass(frozen=True, slots=True, eq=False)
class LabRecord:
    """What was recorded of one run. Times are in nanoseconds of the wall clock."""

    begin: int
    end: int
    steps: tuple[DoneStep, ...]
    probes: Mapping[str, Sequence[Notes]]
    offered: Mapping[str, float]
    """Mbit/s of each stream, by probe; 0 if the probe is given in packets per second."""
    recovered: Mapping[str, float]
    """Seconds from the fault until no packet is lost any more, by probe."""
    fault: int | None
    sightings: Sequence[Sighting]
    leaders: Sequence[tuple[int, str]]
    """When controllers began to lead, and their names."""
    view: ControllerView | None
    fabric: Fabric
    snapshots: Sequence[Snapshot]
    """What cables carried before, during and after the steps."""

    @property
    def badness(self) -> tuple[float, float]:
        """How bad the run was: seconds until the last probe recovered, then packets lost."""
        notes = [one.within(self.begin, self.end) for all_ in self.probes.values() for one in all_]
        lost = sum(one.lost_count() for one in notes)
        return max(self.recovered.values(), default=0.0), lost


def lab_story(run: LabRecord, title: str) -> Story:
    """Return the story of a run for the report."""
    return Story(
        title=title,
        seconds=(run.end - run.begin) / _NANO,
        events=tuple(sorted(_events(run), key=lambda event: event.at)),
        charts=tuple(_charts(run)),
        maps=heat_maps(run.fabric, run.snapshots),
    )


def _events(run: LabRecord) -> Iterator[Event]:
    def at(when: int) -> float:
        return (when - run.begin) / _NANO

    for done in run.steps:
        yield Event(at(done.when), done.mark, done.words, done.target)
    inside = range(run.begin, run.end)
    for sighting in run.sightings:
        if sighting.when in inside:
            text = f"{sighting.switch} sees {sighting.link} down"
            yield Event(at(sighting.when), Mark.DETECTED, text, sighting.link)
    for probe, seconds in run.recovered.items():
        if run.fault is not None and 0 < seconds < float("inf"):
            text = f"packets of {probe} come again"
            yield Event(at(run.fault) + seconds, Mark.RECOVERED, text, probe)
    for when, mark, text in _control(run):
        if when in inside:
            yield Event(at(when), mark, text, "controller")


def _control(run: LabRecord) -> Iterator[tuple[int, Mark, str]]:
    """Yield who led, and what controllers knew and did, with the controllers' own times."""
    for when, name in run.leaders:
        yield when, Mark.OTHER, f"{name} leads"
    view = run.view or ControllerView()
    for known, link in view.reports():
        named = link_name(link.source, link.target, link.key)
        word = "down" if link.oper_state == common_pb2.STATE_DOWN else "up"
        yield known, Mark.NOTICE, f"controller knows {named} {word}"
    for one in view.generations():
        number = one.plan.generation
        text = f"generation {number}: {one.plan.changed_count:,} flows move"
        yield one.committed, Mark.PLAN, text
        if one.programmed is not None:
            yield one.programmed, Mark.ACK, f"generation {number} in every FIB"


def _charts(run: LabRecord) -> Iterator[Chart]:
    lines = [_delivered(run, name) for name in run.probes]
    found = [line for line in lines if line is not None][:_MOST_LINES]
    if found:
        note = "A point is of packets sent together; what never came counts as lost."
        yield Chart("Packets that came, of those sent", "share", tuple(found), 1.0, note)
    rates = [name for name in run.probes if run.offered.get(name)][:_MOST_LINES]
    if rates:
        lines_ = tuple(_rate(run, name) for name in rates)
        yield Chart("Rate of each probe, all its streams together", "Mbit/s", lines_)


def _delivered(run: LabRecord, name: str) -> TimeSeries | None:
    """Return the share of a probe's packets that came, by time of sending; None for TCP."""
    notes = [one.within(run.begin, run.end) for one in run.probes[name]]
    sent = np.concatenate([one.sent for one in notes]) if notes else np.empty(0, dtype=np.int64)
    if not len(sent):
        return None
    came = np.concatenate([~one.lost for one in notes]).astype(np.float64)
    bins = min(_BINS, max(1, len(sent) // PER_BIN))
    edges = _edges(run, bins)
    count, _ = np.histogram(sent, edges)
    good, _ = np.histogram(sent, edges, weights=came)
    share = np.divide(good, count, out=np.full(bins, np.nan), where=count > 0)
    return _line(run, name, edges, share)


def _rate(run: LabRecord, name: str) -> TimeSeries:
    edges = _edges(run, _BINS // 2)
    pairs = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    rates = [sum(one.mbit(low, high) for one in run.probes[name]) for low, high in pairs]
    return _line(run, name, edges, np.asarray(rates))


def _edges(run: LabRecord, bins: int) -> Ints:
    return np.linspace(run.begin, run.end, bins + 1).astype(np.int64)


def _line(run: LabRecord, name: str, edges: Ints, values: Floats) -> TimeSeries:
    """Return a line of steps. The last value is repeated at the end."""
    times = ((edges - run.begin) / _NANO).round(6).tolist()
    shown = [None if np.isnan(value) else round(float(value), 4) for value in values]
    return TimeSeries(name, tuple(times), (*shown, shown[-1]))


def lab_assumptions(scenario: Scenario) -> tuple[str, ...]:
    """Return sentences that explain how to read the report of a lab."""
    if scenario.lab.rate_mbit:
        speed = f"The fastest cable carries {scenario.lab.rate_mbit:g} Mbit/s."
        return (f"{speed} Heat maps show what was sent over the speed of each cable.",)
    first = "what the fullest one between switches carried before the first step"
    return (f"Cables have no limit here: in heat maps 100 % is {first}.",)


LAST = 100_000_000
"""Nanoseconds at the end of a run. A stream that loses packets then counts as stranded."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is measured, in nanoseconds of the wall clock."""

    begin: int
    fault: int | None
    """When the first fault of the timeline struck; None if none did."""
    end: int
    silent: bool = False
    """Whether a cable went silent. A stream's fault then begins with its first lost packet."""


def lab_measured(
    probes: Mapping[str, Sequence[Notes]], offered: Mapping[str, float], window: Window
) -> dict[tuple[str, str], float]:
    """Return values by measure and probe.

    ``probes`` has the notes of all streams of each probe. ``offered`` is the intended Mbit/s of
    each stream of a probe, for probes that have a rate.
    """
    found: dict[tuple[str, str], float] = {}
    for name, all_notes in probes.items():
        notes = [one.within(window.begin, window.end) for one in all_notes]
        sent = sum(len(one.sent) for one in notes)
        lost = sum(one.lost_count() for one in notes)
        if sent:
            found["lost", name] = lost
            found["delivered", name] = 1 - lost / sent
            found["stranded", name] = sum(_is_stranded(one, window) for one in notes)
        if sent and window.fault is not None:
            found["recovered", name] = max(_recovered(one, window) for one in notes)
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
"""Position of the bytes sent among the counters of an interface."""
TITLES = ("before", "during", "after")
_BITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What was sent over each cable since the lab was built."""

    when: int
    """Nanoseconds of the wall clock."""
    sent: Floats
    """Bytes by arc, shape (2 x links,)."""
    carries: Bools
    """Whether each arc was up at that time."""


def read_counters(lab: Lab, present: Fabric) -> Reading:
    """Read the counters of all switches. Hosts are not read, so arcs from NICs have 0."""
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
    """Return the bytes sent by each interface in the namespace of the calling thread."""
    lines = (line.partition(":") for line in COUNTERS.read_text().splitlines())
    return {name.strip(): int(told.split()[SENT]) for name, colon, told in lines if colon}


def snapshots(lab: Lab, readings: Sequence[Reading], begin: int) -> Iterator[Snapshot]:
    """Yield the mean load between readings, timed from ``begin``; without steps only one."""
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
    """Return the greatest rate of an arc between switches; 1 if nothing flows."""
    nodes = lab.layout.fabric.structure
    own = np.isin(np.array(nodes.nodes.ids), np.array(lab.layout.switches))
    between = own[nodes.tail] & own[nodes.head]
    return float(rate[between].max(initial=0.0)) or 1.0
