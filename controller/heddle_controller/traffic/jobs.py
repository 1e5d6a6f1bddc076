"""The flows of placed jobs on a fabric, and the checks of a job before its flows are made.

A job's collectives are divided into phases that take turns. All groups of a kind run at the
same time. Both directions of a pipeline are one phase.

**Rates.** Within a phase, the line rate of a NIC (the sum of its links) is divided among the
flows it sends, in proportion to their bytes, and among those it receives in the same way. A
flow asks for the lesser of its two shares. So no NIC is asked for more than its line rate, and
in a plan with utilisation 1.0 the fabric slows no flow. A flow never asks for more than its
QPs can carry on one link each, since a QP takes a single path.

A phase that sends less than ``SMALL_BYTES`` at a time never fills its NICs, because most of its
time is latency. Its flows ask for proportionally less and weigh proportionally less, so that
they neither keep elephants off a link nor take table entries from them.

Demands do not depend on link states: a NIC that lost a link asks for the same as before, and
the plan says what it gets.

**Bytes.** They follow NCCL's algorithms. A ring carries all of the data but one rank's part,
twice for an all-reduce. Each of two trees carries half of the data. All-to-all sends each
partner its part. What a group sends between hosts is divided among its channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from heddle.text import similar
from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.errors import LEAST, MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import SOURCE_PORT_COUNT, Flows, concatenate, no_flows
from heddle_controller.model.job import (
    MAX_BYTES,
    MAX_NUMBER,
    Collective,
    Gpus,
    Job,
    Operation,
    Parallelism,
    in_use,
)
from heddle_controller.traffic.groups import (
    group_size,
    implied_collectives,
    rank_count,
    rank_groups,
    resolve_parallelism,
)
from heddle_controller.traffic.patterns import (
    TREES,
    Layout,
    pairwise,
    pattern_of,
    patterns_of,
    phases_of,
    rank_pairs,
    runs_on_channels,
)

MAX_HOPS = 4_000_000
"""The most hops of one collective. More means an all-to-all over a group chosen too large."""


def job_problems(job: Job, parallelism: Parallelism) -> list[Problem]:
    """Return what is wrong with a job on any fabric; ``parallelism`` must be resolved."""
    twice = [host for host, count in Counter(job.hosts).items() if count > 1]
    found = [
        Problem(f"host {host!r}", "is named twice; give each host once")
        for host in twice[:MAX_PROBLEMS]
    ]
    found += number_problems(job)
    if not 1 <= job.qps <= SOURCE_PORT_COUNT:
        found.append(Problem("qps", f"is {job.qps}; give 1 to {SOURCE_PORT_COUNT}"))
    for row, collective in enumerate(job.collectives):
        reason = collective_problem(collective, parallelism)
        if reason:
            record = f"collectives[{row}] ({collective.operation} over {collective.group})"
            found.append(Problem(record, reason))
    return found


def number_problems(job: Job) -> Iterator[Problem]:
    """Yield what is wrong with the optional numbers of a job."""
    for name in ("priority", "flops_per_iteration", "compute_seconds", "network_seconds"):
        told = getattr(job, name)
        if not 0 <= told < MAX_NUMBER:
            what = f"give a number above 0, below {MAX_NUMBER:g}, or leave it out"
            yield Problem(name, f"is {told:g}; {what}")
    if job.network_seconds and not job.compute_seconds:
        yield Problem("network_seconds", "is told without compute_seconds; tell both, or neither")
    if job.compute_seconds and not (job.network_seconds or job.collectives):
        reason = "is not told, nor collectives whose bytes it could follow from; give one of them"
        yield Problem("network_seconds", reason)


def collective_problem(collective: Collective, parallelism: Parallelism) -> str:
    """Return why a job of that parallelism cannot run the collective; empty if it can."""
    algorithms = patterns_of(collective.operation, collective.group)
    members = group_size(parallelism, collective.group)
    if not 1 <= collective.bytes < MAX_BYTES:
        return f"bytes is {collective.bytes}; give the bytes one rank puts in, below {MAX_BYTES}"
    if collective.algorithm not in algorithms:
        return f"no {collective.algorithm} algorithm; use {' or '.join(algorithms)}"
    if members < 2:  # noqa: PLR2004 - it takes two to communicate
        kind = collective.group.value
        return f"{kind} is 1, so its groups have one member; raise {kind} or leave it out"
    hops = rank_count(parallelism) * (members - 1)
    if algorithms[collective.algorithm] is pairwise and hops > MAX_HOPS:
        return f"makes {hops:,} flows, at most {MAX_HOPS:,}; use a smaller group"
    return ""


def host_problems(job: Job, fabric: Fabric) -> list[Problem]:
    """Return problems for hosts of a job that the fabric lacks or that have no NIC in it."""
    known = fabric.structure.nics_of_host
    missing = [host for host in dict.fromkeys(job.hosts) if host not in known]
    return [
        Problem(f"host {host!r}", unknown_host(host, fabric, guess=row == 0))
        for row, host in enumerate(missing[:MAX_PROBLEMS])
    ]


def unknown_host(host: str, fabric: Fabric, *, guess: bool = False) -> str:
    """Return why a host that is not in ``nics_of_host`` cannot be used, and what to do.

    A guess at what was meant reads the names of all hosts.
    """
    known = fabric.structure.nics_of_host
    if host in fabric.structure.host_names:
        return "has no NIC in the fabric; give one to it, or leave the host out"
    if guess and (close := similar(host, known, 3)):
        return f"is not in the fabric; did you mean {' or '.join(map(repr, close))}?"
    first = ", ".join(map(repr, islice(known, 3)))
    return f"is not in the fabric; name one of its {len(known)} hosts, such as {first}"


def shared_hosts(jobs: Iterable[Job]) -> Iterator[Problem]:
    """Yield problems for names, hosts and GPUs of hosts that two jobs share."""
    names: set[str] = set()
    holders: dict[str, dict[str, Gpus]] = {}
    for job in jobs:
        if job.name in names:
            yield Problem(job.label, "this name is used twice; give each job its own")
            continue
        names.add(job.name)
        for host, gpus in job.held.items():
            known = holders.setdefault(host, {})
            if taken := in_use(gpus, known):
                owner, words = taken
                reason = f"{words} by job {owner!r}; give each job hosts of its own, or GPUs"
                yield Problem(f"{job.label}, host {host!r}", reason)
            else:
                known[job.name] = gpus


SMALL_BYTES = 1 << 16
"""Bytes that are in transit through a fabric at once: 400 Gbit/s for some 1.3 microseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """The pairs of NICs that communicate in one phase, each once."""

    source: Ints
    destination: Ints
    bytes: Floats
    """Bytes from source to destination in one run of the phase."""
    busy: float
    """Share of its NICs' line rates that a phase of so many bytes can use, above 0, at most 1."""


