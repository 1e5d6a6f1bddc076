"""``heddle slurm prolog`` and ``epilog``: commands that slurmctld runs before and after a job.

Slurm waits for its prolog. It requeues a batch job whose prolog fails, and cancels other jobs. So
these commands never fail, and every wait has a limit. A job that is not programmed runs on the
underlay.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Never

import click

from heddle.client import (
    PROGRAMMED,
    Client,
    HeddleError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    TimedOut,
)
from heddle.ports import ports_document
from heddle.shape import Shape, shape_text
from heddle.v1 import placement_pb2 as pb
from heddle.v1 import plan_pb2
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import last_part, with_server
from heddle_controller.cli.output import echo
from heddle_controller.cli.slurm.allocation import (
    NODE_NAME,
    Allocation,
    allocated_nodes,
    allocation,
    slurm_job_name,
)
from heddle_controller.cli.slurm.jobs_folder import (
    JobsFolder,
    write_hosts,
    write_ports,
    write_said,
)
from heddle_controller.cli.slurm.shape import allocated_gpus, read_shape, with_gpus
from heddle_controller.model.errors import InputError
from heddle_controller.model.host_lists import fold

_Command = Callable[..., Any]
LOG_FAILED = 74
"""Exit status if the log cannot be written, as of sysexits.h."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a job may be kept waiting."""

    wait: float
    """Total limit in seconds."""
    answer: float
    """The part of it within which some controller must have answered, in seconds."""
    begun: float = field(default_factory=lambda: script_begun(os.environ))

    @property
    def left(self) -> float:
        """Seconds left, but at least a little, so that a late call fails with a proper error."""
        return max(0.05, self.begun + self.wait - time.monotonic())


def script_begun(environment: Mapping[str, str]) -> float:
    """Return the monotonic time at which the script prolog began: the job waits since then.

    The script tells how long the machine ran then. It is now if no script has started this command.
    """
    told, now = environment.get("HEDDLE_SLURM_BEGUN", ""), time.monotonic()
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", told):
        return now
    return now - max(time.clock_gettime(time.CLOCK_BOOTTIME) - float(told), 0.0)


def end_turn(environment: Mapping[str, str]) -> None:
    """Let the next prolog start: the script prolog tells which open file it has locked."""
    with suppress(KeyError, ValueError, OSError):
        fcntl.flock(int(environment["HEDDLE_SLURM_TURN"]), fcntl.LOCK_UN)


def handover_options(command: _Command) -> _Command:
    """Add the options that prolog and epilog share."""

    @click.option(
        "--directory",
        envvar="HEDDLE_SLURM_DIRECTORY",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/var/spool/heddle-slurm"),
        show_default=True,
        help="Folder for the files of jobs. If the nodes share it, jobs find their ports there.",
    )
    @click.option(
        "--wait",
        envvar="HEDDLE_SLURM_WAIT",
        type=click.FloatRange(min=0.1, max=25, clamp=True),
        default=5.0,
        show_default=True,
        help="Longest delay of a job, in seconds.",
    )
    @click.option(
        "--answer",
        envvar="HEDDLE_SLURM_ANSWER",
        type=click.FloatRange(min=0.05, max=25, clamp=True),
        default=0.5,
        show_default=True,
        help="Part of the delay in which a controller must answer, in seconds.",
    )
    @wraps(command)
    def run(*args: Any, wait: float, answer: float, **options: Any) -> None:  # noqa: ANN401 - click's
        command(*args, patience=Patience(wait, min(answer, wait)), **options)

    return run


def never_failing(command: _Command) -> _Command:
    """Return a command that logs its errors and succeeds, if it can log. The process ends with it.

    It ends at once, because a job waits, and an orderly exit of gRPC and the interpreter takes a
    sixth of the processor time of the whole command.
    """

    @wraps(command)
    def run(client: Terms, **options: Any) -> Never:  # noqa: ANN401 - whatever the command takes
        status = 0
        try:
            try:
                command(client, **options)
            except Exception as error:  # noqa: BLE001 - Slurm would take the job for a failed one
                note(f"job {os.environ.get('SLURM_JOB_ID')}: {said(client, error)}")
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # the script has another place where it can tell this
            status = LOG_FAILED
        os._exit(status)

    return run


