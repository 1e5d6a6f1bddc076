"""Certificates as metrics: read from the store, so that every replica tells the same.

Nothing hangs on them but what people look at. So a plan that cannot be read or told of is logged,
and tried again with the next change of its fabric; it ends nothing else.
"""

from __future__ import annotations

import asyncio

import structlog

from heddle_controller.reconcile.ports import Store
from heddle_controller.state.errors import NotFound, Unavailable
from heddle_controller.telemetry.metrics import Telemetry

_log = structlog.get_logger()


async def follow_plans(store: Store, telemetry: Telemetry) -> None:
    """Keep the gauges of every fabric at its newest plan, until the store is closed."""
    told: dict[str, int] = {}
    while True:
        try:
            async for fabric in store.changes(facts=True):
                await _try_to_tell(fabric, store, telemetry, told)
        except Unavailable as error:
            await asyncio.sleep(error.retry_after)
        else:
            return


async def _try_to_tell(
    fabric: str, store: Store, telemetry: Telemetry, told: dict[str, int]
) -> None:
    try:
        await _tell(fabric, store, telemetry, told)
    except Unavailable:
        raise
    except Exception:  # noqa: BLE001 - of no more worth than the gauges
        _log.exception("certificate not told as metrics", fabric=fabric)


async def _tell(fabric: str, store: Store, telemetry: Telemetry, told: dict[str, int]) -> None:
    try:
        generation = (await store.versions(fabric)).generation
    except NotFound:
        return
    if told.get(fabric) == generation:
        return
    committed = await store.committed(fabric)
    if committed is not None:
        telemetry.certificate(fabric, committed.plan.certificate)
        told[fabric] = committed.generation
