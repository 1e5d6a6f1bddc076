"""One run of a drill in the lab, from a whole fabric to numbers.

Probes send all the while. Steps are done at their moments, counters of cables are read before,
between and after; nothing is reckoned until all has been heard.

What all runs of a drill in the lab share, and paths of probes once they stay as they are.
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
    """The lab, its programs if it has any, and what breaks and mends it."""

    scenario: Scenario
    lab: Lab
    programs: Programs | None
    control: LabClient | None
    fabric: LabFabric
    steering: SteeringHosts | None = None
    """Of the variant that runs, where switches only hash."""

    def is_left_alone(self) -> bool:
        """Whether there is no controller that could plan anew."""
        programs = self.programs
        return programs is None or not any(programs.alive(one) for one in programs.replicas)

    def asks(self, measures: Collection[str]) -> bool:
        """Whether anything is expected of any of these."""
        return any(told.measure in measures for told in self.scenario.expectations)


STEADY_SECONDS = 0.3
"""Ways that are the same after so long stay."""
LAB_PATIENCE = 60.0


class Steady:
    """Finds ways before each run, and remembers those of the first run of each variant."""

    def __init__(self, context: LabContext) -> None:
        self._context = context
        self._paths = Pathfinder(context.lab)
        self._home: dict[str, dict[str, Way]] = {}
        """Ways in the first run of each variant."""

    async def find(self, variant: Variant) -> tuple[list[ProbeStreams], dict[str, Way]]:
        """The streams of all probes and their ways.

        Agents far from a cable that is back learn of it last, and turn their flows back then. So
        ways are looked at until they are those of the first run, where no controller could have
        chosen others meanwhile. On a busy machine BGP or BFD may lose a neighbour for a moment:
        that is waited for as well.

        Raises:
            LabError: some probe has no way, or not the one it had, for as long as we wait.
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
"""Packets flow for so long before a run begins."""
DRAIN_SECONDS = 0.1
"""Packets sent in the last of a run are not asked for: they may still be on their way."""
READ_SECONDS = 0.04
"""Before the first step counters are read: it takes a part of that."""
LATE = frozenset({"solved", "programmed", "acked", "moved", "forgotten"})
"""Measures of a plan, which a busy machine may have later than a run was to last."""
LATE_SECONDS = 300.0
"""No measure of speed: it only ends drills whose plan never comes."""

_Values = dict[tuple[str, str], float]
"""By measure and probe."""


@dataclass(slots=True)
class LabRun:
    """One run under way; times are of the wall clock, in ns."""

    context: LabContext
    sendings: list[ProbeStreams]
    ways: dict[str, Way]
    readings: list[Reading] = field(default_factory=list)
    probes: dict[str, list[Notes]] = field(default_factory=dict)
    """What became of the packets of each stream."""

    async def play(self) -> PlayedRun:
        """Send, do the timeline, and measure.

        Raises:
            LabError: some part of the lab is gone that no step has ended.
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
        """Watch what comes of it for as long as the drill says, and for a plan that is late."""
        scenario, control = self.context.scenario, self.context.control
        await asyncio.sleep(scenario.settle / 2)
        if self.done:
            await self._read()
        await asyncio.sleep(scenario.settle / 2)
        await self._read()
        if control is not None and self.context.asks(LATE) and not self.context.is_left_alone():
            await control.settled(LATE_SECONDS)

    async def _read(self) -> None:
        """Note what cables have carried so far."""
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
        """When the first fault struck, in ns."""
        return next((one.when for one in self.done if one.step.kind in FAULTS), None)

    def _looped(self, seen: witness.Testimony) -> _Values:
        """Packets that came to a switch twice, of each probe that has sent any from one port."""
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
        """How long each stage of the new plan took, and what was forgotten if that is asked."""
        control = self.context.control
        if control is None or not self.done:
            return {}
        told = control.taken_apart(self.done[0].when)
        values = {(measure, ""): value for measure, value in told.items()}
        if self.context.asks({"forgotten"}):
            values["forgotten", ""] = await control.forgotten()
        return values

    def _record(self, values: _Values, window: Window) -> LabRecord:
        """All that is told of the run."""
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
    """Sleep until so many seconds after the beginning, unless they are over."""
    wait = at - (time.time_ns() - begin) / 1e9
    if wait > 0:
        await asyncio.sleep(wait)
