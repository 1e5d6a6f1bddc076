"""What is asked about where a job may run, and what is answered.

Who asks loads this alone: what finds the answers loads SciPy and the solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

from heddle_controller.model.job import Gpus, Job
from heddle_controller.place.order import Hosts

EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class PlacementAsk:
    """A job that is to be placed, and where it may run."""

    job: Job
    """Its hosts are as many as it takes; which they are means nothing."""
    hosts: Hosts
    """Free hosts that may be taken, each in the fabric, in order."""
    most: int
    """Choices to give at most, besides the first fit."""
    same_zone: bool = False
    hosts_per_leaf: int = 0
    """At most so many below one leaf; 0: no limit."""
    isolated: bool = False
    """Whether no link may be shared with other jobs."""
    parts: Mapping[str, Gpus] = field(default_factory=dict)
    """The GPUs that it would have of each of the hosts; empty: whole hosts."""

    def on(self, hosts: Sequence[str]) -> Job:
        """The job on these hosts."""
        gpus = tuple(self.parts[host] for host in hosts) if self.parts else ()
        return replace(self.job, hosts=tuple(hosts), gpus=gpus)


@dataclass(frozen=True, slots=True)
class Choices:
    """Host sets in rank order."""

    first_fit: Hosts = ()
    """The first hosts by name that may be taken, in that order."""
    others: tuple[Hosts, ...] = ()
    """Best first, by cuts."""
    refused: str = ""
    """Why there is none, with the numbers."""


@dataclass(frozen=True, slots=True)
class Score:
    """How a job fares in a plan."""

    max_utilization: float = 0.0
    """Load over capacity of the worst link that its flows use; 1.0 is full."""
    slowest_flow: float = 1.0
    """Least part of what a flow asks for that it gets, 0 to 1."""
    seconds: float = 0.0
    """Time in the network of one round of its collectives in this plan; phases take turns."""
    least_seconds: float = 0.0
    """What cuts leave any plan; ``seconds`` where this one was made anew; 0: nobody has looked."""

    @property
    def expected_seconds(self) -> float:
        """The geometric mean of what this plan gives and what cuts leave any.

        A repaired plan may be far off what planning anew then makes of the same hosts, and cuts
        know nothing of paths: where choices differ, what comes in the end lies between the two.
        """
        return sqrt(self.seconds * self.least_seconds) if self.least_seconds else self.seconds

    @property
    def rank(self) -> tuple[float, float, float]:
        """Less is better: expected time, then the slowest flow, then the worst link."""
        return self.expected_seconds, -self.slowest_flow, self.max_utilization

    def no_worse_than(self, other: Score) -> bool:
        """Whether neither the expected time nor the worst link is worse."""
        return self.max_utilization <= other.max_utilization * (
            1 + EQUAL
        ) and self.expected_seconds <= other.expected_seconds * (1 + EQUAL)
