"""``heddle slurm prolog``: what PrologSlurmctld runs, before a job's first step.

Slurm waits for it, requeues a batch job whose prolog fails, and cancels others. So it never fails,
and what it waits for has a limit: a job that is not programmed runs on the underlay.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import click

from heddle.client import PROGRAMMED, HeddleError, InvalidRequest, NotFound, PreconditionFailed
from heddle.ports import ports_document
from heddle.shape import Shape, shape_text
from heddle.v1 import placement_pb2 as pb
from heddle.v1 import plan_pb2
from heddle_controller.cli.client import Terms
from heddle_controller.cli.options import with_server
from heddle_controller.cli.slurm.allocation import Allocation, allocation
from heddle_controller.cli.slurm.folder import JobsFolder, write_hosts, write_ports, write_said
from heddle_controller.cli.slurm.gpus import allocated_gpus, with_gpus
from heddle_controller.cli.slurm.handover import (
    Patience,
    answering,
    handover_options,
    never_failing,
    note,
    pay,
    said,
)
from heddle_controller.cli.slurm.shape import read_shape
from heddle_controller.cli.slurm.topology import NODE_NAME


@click.command("prolog")
@handover_options
@with_server
@never_failing
def prolog(client: Terms, directory: Path, patience: Patience) -> None:
    r"""Submit the job that Slurm is about to start, and wait until its routes are programmed.

    For PrologSlurmctld, see deploy/slurm. The shape of the job stands in its comment:

    \b
    sbatch --nodes 16 --comment 'heddle: gpus=8 tp=8 pp=4' job.sh
    sbatch --nodes 16 --comment 'heddle: @shape' job.sh    # the same words in a file

    Jobs without 'heddle:' in their comment are left alone. It never fails. Where the job cannot be
    planned, it runs on the underlay; the log says why, and so does the file 'said' of the job.
    """
    text = shape_text(os.environ.get("SLURM_JOB_COMMENT", ""))
    if text is None:
        return
    mine = allocation(os.environ)
    jobs = JobsFolder(directory)
    folder = jobs.begin(mine.name, mine.restart)
    try:
        where = os.environ.get("SLURM_JOB_WORK_DIR", "/")
        user = int(os.environ.get("SLURM_JOB_UID", "-1"))
        shape = read_shape(text, where, user, gpus_told=True)
        reached = answering(client, patience)
        jobs.acquit(mine.name)
        pay(reached, jobs, patience)
        job = _submitted(reached, patience, mine, shape)
        _waited_for(reached, patience, folder, job)
    except Exception as error:
        write_said(folder, said(client, error))
        raise
    took = time.monotonic() - patience.begun
    note(f"{mine.name} is programmed, {took:.3f} s after the prolog began")


def _waited_for(client: Terms, patience: Patience, folder: Path, job: pb.Job) -> None:
    """Wait until a job is programmed, and hand it what its ranks need."""
    write_hosts(folder, job.spec.hosts)
    try:
        client.api.wait_until(PROGRAMMED, [job], patience.left, degraded_ok=False)
    finally:
        with suppress(HeddleError):  # it may have a plan, though not all of it is in place
            _write_ports(client, patience, folder, job.name.rpartition("/")[2])


def _submitted(client: Terms, patience: Patience, mine: Allocation, shape: Shape) -> pb.Job:
    """The job, durably stored: with the ranks in the best order, or in Slurm's."""
    spec = pb.JobSpec()
    spec.CopyFrom(shape.spec)
    spec.hosts.extend(mine.hosts)
    gpus = allocated_gpus(mine.number, mine.hosts, patience.left / 4)
    with_gpus(spec, gpus, mine.hosts)
    if shape.order != "slurm":
        asked = pb.OrderRanksRequest(parent=client.fabric, spec=spec, replaces=mine.name)
        try:
            found = client.api.jobs.OrderRanks(asked, timeout=patience.left / 2)
        except (InvalidRequest, PreconditionFailed):
            raise  # as it would be when submitted
        except HeddleError:
            pass  # Slurm's own order will do
        else:
            spec.hosts[:] = found.hosts
            del spec.gpus[:]
            spec.gpus.extend(found.gpus)
    digest = hashlib.sha256(mine.attempt.encode() + b" " + spec.SerializeToString())
    once = f"slurm-{digest.hexdigest()[:40]}"
    job = client.api.submit_job(mine.name, spec, replace=True, request_id=once)
    try:
        return client.api.get_job(mine.name)
    except NotFound:  # an older job of the same id was submitted so, and is gone
        return client.api.submit_job(job.name.rpartition("/")[2], spec, replace=True)


def _write_ports(client: Terms, patience: Patience, folder: Path, job: str) -> None:
    """The ports of each host of a job that is in the plan."""
    by_host: defaultdict[str, list[plan_pb2.JobPorts]] = defaultdict(list)
    for page in _ports(client, patience, job):
        rows: defaultdict[str, list[int]] = defaultdict(list)
        for row, source in enumerate(page.sources):
            rows[page.hosts[source]].append(row)
        for host, mine in rows.items():
            by_host[host].append(_part(page, mine))
    for host, parts in by_host.items():
        if NODE_NAME.fullmatch(host):
            write_ports(folder, host, ports_document(client.fabric, job, parts) | {"host": host})


def _ports(client: Terms, patience: Patience, job: str) -> Iterator[plan_pb2.JobPorts]:
    request = plan_pb2.GetJobPortsRequest(plan=client.plan, job=job, page_size=10_000)
    while True:
        answer = client.api.plans.GetJobPorts(request, timeout=patience.left)
        yield answer.ports
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


def _part(page: plan_pb2.JobPorts, rows: list[int]) -> plan_pb2.JobPorts:
    """Some flows of a page."""
    return plan_pb2.JobPorts(
        job=page.job,
        generation=page.generation,
        nics=page.nics,
        addresses=page.addresses,
        hosts=page.hosts,
        flows=[page.flows[row] for row in rows],
        sources=[page.sources[row] for row in rows],
        destinations=[page.destinations[row] for row in rows],
        first_ports=[page.first_ports[row] for row in rows],
        qp_counts=[page.qp_counts[row] for row in rows],
        probe_counts=[page.probe_counts[row] for row in rows] if page.probe_counts else [],
        qp_ports=_of_flows(page.qp_ports, page, rows),
        backup_ports=_of_flows(page.backup_ports, page, rows),
    )


def _of_flows(column: Sequence[int], page: plan_pb2.JobPorts, rows: list[int]) -> list[int]:
    """The elements of some flows, of a column with one for each QP, or none at all."""
    ends = [*accumulate(page.qp_counts)]
    return [port for row in rows for port in column[ends[row] - page.qp_counts[row] : ends[row]]]
