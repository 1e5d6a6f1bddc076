"""Questions about where a job could run, and their answers.

A caller imports only this module. The modules that find the answers load SciPy and the solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from heddle_controller.model.job import Gpus, Job
from heddle_controller.place.order import Hosts

EQUAL = 1e-9
ALIKE = 0.2
"""Relative difference in time below which cuts cannot tell which of two choices is better. Plans
made from scratch often take twice as long as cuts allow, and sometimes five times."""
REACHED = 0.1
"""Share by which a job may take longer than cuts allow while its plan still counts as good."""


@dataclass(frozen=True, slots=True)
class PlacementAsk:
    """A job to be placed, and where it may run."""

    job: Job
    """The job. Only the number of its hosts matters, not which they are."""
    hosts: Hosts
    """Free hosts that may be taken, in order. All are in the fabric."""
    most: int
    """Most choices to return besides the first fit."""
    same_zone: bool = False
    """Whether all hosts must be in one zone."""
    hosts_per_leaf: int = 0
    """Most hosts below one leaf; 0 means no limit."""
    isolated: bool = False
    """Whether the job may share no link with other jobs."""
    parts: Mapping[str, Gpus] = field(default_factory=dict)
    """The GPUs that the job would get of each host. Empty means whole hosts."""

    @property
    def is_narrow(self) -> bool:
        """Whether something else than being free decides which hosts may be taken together."""
        return self.same_zone or self.isolated or self.hosts_per_leaf > 0

    def on(self, hosts: Sequence[str]) -> Job:
        """Return the job on the given hosts."""
        gpus = tuple(self.parts[host] for host in hosts) if self.parts else ()
        return replace(self.job, hosts=tuple(hosts), gpus=gpus)


@dataclass(frozen=True, slots=True)
class Choices:
    """Sets of hosts, each in rank order."""

    first_fit: Hosts = ()
    """The first hosts that may be taken, in the order of ``PlacementAsk.hosts``."""
    others: tuple[Hosts, ...] = ()
    """Other choices, best first as estimated by cuts."""
    refused: str = ""
    """Why there is no choice, with the numbers; empty if there is one."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a job gets from the network in a plan."""

    max_utilization: float = 0.0
    """Load over capacity of the worst link that its flows use; 1.0 is full."""
    slowest_flow: float = 1.0
    """Smallest part of its demand that one of its flows gets, 0 to 1."""
    seconds: float = 0.0
    """Network time of one round of its collectives in this plan. Phases follow one another."""
    least_seconds: float = 0.0
    """Network time once plans are made from scratch after some quiet; 0 if unknown.

    It is from such a plan if ``settled``, otherwise the least time that cuts allow.
    """
    settled: bool = False
    """Whether ``least_seconds`` is from a plan that was made, and not estimated by cuts."""

    @property
    def settled_seconds(self) -> float:
        """The network time to expect after some quiet, once plans are made from scratch.

        A repaired plan may be far worse and is a poor guide to it. What cuts allow is a better one.
        """
        return self.least_seconds or self.seconds

    def rank_beside(self, default: Score) -> tuple[int, float, float, float, float]:
        """Return a key to sort scores by, less is better, that prefers ``default`` in doubt.

        First come scores that are surely no worse than the default, then the default, then all
        others. A score is surely better if the time that cuts allow is clearly less (``ALIKE``). It
        is surely no worse if the present plan is about as good as cuts allow (``REACHED``). For all
        others cuts cannot tell, and chance decides how plans made from scratch turn out. Within
        each group the expected time counts first, then the present time, slowest flow and worst
        link.
        """
        less = self.settled_seconds < default.settled_seconds * (1 - ALIKE)
        sure = less or self.seconds <= self.settled_seconds * (1 + REACHED)
        return (
            0 if sure else 1 if self == default else 2,
            float(f"{self.settled_seconds:.6g}"),
            float(f"{self.seconds:.6g}"),
            -self.slowest_flow,
            self.max_utilization,
        )

    def better_than(self, other: Score) -> bool:
        """Whether the expected time is less.

        If that time is only an estimate, the present time must also be no more.
        """
        less = self.settled_seconds < other.settled_seconds * (1 - EQUAL)
        return less and (self.settled or self.seconds <= other.seconds * (1 + EQUAL))

    def no_worse_than(self, other: Score) -> bool:
        """Whether neither the expected time nor the worst link is worse."""
        return self.max_utilization <= other.max_utilization * (
            1 + EQUAL
        ) and self.settled_seconds <= other.settled_seconds * (1 + EQUAL)
