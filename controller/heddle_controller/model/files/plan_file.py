"""plan.json: what ``heddle plan`` writes, and reads again to repair."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import orjson

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.content import MEBIBYTE, read_json, write_content
from heddle_controller.model.files.plan_parse import parse_plan
from heddle_controller.model.files.plan_records import (
    certificate_record,
    route_records,
    state_records,
    unrouted_records,
)
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan

_CEILING = 4096 * MEBIBYTE
"""A million routes over five hops with their backups take some 500 MB."""


def save_plan(
    plan: Plan, path: Path, *, timing: Mapping[str, float] | None = None, changed: int = 0
) -> float:
    """Write a plan.json, gzip where the name ends in ``.gz``; the seconds it took.

    ``timing`` is what took how long before (seconds); ``write_seconds`` is added.
    The file's own ``write_seconds`` ends where its bytes stand ready: it cannot
    know how long the disk will take.

    Raises:
        InputError: the file cannot be written.
    """
    start = time.perf_counter()
    bulk = orjson.dumps({"routes": route_records(plan), "unrouted": unrouted_records(plan)})
    head = {
        "certificate": certificate_record(plan.certificate),
        "timing": dict(timing or {}) | {"write_seconds": time.perf_counter() - start},
        "changed": changed,
        "states": state_records(plan.fabric),
    }
    # The two objects become one: "{a}" and "{b}" to "{a,b}".
    write_content(path, orjson.dumps(head)[:-1], b",", memoryview(bulk)[1:], b"\n")
    return time.perf_counter() - start


def load_plan(path: Path, fabric: Fabric, flows: Flows) -> Plan:
    """Read a plan.json, plain or gzip, as a plan of these flows on this fabric.

    See ``parse_plan`` for what becomes of flows that came or went.

    Raises:
        InputError: the file cannot be read, is not JSON, or is no plan of the fabric.
    """
    return parse_plan(read_json(path, _CEILING), fabric, flows, str(path))
