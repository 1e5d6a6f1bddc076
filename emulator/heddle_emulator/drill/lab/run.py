"""One run of a drill in the lab, from a whole fabric to measured values.

Probes send during the whole run. Steps are done when they are due. Counters of cables are read
before, between and after them. Values are computed when everything has been collected.

``LabContext`` is what all runs of a drill share. ``Steady`` finds the paths of probes once these no
longer change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from heddle_emulator.drill.lab.control import LabClient, detections, leaders
from heddle_emulator.drill.lab.fabric import DoneStep, LabFabric
from heddle_emulator.drill.lab.pace import Pace
from heddle_emulator.drill.lab.probes import Pathfinder, ProbeStreams, Way, sendings
from heddle_emulator.drill.lab.story import (
    LabRecord,
    Reading,
    Window,
    lab_measured,
    lab_story,
    read_counters,
    snapshots,
)
from heddle_emulator.drill.runner import PlayedRun
from heddle_emulator.drill.scenario import FAULTS, Scenario, StepKind, Variant
from heddle_emulator.drill.steps import PreparedStep, StepRunner
from heddle_emulator.netns import LabError, witness
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.handle import Notes, Probe
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.steering import SteeringHosts


@dataclass(slots=True, eq=False)
class LabContext:
    """The lab, its programs and controller client if it has any, and the fabric to break."""

    scenario: Scenario
    lab: Lab
    programs: Programs | None
    control: LabClient | None
    fabric: LabFabric
    steering: SteeringHosts | None = None
    """The steering hosts of the present variant; None if no host steers."""

    def is_left_alone(self) -> bool:
        """Whether no controller runs that could make a new plan."""
        programs = self.programs
        return programs is None or not any(programs.alive(one) for one in programs.replicas)

    def asks(self, measures: Collection[str]) -> bool:
        """Whether any expectation is about one of these measures."""
        return any(told.measure in measures for told in self.scenario.expectations)


STEADY_SECONDS = 0.3
"""Paths that have not changed for this long count as settled."""
LAB_PATIENCE = 60.0


class Steady:
    """Finds the paths of probes before each run, once they no longer change."""

    def __init__(self, context: LabContext) -> None:
        self._context = context
        self._paths = Pathfinder(context.lab)
        self._home: dict[str, dict[str, Way]] = {}
        """Paths in the first run of each variant, by variant and probe."""

    async def find(self, variant: Variant) -> tuple[list[ProbeStreams], dict[str, Way]]:
        """Return the streams of all probes and their paths, once these have settled.

        Agents far from a mended cable learn of it last, and only then move their flows back. So
        without a controller, which could choose other paths, this waits until paths are those of
        the variant's first run. It also waits if BGP or BFD lose a neighbour for a moment, which
        happens on a busy machine.

        Raises:
            LabError: paths did not settle, or a probe found none beside another, for too long.
        """
        context, before = self._context, dict[str, Way]()
        deadline = time.monotonic() + LAB_PATIENCE
        while True:
            try:
                sending, ways = sendings(
                    context.scenario, variant, context.lab, self._paths, context.steering
                )
            except LabError:
                if time.monotonic() > deadline:
                    raise
            else:
                home = self._home.get(variant.name, ways) if context.is_left_alone() else ways
                if ways == before == home:
                    self._home.setdefault(variant.name, ways)
                    return sending, ways
                if time.monotonic() > deadline:
                    raise LabError(
                        "flows do not go back to the paths that they had before the faults"
                    )
                before = ways
            await asyncio.sleep(STEADY_SECONDS)


WARM_SECONDS = 0.2
"""Packets flow for this long before a run begins."""
DRAIN_SECONDS = 0.1
"""Packets sent in this last part of a run are not counted: they may still be on their way."""
READ_SECONDS = 0.04
"""Counters are read this long before the first step. Reading takes only part of that time."""
LATE = frozenset({"solved", "programmed", "acked", "moved", "forgotten"})
"""Measures that need the new plan, which on a busy machine may come after the run's end."""
LATE_SECONDS = 300.0
"""How long to wait for a late plan. It only ends drills whose plan never comes."""

_Values = dict[tuple[str, str], float]
"""Values by measure and probe."""