def flows_of_job(job: Job, fabric: Fabric, *, pxn: bool | None = None) -> Flows:
    """Return the fabric flows of one job, sorted by phase (tp, pp, dp, cp, ep, world) and NICs.

    A job without collectives gets those that its parallelism implies. A suspended job has no
    flows. Flow ids are "job/phase/source->destination"; each phase has one flow for each pair
    of NICs. ``pxn`` says whether PXN is used; None means where the fabric's NICs carry rails
    (see ``patterns``).

    Raises:
        InputError: degrees that do not multiply to the ranks, a host that is unknown, named
            twice or without NICs, GPUs named twice, a collective that cannot be run.
    """
    parallelism = resolve_parallelism(job)
    problems = job_problems(job, parallelism) + host_problems(job, fabric)
    if problems:
        raise InputError(job.label, *problems)
    if job.suspended:
        return no_flows()
    nics = _nics_of_ranks(job, fabric)
    layout = Layout(host_of_ranks(job), _rails(nics, fabric, pxn=pxn))
    phases = phases_of(job.collectives or implied_collectives(parallelism))
    found = {name: _phase(own, parallelism, nics, layout) for name, own in phases.items()}
    sent = [(pairs.source, pairs.destination, pairs.bytes) for pairs in found.values()]
    told = replace(job, priority=priority_of(job, fabric, sent))
    return concatenate(
        [_flows(told, fabric, name, pairs) for name, pairs in found.items() if len(pairs.source)]
    )


def flows_of_jobs(jobs: Iterable[Job], fabric: Fabric, *, origin: str = "jobs") -> Flows:
    """Return the flows of jobs that run side by side, in order of the jobs.

    Raises:
        InputError: with ``origin`` as its source, for what ``flows_of_job`` refuses, and for
            two jobs with the same name, host or GPU.
    """
    together = tuple(jobs)
    problems = list(shared_hosts(together))
    parts = []
    for job in together:
        try:
            parts.append(flows_of_job(job, fabric))
        except InputError as error:
            problems += [Problem(f"{error.source}, {p.record}", p.reason) for p in error.problems]
    if problems:
        raise InputError(origin, *problems)
    return concatenate(parts) if parts else no_flows()


