"""UDP source ports of flows as columns for the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.arrays import NONE, Ints, starts
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import qp_ports
from heddle_controller.model.plan import NicPorts, Plan

MOST_FLOWS = 10_000
"""Of one message."""


def sending_nics(fabric: Fabric, hosts: Sequence[str], nics: Sequence[str]) -> Ints | None:
    """Node rows of the NICs of some hosts and of the NICs named, ascending; None: all are meant.

    Raises:
        InputError: the fabric has no such host, or no such NIC.
    """
    if not hosts and not nics:
        return None
    structure, known = fabric.structure, fabric.structure.nics_of_host
    rows: list[int] = []
    for host in hosts:
        if host not in known:
            raise refuse("request", "hosts", f"the fabric has no host {host[:80]!r} with NICs")
        rows += known[host]
    for nic in nics:
        row = structure.index.get(nic, NONE)
        if row == NONE or structure.nodes.kind[row] != NodeKind.NIC:
            raise refuse("request", "nics", f"the fabric has no NIC {nic[:80]!r}")
        rows.append(row)
    return np.unique(np.array(rows, dtype=np.int64))


def ports_to_pb(plan: Plan, first_ports: Ints, rows: Ints, job: str) -> pb.JobPorts:
    """The ports of some flows of a job.

    Args:
        plan: Their plan.
        first_ports: Source port of QP 0 of every flow of it.
        rows: Flow rows of the job.
        job: Its name.
    """
    flows, nodes = plan.flows, plan.fabric.structure.nodes
    hosts = plan.fabric.structure.host_names
    source, destination = flows.source[rows], flows.destination[rows]
    nics, number = np.unique(np.concatenate([source, destination]), return_inverse=True)
    message = pb.JobPorts(
        job=job,
        nics=[nodes.ids[row] for row in nics.tolist()],
        addresses=[nodes.address[row] for row in nics.tolist()],
        flows=[flows.ids[row] for row in rows.tolist()],
        sources=number[: len(rows)].tolist(),
        destinations=number[len(rows) :].tolist(),
        first_ports=first_ports[rows].tolist(),
        qp_counts=flows.qps[rows].tolist(),
        hosts=[hosts[row] if row != NONE else "" for row in nodes.host[nics].tolist()],
    )
    if plan.nic_ports is not None and plan.nic_ports.probes[rows].any():
        ports, backups = _of_qps(plan, plan.nic_ports, first_ports, rows)
        message.probe_counts.extend(plan.nic_ports.probes[rows].tolist())
        message.qp_ports.extend(ports.tolist())
        message.backup_ports.extend(backups.tolist())
    return message


def _of_qps(plan: Plan, chosen: NicPorts, first_ports: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Ports of the QPs of some flows, and those of their backups, 0 where there is none."""
    count = plan.flows.qps[rows]
    bounds = starts(count)
    qp = np.arange(bounds[-1]) - np.repeat(bounds[:-1], count)
    ports, backups = qp_ports(np.repeat(first_ports[rows], count), qp), np.zeros_like(qp)
    place = np.full(len(plan.flows), NONE, dtype=np.int64)
    place[rows] = bounds[:-1]
    paths = plan.paths
    of_path = starts(paths.qp_count)
    number = np.arange(of_path[-1]) - np.repeat(of_path[:-1] - paths.first_qp, paths.qp_count)
    begin = np.repeat(place[paths.flow], paths.qp_count)
    for column, found in ((chosen.port, ports), (chosen.backup, backups)):
        at = np.flatnonzero((begin != NONE) & (column != NONE))
        found[begin[at] + number[at]] = column[at]
    return ports, backups


def parts_to_pb(plan: Plan, first_ports: Ints, rows: Ints, job: str) -> list[pb.JobPorts]:
    """As ``ports_to_pb``, in as many messages as it takes; at least one."""
    starts = range(0, max(len(rows), 1), MOST_FLOWS)
    return [ports_to_pb(plan, first_ports, rows[at : at + MOST_FLOWS], job) for at in starts]


def rows_by_job(plan: Plan, rows: Ints) -> Iterator[tuple[str, Ints]]:
    """Flow rows of each job that has some, in the order of the jobs."""
    jobs = plan.flows.job[rows]
    order = np.argsort(jobs, kind="stable")
    found, starts = np.unique(jobs[order], return_index=True)
    for job, mine in zip(found.tolist(), np.split(rows[order], starts[1:]), strict=False):
        yield plan.flows.job_names[job], mine
