"""Which ranks communicate with which: the groups of a job's parallelism.

Ranks fill a box of shape (pp, dp, cp, tp), tp innermost, as the training
frameworks number them, so that tensor-parallel neighbours share a host and
pipeline stages lie farthest apart. A group of a kind is a line of the box along
that axis; an expert group is a run of ``ep`` along the flattened (dp, cp) axes.
Everything here is a reshape: 9,216 ranks cost microseconds.
"""

from __future__ import annotations

from math import prod

import numpy as np

from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.model.fabric import Ints
from heddle_controller.model.job import Group, Job, Parallelism

MAX_RANKS = 1 << 22


def resolve_parallelism(job: Job) -> Parallelism:
    """The job's parallelism with every dimension given; dp not given takes the rest.

    Raises:
        InputError: the dimensions do not multiply to the job's ranks, or ep does
            not divide dp x cp; with the numbers and what would fit.
    """
    given = job.parallelism
    problems = _range_problems(job)
    if problems:
        raise InputError(job_label(job), *problems)
    tp, pp, cp, ep = (degree or 1 for degree in (given.tp, given.pp, given.cp, given.ep))
    ranks = len(job.hosts) * job.gpus_per_host
    dp = given.dp or max(1, ranks // (tp * pp * cp))
    if tp * pp * cp * dp != ranks:
        raise refuse(job_label(job), "parallelism", _no_product(job, tp * pp * cp))
    if (dp * cp) % ep:
        fits = [n for n in range(1, dp * cp + 1) if (dp * cp) % n == 0]
        nearest = min(fits, key=lambda n: abs(n - ep))
        reason = f"ep {ep} does not divide dp {dp} × cp {cp} = {dp * cp}; ep {nearest} would"
        raise refuse(job_label(job), "parallelism", reason)
    return Parallelism(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep)


def job_label(job: Job) -> str:
    """The job as the source of an error."""
    return f"job {job.name!r}"


def _range_problems(job: Job) -> list[Problem]:
    found = []
    if not job.hosts:
        found.append(Problem("hosts", "none is named; give them in rank order"))
    if job.gpus_per_host < 1:
        found.append(Problem("gpus_per_host", f"is {job.gpus_per_host}; give 1 or more"))
    elif len(job.hosts) * job.gpus_per_host > MAX_RANKS:
        ranks = len(job.hosts) * job.gpus_per_host
        found.append(Problem("gpus_per_host", f"makes {ranks:,} ranks; at most {MAX_RANKS:,}"))
    p = job.parallelism
    for name in ("tp", "pp", "dp", "cp", "ep"):
        degree = getattr(p, name)
        if not 0 <= degree <= MAX_RANKS:
            reason = f"{name} is {degree}; give 1 or more, or leave it out"
            found.append(Problem("parallelism", reason))
    return found


def _no_product(job: Job, others: int) -> str:
    """Why the degrees do not fit; ``others`` is the product of all but dp."""
    hosts, gpus, p = len(job.hosts), job.gpus_per_host, job.parallelism
    ranks, product = hosts * gpus, others * max(1, p.dp)
    degrees = {"tp": p.tp, "cp": p.cp, "dp": p.dp, "pp": p.pp}
    named = [f"{name} {degree}" for name, degree in degrees.items() if degree]
    told = " × ".join(named) + (f" = {product}" if len(named) > 1 else "")
    there = f"{hosts} {'host' if hosts == 1 else 'hosts'} × {gpus} GPUs = {ranks} ranks"
    if p.dp and ranks % others == 0:
        return f"{told}, but {there}; dp {ranks // others} would fit"
    return f"{told} does not make up {there}; {_cure(product, gpus)}"


def _cure(wanted: int, gpus: int) -> str:
    if wanted % gpus == 0:
        hosts = wanted // gpus
        return f"give {hosts} {'host' if hosts == 1 else 'hosts'}, or other degrees"
    return f"give degrees whose product is a multiple of the {gpus} GPUs of a host"


def group_size(parallelism: Parallelism, group: Group) -> int:
    """Members of a group of that kind; ``parallelism`` as ``resolve_parallelism`` gives it."""
    if group is Group.WORLD:
        return rank_count(parallelism)
    size: int = getattr(parallelism, group.value)
    return size


def rank_count(parallelism: Parallelism) -> int:
    """Ranks of a resolved parallelism."""
    return prod((parallelism.tp, parallelism.pp, parallelism.dp, parallelism.cp))


def rank_groups(parallelism: Parallelism, group: Group) -> Ints:
    """Ranks of every group of a kind, ascending in each: shape (groups, members).

    ``parallelism`` is resolved. The groups of a kind partition the ranks.
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
