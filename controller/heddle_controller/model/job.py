"""What a scheduler submits: a job, its hosts in rank order, and its collectives."""

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
    """The parallelism whose groups of ranks take part in a collective together."""

    TP = "tp"
    PP = "pp"
    DP = "dp"
    CP = "cp"
    EP = "ep"
    WORLD = "world"


class Algorithm(StrEnum):
    """How a collective is carried out as point-to-point flows.

    AUTO is a ring, except for all-to-all (pairwise) and send/recv (next stage).
    """

    AUTO = "auto"
    RING = "ring"
    TREE = "tree"
    PAIRWISE = "pairwise"


_FLOW_OF_JOB = re.compile(r"([A-Za-z0-9._-]{1,63})/[^/]+/.*->", re.DOTALL)


def job_of_flow(flow: str) -> str:
    """Return the job in a flow id of the form "job/phase/source->destination", else ""."""
    found = _FLOW_OF_JOB.match(flow)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of communication that a job repeats."""

    operation: Operation
    group: Group
    bytes: int
    """Bytes that one rank contributes each time."""
    algorithm: Algorithm = Algorithm.AUTO
    overlap: bool = False
    """If set for any collective of a group, all collectives of that group run at the same time.
    Otherwise they take turns."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How ranks are divided: tp is innermost, then cp, dp, and pp outermost.

    ``ep`` divides ``cp * dp`` and adds no ranks. 0 means "not given", which counts as 1. Only dp
    then takes the ranks that remain.
    """

    tp: int = 0
    pp: int = 0
    dp: int = 0
    cp: int = 0
    ep: int = 0


Gpus = tuple[int, ...]
"""Numbers of GPUs of a host. Empty means the whole host."""


SUPPOSED = "the job that is asked about"
"""Name of a hypothetical job. No submitted job can have this name."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """How long a job computes and then communicates, in each of its iterations."""

    job: str
    compute_seconds: float
    network_seconds: float
    """Seconds of communication when no other job communicates. 0: as long as its bytes take."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its placement. Ranks are numbered host by host, and by GPU within each host."""

    name: str
    hosts: tuple[str, ...]
    gpus_per_host: int
    """GPUs that the job has on each host. 0 if the numbers differ."""
    parallelism: Parallelism = Parallelism()
    collectives: tuple[Collective, ...] = ()
    priority: float = 0.0
    """0 means not given; see ``traffic.jobs.priority_of``."""
    traffic_class: TrafficClass = TrafficClass.BANDWIDTH
    qps: int = 1
    gpus: tuple[Gpus, ...] = ()
    """GPUs of each host in rank order, if the job has only parts of hosts. If empty, it has whole
    hosts, and its ranks are GPUs 0 to ``gpus_per_host - 1`` of each."""
    suspended: bool = False
    """Whether the job is suspended: it keeps its hosts but has no flows."""
    flops_per_iteration: float = 0.0
    """Operations of all its GPUs in one round of its collectives. 0 means not given."""
    compute_seconds: float = 0.0
    """Seconds of computing between two rounds of its collectives. 0 means not given."""
    network_seconds: float = 0.0
    """Seconds of one such round when no other job communicates. 0 means not given."""

    @property
    def iteration(self) -> Iteration | None:
        """The job's iteration. None if ``compute_seconds`` is not given or it is suspended."""
        if self.suspended or not self.compute_seconds:
            return None
        return Iteration(self.name, self.compute_seconds, self.network_seconds)

    @property
    def label(self) -> str:
        """The job's name as error messages show it."""
        return self.name if self.name == SUPPOSED else f"job {self.name!r}"

    @property
    def counts(self) -> list[int]:
        """Number of ranks on each host."""
        if self.gpus:
            return [len(part) for part in self.gpus]
        return [self.gpus_per_host] * len(self.hosts)

    @property
    def rank_count(self) -> int:
        """Number of all ranks."""
        if self.gpus:
            return sum(map(len, self.gpus))
        return self.gpus_per_host * len(self.hosts)

    @property
    def held(self) -> dict[str, Gpus]:
        """GPUs that it holds of each host; empty for a whole host."""
        return held_of(self.hosts, self.gpus)

    def on(self, hosts: Sequence[str]) -> Job:
        """Return the same job with its hosts in another order."""
        held = self.held
        gpus = tuple(held[host] for host in hosts) if self.gpus else ()
        return replace(self, hosts=tuple(hosts), gpus=gpus)


def held_of(hosts: Sequence[str], gpus: Sequence[Gpus]) -> dict[str, Gpus]:
    """Map each host to the GPUs held of it; to () if ``gpus`` is empty, for whole hosts."""
    return dict(zip(hosts, gpus, strict=True)) if gpus else dict.fromkeys(hosts, ())


def common(one: Gpus, other: Gpus) -> Gpus | None:
    """Return the GPUs of one host that two holders share: () for all of it, None for nothing."""
    if not (one and other):
        return one or other
    return tuple(sorted(set(one).intersection(other))) or None


def besides(wanted: Gpus, had: Gpus | None) -> Gpus | None:
    """Return the GPUs of a host that are wanted and not held yet.

    () stands for the whole host. None means nothing: as ``had``, nothing is held; as the result,
    nothing more is wanted.
    """
    if had is None:
        return wanted
    if not (wanted and had):
        return wanted if had else None
    return tuple(gpu for gpu in wanted if gpu not in had) or None


MAX_NUMBER = 1e30
"""Numbers of a job that may be fractions, such as FLOPs, are below this."""
MAX_BYTES = 1 << 62
"""Bytes of a collective are below this."""


def in_use(wanted: Gpus, holders: Mapping[str, Gpus], but: str = "") -> tuple[str, str] | None:
    """Return a job that holds some of the GPUs wanted of a host, and a phrase about them.

    Args:
        wanted: GPUs of the host.
        holders: GPUs of the host that each job holds.
        but: Name of a job to ignore.

    Returns:
        The name of the job and a phrase such as "its GPUs 0-3 are in use", or None if no other
        job holds any of them.
    """
    for owner, theirs in holders.items():
        shared = None if owner == but else common(wanted, theirs)
        if shared is not None:
            return owner, f"{gpus_words(shared)}in use"
    return None


def gpus_words(gpus: Gpus) -> str:
    """Return "is " for a whole host, else a phrase such as "its GPUs 0-3, 6 are "."""
    if not gpus:
        return "is "
    return (
        f"its GPU{'s' if len(gpus) > 1 else ''} {gpu_ranges(gpus)} {'are' if gpus[1:] else 'is'} "
    )
