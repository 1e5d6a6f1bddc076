"""A drill in the lab: real kernels, real packets, and every run from a state that is whole.

For every variant: tell the demands, do the set-up. For every run: find the ways of the
probes, send, do the timeline, watch, mend, and wait until BGP and the plan are whole
again. Nothing is measured while something else still moves.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack

from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.faults import Faults
from heddle_emulator.drill.lab.run import LabRun, Values, do
from heddle_emulator.drill.lab.stand import Stand
from heddle_emulator.drill.lab.steady import PATIENCE, Steady
from heddle_emulator.drill.lab.story import LabRecord, story
from heddle_emulator.drill.scenario import CONTROLLER, LabSpec, Scenario, StepKind, Variant
from heddle_emulator.drill.verdict import Key
from heddle_emulator.fleet.orders import Orders
from heddle_emulator.netns import mark, witness
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.frr import Bfd
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import MGMT, lay_out
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.scrape import wait_introduced, wait_links_up
from heddle_emulator.netns.up import bring_up
from heddle_emulator.report.evidence import Story

ORDERED = frozenset({StepKind.FAIL, StepKind.RESTORE, StepKind.SKEW})
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
            return asyncio.run(
                _played(scenario, lab, programs, (report, tell), runs=runs, start=start)
            )
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


async def _played(
    scenario: Scenario,
    lab: Lab,
    programs: Programs | None,
    told: tuple[Report, Tell],
    *,
    runs: int,
    start: float,
) -> Found:
    """Every variant, so many runs each, in a lab that was begun at ``start``, monotonic."""
    async with AsyncExitStack() as stack:
        control = None
        if programs is not None:
            control = await stack.enter_async_context(LabClient(programs))
            steps = (*scenario.setup, *scenario.timeline)
            control.seen.skewed = any(step.kind is StepKind.SKEW for step in steps)
        up = time.monotonic() - start
        faults = Faults(lab, programs)
        faults.prepare()
        stack.callback(faults.close)
        play = _Play(Stand(scenario, lab, programs, control, faults), told)
        play.found[scenario.variants[0].name, "up", ""] = [up]
        for variant in scenario.variants:
            await play.variant(variant, runs)
    return dict(play.found)


class _Play:
    """A scenario being played on a stand."""

    def __init__(self, stand: Stand, told: tuple[Report, Tell]) -> None:
        self.stand = stand
        self.report, self.tell = told
        self.steady = Steady(stand)
        self.found: Found = defaultdict(list)
        self.worst: dict[str, LabRecord] = {}
        """Run of each variant that is told in full."""

    async def variant(self, variant: Variant, runs: int) -> None:
        """Its demands and the set-up, then so many runs; what was played is told in any case."""
        stand, name = self.stand, f"{variant.name}: " if variant.name else ""
        if stand.control is not None:
            await asyncio.to_thread(self._all_there, set())
            self.report(f"{name}{len(variant.flows):,} flows are planned and programmed")
            entries = await stand.control.demand(variant.flows, PATIENCE)
            self.found[variant.name, "entries", ""] = [entries]
        for step in stand.scenario.setup:
            await do(stand, step, stand.faults.rows(step, {}))
        try:
            for number in range(1, runs + 1):
                self.report(f"{name}run {number} of {runs}")
                await self._run(variant, number)
        finally:
            if variant.name in self.worst:
                self.tell(story(self.worst[variant.name], runs))

    async def _run(self, variant: Variant, number: int) -> None:
        """One run from whole to whole, and its values."""
        stand = self.stand
        stand.lab.reseed(stand.scenario.seed + number - 1)
        drained = set(stand.control.drained) if stand.control is not None else set[str]()
        run = LabRun(stand, *await self.steady.find(variant))
        values, window = await run.play()
        self._keep(run.played(variant.name, number, values, window))
        self._note(variant, values)
        await self._whole_again(drained)

    def _keep(self, played: LabRecord) -> None:
        """Keep a run for the report if none of its variant was worse."""
        worst = self.worst.setdefault(played.variant, played)
        if played.badness > worst.badness:
            self.worst[played.variant] = played

    def _note(self, variant: Variant, values: Values) -> None:
        for (measure, probe), value in values.items():
            self.found[variant.name, measure, probe].append(value)

    def _all_there(self, left: set[str]) -> None:
        """Start again what has died, save for these nodes."""
        assert self.stand.programs is not None
        if self.stand.faults.revive(left) and not left:
            wait_introduced(self.stand.programs, PATIENCE)

    def _left_dead(self) -> set[str]:
        """Nodes whose program the set-up killed: runs begin without it."""
        steps = self.stand.scenario.setup
        killed = {target for step in steps if step.kind is StepKind.KILL for target in step.targets}
        return {MGMT if target == CONTROLLER else str(target) for target in killed}

    async def _whole_again(self, drained: set[str]) -> None:
        """Mend what the run broke, and wait until everybody knows; ``drained`` were so before."""
        stand = self.stand
        stand.faults.set_right()
        if stand.control is not None:
            await asyncio.to_thread(self._all_there, self._left_dead())
            for switch in sorted(stand.control.drained ^ drained):
                await stand.control.drain(switch, drained=switch in drained)
        wait_converged(stand.lab, PATIENCE)
        if stand.programs is not None and stand.control is not None:
            await asyncio.to_thread(wait_links_up, stand.programs, PATIENCE)
            if not stand.is_left_alone():
                await stand.control.quiet(PATIENCE)
