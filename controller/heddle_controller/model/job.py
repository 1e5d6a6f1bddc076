"""What a scheduler asks for: a job, its hosts in rank order, and its collectives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

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

    AUTO is a ring, save for all-to-all (pairwise) and send/recv (next stage).
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

    ``ep`` divides ``cp * dp`` and adds no ranks. 0 is "not given": 1, save for dp,
    which then takes the ranks that remain.
    """

    tp: int = 0
    pp: int = 0
    dp: int = 0
    cp: int = 0
    ep: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One placement. Rank ``r`` is GPU ``r % gpus_per_host`` of host ``r // gpus_per_host``."""

    name: str
    hosts: tuple[str, ...]
    gpus_per_host: int
    parallelism: Parallelism = Parallelism()
    collectives: tuple[Collective, ...] = ()
    priority: float = 1.0
    traffic_class: TrafficClass = TrafficClass.BANDWIDTH
    qps: int = 1