@dataclass(slots=True)
class LabRun:
    """One run under way. Times are in nanoseconds of the wall clock."""

    context: LabContext
    sendings: list[ProbeStreams]
    ways: dict[str, Way]
    readings: list[Reading] = field(default_factory=list)
    probes: dict[str, list[Notes]] = field(default_factory=dict)
    """What happened to the packets of each stream, by probe."""

    async def play(self) -> PlayedRun:
        """Send, do the timeline, and measure.

        Raises:
            LabError: a probe failed.
            StepError: a controller did not die at the point that it was to.
        """
        context = self.context
        context.fabric.ways, context.fabric.done = self.ways, []
        steps = StepRunner(context.fabric)
        timeline = [steps.prepare(step) for step in context.scenario.timeline]
        before = witness.hear(context.lab)
        flows = [flow for one in self.sendings for flow in one.flows]
        with Pace() as pace, Probe(context.lab, flows) as probe:
            await self._read()
            await asyncio.sleep(WARM_SECONDS)
            begin = time.time_ns()
            await self._timeline(steps, timeline, begin)
            await self._settle()
            context.fabric.check()
            end = time.time_ns() - round(DRAIN_SECONDS * 1e9)
            notes = iter(probe.stop())
            beside = pace.told()
        seen = witness.hear(context.lab).since(before)
        self.probes = {one.name: [next(notes) for _ in one.flows] for one in self.sendings}
        silent = any(step.kind is StepKind.SILENCE for step in context.scenario.timeline)
        window = Window(begin, self.fault, end, silent)
        offered = {one.name: one.offered for one in self.sendings if one.offered}
        values = lab_measured(self.probes, offered, window) | self._looped(seen)
        values |= await self._of_control() | beside
        record = self._record(values, window)
        return PlayedRun(values, record.badness, partial(lab_story, record))

    async def _settle(self) -> None:
        """Watch for as long as the drill says, and wait for a late plan if a measure needs it."""
        scenario, control = self.context.scenario, self.context.control
        await asyncio.sleep(scenario.settle / 2)
        if self.done:
            await self._read()
        await asyncio.sleep(scenario.settle / 2)
        await self._read()
        if control is not None and self.context.asks(LATE) and not self.context.is_left_alone():
            await control.settled(LATE_SECONDS)

    async def _read(self) -> None:
        """Read and keep the counters of all cables."""
        context = self.context
        self.readings.append(
            await asyncio.to_thread(read_counters, context.lab, context.fabric.present())
        )

    async def _timeline(
        self, steps: StepRunner, timeline: Sequence[PreparedStep], begin: int
    ) -> None:
        if timeline:
            await _until(begin, timeline[0].step.at - READ_SECONDS)
            await self._read()
        for prepared in timeline:
            await _until(begin, prepared.step.at)
            await steps.do_prepared(prepared)

    @property
    def done(self) -> Sequence[DoneStep]:
        """The steps done so far."""
        return self.context.fabric.done

    @property
    def fault(self) -> int | None:
        """When the first fault struck, in ns; None if none did."""
        return next((one.when for one in self.done if one.step.kind in FAULTS), None)

    def _looped(self, seen: witness.Testimony) -> _Values:
        """Count packets that came to a switch twice, for probes whose streams keep their port."""
        found: _Values = {}
        for sending in self.sendings:
            sent = [len(one.sent) for one in self.probes[sending.name]]
            if any(sent) and all(flow.named is None for flow in sending.flows):
                pairs = zip(sending.flows, sent, strict=True)
                found["looped", sending.name] = sum(
                    seen.twice(flow, count) for flow, count in pairs
                )
        return found

    async def _of_control(self) -> _Values:
        """Return how long each stage of the new plan took, and ``forgotten`` if it is expected."""
        control = self.context.control
        if control is None or not self.done:
            return {}
        told = control.taken_apart(self.done[0].when)
        values = {(measure, ""): value for measure, value in told.items()}
        if self.context.asks({"forgotten"}):
            values["forgotten", ""] = await control.forgotten()
        return values

    def _record(self, values: _Values, window: Window) -> LabRecord:
        """Return all that the run's story is made of."""
        context, programs = self.context, self.context.programs
        return LabRecord(
            begin=window.begin,
            end=window.end,
            steps=tuple(self.done),
            probes=self.probes,
            offered={one.name: one.offered for one in self.sendings},
            recovered={of: value for (name, of), value in values.items() if name == "recovered"},
            fault=self.fault,
            sightings=detections(programs, window.begin) if programs is not None else [],
            fabric=context.lab.layout.fabric,
            snapshots=tuple(snapshots(context.lab, self.readings, window.begin)),
            leaders=leaders(programs, window.begin) if programs is not None else [],
            view=context.control.view if context.control is not None else None,
        )


async def _until(begin: int, at: float) -> None:
    """Sleep until ``at`` seconds after ``begin`` (in ns), or not at all if that is past."""
    wait = at - (time.time_ns() - begin) / 1e9
    if wait > 0:
        await asyncio.sleep(wait)