def _nics_of_ranks(job: Job, fabric: Fabric) -> Ints:
    """Return the NIC row of each rank: GPU ``i`` uses the host's NIC ``i`` modulo its NICs."""
    of_host = fabric.structure.nics_of_host
    if job.gpus:
        held = job.held.items()
        return np.array(
            [of_host[host][g % len(of_host[host])] for host, part in held for g in part]
        )
    nics = [of_host[host] for host in job.hosts]
    if all(len(own) == job.gpus_per_host for own in nics):
        return np.array(nics, dtype=np.int64).ravel()
    return np.concatenate([np.resize(own, job.gpus_per_host) for own in nics]).astype(np.int64)


def host_of_ranks(job: Job) -> Ints:
    """Return the row of each rank's host in ``job.hosts``, shape (ranks,)."""
    return np.repeat(np.arange(len(job.hosts), dtype=np.int64), job.counts)


def _rails(nics: Ints, fabric: Fabric, *, pxn: bool | None) -> Ints | None:
    """Return the rail of each rank's NIC, numbered from 0 without gaps; None if PXN is off."""
    rail = fabric.structure.rails[nics]
    wanted = bool((rail >= 0).any()) if pxn is None else pxn
    if not wanted:
        return None
    names, dense = np.unique(rail, return_inverse=True)
    # NONE is the least value. If any rank has no rail, it got number 0, which becomes NONE.
    return dense.astype(np.int64) - int(names[0] < 0)


def _phase(
    collectives: Iterable[Collective], parallelism: Parallelism, nics: Ints, layout: Layout
) -> _Pairs:
    """Return the pairs of NICs that communicate in a phase; its collectives are of one group."""
    sources, destinations, sizes = [], [], []
    groups, size = None, 0.0
    for one in collectives:
        groups = rank_groups(parallelism, one.group) if groups is None else groups
        source, destination = rank_pairs(one, groups, layout)
        sources.append(nics[source])
        destinations.append(nics[destination])
        sizes.append(hop_bytes(one, groups, layout.host, source))
        size += buffer_bytes(one, groups.shape[1])
    hops = np.concatenate(sources), np.concatenate(destinations), np.concatenate(sizes)
    return _Pairs(*_distinct(*hops), min(1.0, size / SMALL_BYTES))


def _distinct(source: Ints, destination: Ints, size: Floats) -> tuple[Ints, Ints, Floats]:
    """Return each pair of different NICs once, sorted, with the sum of its bytes."""
    apart = source != destination
    width = int(destination.max(initial=0)) + 1
    codes, pair = np.unique(source[apart] * width + destination[apart], return_inverse=True)
    total = np.bincount(pair, size[apart], minlength=len(codes)).astype(np.float64)
    return codes // width, codes % width, total


def _flows(job: Job, fabric: Fabric, phase: str, pairs: _Pairs) -> Flows:
    """Return the flows of one phase."""
    count = len(pairs.source)
    ids, prefix = fabric.structure.nodes.ids, f"{job.name}/{phase}/"
    ends = zip(pairs.source.tolist(), pairs.destination.tolist(), strict=True)
    return Flows(
        ids=tuple([f"{prefix}{ids[a]}->{ids[b]}" for a, b in ends]),
        source=pairs.source,
        destination=pairs.destination,
        gbps=_rates(fabric, pairs, job.qps),
        job=np.zeros(count, dtype=np.int64),
        phase=np.zeros(count, dtype=np.int64),
        qps=np.full(count, job.qps, dtype=np.int64),
        traffic_class=np.full(count, int(job.traffic_class), dtype=np.int64),
        weight=np.full(count, job.priority * pairs.busy),
        job_names=(job.name,),
        phase_names=(phase,),
        bytes=pairs.bytes,
    )


