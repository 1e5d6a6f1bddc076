"""Jobs and their records as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.records import JobFacts, JobRecord, JobState

_SIZES = tuple(field.name for field in dataclasses.fields(Parallelism))
_FACTS = tuple(field.name for field in dataclasses.fields(JobFacts))


def job_json(job: Job) -> bytes:
    """A job as one JSON object."""
    return orjson.dumps(job, option=orjson.OPT_SORT_KEYS)


def parse_job(content: bytes) -> Job:
    """Raises ``DamagedError`` for anything that ``job_json`` did not make."""
    try:
        return _job(orjson.loads(content))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"job: {error}") from error


def _job(fields: dict[str, Any]) -> Job:
    return Job(
        name=fields["name"],
        hosts=tuple(fields["hosts"]),
        gpus_per_host=fields["gpus_per_host"],
        parallelism=Parallelism(**{size: fields["parallelism"][size] for size in _SIZES}),
        collectives=tuple(
            Collective(
                operation=Operation(c["operation"]),
                group=Group(c["group"]),
                bytes=c["bytes"],
                algorithm=Algorithm(c["algorithm"]),
                overlap=c["overlap"],
            )
            for c in fields["collectives"]
        ),
        priority=fields["priority"],
        traffic_class=TrafficClass(fields["traffic_class"]),
        qps=fields["qps"],
        gpus=tuple(map(tuple, fields["gpus"])),
        suspended=fields["suspended"],
        flops_per_iteration=fields["flops_per_iteration"],
        compute_seconds=fields["compute_seconds"],
        network_seconds=fields["network_seconds"],
    )


def record_json(record: JobRecord) -> bytes:
    """A job's record as one JSON object."""
    return orjson.dumps(record)


def parse_record(content: bytes) -> JobRecord:
    """Raises ``DamagedError`` for anything that ``record_json`` did not make."""
    try:
        fields = orjson.loads(content)
        return JobRecord(
            job=_job(fields["job"]),
            etag=fields["etag"],
            create_time=fields["create_time"],
            facts=_facts(fields["facts"]),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"record of a job: {error}") from error


def parse_facts(content: bytes) -> JobFacts:
    """Raises ``DamagedError`` for anything that is not all the facts of a job."""
    try:
        return _facts(orjson.loads(content))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"facts of a job: {error}") from error


def _facts(fields: dict[str, Any]) -> JobFacts:
    facts = {name: fields[name] for name in _FACTS}  # defaults are for new ones
    return JobFacts(**(facts | {"state": JobState(facts["state"])}))
