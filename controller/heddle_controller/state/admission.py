"""Checks of requests, so that nothing faulty is ever stored or half applied.

The functions are pure: each takes what to check and what to check it against, and raises an error.
Whether hosts are free is not checked here but where a write is decided (``jobs``,
``reservations``), because its guards make sure that no other job comes between.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.names import NAME
from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import MAX_BYTES, SUPPOSED, Gpus, Job
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import DemandRecord, JobRecord, Request
from heddle_controller.traffic.groups import gpu_problems
from heddle_controller.traffic.jobs import flows_of_job, number_problems, unknown_host

MAX_REQUEST_ID_BYTES = 64
LONGEST_RESERVATION = 86_400
"""Longest reservation in seconds: one day. Then unused hosts become free again."""


def check_name(kind: str, name: str) -> str:
    """Return the name, or raise ``InputError`` if it cannot be part of "fabrics/f1/jobs/j1".

    ``kind`` says in the error what the name is of, for example "job".
    """
    if not NAME.fullmatch(name):
        raise refuse(f"{kind} {name!r}", "name", "use 1 to 63 letters, digits, '-', '_' or '.'")
    return name


def check_request(request: Request) -> Request:
    """Return the request, or raise ``InputError`` if its id is too long to keep."""
    if len(request.id.encode()) > MAX_REQUEST_ID_BYTES:
        raise refuse("request", "request_id", f"use at most {MAX_REQUEST_ID_BYTES} bytes")
    return request


def admit_job(fabric: Fabric, job: Job) -> Flows:
    """Check that a job is valid and fits a fabric, and return its flows.

    Raises:
        InputError: with each problem: a name that is not valid, unknown hosts, a host named twice,
            numbers out of range, parallelism that does not match the number of ranks.
    """
    if job.name != SUPPOSED:
        check_name("job", job.name)
    problems = [*_number_problems(job), *_host_problems(job.hosts, fabric)]
    if problems:
        raise InputError(job.label, *problems[:MAX_PROBLEMS])
    return flows_of_job(job, fabric)


def _number_problems(job: Job) -> list[Problem]:
    problems = []
    if not job.gpus and job.gpus_per_host < 1:
        problems.append(Problem("gpus_per_host", f"is {job.gpus_per_host}; give 1 or more"))
    if job.qps < 1:
        problems.append(Problem("qps", f"is {job.qps}; give 1 or more"))
    problems += number_problems(job)
    problems += [
        Problem(f"parallelism.{name}", f"is {value}; give 1 or more, or leave it out")
        for name in ("tp", "pp", "dp", "cp", "ep")
        if (value := getattr(job.parallelism, name)) < 0
    ]
    problems += [
        Problem(f"collectives[{row}].bytes", f"is {collective.bytes}; give 1 to {MAX_BYTES - 1}")
        for row, collective in enumerate(job.collectives)
        if not 1 <= collective.bytes < MAX_BYTES
    ]
    return problems


def admit_reservation(
    fabric: Fabric, name: str, hosts: Sequence[str], gpus: Sequence[Gpus], seconds: float
) -> None:
    """Check that a reservation names hosts of a fabric, each once, and an allowed time.

    Args:
        fabric: The fabric.
        name: Name of the reservation.
        hosts: The hosts.
        gpus: GPUs of each host, or empty for whole hosts.
        seconds: How long it lasts.

    Raises:
        InputError: with each problem.
    """
    check_name("reservation", name)
    problems = [*_host_problems(hosts, fabric), *gpu_problems(hosts, gpus)]
    if not 1 <= seconds <= LONGEST_RESERVATION:
        problems.append(Problem("seconds", f"is {seconds:g}; give 1 to {LONGEST_RESERVATION}"))
    if problems:
        raise InputError(f"reservation {name!r}", *problems[:MAX_PROBLEMS])


def _host_problems(hosts: Sequence[str], fabric: Fabric) -> list[Problem]:
    if not hosts:
        return [Problem("hosts", "none are given; name them in rank order")]
    known = fabric.structure.nics_of_host
    seen: set[str] = set()
    problems = []
    for row, host in enumerate(hosts):
        if host not in known:
            problems.append(Problem(f"hosts[{row}]", f"{host!r} {unknown_host(host, fabric)}"))
        elif host in seen:
            problems.append(Problem(f"hosts[{row}]", f"{host!r} is named twice"))
        seen.add(host)
    return problems


def admit_fabric(
    name: str,
    fabric: Fabric,
    jobs: Sequence[JobRecord],
    demands: Sequence[DemandRecord],
) -> None:
    """Check that the present jobs and demand sets fit a fabric that will replace the present one.

    Raises:
        FailedPrecondition: names each job or demand set that does not fit.
    """
    problems = []
    for record in jobs:
        try:
            admit_job(fabric, record.job)
        except InputError as error:
            problems.append(Problem(f"job {record.job.name!r}", f"needs it: {error.problems[0]}"))
    for demand_set in demands:
        try:
            resolve(demand_set.demands, fabric, origin=f"demands {demand_set.name!r}")
        except InputError as error:
            problems.append(
                Problem(f"demands {demand_set.name!r}", f"need it: {error.problems[0]}")
            )
    if problems:
        raise FailedPrecondition(f"fabric {name!r}", *problems[:MAX_PROBLEMS])