def note(text: str) -> None:
    """Print a line of the log to standard error."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    echo(f"{now} {text}", err=True)


def said(client: Terms, error: Exception) -> str:
    """Return an error as one line."""
    if isinstance(error, TimedOut):  # the time limits are the administrator's, not --timeout
        return error.message
    try:
        with client.failing():
            raise error  # noqa: TRY301 - for what the context makes of it
    except Failure as failure:
        return "; ".join(failure.details or [failure.message])  # a message tells the first detail
    except InputError as refused:
        return str(refused)
    except OSError as failed:
        return f"{failed.filename or 'the disk'}: {failed.strerror}"
    except Exception as failed:  # noqa: BLE001 - as above
        return f"{type(failed).__name__}: {failed}"


def answering(client: Terms, patience: Patience) -> Terms:
    """Return a client that has reached a controller and knows its fabric; it keeps the connection.

    If that controller goes away, the client calls the others.

    Raises:
        HeddleError: No controller answers, or it has several fabrics and none was named.
        Failure: It has no such fabric.
    """
    calls = client.api.operations.calls
    end = time.monotonic() + min(patience.answer, patience.left)
    last = len(calls.addresses) - 1
    for row in range(last + 1):
        calls.current, calls.timeout = row, (end - time.monotonic()) / (last - row + 1)
        try:
            known = {last_part(fabric.name) for fabric in client.api.list_fabrics()}
        except HeddleError:
            if row == last:
                raise
            continue
        if (named := last_part(client.fabric)) not in known:
            address = calls.addresses[calls.current]
            raise Failure(f"the controller at {address} has no fabric {named!r}")
        return client
    raise AssertionError("a client has an address")


def in_time(client: Terms, patience: Patience) -> Client:
    """Return the client, whose next call may take the time that is left, and no more."""
    client.api.operations.calls.timeout = patience.left
    return client.api


def pay(client: Terms, jobs: JobsFolder, patience: Patience) -> None:
    """End jobs at the controller that ended while none answered, in at most half the time."""
    for job in jobs.debts():
        if patience.left < patience.wait / 2:
            return
        with jobs.held(job, wait=False) as owed:
            if owed:
                with suppress(NotFound, InvalidRequest):  # the name of no job, in any case
                    in_time(client, patience).delete_job(job)


@click.command("prolog")
@handover_options
@with_server
@never_failing
def prolog(client: Terms, directory: Path, patience: Patience) -> None:
    """Submit the job that Slurm is about to start, and wait until its routes are programmed.

    For PrologSlurmctld; deploy/slurm explains the set-up. The comment of a job gives its shape:

    \b
    sbatch --nodes 16 --comment 'heddle: gpus=8 tp=8 pp=4' job.sh
    sbatch --nodes 16 --comment 'heddle: @shape' job.sh    # the same words in a file

    Jobs without 'heddle:' in their comment are ignored. This command never fails. A job that cannot
    be planned runs on the underlay; the log and the file 'said' of the job say why.
    """  # noqa: D301 - click's mark for lines that stay as they are
    text = shape_text(os.environ.get("SLURM_JOB_COMMENT", ""))
    if text is None:
        return
    mine = allocation(os.environ)
    jobs = JobsFolder(directory)
    try:
        folder = jobs.begin(mine.name, mine.restart)
    except FileNotFoundError:
        raise Failure("it has ended, or the script prolog did not make its folder") from None
    try:
        where = os.environ.get("SLURM_JOB_WORK_DIR", "/")
        user = int(os.environ.get("SLURM_JOB_UID", "-1"))
        shape = read_shape(text, where, user, gpus_told=True)
        reached = answering(client, patience)
        jobs.acquit(mine.name)
        pay(reached, jobs, patience)
        try:
            job = _submitted(reached, patience, mine, shape)
        except PreconditionFailed:
            if not _left(reached, patience, mine, jobs):
                raise
            job = _submitted(reached, patience, mine, shape)
        end_turn(os.environ)
        _waited_for(reached, patience, folder, job)
    except Exception as error:
        with suppress(OSError):  # it has ended, or its disk is full
            write_said(folder, said(client, error))
        raise
    took = time.monotonic() - patience.begun
    note(f"{mine.name} is programmed, {took:.3f} s after the prolog began")


def _waited_for(client: Terms, patience: Patience, folder: Path, job: pb.Job) -> None:
    """Wait until a job is programmed, and write the files that its ranks need.

    Raises Failure if the epilog has removed the folder: it was too early to delete the job.
    """
    if not folder.exists():
        with suppress(NotFound):
            in_time(client, patience).delete_job(last_part(job.name))
        raise Failure("it has ended while its prolog ran")
    write_hosts(folder, job.spec.hosts)
    try:
        client.api.wait_until(PROGRAMMED, [job], patience.left, degraded_ok=False)
    finally:
        with suppress(HeddleError):  # the job may have a plan that is not fully programmed
            _write_ports(client, patience, folder, job.name.rpartition("/")[2])


def _submitted(client: Terms, patience: Patience, mine: Allocation, shape: Shape) -> pb.Job:
    """Submit the job, with its ranks in the best order or in Slurm's; return it once stored."""
    spec = pb.JobSpec()
    spec.CopyFrom(shape.spec)
    spec.hosts.extend(mine.hosts)
    gpus = allocated_gpus(mine.number, mine.hosts, patience.left / 2)
    with_gpus(spec, gpus, mine.hosts)
    if shape.order != "slurm":
        asked = pb.OrderRanksRequest(parent=client.fabric, spec=spec, replaces=mine.name)
        try:
            found = client.api.jobs.OrderRanks(asked, timeout=patience.left / 2)
        except (InvalidRequest, PreconditionFailed):
            raise  # the job would also be refused when submitted
        except HeddleError as error:
            note(f"{mine.name} keeps Slurm's order of nodes: {said(client, error)}")
        else:
            spec.hosts[:] = found.hosts
            del spec.gpus[:]
            spec.gpus.extend(found.gpus)
    digest = hashlib.sha256(mine.attempt.encode() + b" " + spec.SerializeToString())
    once = f"slurm-{digest.hexdigest()[:40]}"
    in_time(client, patience).submit_job(mine.name, spec, replace=True, request_id=once)
    try:
        return in_time(client, patience).get_job(mine.name)
    except NotFound:  # the request id repeated one of an older job, which is gone
        return in_time(client, patience).submit_job(mine.name, spec, replace=True)


