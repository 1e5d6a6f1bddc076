"""Fabrics, jobs and certificates as metrics: from the store, so that every replica tells the same.

Nothing hangs on them but what people look at. So what cannot be read or told of is logged,
and tried again with the next change of its fabric; it ends nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TypeAlias

import structlog

from heddle_controller.reconcile.ports import Store
from heddle_controller.state.errors import NotFound, Unavailable
from heddle_controller.state.records import JobState, Versions
from heddle_controller.telemetry.metrics import Telemetry

_log = structlog.get_logger()

_REST, _LONGEST = 999.0, 1.0
"""After a fabric was told, rest so many times as long, up to so many seconds: a storm of changes
costs others a thousandth."""

Told: TypeAlias = tuple[Versions, tuple[int, ...]]
"""Of a fabric: the versions that were looked at last, switches, and jobs in each state."""
NOTHING: Told = (Versions(), ())


async def follow_plans(store: Store, telemetry: Telemetry) -> None:
    """Keep the gauges of every fabric at what the store has, until that is closed."""
    told: dict[str, Told] = {}
    while True:
        try:
            async for fabric in store.changes(facts=True):
                began = time.monotonic()
                await _try_to_tell(fabric, store, telemetry, told)
                await asyncio.sleep(min(_REST * (time.monotonic() - began), _LONGEST))
        except Unavailable as error:
            await asyncio.sleep(error.retry_after)
        else:
            return


async def _try_to_tell(
    fabric: str, store: Store, telemetry: Telemetry, told: dict[str, Told]
) -> None:
    try:
        await _tell(fabric, store, telemetry, told)
    except Unavailable:
        raise
    except Exception:  # noqa: BLE001 - of no more worth than the gauges
        _log.exception("fabric not told as metrics", fabric=fabric)


async def _tell(fabric: str, store: Store, telemetry: Telemetry, told: dict[str, Told]) -> None:
    try:
        now, (before, figures) = await store.versions(fabric), told.get(fabric, NOTHING)
        if now == before:
            return
        states = Counter(job.facts.state for job in await store.list_jobs(fabric))
        record = await store.get_fabric(fabric)
    except NotFound:
        return
    known = len(record.fabric.structure.programmed), *(states[state] for state in JobState)
    if known != figures:
        jobs = {state.name.lower(): states[state] for state in JobState}
        telemetry.fabric_known(fabric, known[0], jobs)
    if now.generation != before.generation:
        committed = await store.committed(fabric)
        if committed is not None:
            telemetry.certificate(fabric, committed.plan.certificate)
    told[fabric] = now, known
