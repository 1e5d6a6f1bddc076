"""The runner of drills: plays every run of every variant of a scenario, in any world.

The runner counts runs, collects their values, keeps a full story of the worst run of each variant,
and judges the expectations. The world decides how a run is set up and played.
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
"""A function that is called with a short text about what is being done."""
RunValues = Mapping[tuple[str, str], float]
"""Values of one run by (measure, probe); the probe is "" for measures of the whole."""


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """The result of one run."""

    values: RunValues
    badness: tuple[float, ...]
    """How bad the run was. The run with the greatest value gets the story of its variant."""
    story: Callable[[str], Story]
    """Makes the full story of the run, given a title."""


class Session(Protocol):
    """One scenario that is set up in a world. Use it with ``async with``."""

    async def __aenter__(self) -> Self:
        """Connect to what was set up."""

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""

    async def prepare(self, variant: Variant) -> RunValues:
        """Set up a variant before its first run, and return values of the whole variant."""

    async def run(self, variant: Variant, number: int) -> PlayedRun:
        """Play the timeline once; the fabric is whole before and after. Runs count from 0.

        Raises:
            LabError, StepError, HeddleError, ControllerError, TimeoutError: the run cannot be
                played to its end.
        """


class World(Protocol):
    """A place where drills are played: virtual time, or real kernels."""

    worst: str
    """Describes in words the run that gets the story, such as "the one that lost most"."""

    def assumptions(self, scenario: Scenario) -> tuple[str, ...]:
        """Return sentences that a reader of a report must know about the world."""

    def open(self, scenario: Scenario, report: Report) -> AbstractContextManager[Session]:
        """Set up a scenario. Leaving the context removes everything that was set up."""

    async def close(self) -> None:
        """End everything that was kept from one scenario to the next."""


_FAILURES = (LabError, StepError, HeddleError, ControllerError, TimeoutError)
INTERRUPTED = "it was interrupted"


class DrillRunner:
    """Plays drills one after the other, all in one event loop. Use it with ``with``.

    Ctrl-C ends the run under way. Everything that was started has ended when the runner is left.
    """

    def __init__(self, worlds: Mapping[str, World]) -> None:
        """Take worlds by the names that files use. The runner closes them."""
        self._worlds = worlds
        self._loop = asyncio.Runner()
        self.verdicts: list[Verdict] = []
        """Verdicts of all drills so far. An interrupted drill has the fault ``INTERRUPTED``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._loop as loop:
            for world in self._worlds.values():
                loop.run(world.close())

    def play(
        self, scenario: Scenario, world: str, runs: int, report: Report = lambda _: None
    ) -> Verdict:
        """Play a drill with ``runs`` runs of each variant, and judge it."""
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
    """A drill that is being played."""

    def __init__(self, scenario: Scenario, world: World, runs: int, report: Report) -> None:
        self.scenario, self.world, self.runs, self.report = scenario, world, runs, report
        self.values: dict[MeasureKey, list[float]] = defaultdict(list)
        self.stories: list[Story] = []

    async def all(self, session: Session) -> None:
        """Play every variant."""
        async with session:
            for variant in self.scenario.variants:
                await self._variant(session, variant)

    async def _variant(self, session: Session, variant: Variant) -> None:
        """Play all runs of a variant. Even if one fails, the worst finished run gets its story."""
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