def _left(client: Terms, patience: Patience, mine: Allocation, jobs: JobsFolder) -> bool:
    """Correct jobs that keep nodes of this job, though Slurm took these nodes from them.

    Slurm runs neither prolog nor epilog when a running job shrinks, and no epilog when it forgets a
    job. Returns whether any job was corrected.
    """
    nodes, corrected = allocated_nodes(patience.left / 4), False
    if nodes is None:
        return False
    for job in in_time(client, patience).list_jobs():
        name, hosts = last_part(job.name), job.spec.hosts
        number = name.removeprefix(slurm_job_name(os.environ, ""))
        kept = nodes.get(number, frozenset())
        gone = [host for host in hosts if host not in kept]
        if name == mine.name or not jobs.knows(name) or not {*gone} & {*mine.hosts}:
            continue
        corrected = True
        try:
            if len(gone) < len(hosts):
                in_time(client, patience).resize_job(name, remove=gone)
                note(f"{name} has given up {fold(gone)}")
                continue
        except InvalidRequest:
            pass  # its shape does not fit the nodes that are left
        with suppress(NotFound):
            in_time(client, patience).delete_job(name)
        if not kept:  # it has ended, and Slurm may run no epilog for it
            jobs.forget(name)
        note(f"{name} no longer has the nodes of its plan, and is ended")
    return corrected


def _write_ports(client: Terms, patience: Patience, folder: Path, job: str) -> None:
    """Write the ports of each host of a planned job."""
    by_host: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    document: dict[str, Any] = {}
    for page in _ports(client, patience, job):
        document = ports_document(client.fabric, job, [page])
        for flow, source in zip(document["flows"], page.sources, strict=True):
            by_host[page.hosts[source]].append(flow)
    for host, flows in by_host.items():
        if NODE_NAME.fullmatch(host):
            write_ports(folder, host, document | {"flows": flows, "host": host})


def _ports(client: Terms, patience: Patience, job: str) -> Iterator[plan_pb2.JobPorts]:
    request = plan_pb2.GetJobPortsRequest(plan=client.plan, job=job, page_size=10_000)
    while True:
        answer = client.api.plans.GetJobPorts(request, timeout=patience.left)
        yield answer.ports
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


@click.command("epilog")
@handover_options
@with_server
@never_failing
def epilog(client: Terms, directory: Path, patience: Patience) -> None:
    """Remove a job that has ended: its routes go, and its hosts are free.

    For EpilogSlurmctld; deploy/slurm explains the set-up. This command never fails. If no
    controller answers, the next prolog or epilog that reaches one ends the job.
    """
    jobs = JobsFolder(directory)
    name = slurm_job_name(os.environ, os.environ.get("SLURM_JOB_ID", ""))
    if not jobs.knows(name):
        return
    jobs.owe(name)
    jobs.forget(name)
    if name in jobs.debts():  # or another command has ended it
        pay(answering(client, patience), jobs, patience)
    if name not in jobs.debts():
        note(f"{name} is ended")
