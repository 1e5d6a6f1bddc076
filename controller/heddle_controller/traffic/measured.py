"""Compares the collectives that a job states with measured ones. All functions are pure.

A communicator is one of the job's groups if it has as many ranks on as many hosts. If two kinds of
group have the same numbers, the user has to say which one is meant. Communicators on one host put
no load on the network and need not belong to the job. All others must: one that belongs nowhere is
an error, because the rest would be wrong without it.

The bytes of a collective are the mean of its calls. If the number of recorded iterations is known,
they are the bytes of all calls divided by that number. For example, a framework that sends
gradients in twenty buckets makes twenty calls where a job states one collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.job import (
    MAX_BYTES,
    Collective,
    Group,
    Job,
    Operation,
    Parallelism,
)
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
"""The operations of a job that each NCCL function may belong to. An all-to-all is sends to all."""
OTHER_HALF = {"Recv"}
"""Functions that are the other end of others, and are ignored."""
LEFT_OUT = "none"
"""Stands in place of a kind of group for a communicator that is to be left out."""


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """One collective of a job, and what was measured of it."""

    told: Collective
    """The collective as the job states or implies it."""
    bytes: int | None
    """Measured bytes that one rank puts in; None if nothing was measured."""
    calls: int = 0
    """Measured calls of all ranks; 0 if calls were not counted."""
    bus_gbps: float = 0.0
    """Bus bandwidth while it ran, in Gbit/s, as nccl-tests compute it."""


def collectives_of(job: Job) -> tuple[Collective, ...]:
    """Return the collectives that a job states, or those that its parallelism implies."""
    return job.collectives or implied_collectives(resolve_parallelism(job))


def compare_measured(
    job: Job, measured: CallSums, kinds: Mapping[str, str], iterations: int = 0
) -> tuple[MeasuredCollective, ...]:
    """Return what was measured of each collective of a job, in the order of the job.

    Args:
        job: The job as it is planned.
        measured: What NCCL Inspector recorded of one run of the job.
        kinds: The kind of group, or ``LEFT_OUT``, of communicators, by name or id. The kind of all
            others is found from their ranks and hosts.
        iterations: Number of recorded iterations; 0 if it is not known.

    Raises:
        InputError: a communicator belongs to no group of the job or to several kinds, one of
            ``kinds`` was not measured, a communicator runs a function that the job does not have
            there, the sizes do not say what one iteration moves or are too large for a job, or
            nothing was measured.
    """
    told = collectives_of(job)
    placed, problems = _placed(job, told, measured, kinds)
    names = {name for call in measured for name in (call.name, call.communicator)}
    for name in sorted(kinds.keys() - names):
        problems.append(Problem(f"communicator {name!r}", "none of that name was measured"))
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
        sized = [*_sized(place[0], several, calls, iterations)]
        found += sized
        if (most := max(row.bytes or 0 for _, row in sized)) >= MAX_BYTES:
            why = f"moved {most} bytes; a job's are below {MAX_BYTES}"
            problems.append(Problem(f"{place[0]} of {place[1]}", why))
    if not measured or (not placed and not problems):
        problems.append(Problem("", "no call of a collective of the job was measured"))
    if problems:
        raise InputError(job.label, *problems[:MAX_PROBLEMS])
    return tuple(one for _, one in sorted(found, key=lambda pair: _row(told, pair[0])))


def corrected(told: Iterable[MeasuredCollective]) -> tuple[Collective, ...]:
    """Return the collectives of a job with the bytes that were measured."""
    return tuple(
        one.told if one.bytes is None else replace(one.told, bytes=one.bytes) for one in told
    )


def _row(told: Sequence[Collective], one: Collective) -> int:
    return next(row for row, other in enumerate(told) if other is one)


_Place = tuple[Operation, Group]


def _placed(
    job: Job, told: Sequence[Collective], measured: CallSums, kinds: Mapping[str, str]
) -> tuple[dict[_Place, CallSums], list[Problem]]:
    """Return the calls by collective of the job, and a problem for all that belong nowhere."""
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
    """Return for each kind of group its number of ranks, and how many hosts its groups span."""
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
    """Return why calls do not say what one collective moves; empty if they do."""
    if not any(total.bytes for total in calls.values()):
        return "its calls moved no bytes; measure iterations in which they do"
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
    """Return classes of sizes, a quarter of a doubling wide, so that small errors do not count.

    Sizes that follow from a mean bandwidth are not exact.
    """
    return {round(np.log2(size) * 4) for size in sizes if size > 0}


def _sized(
    operation: Operation, several: Sequence[Collective], calls: CallSums, iterations: int
) -> Iterator[tuple[Collective, MeasuredCollective]]:
    """Yield the collectives of one operation and group, each with its part of what was measured."""
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
    """Return the bytes that one rank puts into a collective, or sends to a neighbour, each time."""
    whole = operation is Operation.ALL_TO_ALL
    units: dict[tuple[str, int, int], list[tuple[Call, Sum]]] = defaultdict(list)
    for call, total in calls.items():
        units[call.communicator, call.rank, -1 if whole else call.peer].append((call, total))
    sizes = [_of_unit(unit, iterations, whole=whole) for unit in units.values()]
    return float(np.mean(sizes))


def _of_unit(unit: Sequence[tuple[Call, Sum]], iterations: int, *, whole: bool) -> float:
    """Return the bytes each time of one unit: a rank, or a rank and one peer.

    ``whole`` says that the unit is a rank of an all-to-all, with its sends to all peers.
    """
    ranks, peers = unit[0][0].rank_count, len({call.peer for call, _ in unit})
    moved = sum(total.bytes for _, total in unit)
    times = iterations or sum(total.calls or len(total.sizes) for _, total in unit) / peers
    if not whole:
        return moved / times
    if unit[0][0].peer < 0:  # peers are not known: this is the mean of one send to one of them
        return moved / times * ranks
    return moved / times * ranks / (ranks - 1)
