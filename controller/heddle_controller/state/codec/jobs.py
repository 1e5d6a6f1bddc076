"""Jobs and their records as JSON.

Demand sets as columns; repeated names are kept once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import orjson

from heddle_controller.model.demand import Demands
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.state.codec.container import DamagedError, pack, unpack
from heddle_controller.state.records import JobFacts, JobRecord, JobState

_SIZES = tuple(field.name for field in dataclasses.fields(Parallelism))
_FACTS = tuple(field.name for field in dataclasses.fields(JobFacts))


def job_json(job: Job) -> bytes:
    """A job as one JSON object."""
    return orjson.dumps(job, option=orjson.OPT_SORT_KEYS)


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


_NAMED = ("source", "destination", "job", "phase")
_NUMBERS = ("gbps", "qps", "traffic_class")


def pack_demands(demands: Demands) -> bytes:
    """Bytes of a demand set."""
    meta: dict[str, Any] = {"ids": demands.ids}
    columns = {name: getattr(demands, name) for name in _NUMBERS}
    for name in _NAMED:
        column = getattr(demands, name)
        rows = {value: row for row, value in enumerate(dict.fromkeys(column))}
        meta[name] = list(rows)
        columns[name] = np.array([rows[value] for value in column], dtype=np.int64)
    return pack(meta, columns)


def unpack_demands(packed: bytes) -> Demands:
    """Raises ``DamagedError`` for anything that ``pack_demands`` did not make."""
    meta, columns = unpack(packed)
    try:
        named: dict[str, Any] = {
            name: tuple(map(meta[name].__getitem__, columns[name].tolist())) for name in _NAMED
        }
        return Demands(
            ids=tuple(meta["ids"]), **named, **{name: columns[name] for name in _NUMBERS}
        )
    except (KeyError, IndexError, TypeError) as error:
        raise DamagedError(f"demands: {error!r}") from error
