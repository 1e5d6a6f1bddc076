"""A world as a drill sees it: what plays a scenario, and what comes of one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from heddle_emulator.drill.scenario import Scenario, Variant
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""

    async def prepare(self, variant: Variant) -> RunValues:
        """Bring about what a variant wants before its first run; values of the whole variant."""

    async def run(self, variant: Variant, number: int) -> PlayedRun:
        """Play the timeline once, from whole to whole; numbers begin at 0.

        Raises:
            LabError, StepError, ClientError, ControllerError, TimeoutError: it cannot be played
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
