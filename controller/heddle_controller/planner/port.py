"""What the rest of the controller asks of the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle_controller.model.job import Iteration, Job
from heddle_controller.model.plan import Certificate, Plan, Turn
from heddle_controller.place.ask import Choices, PlacementAsk, Score
from heddle_controller.plan.what_if import Comparison
from heddle_controller.planner.planning import Planned
from heddle_controller.state.errors import PortError
from heddle_controller.state.records import Intent


class PlanningFailed(Exception):  # noqa: N818 - what failed is the planning, not the planner
    """No plan can be made of what was asked; the text says why."""


class PlannerLost(PortError):  # noqa: N818 - named for what happened, as its kin are
    """The planning process ended before it answered; another takes its place."""

    retry_after = 1.0
    """Seconds, a hint."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the planning process {why}; another takes its place: try again")


@dataclass(frozen=True, slots=True, eq=False)
class PlanAnswer:
    """What planning an intent came to."""

    planned: Planned | None
    """None where the plan that stands is for just this intent."""
    refused: tuple[tuple[str, str], ...]
    """Jobs, by name, and demand sets, as no job can be named, that cannot be had, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """The plans of an intent and of a supposed one."""

    before: Plan
    after: Plan
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job that comes does to one that runs."""

    job: str
    before: Score
    after: Score


@dataclass(frozen=True, slots=True)
class Trial:
    """How a job would fare on its hosts in their order, and what that would do to others."""

    score: Score
    costs: tuple[Cost, ...]
    """Of jobs whose time in the network would grow, those that suffer most first."""
    slowed_jobs: int
    """How many such jobs there are; ``costs`` may name fewer."""
    cross_zone_gbps: float
    """What it sends between zones, in the phase that sends most there."""
    shares_links: bool
    """Whether some link would carry flows of it and of others."""
    fullest_link: str
    """The worst link that its flows use; empty where they use none."""
    final: bool
    """Whether this is what comes of it at once; else others might make room."""


class Planner(Protocol):
    """Plans. Each call may raise ``PlanningFailed`` and ``PlannerLost``."""

    async def plan(self, intent: Intent, standing: Plan | None) -> PlanAnswer:
        """A plan of an intent that follows the plan that stands, if there is one.

        The repair of what is answered is made ready afterwards.
        """
        ...

    async def prepare(self, fabric: str, standing: Plan) -> None:
        """Have the repair of a plan that was not made here ready before it is needed."""
        ...

    async def certify(self, fabric: str, standing: Plan) -> Certificate:
        """The certificate of a plan, with what any single loss does to it; soon after a change."""
        ...

    async def reoptimise(
        self, fabric: str, standing: Plan, worth_moving: float
    ) -> Planned | Certificate | None:
        """A plan that is better by so much for the same input; or else a better bound for it."""
        ...

    async def turns(
        self, fabric: str, standing: Plan, iterations: Sequence[Iteration]
    ) -> tuple[Turn, ...]:
        """When jobs of a plan had best begin their iterations."""
        ...

    async def what_if(self, intent: Intent, supposed: Intent, standing: Plan | None) -> WhatIf:
        """What would be planned for a supposed intent, beside the plan that stands.

        Where none stands, beside the plan that ``intent`` would have.
        """
        ...

    async def choose(self, intent: Intent, ask: PlacementAsk, standing: Plan | None) -> Choices:
        """Host sets that a job could have beside the jobs of an intent, weighed by cuts."""
        ...

    async def try_job(
        self,
        intent: Intent,
        job: Job,
        standing: Plan | None,
        *,
        settled: bool = False,
        hasty: bool = False,
    ) -> Trial:
        """How a job on its hosts would fare, by the plan of it and the other jobs of an intent.

        ``settled``: also by that which there is after some quiet, unless flows are too many.
        ``hasty``: flows of other jobs stay where they are, if that saves time.
        """
        ...
