"""What a scheduler asks for: a job, its hosts in rank order, and its collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from heddle.gpus import gpu_ranges
from heddle_controller.model.flows import TrafficClass


class Operation(StrEnum):
    """A collective operation."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND_RECV = "send_recv"


class Group(StrEnum):
    """Which ranks take part in a collective together."""

    TP = "tp"
    PP = "pp"
    DP = "dp"
    CP = "cp"
    EP = "ep"
    WORLD = "world"


class Algorithm(StrEnum):
    """Which point-to-point flows a collective becomes.

    AUTO is a ring, except for all-to-all (pairwise) and send/recv (next stage).
    """

    AUTO = "auto"
    RING = "ring"
    TREE = "tree"
    PAIRWISE = "pairwise"


_FLOW_OF_JOB = re.compile(r"([A-Za-z0-9._-]{1,63})/[^/]+/.*->", re.DOTALL)


def job_of_flow(flow: str) -> str:
    """The job whose flow an id would be: "job/phase/source->destination"; empty for others."""
    found = _FLOW_OF_JOB.match(flow)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of communication that a job repeats."""

    operation: Operation
    group: Group
    bytes: int
    """Bytes one rank puts in, each time."""
    algorithm: Algorithm = Algorithm.AUTO
    overlap: bool = False
    """Whether the operations of its group run at once; they take turns otherwise."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How ranks are divided: tp innermost, then cp, dp, pp outermost.

    ``ep`` divides ``cp * dp`` and adds no ranks. 0 is "not given": 1, except for dp,
    which then takes the ranks that remain.
    """

    tp: int = 0
    pp: int = 0
    dp: int = 0
    cp: int = 0
    ep: int = 0


Gpus = tuple[int, ...]
"""GPUs of a host by their numbers; as what a job holds of a host, none stands for all of it."""


SUPPOSED = "the job that is asked about"
"""Name of a job that is only supposed: none that is submitted can have it."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """How long a job computes, and then communicates, over and over."""

    job: str
    compute_seconds: float
    network_seconds: float
    """Where nobody else communicates; 0: as long as its bytes take."""


@dataclass(frozen=True, slots=True)
class Job:
    """One placement. Ranks go over the hosts in order, and over the GPUs of each."""

    name: str
    hosts: tuple[str, ...]
    gpus_per_host: int
    """How many each host gives; 0 where hosts give different numbers."""
    parallelism: Parallelism = Parallelism()
    collectives: tuple[Collective, ...] = ()
    priority: float = 0.0
    """0: not told; see ``traffic.jobs.priority_of``."""
    traffic_class: TrafficClass = TrafficClass.BANDWIDTH
    qps: int = 1
    gpus: tuple[Gpus, ...] = ()
    """GPUs of each host, in rank order, where the job has parts of hosts. Empty: hosts are its own,
    and its ranks are GPUs 0 to ``gpus_per_host - 1`` of each."""
    suspended: bool = False
    """Whether it rests: it has its hosts, and no flows."""
    flops_per_iteration: float = 0.0
    """Of all its GPUs in one round of its collectives; 0: not told."""
    compute_seconds: float = 0.0
    """Between two rounds of its collectives; 0: not told."""
    network_seconds: float = 0.0
    """Of such a round, where nobody else communicates; 0: not told."""

    @property
    def iteration(self) -> Iteration | None:
        """What it repeats; None where that is not told, and while it rests."""
        if self.suspended or not self.compute_seconds:
            return None
        return Iteration(self.name, self.compute_seconds, self.network_seconds)

    @property
    def label(self) -> str:
        """As errors name it."""
        return self.name if self.name == SUPPOSED else f"job {self.name!r}"

    @property
    def counts(self) -> list[int]:
        """How many ranks each host has."""
        if self.gpus:
            return [len(part) for part in self.gpus]
        return [self.gpus_per_host] * len(self.hosts)

    @property
    def rank_count(self) -> int:
        """How many ranks there are."""
        if self.gpus:
            return sum(map(len, self.gpus))
        return self.gpus_per_host * len(self.hosts)

    @property
    def held(self) -> dict[str, Gpus]:
        """What it holds of each host."""
        return held_of(self.hosts, self.gpus)

    def on(self, hosts: Sequence[str]) -> Job:
        """The same with its hosts in another order."""
        held = self.held
        gpus = tuple(held[host] for host in hosts) if self.gpus else ()
        return replace(self, hosts=tuple(hosts), gpus=gpus)


def held_of(hosts: Sequence[str], gpus: Sequence[Gpus]) -> dict[str, Gpus]:
    """What is held of each host: ``gpus`` has one for each, or none at all."""
    return dict(zip(hosts, gpus, strict=True)) if gpus else dict.fromkeys(hosts, ())


def common(one: Gpus, other: Gpus) -> Gpus | None:
    """What two hold in common of one host: some GPUs, or all of it; None for nothing."""
    if not (one and other):
        return one or other
    return tuple(sorted(set(one).intersection(other))) or None


def besides(wanted: Gpus, had: Gpus | None) -> Gpus | None:
    """What is wanted of a host besides what is held of it already; None for nothing."""
    if had is None:
        return wanted
    if not (wanted and had):
        return wanted if had else None
    return tuple(gpu for gpu in wanted if gpu not in had) or None


def in_use(wanted: Gpus, holders: Mapping[str, Gpus], but: str = "") -> tuple[str, str] | None:
    """Which job has some of what is wanted of a host, and what of it, in words; None: nobody."""
    for owner, theirs in holders.items():
        shared = None if owner == but else common(wanted, theirs)
        if shared is not None:
            return owner, f"{gpus_words(shared)}in use"
    return None


def gpus_words(gpus: Gpus) -> str:
    """``is``, of a whole host; or ``its GPUs 0-3, 6 are``."""
    if not gpus:
        return "is "
    return (
        f"its GPU{'s' if len(gpus) > 1 else ''} {gpu_ranges(gpus)} {'are' if gpus[1:] else 'is'} "
    )
