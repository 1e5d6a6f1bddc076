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
    """The question could not be answered with a plan; the text says why."""


class PlannerLost(PortError):  # noqa: N818 - named for what happened, as its kin are
    """The planning process ended before it answered. Another one takes its place."""

    retry_after = 1.0
    """Seconds after which callers should try again; a hint."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the planning process {why}; another takes its place: try again")


@dataclass(frozen=True, slots=True, eq=False)
class PlanAnswer:
    """The result of planning an intent."""

    planned: Planned | None
    """The new plan; None if the current plan answers this intent already."""
    refused: tuple[tuple[str, str], ...]
    """Jobs and demand sets that no plan can hold, and why. A job is given by its name, a demand set
    by a text that no job can have as its name."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """The current plan and that of a supposed intent, with their comparison."""

    before: Plan
    after: Plan
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Cost:
    """How a new job changes the score of a running one."""

    job: str
    before: Score
    after: Score


@dataclass(frozen=True, slots=True)
class Trial:
    """How a job would fare on its hosts in this order, and what that would do to other jobs."""

    score: Score
    costs: tuple[Cost, ...]
    """Jobs whose time in the network would grow, those that suffer most first."""
    slowed_jobs: int
    """How many such jobs there are; ``costs`` may name fewer."""
    cross_zone_gbps: float
    """Gbit/s that the job sends between zones, in the phase that sends most there."""
    shares_links: bool
    """Whether some link would carry flows of the job and of others."""
    fullest_link: str
    """Name of the fullest link that its flows use; empty if they use none."""
    leaf_count: int
    """Number of leaves that its hosts are attached to."""
    final: bool
    """Whether the plan is the one that would be made at once; else flows of others might move."""


class Advisor(Protocol):
    """Answers questions about plans; nothing comes of them.

    Each call may raise ``PlanningFailed`` and ``PlannerLost``. ``standing`` is the current plan.
    """

    async def prepare(self, fabric: str, standing: Plan) -> None:
        """Prepare to repair a plan that this planner did not make, before that is needed."""
        ...

    async def what_if(self, intent: Intent, supposed: Intent, standing: Plan | None) -> WhatIf:
        """Return the plan that a supposed intent would have, compared with the current plan.

        Without a current plan, it is compared with the plan that ``intent`` would have.
        """
        ...

    async def choose(self, intent: Intent, ask: PlacementAsk, standing: Plan | None) -> Choices:
        """Return host sets for a job beside the jobs of an intent, ranked by cuts."""
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
        """Return how a job would fare on its hosts beside the other jobs of an intent.

        Args:
            intent: The intent without the job, or with the job as it is now.
            job: The job on the hosts to try.
            standing: The current plan, or None.
            settled: Whether to score the plan after some quiet too.
            hasty: Whether flows of other jobs stay where they are, if that saves time.
        """
        ...


class Planner(Advisor, Protocol):
    """Makes plans, and answers questions about them. Its calls raise what those of advisors do."""

    async def plan(
        self, intent: Intent, standing: Plan | None, newest: Plan | None = None
    ) -> PlanAnswer:
        """Return a verified plan for an intent, made from the current plan if there is one.

        If it is made from an earlier plan instead, ``newest`` is the current one: flows that the
        earlier plan lacks begin on the paths that they have in it.

        Afterwards, the planner prepares to repair the new plan.
        """
        ...

    async def certify(self, fabric: str, standing: Plan) -> Certificate:
        """Return the plan's certificate with the effect of single losses, soon after a change."""
        ...

    async def reoptimise(
        self, fabric: str, standing: Plan, worth_moving: float
    ) -> Planned | Certificate | None:
        """Return a better plan for the same input, or else a better certificate of this plan.

        A plan made from scratch is better if it wins by the share ``worth_moving``. If not, the
        plan may get other backups. None if nothing better was found.
        """
        ...

    async def turns(
        self, fabric: str, standing: Plan, iterations: Sequence[Iteration]
    ) -> tuple[Turn, ...]:
        """Return when jobs of a plan should begin their iterations, for jobs that gain by it."""
        ...
