"""What is asked about where a job may run, and what is answered.

Who asks loads this alone: what finds the answers loads SciPy and the solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from heddle_controller.model.job import Gpus, Job
from heddle_controller.place.order import Hosts

EQUAL = 1e-9
ALIKE = 0.01
"""Cuts tell no choices apart that differ by less."""
REACHED = 0.1
"""By how much longer a job may take than cuts leave any plan, for its plan to be about as good."""


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
    """The same after some quiet: in a plan, where ``settled``; else what cuts leave; 0: unknown."""
    settled: bool = False
    """Whether that plan was made, and not estimated by cuts."""

    @property
    def settled_seconds(self) -> float:
        """What is expected once plans were made anew, which they are after some quiet.

        A repaired plan may be far off that, and says little of it: what cuts leave says more.
        """
        return self.least_seconds or self.seconds

    def rank_beside(self, default: Score) -> tuple[int, float, float, float, float]:
        """Less is better: what is surely no worse than a default, the default, all else.

        Surely better is what cuts leave clearly less time, and no worse what has a plan already
        that is about as good as cuts allow. Of what else is alike to cuts, anew made plans decide,
        as it happens. Within each, what comes in the end counts first, then what is there at once.
        """
        sure = self.settled_seconds < default.settled_seconds * (
            1 - ALIKE
        ) or self.seconds <= self.settled_seconds * (1 + REACHED)
        return (
            0 if sure else 1 if self == default else 2,
            float(f"{self.settled_seconds:.6g}"),
            float(f"{self.seconds:.6g}"),
            -self.slowest_flow,
            self.max_utilization,
        )

    def better_than(self, other: Score) -> bool:
        """Whether less time comes in the end; and no more at once, if that is an estimate."""
        less = self.settled_seconds < other.settled_seconds * (1 - EQUAL)
        return less and (self.settled or self.seconds <= other.seconds * (1 + EQUAL))

    def no_worse_than(self, other: Score) -> bool:
        """Whether neither the time that comes in the end nor the worst link is worse."""
        return self.max_utilization <= other.max_utilization * (
            1 + EQUAL
        ) and self.settled_seconds <= other.settled_seconds * (1 + EQUAL)
