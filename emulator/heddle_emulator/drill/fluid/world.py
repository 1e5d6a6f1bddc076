"""A drill in the fluid world: every run with a controller and agents of its own, from whole."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self

from heddle_emulator.drill.fluid.control import OPTIONS, Conductor
from heddle_emulator.drill.fluid.measure import FinishedRun, measured
from heddle_emulator.drill.fluid.play import Play
from heddle_emulator.drill.fluid.story import story
from heddle_emulator.drill.fluid.traffic import Traffic, traffic_of
from heddle_emulator.drill.scenario import ALL, Scenario, Variant
from heddle_emulator.drill.verdict import Key
from heddle_emulator.fleet import Controllers
from heddle_emulator.report.evidence import Story

Report = Callable[[str], None]
Tell = Callable[[Story], None]
Found = dict[Key, list[float]]
PATIENCE = 60.0
"""Virtual seconds that jobs with an end may take longer than the timeline."""


class House:
    """Use as ``with``: plays drills one after the other, with controllers that need not start anew.

    Ctrl-C ends the run under way; whatever was started has ended when the house is left.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._controllers = Controllers(*OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._runner as runner:
            runner.run(self._controllers.__aexit__(None, None, None))

    def play(
        self, scenario: Scenario, runs: int, report: Report, tell: Tell = lambda _: None
    ) -> Found:
        """Play a drill so many times; the worst run of each variant is told in full.

        Raises:
            InputError: jobs that have too many iterations for so long a drill.
            LabError, ClientError, ControllerError, TimeoutError: it cannot be played to its end.
        """
        found: Found = defaultdict(list)
        for variant in scenario.variants:
            traffic = traffic_of(scenario, variant.flows, horizon_of(scenario))
            worst: tuple[float, Story] | None = None
            try:
                for number in range(runs):
                    report(f"{variant.name} run {number + 1} of {runs}".strip())
                    outcome = self._runner.run(self._once(scenario, traffic, number))
                    values = measured(outcome)
                    for (measure, of), value in values.items():
                        found[variant.name, measure, of].append(value)
                    badness = values.get(("lost_gbit", ALL), 0.0)
                    if worst is None or badness > worst[0]:
                        worst = badness, story(outcome, _title(variant, number, runs), variant.name)
            finally:
                if worst is not None:
                    tell(worst[1])
        return dict(found)

    async def _once(self, scenario: Scenario, traffic: Traffic, number: int) -> FinishedRun:
        horizon, seed = horizon_of(scenario), scenario.seed + number
        async with Conductor(scenario, seed, self._controllers) as conductor:
            played = Play(scenario, traffic, conductor, seed)
            await played.run(horizon)
            assert played.course is not None
            settled = conductor.settled and not played.agenda.pushes
            outcome = FinishedRun(scenario, played.course, played.log, horizon, settled)
        if any(one.spec.iterations for one in traffic.placed):
            outcome.course.world.advance(horizon + PATIENCE)
        return outcome


def horizon_of(scenario: Scenario) -> float:
    """Virtual seconds that a run lasts."""
    last = max((step.at for step in scenario.timeline), default=0.0)
    return last + scenario.settle


def _title(variant: Variant, number: int, runs: int) -> str:
    which = "the only run" if runs == 1 else f"run {number + 1} of {runs}, the one that lost most"
    return f"{variant.name}: {which}" if variant.name else which.capitalize()
