"""One runner for all drills: every run of every variant of a scenario, in whichever world.

The runner numbers and counts runs, keeps what each has shown, tells the worst of each variant in
full, and judges. How a run is set up and played is the affair of the world.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, Self

from heddle.client import HeddleError
from heddle_emulator.drill.scenario import Scenario, Variant
from heddle_emulator.drill.steps import StepError
from heddle_emulator.drill.verdict import MeasureKey, Verdict, judge
from heddle_emulator.fleet import ControllerError
from heddle_emulator.netns import LabError
from heddle_emulator.report.evidence import Story

Report = Callable[[str], None]
"""Told in words what is being done."""
RunValues = Mapping[tuple[str, str], float]
"""By measure and probe, of one run."""


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """What came of one run."""

    values: RunValues
    badness: tuple[float, ...]
    """The greatest of a variant's runs is told in full."""
    story: Callable[[str], Story]
    """The run told in full, under a title."""


class Session(Protocol):
    """One scenario, set up in a world. Use as ``async with``."""

    async def __aenter__(self) -> Self:
        """Connect to what was set up."""

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""

    async def prepare(self, variant: Variant) -> RunValues:
        """Bring about what a variant wants before its first run; values of the whole variant."""

    async def run(self, variant: Variant, number: int) -> PlayedRun:
        """Play the timeline once, from whole to whole; numbers begin at 0.

        Raises:
            LabError, StepError, HeddleError, ControllerError, TimeoutError: it cannot be played
                to its end.
        """


class World(Protocol):
    """Virtual time, or real kernels."""

    worst: str
    """In words, what sets apart the run that is told in full."""

    def assumptions(self, scenario: Scenario) -> tuple[str, ...]:
        """What a reader of a report has to know of the world."""

    def open(self, scenario: Scenario, report: Report) -> AbstractContextManager[Session]:
        """Set up a scenario; whatever was set up is gone when the context is left."""

    async def close(self) -> None:
        """End what was kept from one scenario to the next."""


_FAILURES = (LabError, StepError, HeddleError, ControllerError, TimeoutError)
INTERRUPTED = "it was interrupted"


class DrillRunner:
    """Use as ``with``: plays drills one after the other, all in one event loop.

    Ctrl-C ends the run under way; whatever was started has ended when the runner is left.
    """

    def __init__(self, worlds: Mapping[str, World]) -> None:
        """Worlds by the names that files use; they are the runner's to close."""
        self._worlds = worlds
        self._loop = asyncio.Runner()
        self.verdicts: list[Verdict] = []
        """Of all drills so far; one that was interrupted says so."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._loop as loop:
            for world in self._worlds.values():
                loop.run(world.close())

    def play(
        self, scenario: Scenario, world: str, runs: int, report: Report = lambda _: None
    ) -> Verdict:
        """Play a drill so many times, and judge it."""
        played = _Playback(scenario, self._worlds[world], runs, report)
        begin, place = time.monotonic(), len(self.verdicts)
        self.verdicts.append(Verdict(scenario, world, {}, (), fault=INTERRUPTED))
        fault, findings = INTERRUPTED, judge(scenario, {})[:0]
        try:
            with played.world.open(scenario, report) as session:
                self._loop.run(played.all(session))
            fault, findings = "", judge(scenario, played.values)
        except _FAILURES as error:
            fault = str(error) or "it took too long"
        finally:
            self.verdicts[place] = Verdict(
                scenario,
                world,
                {} if fault else dict(played.values),
                findings,
                seconds=time.monotonic() - begin,
                fault=fault,
                stories=tuple(played.stories),
                assumptions=played.world.assumptions(scenario),
            )
        return self.verdicts[place]


class _Playback:
    """A drill being played."""

    def __init__(self, scenario: Scenario, world: World, runs: int, report: Report) -> None:
        self.scenario, self.world, self.runs, self.report = scenario, world, runs, report
        self.values: dict[MeasureKey, list[float]] = defaultdict(list)
        self.stories: list[Story] = []

    async def all(self, session: Session) -> None:
        """Every variant."""
        async with session:
            for variant in self.scenario.variants:
                await self._variant(session, variant)

    async def _variant(self, session: Session, variant: Variant) -> None:
        """So many runs; the worst of those that were made is told in any case."""
        name = f"{variant.name}: " if variant.name else ""
        self.report(f"{name}getting ready")
        self._note(variant, await session.prepare(variant))
        worst: tuple[PlayedRun, int] | None = None
        try:
            for number in range(self.runs):
                self.report(f"{name}run {number + 1} of {self.runs}")
                played = await session.run(variant, number)
                self._note(variant, played.values)
                if worst is None or played.badness > worst[0].badness:
                    worst = played, number
        finally:
            if worst is not None:
                story = worst[0].story(self._title(variant, worst[1]))
                self.stories.append(replace(story, variant=variant.name))

    def _note(self, variant: Variant, values: RunValues) -> None:
        for (measure, of), value in values.items():
            self.values[variant.name, measure, of].append(value)

    def _title(self, variant: Variant, number: int) -> str:
        which = f"run {number + 1} of {self.runs}, {self.world.worst}"
        which = "the only run" if self.runs == 1 else which
        return f"{variant.name}: {which}" if variant.name else which.capitalize()