def _rates(fabric: Fabric, pairs: _Pairs, qps: int) -> Floats:
    """Return the Gbit/s of each flow of a phase: the lesser share of its two NICs' line rates."""
    line, port = fabric.structure.nic_line, fabric.structure.nic_port
    # Equal parts become exactly 1, so that rates are exact quotients by a count.
    part = pairs.bytes / pairs.bytes.min()
    share: Floats = np.minimum(
        line[pairs.source] / (_total(pairs.source, part) / part),
        line[pairs.destination] / (_total(pairs.destination, part) / part),
    )
    fastest: Floats = qps * np.minimum(port[pairs.source], port[pairs.destination])
    return np.maximum(np.minimum(share * pairs.busy, fastest), LEAST)


def _total(nics: Ints, part: Floats) -> Floats:
    """Return for each element the sum of the parts of its NIC."""
    return np.bincount(nics, part)[nics].astype(np.float64)


def buffer_bytes(collective: Collective, members: int) -> float:
    """Return the bytes of one rank's whole buffer after the collective, as nccl-tests count."""
    gathers = collective.operation is Operation.ALL_GATHER
    return float(collective.bytes * (members if gathers else 1))


def hop_bytes(collective: Collective, groups: Ints, host: Ints, source: Ints) -> Floats:
    """Return the bytes that each hop between hosts carries in one run, shape of ``source``.

    ``source`` are the ranks at which hops begin, as ``patterns.rank_pairs`` returns them for
    ``groups``. With PXN, the same hop may occur several times; it then carries the sum.
    """
    pattern, members = pattern_of(collective), groups.shape[1]
    size = buffer_bytes(collective, members)
    if pattern is pairwise:
        each = size / members * (2 if collective.operation is Operation.ALL_REDUCE else 1)
    elif pattern in TREES:
        each = size / 2
    elif collective.operation in _ROUNDS:
        each = _ROUNDS[collective.operation] * size * (members - 1) / members
    else:
        each = size
    if not runs_on_channels(pattern):
        return np.full(len(source), each)
    group_of = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    group_of[groups] = np.arange(len(groups))[:, None]
    shared: Floats = each / _channel_counts(groups, host)[group_of[source]]
    return shared


_ROUNDS = {Operation.ALL_REDUCE: 2, Operation.ALL_GATHER: 1, Operation.REDUCE_SCATTER: 1}
"""How often data goes around a ring."""


def _channel_counts(groups: Ints, host_of_rank: Ints) -> Ints:
    """Return the channels of each group: its members on the host with the fewest of them."""
    host, row = host_of_rank[groups], np.arange(len(groups))[:, None]
    width = int(host.max(initial=0)) + 1
    codes, count = np.unique(row * width + host, return_counts=True)
    least = np.full(len(groups), groups.shape[1], dtype=np.int64)
    np.minimum.at(least, codes // width, count)
    return least


WEIGHS_ONE = 1e15
"""GPU intensity, in FLOPs per second of the busiest NIC, of a job with priority 1."""

_Sent = tuple[Ints, Ints, Floats]
"""Rows of sending and receiving NICs, and the bytes between them in one run of a phase."""


def priority_of(job: Job, fabric: Fabric, sent: Iterable[_Sent]) -> float:
    """Return the priority that a job states, else one from its GPU intensity, else 1.

    Crux (SIGCOMM 2024) prefers the jobs that lose most computation for each second of network time.
    If W is the FLOPs of an iteration and t the time of the link that carries most for the job, the
    GPU intensity is W / t. Before there is a plan, only the links of its NICs are certain. Which
    links further in the fabric it uses follows from the plan that these weights are for. So t is
    the time of its busiest NIC, for all phases together.

    Args:
        job: The job, with its priority and FLOPs if it states them.
        fabric: The fabric of its NICs.
        sent: What each phase sends.
    """
    if job.priority or not job.flops_per_iteration:
        return job.priority or 1.0
    seconds = slowest_link_seconds(fabric, sent)
    return job.flops_per_iteration / seconds / WEIGHS_ONE if seconds > 0 else 1.0


def slowest_link_seconds(fabric: Fabric, sent: Iterable[_Sent]) -> float:
    """Return the seconds that the busiest NIC needs to send, or to receive, everything."""
    total = np.zeros((2, fabric.node_count))
    for source, destination, size in sent:
        for way, nics in enumerate((source, destination)):
            total[way] += np.bincount(nics, size, minlength=fabric.node_count)
    busy = total.max(axis=0)
    rows = np.flatnonzero(busy)
    times = busy[rows] * 8e-9 / fabric.structure.nic_line[rows]
    return float(times.max(initial=0.0))
