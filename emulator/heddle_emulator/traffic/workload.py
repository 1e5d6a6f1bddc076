"""What an iteration of a job consists of: computing, and exchanges between its ranks.

The named workloads follow published models and parallelism. Amounts are derived from the models'
shapes in the comments next to them. What was not published is an assumption and is marked as one,
such as how fast GPUs compute when no network delays them.

``workload_of`` makes a workload of a job as users write it: an iteration runs each of its
collectives once. The collectives take turns, as the controller assumes of phases. Collectives of a
group with overlap begin together, and if asked, all collectives run while the job computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from heddle_controller.model.arrays import Floats
from heddle_controller.model.errors import refuse
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.job import Algorithm, Collective, Group, Job, Operation, Parallelism
from heddle_controller.traffic.groups import group_size, implied_collectives, resolve_parallelism
from heddle_controller.traffic.patterns import phase_names, send_pattern
from heddle_emulator.traffic.matrix import most_sent

_MIB = 1 << 20
SLICES = 4
"""Slices of computing that collectives overlap with, if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One kind of communication of an iteration."""

    op: str
    """A name in ``collective.KINDS``, or in ``collective.STAGES`` between pipeline stages."""
    group: Group
    size: float
    """Bytes each time, counted as nccl-tests does."""
    times: float = 1.0
    """How often per iteration."""
    overlap: bool = False
    """Whether computing goes on meanwhile."""
    algorithm: str = ""
    matrix: Floats | None = field(default=None, compare=False)
    """Of an all-to-all: bytes by sender and receiver, which replace ``size``."""
    phase: str = ""
    """The name of its phase for planners; empty if that is the group's."""
    beside: bool = False
    """Whether it begins together with the exchange before it, not after it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An iteration, the same on every GPU."""

    what: str
    parallelism: Parallelism
    """The degrees without dp, which follows from the number of hosts."""
    seconds: float
    """Seconds of computing on each GPU."""
    exchanges: tuple[Exchange, ...]
    slices: int = 4
    """Number of slices of computing and communicating that an iteration is divided into."""
    traffic_class: TrafficClass = TrafficClass.BANDWIDTH
    phases: tuple[str, ...] = ()
    """Order in which planners number the flows of two NICs; empty means order of appearance."""

    def hosts(self, gpus_per_host: int) -> int:
        """Return the least number of hosts; the job may have any multiple of it.

        Raises:
            InputError: The degrees do not fill hosts with so many GPUs.
        """
        p = self.parallelism
        ranks = (p.tp or 1) * (p.pp or 1) * (p.cp or 1)
        if ranks % gpus_per_host and gpus_per_host % ranks:
            raise refuse("workload", "gpus", f"{gpus_per_host} a host do not divide {ranks} ranks")
        return max(1, ranks // gpus_per_host)


# Llama 3 405B: 126 layers, width 16,384, 8 key/value heads of 128, bfloat16 activations and
# weights, gradients summed in single precision.
_LAYERS, _WIDTH, _KV, _WEIGHTS = 126, 16384, 1024, 405e9
_TP, _PP = 8, 16
_STAGE_LAYERS = _LAYERS / _PP
KERNEL_FLOPS = 500e12
"""Assumed for an H100 in matrix products: between 400e12 as measured overall and the peak."""


def _llama3(sequence: int, batch: int, cp: int) -> Workload:
    """Return pre-training with ``batch`` sequences per replica, one per micro-batch."""
    part = sequence / cp
    activations = part * _WIDTH * 2
    weights = _WEIGHTS / (_TP * _PP)
    keys = sequence * _KV * 2 * 2 / _TP
    flops = 6 * _WEIGHTS * sequence * batch / (_TP * _PP * cp)
    # Two sums of activations per layer in the forward pass, two in the backward pass.
    exchanges = [Exchange("all_reduce", Group.TP, activations, 4 * _STAGE_LAYERS * batch)]
    if cp > 1:  # keys and values of a layer: forward, again backward, and gradients
        exchanges.append(Exchange("all_gather", Group.CP, keys, 3 * _STAGE_LAYERS * batch))
    exchanges += [
        Exchange("handon", Group.PP, activations / _TP, batch, overlap=True),
        Exchange("all_gather", Group.DP, weights * 2, overlap=True),
        Exchange("reduce_scatter", Group.DP, weights * 4, overlap=True),
    ]
    return Workload(
        f"Llama 3 405B, sequences of {sequence:,}, {batch} a replica",
        Parallelism(tp=_TP, pp=_PP, cp=cp),
        flops / KERNEL_FLOPS,
        tuple(exchanges),
    )


def _served() -> tuple[Workload, Workload]:
    """Return Llama 3 405B on two hosts: the prompt, and a token for each of 32 requests."""
    prompt, requests = 8192, 32
    gpus, memory = 16, 3.35e12
    flops = 2 * _WEIGHTS * prompt / gpus / KERNEL_FLOPS
    cache = prompt * _LAYERS * _KV * 2 * 2 / gpus
    prefill = Workload(
        "prefill of 8,192 tokens over two stages, its key/value cache sent on to a decoder",
        Parallelism(tp=8, pp=2),
        flops,
        (
            Exchange("all_reduce", Group.TP, prompt * _WIDTH * 2, _LAYERS),
            Exchange("handon", Group.PP, prompt * _WIDTH * 2 / 8),
            Exchange("sendrecv", Group.DP, cache, overlap=True),
        ),
    )
    decode = Workload(
        "decoding a token for 32 requests, tensors split over two hosts",
        Parallelism(tp=16),
        _WEIGHTS * 2 / gpus / memory,  # every weight is read once
        (Exchange("all_reduce", Group.TP, requests * _WIDTH * 2, 2 * _LAYERS, algorithm="tree"),),
        traffic_class=TrafficClass.LATENCY,
    )
    return prefill, decode


def _mixtral() -> Workload:
    """Return a mixture of experts with tokens for any GPU: 32 layers, width 4,096, two experts."""
    tokens, layers, width, active = 4096, 32, 4096, 12.9e9
    return Workload(
        "Mixtral 8x7B, 4,096 tokens a GPU, experts over all of them",
        Parallelism(),
        6 * active * tokens / KERNEL_FLOPS,
        # There and back, forward and backward, in every layer; two experts per token.
        (Exchange("alltoall", Group.WORLD, tokens * width * 2 * 2, 4 * layers),),
        slices=1,
    )


def _recommendation() -> Workload:
    """Return distributed embedding look-ups with replicated dense layers; sizes are assumed."""
    return Workload(
        "recommendation, embeddings over all GPUs, dense layers replicated",
        Parallelism(),
        0.020,
        (
            Exchange("alltoall", Group.WORLD, 64 * _MIB, 2),
            Exchange("all_reduce", Group.DP, 256 * _MIB, overlap=True),
        ),
        slices=1,
    )


WORKLOADS: dict[str, Workload] = {
    "llama3-8k": _llama3(8192, 32, 1),
    "llama3-16k": _llama3(8192, 16, 1),
    "llama3-131k": _llama3(131072, 16, 16),
    "llama3-prefill": _served()[0],
    "llama3-decode": _served()[1],
    "mixtral": _mixtral(),
    "recommendation": _recommendation(),
}


def by_matrix(matrix: Floats, seconds: float, *, overlap: bool = False) -> Workload:
    """Return an iteration of one all-to-all with the bytes of a matrix."""
    exchange = Exchange("alltoall", Group.WORLD, most_sent(matrix), overlap=overlap, matrix=matrix)
    return Workload(
        f"an all-to-all of {len(matrix)} ranks by a matrix",
        Parallelism(),
        seconds,
        (exchange,),
        slices=SLICES if overlap else 1,
    )


def workload(name: str, seconds: float | None = None) -> Workload:
    """Return a named workload, with another computing time if one is given.

    Raises:
        InputError: The name is not known.
    """
    if name not in WORKLOADS:
        raise refuse("workload", name, f"is not known; give one of {', '.join(WORKLOADS)}")
    found = WORKLOADS[name]
    return found if seconds is None else replace(found, seconds=seconds)


_OPS = {
    Operation.ALL_REDUCE: "all_reduce",
    Operation.ALL_GATHER: "all_gather",
    Operation.REDUCE_SCATTER: "reduce_scatter",
    Operation.BROADCAST: "broadcast",
    Operation.ALL_TO_ALL: "alltoall",
    Operation.SEND_RECV: "sendrecv",
}
_WAYS = {Algorithm.TREE: "tree", Algorithm.PAIRWISE: "mesh"}
"""Algorithms that differ from the default of an operation."""
_ONE_WAY = {Operation.ALL_TO_ALL, Operation.SEND_RECV}


def workload_of(job: Job, seconds: float, *, overlap: bool = False) -> Workload:
    """Return a job that computes so long per iteration, its collectives in turns or all at once.

    Raises:
        InputError: Its parallelism does not fit its hosts.
    """
    parallelism = resolve_parallelism(job)
    asked = job.collectives or implied_collectives(parallelism)
    names = phase_names(asked)
    exchanges = [
        replace(
            _exchange(one, group_size(parallelism, one.group), overlap),
            phase=names[send_pattern(one)],
            beside=beside,
        )
        for one, beside in _in_turns(asked)
    ]
    return Workload(
        job.name,
        parallelism,
        seconds,
        tuple(exchanges),
        slices=SLICES if overlap else 1,
        traffic_class=job.traffic_class,
        phases=tuple(dict.fromkeys(names.values())),
    )


def _in_turns(asked: Sequence[Collective]) -> Iterator[tuple[Collective, bool]]:
    """Yield collectives in order, and whether each begins together with the one before.

    All collectives of a group with overlap begin at the place of the group's first one.
    """
    begun: set[Group] = set()
    at_once = {one.group for one in asked if one.overlap}
    for one in asked:
        if one.group in at_once:
            at_once.remove(one.group)
            own = [other for other in asked if other.group is one.group]
            yield from ((other, number > 0) for number, other in enumerate(own))
            begun.add(one.group)
        elif one.group not in begun:
            yield one, False


def _exchange(asked: Collective, members: int, overlap: bool) -> Exchange:  # noqa: FBT001
    op, way = _OPS[asked.operation], _WAYS.get(asked.algorithm, "")
    if asked.operation is Operation.SEND_RECV and asked.group is Group.PP:
        op = "handround" if asked.algorithm is Algorithm.RING else "handon"
    # Jobs count an all-gather by what a rank puts in, exchanges by what comes out.
    size = asked.bytes * (members if asked.operation is Operation.ALL_GATHER else 1)
    way = "" if asked.operation in _ONE_WAY else way
    return Exchange(op, asked.group, size, overlap=overlap, algorithm=way)
