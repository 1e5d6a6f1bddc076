"""One run of a drill in the lab, from a whole fabric to numbers.

Probes send all the while. Steps are done at their moments, counters of cables are read before,
between and after; nothing is reckoned until all has been heard.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from heddle_emulator.drill.lab.logs import detections, leaders
from heddle_emulator.drill.lab.measure import Window, measured
from heddle_emulator.drill.lab.meter import Reading, read, snapshots
from heddle_emulator.drill.lab.pace import Pace
from heddle_emulator.drill.lab.paths import Way
from heddle_emulator.drill.lab.probes import ProbeStreams
from heddle_emulator.drill.lab.stand import Stand
from heddle_emulator.drill.lab.story import LabRecord
from heddle_emulator.drill.scenario import FAULTS, Step, StepKind
from heddle_emulator.netns import witness
from heddle_emulator.netns.probe.handle import Probe
from heddle_emulator.netns.probe.notes import Notes

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

Values = dict[tuple[str, str], float]
"""By measure and probe."""


@dataclass(slots=True)
class LabRun:
    """One run under way; times are of the wall clock, in ns."""

    stand: Stand
    sendings: list[ProbeStreams]
    ways: dict[str, Way]
    done: list[tuple[int, Step, str]] = field(default_factory=list)
    """When each step was done, and to what."""
    event: int | None = None
    """When the first of them was."""
    fault: int | None = None
    """When the first fault struck."""
    readings: list[Reading] = field(default_factory=list)
    probes: dict[str, list[Notes]] = field(default_factory=dict)
    """What became of the packets of each stream."""

    async def play(self) -> tuple[Values, Window]:
        """Send, do the timeline, and measure.

        Raises:
            LabError: some part of the lab is gone that no step has ended.
        """
        stand = self.stand
        rows = [stand.faults.rows(step, self.ways) for step in stand.scenario.timeline]
        before = witness.hear(stand.lab)
        flows = [flow for one in self.sendings for flow in one.flows]
        with Pace() as pace, Probe(stand.lab, flows) as probe:
            await self._read()
            await asyncio.sleep(WARM_SECONDS)
            begin = time.time_ns()
            await self._timeline(rows, begin)
            await self._settle()
            stand.faults.check()
            end = time.time_ns() - round(DRAIN_SECONDS * 1e9)
            notes = iter(probe.stop())
            beside = pace.told()
        seen = witness.hear(stand.lab).since(before)
        self.probes = {one.name: [next(notes) for _ in one.flows] for one in self.sendings}
        silent = any(step.kind is StepKind.SILENCE for step in stand.scenario.timeline)
        window = Window(begin, self.fault, end, silent)
        offered = {one.name: one.offered for one in self.sendings if one.offered}
        values = measured(self.probes, offered, window) | self._looped(seen)
        return values | await self._of_control() | beside, window

    async def _settle(self) -> None:
        """Watch what comes of it for as long as the drill says, and for a plan that is late."""
        scenario, control = self.stand.scenario, self.stand.control
        await asyncio.sleep(scenario.settle / 2)
        if self.done:
            await self._read()
        await asyncio.sleep(scenario.settle / 2)
        await self._read()
        if control is not None and self.stand.asks(LATE) and not self.stand.is_left_alone():
            await control.settled(LATE_SECONDS)

    async def _read(self) -> None:
        """Note what cables have carried so far."""
        stand = self.stand
        self.readings.append(await asyncio.to_thread(read, stand.lab, stand.faults.present()))

    async def _timeline(self, rows: Sequence[list[int]], begin: int) -> None:
        timeline = self.stand.scenario.timeline
        if timeline:
            await _until(begin, timeline[0].at - READ_SECONDS)
            await self._read()
        for step, own in zip(timeline, rows, strict=True):
            await _until(begin, step.at)
            struck = await do(self.stand, step, own)
            self.done.append((struck, step, self._in_words(step, own)))
            self.event = self.event or struck
            if self.fault is None and step.kind in FAULTS:
                self.fault = struck

    def _in_words(self, step: Step, rows: list[int]) -> str:
        """What a step was done to: cables by their ends, as hops are found only now."""
        fabric = self.stand.lab.layout.fabric
        return ", ".join([fabric.link_label(row) for row in rows] or [str(t) for t in step.targets])

    def _looped(self, seen: witness.Testimony) -> Values:
        """Packets that came to a switch twice, of each probe that has sent any."""
        found: Values = {}
        for sending in self.sendings:
            sent = [len(one.sent) for one in self.probes[sending.name]]
            if any(sent):
                pairs = zip(sending.flows, sent, strict=True)
                found["looped", sending.name] = sum(
                    seen.twice(flow, count) for flow, count in pairs
                )
        return found

    async def _of_control(self) -> Values:
        """How long each stage of the new plan took, and what was forgotten if that is asked."""
        control = self.stand.control
        if control is None or self.event is None:
            return {}
        told = control.taken_apart(self.event)
        values = {(measure, ""): value for measure, value in told.items()}
        if self.stand.asks({"forgotten"}):
            values["forgotten", ""] = await control.forgotten()
        return values

    def played(self, variant: str, number: int, values: Values, window: Window) -> LabRecord:
        """All that is told of a run."""
        stand, programs = self.stand, self.stand.programs
        return LabRecord(
            variant,
            number,
            begin=window.begin,
            end=window.end,
            steps=tuple(self.done),
            probes=self.probes,
            offered={one.name: one.offered for one in self.sendings},
            recovered={of: value for (name, of), value in values.items() if name == "recovered"},
            fault=self.fault,
            sightings=detections(programs, window.begin) if programs is not None else [],
            fabric=stand.lab.layout.fabric,
            snapshots=tuple(snapshots(stand.lab, self.readings, window.begin)),
            leaders=leaders(programs, window.begin) if programs is not None else [],
            seen=stand.control.seen if stand.control is not None else None,
        )


async def do(stand: Stand, step: Step, rows: list[int]) -> int:
    """Do a step to cables of these rows; when it was done."""
    if step.kind in {StepKind.DRAIN, StepKind.UNDRAIN}:
        begin = time.time_ns()
        assert stand.control is not None
        for target in step.targets:
            await stand.control.drain(str(target), drained=step.kind is StepKind.DRAIN)
        return begin
    if step.kind is StepKind.START:  # which waits until it serves
        return await asyncio.to_thread(stand.faults.do, step, rows)
    return stand.faults.do(step, rows)


async def _until(begin: int, at: float) -> None:
    """Sleep until so many seconds after the beginning, unless they are over."""
    wait = at - (time.time_ns() - begin) / 1e9
    if wait > 0:
        await asyncio.sleep(wait)
