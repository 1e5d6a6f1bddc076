"""A placed job as flows of a fabric.

Each kind of group is a phase of its own: a rank waits for its tensor-parallel
partners before it talks to its replicas, so flows of two kinds of one job never
run together, while all groups of a kind run at once. Both directions of a
pipeline are one phase.

What each flow asks for is its share of the NICs it joins: within a phase the line
of a NIC (the sum of its links) is divided among the flows it sends, and likewise
among those it receives, and the lesser share counts. So no NIC is asked for more
than its line, and a plan at utilisation 1.0 is one in which the fabric holds
nobody back. A flow is never asked to be faster than its QPs can be on one link
each, since a QP takes a single path.

Wants do not depend on the state of links: a NIC that lost a link wants what it
wanted before, and the plan says what it can have.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from heddle_controller.model.errors import InputError, Problem
from heddle_controller.model.fabric import Fabric, Floats, Ints
from heddle_controller.model.flows import Flows, concatenate, no_flows
from heddle_controller.model.job import Group, Job, Parallelism
from heddle_controller.traffic.checks import host_problems, job_problems, shared_hosts
from heddle_controller.traffic.groups import job_label, rank_groups, resolve_parallelism
from heddle_controller.traffic.implied import implied_collectives
from heddle_controller.traffic.patterns import Hops, Layout, hops_of


def flows_of_job(job: Job, fabric: Fabric, *, pxn: bool | None = None) -> Flows:
    """The fabric flows of one job, sorted by phase (tp, pp, dp, cp, ep, world), NICs.

    A job without collectives has those its parallelism implies (see ``implied``).
    Flow ids are "job/phase/source->destination"; flows of a phase between the same
    NICs are one. ``pxn`` None is "where the fabric's NICs carry rails" (see
    ``patterns``).

    Raises:
        InputError: parallelism that does not multiply, a host that is unknown, named
            twice or without NICs, a collective that cannot be run.
    """
    parallelism = resolve_parallelism(job)
    problems = job_problems(job, parallelism) + host_problems(job, fabric)
    if problems:
        raise InputError(job_label(job), *problems)
    nics = _nics_of_ranks(job, fabric)
    layout = Layout(job.gpus_per_host, _rails(nics, fabric, pxn=pxn))
    phases = _phases(job, parallelism, nics, layout)
    return concatenate([_flows(job, fabric, name, *pairs) for name, pairs in phases.items()])


def flows_of_jobs(
    jobs: Iterable[Job], fabric: Fabric, *, origin: str = "jobs", pxn: bool | None = None
) -> Flows:
    """The flows of jobs that run side by side, in order of the jobs.

    Raises:
        InputError: with ``origin`` as its source: what ``flows_of_job`` refuses, two
            jobs of one name, two jobs on one host.
    """
    together = tuple(jobs)
    problems = list(shared_hosts(together))
    parts = []
    for job in together:
        try:
            parts.append(flows_of_job(job, fabric, pxn=pxn))
        except InputError as error:
            problems += [Problem(f"{error.source}, {p.record}", p.reason) for p in error.problems]
    if problems:
        raise InputError(origin, *problems)
    return concatenate(parts) if parts else no_flows()


def _nics_of_ranks(job: Job, fabric: Fabric) -> Ints:
    """NIC row of each rank: GPU ``i`` has the host's NIC ``i`` modulo its NICs."""
    of_host = fabric.structure.nics_of_host
    nics = [np.resize(of_host[host], job.gpus_per_host) for host in job.hosts]
    return np.concatenate(nics).astype(np.int64)


def _rails(nics: Ints, fabric: Fabric, *, pxn: bool | None) -> Ints | None:
    """Rail of each rank, numbered densely; None where PXN is off."""
    rail = fabric.structure.nodes.rail[nics]
    wanted = bool((rail >= 0).any()) if pxn is None else pxn
    if not wanted:
        return None
    names, dense = np.unique(rail, return_inverse=True)
    # NONE is the least value, so if any rank has no rail it got number 0.
    return dense.astype(np.int64) - int(names[0] < 0)


def _phases(job: Job, parallelism: Parallelism, nics: Ints, layout: Layout) -> dict[Group, Hops]:
    """Source and destination NICs of each group kind that reaches the fabric, each pair once."""
    phases = {}
    collectives = job.collectives or implied_collectives(parallelism)
    for kind in Group:
        used = [c for c in collectives if c.group is kind]
        if not used:
            continue
        groups = rank_groups(parallelism, kind)
        hops = [hops_of(collective, groups, layout) for collective in dict.fromkeys(used)]
        source, destination = _distinct(
            nics[np.concatenate([source for source, _ in hops])],
            nics[np.concatenate([destination for _, destination in hops])],
        )
        if len(source):
            phases[kind] = source, destination
    return phases


def _distinct(source: Ints, destination: Ints) -> Hops:
    """Each pair of NICs once, sorted; a NIC with itself is none."""
    apart = source != destination
    width = int(destination.max(initial=0)) + 1
    codes = np.unique(source[apart] * width + destination[apart])
    return codes // width, codes % width


def _flows(job: Job, fabric: Fabric, kind: Group, source: Ints, destination: Ints) -> Flows:
    """One phase's flows."""
    count = len(source)
    ids, prefix = fabric.structure.nodes.ids, f"{job.name}/{kind.value}/"
    pairs = zip(source.tolist(), destination.tolist(), strict=True)
    return Flows(
        ids=tuple([f"{prefix}{ids[a]}->{ids[b]}" for a, b in pairs]),
        source=source,
        destination=destination,
        gbps=_rates(fabric, source, destination, job.qps),
        job=np.zeros(count, dtype=np.int64),
        phase=np.zeros(count, dtype=np.int64),
        qps=np.full(count, job.qps, dtype=np.int64),
        traffic_class=np.full(count, int(job.traffic_class), dtype=np.int64),
        weight=np.full(count, float(job.priority)),
        job_names=(job.name,),
        phase_names=(kind.value,),
    )


def _rates(fabric: Fabric, source: Ints, destination: Ints, qps: int) -> Floats:
    """Gbit/s of each flow of a phase: the lesser share of its two NICs' lines."""
    line, port = fabric.structure.nic_line, fabric.structure.nic_port
    share: Floats = np.minimum(
        line[source] / _times(source), line[destination] / _times(destination)
    )
    fastest: Floats = qps * np.minimum(port[source], port[destination])
    return np.minimum(share, fastest)


def _times(nics: Ints) -> Ints:
    """How often each element stands in an array."""
    _, place, count = np.unique(nics, return_inverse=True, return_counts=True)
    return count[place]
