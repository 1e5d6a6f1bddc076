"""A drill in the lab: real kernels, real packets, and every run from a state that is whole.

For every variant: tell the demands, do the set-up. For every run: find the ways of the
probes, send, do the timeline, watch, mend, and wait until BGP and the plan are whole
again. Nothing is measured while something else still moves.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from heddle_emulator.drill.lab.control import Control
from heddle_emulator.drill.lab.faults import Faults
from heddle_emulator.drill.lab.logs import detections, leaders
from heddle_emulator.drill.lab.measure import Window, measured
from heddle_emulator.drill.lab.meter import Reading, read, snapshots
from heddle_emulator.drill.lab.paths import Pathfinder, Way
from heddle_emulator.drill.lab.probes import Sending, sendings
from heddle_emulator.drill.lab.story import Played, story
from heddle_emulator.drill.scenario import (
    CONTROLLER,
    FAULTS,
    Kind,
    LabSpec,
    Scenario,
    Step,
    Variant,
)
from heddle_emulator.drill.verdict import Key
from heddle_emulator.fleet.orders import Orders
from heddle_emulator.netns import mark, witness
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.errors import LabError
from heddle_emulator.netns.frr import Bfd
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import MGMT, lay_out
from heddle_emulator.netns.probe.handle import Probe
from heddle_emulator.netns.probe.notes import Notes
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.scrape import wait_introduced, wait_links_up
from heddle_emulator.netns.up import bring_up
from heddle_emulator.report.evidence import Story

WARM_SECONDS = 0.2
"""Packets flow for so long before a run begins."""
DRAIN_SECONDS = 0.1
"""Packets sent in the last of a run are not asked for: they may still be on their way."""
READ_SECONDS = 0.04
"""Before the first step counters are read: it takes a part of that."""
STEADY_SECONDS = 0.3
"""Ways that are the same after so long stay."""
PATIENCE = 60.0

LATE = frozenset({"solved", "programmed", "acked", "moved", "forgotten"})
"""Measures of a plan, which a busy machine may have later than a run was to last."""
LATE_SECONDS = 20.0
ORDERED = frozenset({Kind.FAIL, Kind.RESTORE, Kind.SKEW})
"""Steps for which a controller has to look out for orders."""

Report = Callable[[str], None]
Tell = Callable[[Story], None]
Found = dict[Key, list[float]]


def play(scenario: Scenario, runs: int, report: Report, tell: Tell = lambda _: None) -> Found:
    """Play a drill so many times in a lab made for it, and remove the lab.

    The worst run of each variant is told in full.

    Raises:
        LabError: the lab cannot be had, or does not become whole.
        ClientError: the controller refuses something.
    """
    mark.sweep()
    spec = scenario.lab
    options = LabOptions(spec.rate_mbit, Bfd(spec.bfd_ms) if spec.bfd_ms else None, scenario.seed)
    layout = lay_out(scenario.fabric)
    with Lab(mark.claim(mark.fresh_name()), layout, options) as lab:
        programs = _programs(scenario, lab) if spec.programs else None
        try:
            start = time.monotonic()
            bring_up(lab, programs, report)
            witness.place(lab)
            return asyncio.run(_Play(scenario, lab, programs, (report, tell)).all(runs, start))
        finally:
            if programs is not None:
                programs.close()


def _programs(scenario: Scenario, lab: Lab) -> Programs:
    """Controller and agents, the former made to fail only where some step wants that."""
    steps = (*scenario.setup, *scenario.timeline)
    ordered = any(step.point or step.kind in ORDERED for step in steps)
    orders = Orders(lab.folder / "orders") if ordered else None
    agents, count = _agent_options(scenario.lab), scenario.lab.controllers
    return Programs(lab, agents=agents, orders=orders, controllers=count)


def _agent_options(spec: LabSpec) -> tuple[str, ...]:
    """What agents are told apart from who they are."""
    told = [f"--flap-memory-seconds={spec.flap_memory:g}"]
    if spec.probe_ms:
        told.append(f"--probe-milliseconds={spec.probe_ms}")
    return tuple(told)


@dataclass(slots=True)
class _Run:
    """One run under way."""

    sendings: list[Sending]
    ways: dict[str, Way]
    rows: dict[int, list[int]]
    """Link rows of each step, by its place in the timeline."""
    done: list[tuple[int, Step, str]] = field(default_factory=list)
    """When each step was done, in ns, and to what."""
    event: int | None = None
    """When the first of them was."""
    fault: int | None = None
    """When the first fault struck."""
    readings: list[Reading] = field(default_factory=list)


class _Play:
    """A scenario being played in a lab."""

    def __init__(
        self,
        scenario: Scenario,
        lab: Lab,
        programs: Programs | None,
        told: tuple[Report, Tell],
    ) -> None:
        self.scenario, self.lab, self.programs = scenario, lab, programs
        self.report, self.tell = told
        self.faults = Faults(lab, programs)
        self.paths = Pathfinder(lab)
        self.control: Control | None = None
        self.found: Found = defaultdict(list)
        self.home: dict[str, dict[str, Way]] = {}
        """Ways in the first run of each variant."""
        self.worst: dict[str, Played] = {}
        """Run of each variant that is told in full."""

    async def all(self, runs: int, start: float) -> Found:
        """Every variant, so many runs each; the lab was begun at ``start``, monotonic."""
        async with AsyncExitStack() as stack:
            if self.programs is not None:
                self.control = await stack.enter_async_context(Control(self.programs))
                steps = (*self.scenario.setup, *self.scenario.timeline)
                self.control.seen.skewed = any(step.kind is Kind.SKEW for step in steps)
            self.found[self.scenario.variants[0].name, "up", ""] = [time.monotonic() - start]
            self.faults.prepare()
            stack.callback(self.faults.close)
            for variant in self.scenario.variants:
                await self._variant(variant, runs)
        return dict(self.found)

    async def _variant(self, variant: Variant, runs: int) -> None:
        name = f"{variant.name}: " if variant.name else ""
        if self.control is not None and self.programs is not None:
            await asyncio.to_thread(self._all_there, set())
            self.report(f"{name}{len(variant.flows):,} flows are planned and programmed")
            entries = await self.control.demand(variant.flows, PATIENCE)
            self.found[variant.name, "entries", ""] = [entries]
        for step in self.scenario.setup:
            await self._do(step, self.faults.rows(step, {}))
        try:
            await self._runs(variant, runs, name)
        finally:
            if variant.name in self.worst:
                self.tell(story(self.worst[variant.name], runs))

    async def _runs(self, variant: Variant, runs: int, name: str) -> None:
        for number in range(runs):
            self.report(f"{name}run {number + 1} of {runs}")
            self.lab.reseed(self.scenario.seed + number)
            drained = set(self.control.drained) if self.control is not None else set[str]()
            values = await self._once(variant, number + 1)
            for (measure, probe), value in values.items():
                self.found[variant.name, measure, probe].append(value)
            await self._whole_again(drained)

    def _all_there(self, left: set[str]) -> None:
        """Start again what has died, save for these nodes."""
        assert self.programs is not None
        if self.faults.revive(left) and not left:
            wait_introduced(self.programs, PATIENCE)

    def _left_dead(self) -> set[str]:
        """Nodes whose program the set-up killed: runs begin without it."""
        killed = {t for step in self.scenario.setup if step.kind is Kind.KILL for t in step.targets}
        return {MGMT if target == CONTROLLER else str(target) for target in killed}

    async def _once(self, variant: Variant, number: int) -> dict[tuple[str, str], float]:
        """One run, from a whole fabric to numbers."""
        run = await self._prepared(variant)
        before = witness.hear(self.lab)
        streams = [flow for sending in run.sendings for flow in sending.flows]
        with Probe(self.lab, streams) as probe:
            await self._read(run)
            await asyncio.sleep(WARM_SECONDS)
            begin = time.time_ns()
            await self._timeline(run, begin)
            await asyncio.sleep(self.scenario.settle / 2)
            if run.done:
                await self._read(run)
            await asyncio.sleep(self.scenario.settle / 2)
            await self._read(run)
            if self.control is not None and self._asks(LATE) and not self._is_left_alone():
                await self.control.settled(LATE_SECONDS)
            self.faults.check()
            end = time.time_ns() - round(DRAIN_SECONDS * 1e9)
            notes = iter(probe.stop())
        seen = witness.hear(self.lab).since(before)
        probes = {sending.name: [next(notes) for _ in sending.flows] for sending in run.sendings}
        silent = any(step.kind is Kind.SILENCE for step in self.scenario.timeline)
        window = Window(begin, run.fault, end, silent)
        values = measured(probes, {s.name: s.offered for s in run.sendings if s.offered}, window)
        for sending in run.sendings:
            sent = [len(one.sent) for one in probes[sending.name]]
            pairs = zip(sending.flows, sent, strict=True)
            if any(sent):
                twice = sum(seen.twice(flow, count) for flow, count in pairs)
                values["looped", sending.name] = twice
        if self.control is not None and run.event is not None:
            told = self.control.taken_apart(run.event)
            values |= {(measure, ""): value for measure, value in told.items()}
            if self._asks({"forgotten"}):
                values["forgotten", ""] = await self.control.forgotten()
        self._keep(run, probes, window, values, (variant.name, number))
        return values

    def _keep(
        self,
        run: _Run,
        probes: dict[str, list[Notes]],
        window: Window,
        values: dict[tuple[str, str], float],
        which: tuple[str, int],
    ) -> None:
        """Keep a run for the report if none of its variant was worse."""
        variant, number = which
        seen = detections(self.programs, window.begin) if self.programs is not None else []
        played = Played(
            variant,
            number,
            begin=window.begin,
            end=window.end,
            steps=tuple(run.done),
            probes=probes,
            offered={one.name: one.offered for one in run.sendings},
            recovered={of: value for (name, of), value in values.items() if name == "recovered"},
            fault=run.fault,
            sightings=seen,
            fabric=self.lab.layout.fabric,
            snapshots=tuple(snapshots(self.lab, run.readings, window.begin)),
            leaders=leaders(self.programs, window.begin) if self.programs is not None else [],
            seen=self.control.seen if self.control is not None else None,
        )
        worst = self.worst.setdefault(variant, played)
        if played.badness > worst.badness:
            self.worst[variant] = played

    async def _prepared(self, variant: Variant) -> _Run:
        """Ways, ports and cables of a run, found before anything is timed."""
        sending, ways = await self._steady(variant)
        timeline = self.scenario.timeline
        rows = {place: self.faults.rows(step, ways) for place, step in enumerate(timeline)}
        return _Run(sending, ways, rows)

    async def _steady(self, variant: Variant) -> tuple[list[Sending], dict[str, Way]]:
        """The streams of all probes and their ways, once these stay as they are.

        Agents far from a cable that is back learn of it last, and turn their flows back then. So
        ways are looked at until they are those of the first run, where no controller could have
        chosen others meanwhile. On a busy machine BGP or BFD may lose a neighbour for a moment:
        that is waited for as well.
        """
        deadline, before = time.monotonic() + PATIENCE, dict[str, Way]()
        while True:
            try:
                sending, ways = sendings(self.scenario, variant, self.lab, self.paths)
            except LabError:
                if time.monotonic() > deadline:
                    raise
            else:
                home = self.home.get(variant.name, ways) if self._is_left_alone() else ways
                if ways == before == home:
                    self.home.setdefault(variant.name, ways)
                    return sending, ways
                if time.monotonic() > deadline:
                    raise LabError("flows do not go back to the ways they had before the faults")
                before = ways
            await asyncio.sleep(STEADY_SECONDS)

    def _is_left_alone(self) -> bool:
        """Whether there is no controller that could plan anew."""
        programs = self.programs
        return programs is None or not any(programs.alive(one) for one in programs.replicas)

    def _asks(self, measures: Collection[str]) -> bool:
        """Whether anything is expected of any of these."""
        return any(told.measure in measures for told in self.scenario.expectations)

    async def _read(self, run: _Run) -> None:
        """Note what cables have carried so far."""
        run.readings.append(await asyncio.to_thread(read, self.lab, self.faults.present()))

    async def _timeline(self, run: _Run, begin: int) -> None:
        if self.scenario.timeline:
            wait = self.scenario.timeline[0].at - READ_SECONDS
            await asyncio.sleep(max(wait - (time.time_ns() - begin) / 1e9, 0.0))
            await self._read(run)
        for place, step in enumerate(self.scenario.timeline):
            wait = step.at - (time.time_ns() - begin) / 1e9
            if wait > 0:
                await asyncio.sleep(wait)
            struck = await self._do(step, run.rows[place])
            run.done.append((struck, step, self._in_words(step, run.rows[place])))
            run.event = run.event or struck
            if run.fault is None and step.kind in FAULTS:
                run.fault = struck

    def _in_words(self, step: Step, rows: list[int]) -> str:
        """What a step was done to: cables by their ends, as hops are found only now."""
        fabric = self.lab.layout.fabric
        return ", ".join([fabric.link_label(row) for row in rows] or [str(t) for t in step.targets])

    async def _do(self, step: Step, rows: list[int]) -> int:
        if step.kind in {Kind.DRAIN, Kind.UNDRAIN}:
            begin = time.time_ns()
            assert self.control is not None
            for target in step.targets:
                await self.control.drain(str(target), drained=step.kind is Kind.DRAIN)
            return begin
        if step.kind is Kind.START:  # which waits until it serves
            return await asyncio.to_thread(self.faults.do, step, rows)
        return self.faults.do(step, rows)

    async def _whole_again(self, drained: set[str]) -> None:
        """Mend what the run broke, and wait until everybody knows; ``drained`` were so before."""
        self.faults.set_right()
        if self.programs is not None and self.control is not None:
            await asyncio.to_thread(self._all_there, self._left_dead())
            for switch in sorted(self.control.drained ^ drained):
                await self.control.drain(switch, drained=switch in drained)
        wait_converged(self.lab, PATIENCE)
        if self.programs is not None and self.control is not None:
            await asyncio.to_thread(wait_links_up, self.programs, PATIENCE)
            if not self._is_left_alone():
                await self.control.quiet(PATIENCE)
