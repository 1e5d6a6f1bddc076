"""Drills in virtual time: every run with agents of its own, from a fabric that is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

from heddle_emulator.drill.fluid.harness import OPTIONS, ControllerHarness
from heddle_emulator.drill.fluid.measure import FinishedRun, fluid_measured
from heddle_emulator.drill.fluid.run import FluidRun
from heddle_emulator.drill.fluid.story import fluid_assumptions, fluid_story
from heddle_emulator.drill.fluid.traffic import Traffic, traffic_of
from heddle_emulator.drill.runner import PlayedRun, Report, RunValues
from heddle_emulator.drill.scenario import ALL, Scenario, Variant
from heddle_emulator.fleet import ControllerPool

_PATIENCE = 60.0
"""Virtual seconds that jobs with an end may take longer than the timeline."""


class FluidWorld:
    """See ``World``; controllers that nothing was done to go on from one run to the next."""

    worst = "the one that lost most"

    def __init__(self) -> None:
        self._controllers = ControllerPool(*OPTIONS)

    def assumptions(self, scenario: Scenario) -> tuple[str, ...]:
        """See ``World``."""
        return fluid_assumptions(scenario.control)

    @contextmanager
    def open(self, scenario: Scenario, report: Report) -> Iterator[FluidSession]:  # noqa: ARG002
        """See ``World``: there is nothing to set up before a run."""
        yield FluidSession(scenario, self._controllers)

    async def close(self) -> None:
        """End all controllers."""
        await self._controllers.close()


class FluidSession:
    """See ``Session``."""

    def __init__(self, scenario: Scenario, controllers: ControllerPool) -> None:
        self._scenario, self._controllers = scenario, controllers
        self._horizon = max((step.at for step in scenario.timeline), default=0.0)
        self._horizon += scenario.settle  # virtual seconds
        self._traffic: Traffic

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to end."""

    async def prepare(self, variant: Variant) -> RunValues:
        """Work out all that may ever flow.

        Raises:
            InputError: jobs that have too many iterations for so long a drill.
        """
        self._traffic = traffic_of(self._scenario, variant.flows, self._horizon)
        return {}

    async def run(self, variant: Variant, number: int) -> PlayedRun:  # noqa: ARG002 - prepared
        """See ``Session``."""
        finished = await self._once(self._scenario.seed + number)
        values = fluid_measured(finished)
        return PlayedRun(
            values, (values.get(("lost_gbit", ALL), 0.0),), partial(fluid_story, finished)
        )

    async def _once(self, seed: int) -> FinishedRun:
        scenario, horizon = self._scenario, self._horizon
        async with ControllerHarness(scenario, seed, self._controllers) as harness:
            run = FluidRun(scenario, self._traffic, harness, seed)
            await run.play(horizon)
            settled = harness.settled and not run.agenda.pushes
            finished = FinishedRun(scenario, run.simulation, run.log, horizon, settled)
        if any(one.spec.iterations for one in self._traffic.placed):
            finished.simulation.fluid.advance(horizon + _PATIENCE)
        return finished
