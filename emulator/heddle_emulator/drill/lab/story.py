"""One run in the lab told in full, for the report: what happened when, and what packets saw of it.

Everything comes from what was seen anyway: probes' notes, agents' logs, the controller's own
times. All clocks are one machine's. Of all runs of a variant the worst is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.v1 import common_pb2
from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fabric import Fabric
from heddle_emulator.client import ControllerView
from heddle_emulator.drill.lab.fabric import DoneStep
from heddle_emulator.drill.lab.logs import Sighting
from heddle_emulator.drill.scenario import Scenario
from heddle_emulator.netns.probe.notes import Notes
from heddle_emulator.report.evidence import Chart, Event, Mark, Story, TimeSeries
from heddle_emulator.report.maps import Snapshot, heat_maps

_NANO = 1e9
_BINS = 250
"""Points of a line over time."""
PER_BIN = 4
"""Packets that a point is made of, at least."""
_MOST_LINES = 8


@dataclass(frozen=True, slots=True, eq=False)
class LabRecord:
    """One run as it was seen, times in nanoseconds by the machine's clock."""

    begin: int
    end: int
    steps: tuple[DoneStep, ...]
    probes: Mapping[str, Sequence[Notes]]
    offered: Mapping[str, float]
    """Mbit/s of each stream of a probe, where it has a rate."""
    recovered: Mapping[str, float]
    """Seconds from the fault, by probe."""
    fault: int | None
    sightings: Sequence[Sighting]
    leaders: Sequence[tuple[int, str]]
    """Controllers that came to lead, and when."""
    view: ControllerView | None
    fabric: Fabric
    snapshots: Sequence[Snapshot]
    """What cables carried."""

    @property
    def badness(self) -> tuple[float, float]:
        """What runs are told apart by: how long packets were lost, then how many."""
        notes = [one.within(self.begin, self.end) for all_ in self.probes.values() for one in all_]
        lost = sum(one.lost_count() for one in notes)
        return max(self.recovered.values(), default=0.0), lost


def lab_story(run: LabRecord, title: str) -> Story:
    """A run for the report."""
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
    """Who led, and what controllers knew and did, by their own times."""
    for when, name in run.leaders:
        yield when, Mark.OTHER, f"{name} leads"
    view = run.view or ControllerView()
    for known, link in view.reports():
        word = "down" if link.oper_state == common_pb2.STATE_DOWN else "up"
        yield known, Mark.NOTICE, f"controller knows {link.source} to {link.target} {word}"
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
    """Share of the packets of a probe that came, by when they were sent; TCP has none."""
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
    """Steps: the last value stands until the end."""
    times = ((edges - run.begin) / _NANO).round(6).tolist()
    shown = [None if np.isnan(value) else round(float(value), 4) for value in values]
    return TimeSeries(name, tuple(times), (*shown, shown[-1]))


def lab_assumptions(scenario: Scenario) -> tuple[str, ...]:
    """How to read what a lab's report shows."""
    if scenario.lab.rate_mbit:
        speed = f"The fastest cable carries {scenario.lab.rate_mbit:g} Mbit/s."
        return (f"{speed} Heat maps show what was sent over the speed of each cable.",)
    first = "what the fullest one between switches carried before the first step"
    return (f"Cables have no limit here: in heat maps 100 % is {first}.",)
