"""The lab as a world for drills: real kernels and packets, and every run from a whole fabric.

For every variant: demand its flows. For every run: do the set-up, find the paths of the probes,
send, do the timeline, watch, mend, and wait until BGP and the plan are whole again. Nothing is
measured while effects of an earlier run last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager, nullcontext
from typing import Self

from heddle_controller.model.flows import FIRST_SOURCE_PORT
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.fabric import LabFabric
from heddle_emulator.drill.lab.run import LAB_PATIENCE, LabContext, LabRun, Steady
from heddle_emulator.drill.lab.story import lab_assumptions
from heddle_emulator.drill.runner import PlayedRun, Report, RunValues
from heddle_emulator.drill.scenario import CONTROLLER, LabSpec, Scenario, Step, StepKind, Variant
from heddle_emulator.drill.steps import StepRunner
from heddle_emulator.fleet.orders import Orders
from heddle_emulator.netns import mark, witness
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.frr import Bfd
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import MGMT, lay_out
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.steering import SteeringHosts
from heddle_emulator.netns.up import bring_up, wait_introduced, wait_links_up

_DRAINS = frozenset({StepKind.DRAIN, StepKind.UNDRAIN})
"""Steps of a set-up that the end of a run does not undo."""
ORDERED = frozenset({StepKind.FAIL, StepKind.RESTORE, StepKind.SKEW})
"""Steps that need a controller that obeys orders to fail."""

_PORTS = range(FIRST_SOURCE_PORT, FIRST_SOURCE_PORT + 64)
"""Source ports that steering hosts choose from. The path of each is probed per pair of NICs."""
_PROBE_MILLISECONDS = 10


class LabWorld:
    """The world that builds a lab for each scenario; implements ``World``."""

    worst = "the worst for packets"

    def assumptions(self, scenario: Scenario) -> tuple[str, ...]:
        """Implement ``World.assumptions``."""
        return lab_assumptions(scenario)

    @contextmanager
    def open(self, scenario: Scenario, report: Report) -> Iterator[LabSession]:
        """Implement ``World.open``: build a lab, and remove it at the end.

        Raises:
            LabError: the lab cannot be built.
        """
        mark.sweep()
        spec = scenario.lab
        bfd = Bfd(spec.bfd_ms) if spec.bfd_ms else None
        options = LabOptions(spec.rate_mbit, bfd, scenario.seed)
        layout = lay_out(scenario.fabric)
        with Lab(mark.claim(mark.fresh_name()), layout, options) as lab:
            programs = _programs(scenario, lab) if spec.programs and not scenario.steers else None
            with closing(programs) if programs is not None else nullcontext():
                begin = time.monotonic()
                bring_up(lab, programs, report)
                witness.place(lab)
                yield LabSession(scenario, lab, programs, begin)

    async def close(self) -> None:
        """Implement ``World.close``: nothing is kept between scenarios."""


def _programs(scenario: Scenario, lab: Lab) -> Programs:
    """Return the programs. The controller obeys orders to fail only if a step needs that."""
    steps = (*scenario.setup, *scenario.timeline)
    ordered = any(step.point or step.kind in ORDERED for step in steps)
    orders = Orders(lab.folder / "orders") if ordered else None
    agents, count = _agent_options(scenario.lab), scenario.lab.controllers
    return Programs(lab, agents=agents, orders=orders, controllers=count)


def _agent_options(spec: LabSpec) -> tuple[str, ...]:
    """Return the options that all agents share."""
    told = [f"--flap-memory-seconds={spec.flap_memory:g}"]
    if spec.probe_ms:
        told.append(f"--probe-milliseconds={spec.probe_ms}")
    return tuple(told)


class LabSession:
    """One scenario in a lab whose programs run; implements ``Session``."""

    def __init__(
        self, scenario: Scenario, lab: Lab, programs: Programs | None, begin: float
    ) -> None:
        """Take ``begin``, when building the lab began, in seconds of the monotonic clock."""
        self._scenario, self._lab, self._programs = scenario, lab, programs
        self._begin = begin
        self._up: float | None = None
        """Seconds that it took to bring the lab up; None once a variant has reported them."""
        self._stack = AsyncExitStack()
        self._context: LabContext
        self._steady: Steady

    async def __aenter__(self) -> Self:
        control, scenario = None, self._scenario
        if self._programs is not None:
            control = await self._stack.enter_async_context(LabClient(self._programs))
            steps = (*scenario.setup, *scenario.timeline)
            control.view.skewed = any(step.kind is StepKind.SKEW for step in steps)
        self._up = time.monotonic() - self._begin
        fabric = LabFabric(self._lab, self._programs, control)
        self._stack.callback(fabric.close)
        self._context = LabContext(scenario, self._lab, self._programs, control, fabric)
        self._steady = Steady(self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def prepare(self, variant: Variant) -> RunValues:
        """Implement ``Session.prepare``: demand the variant's flows, and do the set-up."""
        context, found = self._context, dict[tuple[str, str], float]()
        if self._up is not None:
            found["up", ""], self._up = self._up, None
        if context.control is not None:
            await asyncio.to_thread(self._all_there, set())
            found["entries", ""] = await context.control.demand(variant.flows, LAB_PATIENCE)
        if self._scenario.steers:
            await asyncio.to_thread(self._steer, variant)
        await self._set_up(self._scenario.setup)
        return found

    async def run(self, variant: Variant, number: int) -> PlayedRun:
        """Implement ``Session.run``. What the run before undid of the set-up is done again."""
        context = self._context
        if number:
            await self._set_up(s for s in self._scenario.setup if s.kind not in _DRAINS)
        if context.steering is None:  # paths of ports are probed once for all runs
            context.lab.reseed(self._scenario.seed + number)
        drained = set(context.control.drained) if context.control is not None else set[str]()
        played = await LabRun(context, *await self._steady.find(variant)).play()
        await self._whole_again(drained)
        return played

    async def _set_up(self, steps: Iterable[Step]) -> None:
        """Do steps of the set-up, and wait for the plan without the switches that they drain."""
        context, control = self._context, self._context.control
        drained = set(control.drained) if control is not None else set[str]()
        for step in steps:
            await StepRunner(context.fabric).do(step)
        if control is not None and control.drained != drained and not context.is_left_alone():
            await control.settled(LAB_PATIENCE)

    def _steer(self, variant: Variant) -> None:
        """Let hosts steer the flows of a variant, and end the steering of the one before."""
        context, spec = self._context, self._scenario.lab
        if context.steering is not None:
            context.steering.end()
            context.steering = None
        if len(variant.flows):
            probe_ms = spec.probe_ms or _PROBE_MILLISECONDS
            context.steering = SteeringHosts(
                context.lab,
                variant.flows,
                _PORTS,
                hold_seconds=spec.flap_memory,
                probe_milliseconds=probe_ms,
            )
            context.steering.ready(LAB_PATIENCE)

    def _all_there(self, left: set[str]) -> None:
        """Start programs again that have ended, except on the nodes in ``left``."""
        assert self._programs is not None
        if self._context.fabric.revive(left) and not left:
            wait_introduced(self._programs, LAB_PATIENCE)

    def _left_dead(self) -> set[str]:
        """Return the nodes whose program the set-up killed. Runs begin without it."""
        steps = self._scenario.setup
        killed = {target for step in steps if step.kind is StepKind.KILL for target in step.targets}
        return {MGMT if target == CONTROLLER else str(target) for target in killed}

    async def _whole_again(self, drained: set[str]) -> None:
        """Undo what the run did, and wait until all know it; ``drained`` were drained before."""
        context = self._context
        await context.fabric.set_right()
        if context.control is not None:
            await asyncio.to_thread(self._all_there, self._left_dead())
            for switch in sorted(context.control.drained ^ drained):
                await context.control.drain(switch, drained=switch in drained)
        wait_converged(context.lab, LAB_PATIENCE)
        if context.steering is not None:
            await asyncio.to_thread(context.steering.ready, LAB_PATIENCE)
        if context.programs is not None and context.control is not None:
            await asyncio.to_thread(wait_links_up, context.programs, LAB_PATIENCE)
            if not context.is_left_alone():
                await context.control.quiet(LAB_PATIENCE)
