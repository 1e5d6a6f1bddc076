"""Checks of a job before its flows are made: by itself, on a fabric, and beside other jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice

from heddle_controller.model.errors import MAX_PROBLEMS, Problem
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import SOURCE_PORT_COUNT
from heddle_controller.model.job import (
    MAX_BYTES,
    MAX_NUMBER,
    Collective,
    Gpus,
    Job,
    Parallelism,
    in_use,
)
from heddle_controller.traffic.groups import group_size, rank_count
from heddle_controller.traffic.patterns import pairwise, patterns_of

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
    if guess and (close := get_close_matches(host, known, n=3)):
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
