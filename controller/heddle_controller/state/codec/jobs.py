"""Codec of jobs, as JSON, and of demand sets, as columns with each repeated name stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from heddle_controller.model.demand import Demands
from heddle_controller.model.job import Job
from heddle_controller.state.codec.container import DamagedError, pack, parser, unpack
from heddle_controller.state.records import JobFacts, JobRecord


def job_json(job: Job) -> bytes:
    """Return a job as a JSON object with sorted keys."""
    return orjson.dumps(job, option=orjson.OPT_SORT_KEYS)


parse_record = parser(JobRecord, "record of a job")
parse_facts = parser(JobFacts, "facts of a job")


_NAMED = ("source", "destination", "job", "phase")
_NUMBERS = ("gbps", "qps", "traffic_class")


def pack_demands(demands: Demands) -> bytes:
    """Return a demand set as bytes."""
    meta: dict[str, Any] = {"ids": demands.ids}
    columns = {name: getattr(demands, name) for name in _NUMBERS}
    for name in _NAMED:
        column = getattr(demands, name)
        rows = {value: row for row, value in enumerate(dict.fromkeys(column))}
        meta[name] = list(rows)
        columns[name] = np.array([rows[value] for value in column], dtype=np.int64)
    return pack(meta, columns)


def unpack_demands(packed: bytes) -> Demands:
    """Return the demand set that ``pack_demands`` made into bytes. Raises ``DamagedError``."""
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
