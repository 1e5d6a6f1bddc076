"""Conversion of jobs, as schedulers submit them, to the model and back.

Only the form is checked here (enums, counts). ``state.admission`` checks whether the hosts exist
and the parallelism divides the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TypeVar

from heddle.v1 import placement_pb2 as pb
from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Gpus,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.serve.codec import common, names, times
from heddle_controller.state.records import JobRecord

E = TypeVar("E", bound=StrEnum)

_OPERATIONS = tuple(Operation)
_GROUPS = tuple(Group)
_ALGORITHMS = tuple(Algorithm)
"""All three are in the order of the message values: operations and groups from 1, algorithms from
0."""

MAX_JOB_HOSTS, MAX_COLLECTIVES = 1 << 16, 1 << 12
"""Most hosts and collectives of one job, so that no job is too much work to check."""

DEGREES = ("tp", "pp", "dp", "cp", "ep")


def job_from_pb(name: str, spec: pb.JobSpec, field: str = "spec") -> Job:
    """Return the job of a specification, under this name.

    Raises:
        InputError: fields are faulty; has one problem for each where possible.
    """
    problems = _problems(spec, field)
    if problems:
        raise InputError("request", *problems)
    degrees = spec.parallelism
    gpus = gpus_from_pb(spec.gpus, len(spec.hosts))
    counts = {len(part) for part in gpus} or {spec.gpus_per_host}
    return Job(
        name=name,
        hosts=tuple(spec.hosts),
        gpus_per_host=counts.pop() if len(counts) == 1 else 0,
        gpus=gpus,
        parallelism=Parallelism(**{degree: getattr(degrees, degree) for degree in DEGREES}),
        collectives=tuple(
            _collective(c, f"{field}.collectives[{i}]") for i, c in enumerate(spec.collectives)
        ),
        priority=spec.priority,
        suspended=spec.suspended,
        flops_per_iteration=spec.flops_per_iteration,
        compute_seconds=spec.compute_seconds,
        network_seconds=spec.network_seconds,
        traffic_class=common.class_from_pb(spec.traffic_class, f"{field}.traffic_class"),
        qps=spec.qps or 1,
    )


def _problems(spec: pb.JobSpec, field: str) -> list[Problem]:
    found = []
    for name, most in (("hosts", MAX_JOB_HOSTS), ("collectives", MAX_COLLECTIVES)):
        if (count := len(getattr(spec, name))) > most:
            found.append(Problem(f"{field}.{name}", f"there are {count}: give {most} at most"))
    if not spec.hosts:
        found.append(Problem(f"{field}.hosts", "no host is named: give them in rank order"))
    if spec.gpus:
        found += _gpu_problems(spec, field)
    elif not spec.gpus_per_host:
        found.append(Problem(f"{field}.gpus_per_host", "it is 0: give 1 or more"))
    for name in ("priority", "flops_per_iteration", "compute_seconds", "network_seconds"):
        if not 0 <= (number := getattr(spec, name)) < float("inf"):
            reason = f"it is {number:g}: give a finite number, 0 or above"
            found.append(Problem(f"{field}.{name}", reason))
    return found


def _gpu_problems(spec: pb.JobSpec, field: str) -> list[Problem]:
    if len(spec.gpus) not in (1, len(spec.hosts)):
        there = f"there are {len(spec.gpus)} for {len(spec.hosts)} hosts"
        return [Problem(f"{field}.gpus", f"{there}: give one a host, or one for all")]
    told = spec.gpus_per_host
    odd = next((len(part.gpus) for part in spec.gpus if len(part.gpus) != told), None)
    if told and odd is not None:
        reason = f"it is {told}, and gpus names {odd} of a host: leave it out"
        return [Problem(f"{field}.gpus_per_host", reason)]
    return []


def gpus_from_pb(gpus: Sequence[pb.HostGpus], count: int) -> tuple[Gpus, ...]:
    """Return the GPUs of each of ``count`` hosts; a single list of GPUs holds for all hosts.

    Empty means that the job has whole hosts.
    """
    parts = tuple(tuple(part.gpus) for part in gpus)
    return parts * count if len(parts) == 1 else parts


def gpus_to_pb(gpus: Iterable[Gpus]) -> list[pb.HostGpus]:
    """Return the GPUs of each host as messages; a single message if all hosts have the same."""
    parts = list(gpus)
    if len(set(parts)) == 1:
        parts = parts[:1]
    return [pb.HostGpus(gpus=part) for part in parts]


def _collective(collective: pb.Collective, field: str) -> Collective:
    if collective.bytes == 0:
        raise refuse("request", f"{field}.bytes", "it is 0: give the bytes one rank puts in")
    return Collective(
        operation=_member(_OPERATIONS, collective.operation - 1, f"{field}.operation"),
        group=_member(_GROUPS, collective.group - 1, f"{field}.group"),
        bytes=collective.bytes,
        algorithm=_member(_ALGORITHMS, collective.algorithm, f"{field}.algorithm"),
        overlap=collective.overlap,
    )


def _member(members: tuple[E, ...], row: int, field: str) -> E:
    if not 0 <= row < len(members):
        raise refuse("request", field, f"it is not known: use one of {', '.join(members)}")
    return members[row]


def job_to_pb(job: Job) -> pb.JobSpec:
    """Return the specification of a job as a message."""
    p = job.parallelism
    return pb.JobSpec(
        hosts=job.hosts,
        gpus_per_host=job.gpus_per_host,
        parallelism=pb.Parallelism(tp=p.tp, pp=p.pp, dp=p.dp, cp=p.cp, ep=p.ep),
        collectives=[
            pb.Collective(
                operation=pb.CollectiveOperation.ValueType(_OPERATIONS.index(c.operation) + 1),
                group=pb.GroupKind.ValueType(_GROUPS.index(c.group) + 1),
                bytes=c.bytes,
                algorithm=pb.CollectiveAlgorithm.ValueType(_ALGORITHMS.index(c.algorithm)),
                overlap=c.overlap,
            )
            for c in job.collectives
        ],
        priority=job.priority,
        traffic_class=common.class_to_pb(job.traffic_class),
        qps=job.qps,
        gpus=gpus_to_pb(job.gpus),
        suspended=job.suspended,
        flops_per_iteration=job.flops_per_iteration,
        compute_seconds=job.compute_seconds,
        network_seconds=job.network_seconds,
    )


def job_record_to_pb(fabric: str, record: JobRecord) -> pb.Job:
    """Return a stored job with its facts as a message."""
    facts = record.facts
    return pb.Job(
        name=names.job_name(fabric, record.job.name),
        spec=job_to_pb(record.job),
        etag=record.etag,
        state=pb.JobState.ValueType(facts.state),
        reason=facts.reason,
        flow_count=facts.flow_count,
        unrouted_count=facts.unrouted_count,
        generation=facts.generation,
        create_time=times.time_to_pb(record.create_time),
        state_time=times.time_to_pb(facts.state_time) if facts.state_time else None,
    )
