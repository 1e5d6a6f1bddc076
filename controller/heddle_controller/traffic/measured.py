"""A job's collectives as they were measured beside what the job tells: pure.

A communicator is one of the job's groups if it has as many ranks, on as many hosts; where two kinds
of group have the same, somebody has to say which is meant. Communicators on one host load no
network, and need be none of the job's. All others must be: what nobody can place is an error, as
the rest would be wrong without it.

What a collective moves each time is the mean of its calls; with the number of iterations that were
recorded, it is what all its calls moved, divided by that. A framework that sends gradients in
twenty buckets makes twenty calls of what a job tells as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.traffic.groups import implied_collectives, rank_groups, resolve_parallelism
from heddle_controller.traffic.inspector import Call, CallSums, Sum, bus_factor
from heddle_controller.traffic.jobs import host_of_ranks

FUNCTIONS = {
    "AllReduce": (Operation.ALL_REDUCE,),
    "AllGather": (Operation.ALL_GATHER,),
    "ReduceScatter": (Operation.REDUCE_SCATTER,),
    "Broadcast": (Operation.BROADCAST,),
    "Send": (Operation.SEND_RECV, Operation.ALL_TO_ALL),
}
"""What each function of NCCL may be of a job; an all-to-all is sends to all others."""
OTHER_HALF = {"Recv"}
"""Functions that say again what others say."""
LEFT_OUT = "none"
"""Instead of a kind of group: a communicator that is to be left out."""


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """One collective of a job."""

    told: Collective
    bytes: int | None
    """As measured; None where nothing was."""
    calls: int = 0
    """Of all ranks; 0 where nobody counted."""
    bus_gbps: float = 0.0
    """Bus bandwidth while it ran, in Gbit/s, as nccl-tests reckon it."""


def collectives_of(job: Job) -> tuple[Collective, ...]:
    """Those that the job tells, or that its parallelism implies."""
    return job.collectives or implied_collectives(resolve_parallelism(job))


def compare_measured(
    job: Job, measured: CallSums, kinds: Mapping[str, str], iterations: int = 0
) -> tuple[MeasuredCollective, ...]:
    """Each collective of a job, as measured.

    Args:
        job: As it is planned.
        measured: What NCCL Inspector told of one run of it.
        kinds: Kind of group by communicator, its name or its id, or ``LEFT_OUT``; others are found
            by their ranks and hosts.
        iterations: That were recorded; 0: not known.

    Raises:
        InputError: a communicator that is none of the job's, or may be of several kinds; a function
            that the job does not have there; sizes that do not say what one iteration moves.
    """
    told = collectives_of(job)
    placed, problems = _placed(job, told, measured, kinds)
    found = []
    for place in dict.fromkeys((one.operation, one.group) for one in told):
        several = [one for one in told if (one.operation, one.group) == place]
        calls = placed.get(place, {})
        if not calls:
            found += [(one, MeasuredCollective(one, None)) for one in several]
            continue
        why = _unclear(several, calls, iterations)
        if why:
            problems.append(Problem(f"{place[0]} of {place[1]}", why))
            continue
        found += _sized(place[0], several, calls, iterations)
    if not measured or (not placed and not problems):
        problems.append(Problem("", "no call of a collective of the job was measured"))
    if problems:
        raise InputError(job.label, *problems[:MAX_PROBLEMS])
    return tuple(one for _, one in sorted(found, key=lambda pair: _row(told, pair[0])))


def corrected(told: Iterable[MeasuredCollective]) -> tuple[Collective, ...]:
    """The collectives of a job with the bytes that were measured."""
    return tuple(
        one.told if one.bytes is None else replace(one.told, bytes=one.bytes) for one in told
    )


def _row(told: Sequence[Collective], one: Collective) -> int:
    return next(row for row, other in enumerate(told) if other is one)


_Place = tuple[Operation, Group]


def _placed(
    job: Job, told: Sequence[Collective], measured: CallSums, kinds: Mapping[str, str]
) -> tuple[dict[_Place, CallSums], list[Problem]]:
    """Calls by collective of the job, and what cannot be placed."""
    shapes = _shapes(job, resolve_parallelism(job), {one.group for one in told})
    placed: dict[_Place, CallSums] = defaultdict(dict)
    problems: dict[str, Problem] = {}
    for call, total in measured.items():
        if call.function in OTHER_HALF or call.rank_count == 1:
            continue
        kind = kinds.get(call.name) or kinds.get(call.communicator)
        if kind == LEFT_OUT:
            continue
        groups = [g for g in shapes if (kind is None or g == kind) and _fits(shapes[g], call)]
        wanted = FUNCTIONS.get(call.function, ())
        places = [
            (one.operation, one.group)
            for one in told
            if one.group in groups and one.operation in wanted
        ]
        place = {*places}
        if len(place) == 1:
            placed[place.pop()][call] = total
        elif call.node_count > 1 or kind is not None:
            problems.setdefault(_label(call), Problem(_label(call), _why_not(call, groups, place)))
    return placed, list(problems.values())


def _label(call: Call) -> str:
    named = f" {call.name!r}" if call.name != "unknown" else ""
    return f"communicator {call.communicator}{named}, {call.function}"


def _why_not(call: Call, groups: Sequence[Group], places: set[_Place]) -> str:
    size = f"{call.rank_count} ranks on {call.node_count} hosts"
    name = call.name if call.name != "unknown" else call.communicator
    if places:
        kinds = " or ".join(sorted({group.value for _, group in places}))
        return f"has {size}, and may be {kinds}: say which by --communicator '{name}=KIND'"
    leave_out = f"leave it out by --communicator '{name}={LEFT_OUT}'"
    if not groups:
        return f"has {size}, and no group of the job has; {leave_out}"
    kinds = " or ".join(group.value for group in groups)
    return f"is of {kinds}, where the job tells of no such operation; tell it, or {leave_out}"


def _shapes(
    job: Job, parallelism: Parallelism, kinds: Iterable[Group]
) -> dict[Group, tuple[int, frozenset[int]]]:
    """Ranks of the groups of each kind, and on how many hosts they are."""
    hosts = host_of_ranks(job)
    shapes = {}
    for kind in Group:
        if kind in set(kinds):
            groups = np.sort(hosts[rank_groups(parallelism, kind)], axis=1)
            spans = 1 + (np.diff(groups, axis=1) != 0).sum(axis=1)
            shapes[kind] = groups.shape[1], frozenset(spans.tolist())
    return shapes


def _fits(shape: tuple[int, frozenset[int]], call: Call) -> bool:
    return call.rank_count == shape[0] and call.node_count in shape[1]


def _unclear(several: Sequence[Collective], calls: CallSums, iterations: int) -> str:
    """Why calls do not say what one time moves; empty where they do."""
    counted = all(total.calls for total in calls.values())
    if not counted:
        if iterations:
            return "text for Prometheus does not count calls: --iterations takes JSON"
        if any(len(_rounded(total.sizes)) > 1 for total in calls.values()):
            return "comes in several sizes, and text for Prometheus does not count them: give JSON"
    if len(several) > 1 and not iterations:
        return f"the job tells it {len(several)} times: say how many iterations, by --iterations"
    return ""


def _rounded(sizes: Iterable[float]) -> set[int]:
    """Sizes apart by more than rounding; the mean of a bandwidth has an error of its own."""
    return {round(np.log2(size) * 4) for size in sizes if size > 0}


def _sized(
    operation: Operation, several: Sequence[Collective], calls: CallSums, iterations: int
) -> Iterator[tuple[Collective, MeasuredCollective]]:
    """The collectives of one operation and group, each with its part of what was measured."""
    size = _each_time(operation, calls, iterations)
    told = sum(one.bytes for one in several)
    seconds = sum(total.seconds for total in calls.values())
    carried = sum(
        total.bytes * bus_factor(call.function, call.rank_count) for call, total in calls.items()
    )
    rate = carried * 8e-9 / seconds if seconds > 0 else 0.0
    count = sum(total.calls for total in calls.values())
    for one in several:
        part = max(1, round(size * one.bytes / told))
        yield one, MeasuredCollective(one, part, count, rate)


def _each_time(operation: Operation, calls: CallSums, iterations: int) -> float:
    """Bytes that one rank puts in each time: into a collective, or to a neighbour."""
    whole = operation is Operation.ALL_TO_ALL
    units: dict[tuple[str, int, int], list[tuple[Call, Sum]]] = defaultdict(list)
    for call, total in calls.items():
        units[call.communicator, call.rank, -1 if whole else call.peer].append((call, total))
    sizes = [_of_unit(unit, iterations, whole=whole) for unit in units.values()]
    return float(np.mean(sizes))


def _of_unit(unit: Sequence[tuple[Call, Sum]], iterations: int, *, whole: bool) -> float:
    """Of one rank, or of one rank and one peer."""
    ranks, peers = unit[0][0].rank_count, len({call.peer for call, _ in unit})
    moved = sum(total.bytes for _, total in unit)
    times = iterations or sum(total.calls or len(total.sizes) for _, total in unit) / peers
    if not whole:
        return moved / times
    if unit[0][0].peer < 0:  # the mean of one send to one of them
        return moved / times * ranks
    return moved / times * ranks / (ranks - 1)
