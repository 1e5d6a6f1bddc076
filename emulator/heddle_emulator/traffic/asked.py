"""Jobs as users write them, as workloads: an iteration runs each of their collectives once.

Its collectives take turns, as the controller
assumes of its phases, and those of a group that says so go on at once; or all do, while it
computes, if that is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from heddle_controller.model.job import Algorithm, Collective, Group, Job, Operation
from heddle_controller.traffic.groups import group_size, implied_collectives, resolve_parallelism
from heddle_controller.traffic.phases import phase_names, send_pattern
from heddle_emulator.traffic.workload import SLICES, Exchange, Workload

_OPS = {
    Operation.ALL_REDUCE: "all_reduce",
    Operation.ALL_GATHER: "all_gather",
    Operation.REDUCE_SCATTER: "reduce_scatter",
    Operation.BROADCAST: "broadcast",
    Operation.ALL_TO_ALL: "alltoall",
    Operation.SEND_RECV: "sendrecv",
}
_WAYS = {Algorithm.TREE: "tree", Algorithm.PAIRWISE: "mesh"}
"""Where they differ from what an operation is done by anyway."""
_ONE_WAY = {Operation.ALL_TO_ALL, Operation.SEND_RECV}


def workload_of(job: Job, seconds: float, *, overlap: bool = False) -> Workload:
    """A job that computes for so long in an iteration, its collectives in turns or all at once.

    Raises:
        InputError: its parallelism does not fit its hosts.
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
    """Collectives in order, and whether each begins with the one before.

    Those of a group that overlap all begin where the first of them stands.
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
    # An all-gather is counted by what a rank puts in there, by what comes out here.
    size = asked.bytes * (members if asked.operation is Operation.ALL_GATHER else 1)
    way = "" if asked.operation in _ONE_WAY else way
    return Exchange(op, asked.group, size, overlap=overlap, algorithm=way)
