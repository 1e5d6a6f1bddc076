"""Which ranks communicate with which: the groups of a job's parallelism.

Ranks fill a box of shape (pp, dp, cp, tp), tp innermost. Training frameworks number
them in this way, so that tensor-parallel neighbours share a host and pipeline stages
lie farthest apart. A group of a kind is a line of the box along that axis. An expert
group is a run of ``ep`` along the flattened (dp, cp) axes. All groups are found by a
reshape, which takes microseconds for 9,216 ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from heddle.gpus import MAX_GPUS
from heddle_controller.model.arrays import Ints
from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.model.job import Collective, Gpus, Group, Job, Operation, Parallelism

MAX_RANKS = 1 << 22


def resolve_parallelism(job: Job) -> Parallelism:
    """Return the job's parallelism with every degree given. A missing dp takes the rest.

    Raises:
        InputError: the degrees do not multiply to the job's ranks, ep does not divide
            dp x cp, or hosts, GPUs or degrees are missing or out of range.
    """
    given = job.parallelism
    problems = _range_problems(job)
    if problems:
        raise InputError(job.label, *problems)
    tp, pp, cp, ep = (degree or 1 for degree in (given.tp, given.pp, given.cp, given.ep))
    ranks = job.rank_count
    dp = given.dp or max(1, ranks // (tp * pp * cp))
    if tp * pp * cp * dp != ranks:
        raise refuse(job.label, "parallelism", _no_product(job, tp * pp * cp))
    if (dp * cp) % ep:
        fits = [n for n in range(1, dp * cp + 1) if (dp * cp) % n == 0]
        nearest = min(fits, key=lambda n: abs(n - ep))
        reason = f"ep {ep} does not divide dp {dp} × cp {cp} = {dp * cp}; ep {nearest} would"
        raise refuse(job.label, "parallelism", reason)
    return Parallelism(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep)


def _range_problems(job: Job) -> list[Problem]:
    found = []
    if not job.hosts:
        found.append(Problem("hosts", "none is named; give them in rank order"))
    if not job.gpus and job.gpus_per_host < 1:
        found.append(Problem("gpus_per_host", f"is {job.gpus_per_host}; give 1 or more"))
    elif job.rank_count > MAX_RANKS:
        reason = f"makes {job.rank_count:,} ranks; at most {MAX_RANKS:,}"
        found.append(Problem("gpus" if job.gpus else "gpus_per_host", reason))
    found += gpu_problems(job.hosts, job.gpus)
    p = job.parallelism
    for name in ("tp", "pp", "dp", "cp", "ep"):
        degree = getattr(p, name)
        if not 0 <= degree <= MAX_RANKS:
            reason = f"{name} is {degree}; give 1 to {MAX_RANKS:,}, or leave it out"
            found.append(Problem("parallelism", reason))
    return found


def gpu_problems(hosts: Sequence[str], gpus: Sequence[Gpus]) -> list[Problem]:
    """Return what is wrong with the GPUs that a job names for its hosts."""
    if not gpus:
        return []
    if len(gpus) != len(hosts):
        there = f"{len(gpus)} hosts, and there are {len(hosts)}"
        return [Problem("gpus", f"are given for {there}; give them for each, or once for all")]
    return [
        Problem(f"host {host!r}", why)
        for host, part in zip(hosts, gpus, strict=True)
        if (why := _gpu_problem(part))
    ]


def _gpu_problem(gpus: Gpus) -> str:
    if not gpus:
        return "has an empty list of GPUs; name those that it gives, such as 0, 1"
    if len(set(gpus)) < len(gpus):
        twice = next(gpu for gpu in gpus if gpus.count(gpu) > 1)
        return f"gives GPU {twice} twice; name each once"
    odd = next((gpu for gpu in gpus if not 0 <= gpu < MAX_GPUS), None)
    return "" if odd is None else f"gives GPU {odd}; GPUs are numbered 0 to {MAX_GPUS - 1}"


def _no_product(job: Job, others: int) -> str:
    """Return why the degrees do not fit; ``others`` is the product of all but dp."""
    hosts, gpus, p = len(job.hosts), job.gpus_per_host, job.parallelism
    ranks, product = job.rank_count, others * max(1, p.dp)
    degrees = {"tp": p.tp, "cp": p.cp, "dp": p.dp, "pp": p.pp}
    named = [f"{name} {degree}" for name, degree in degrees.items() if degree]
    told = " × ".join(named) + (f" = {product}" if len(named) > 1 else "")
    there = f"{hosts} {'host' if hosts == 1 else 'hosts'}"
    there += f" × {gpus} GPUs = {ranks} ranks" if gpus else f" with {ranks} GPUs in all"
    if p.dp and ranks % others == 0:
        return f"{told}, but {there}; dp {ranks // others} would fit"
    return f"{told} does not make up {there}; {_cure(product, gpus)}"


def _cure(wanted: int, gpus: int) -> str:
    if not gpus:
        return f"give {wanted} GPUs, or other degrees"
    if wanted % gpus == 0:
        hosts = wanted // gpus
        return f"give {hosts} {'host' if hosts == 1 else 'hosts'}, or other degrees"
    return f"give degrees whose product is a multiple of the {gpus} GPUs of a host"


def group_size(parallelism: Parallelism, group: Group) -> int:
    """Return the members of each group of a kind; ``parallelism`` must be resolved."""
    if group is Group.WORLD:
        return rank_count(parallelism)
    size: int = getattr(parallelism, group.value)
    return size


def rank_count(parallelism: Parallelism) -> int:
    """Return the number of ranks of a resolved parallelism."""
    return prod((parallelism.tp, parallelism.pp, parallelism.dp, parallelism.cp))


def rank_groups(parallelism: Parallelism, group: Group) -> Ints:
    """Return the ranks of every group of a kind, ascending in each, shape (groups, members).

    ``parallelism`` must be resolved. The groups of a kind partition the ranks.
    """
    p = parallelism
    box = np.arange(rank_count(p), dtype=np.int64).reshape(p.pp, p.dp, p.cp, p.tp)
    if group is Group.WORLD:
        lines = box
    elif group is Group.EP:
        runs = box.reshape(p.pp, p.dp * p.cp // p.ep, p.ep, p.tp)
        lines = np.moveaxis(runs, 2, -1)
    else:
        axis = {Group.PP: 0, Group.DP: 1, Group.CP: 2, Group.TP: 3}[group]
        lines = np.moveaxis(box, axis, -1)
    return np.ascontiguousarray(lines).reshape(-1, group_size(p, group))


NOMINAL_BYTES = 1 << 30

OPERATION_OF = {
    Group.TP: Operation.ALL_REDUCE,
    Group.CP: Operation.SEND_RECV,
    Group.DP: Operation.ALL_REDUCE,
    Group.PP: Operation.SEND_RECV,
    Group.EP: Operation.ALL_TO_ALL,
}


def implied_collectives(parallelism: Parallelism) -> tuple[Collective, ...]:
    """Return one collective for each kind of group that has several members.

    This is for a job that names no collectives; its parallelism must be resolved. Training
    frameworks leave little choice. Tensor-parallel ranks add up partial results (all-reduce),
    context-parallel ranks pass keys and values around (send/recv), data-parallel replicas add up
    gradients (all-reduce), pipeline stages pass on activations and gradients (send/recv), and
    experts exchange tokens (all-to-all). Bytes are nominal, one gibibyte for each rank and
    iteration, because which NICs communicate follows from the kind alone.
    """
    return tuple(
        Collective(operation, group, NOMINAL_BYTES)
        for group, operation in OPERATION_OF.items()
        if group_size(parallelism, group) > 1
    )
