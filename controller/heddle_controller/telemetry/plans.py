"""Certificates as metrics: read from the store, so that every replica tells the same."""

from __future__ import annotations

import asyncio

from heddle_controller.reconcile.errors import NotFound, Unavailable
from heddle_controller.reconcile.ports import Store
from heddle_controller.telemetry.metrics import Telemetry


async def follow_plans(store: Store, telemetry: Telemetry) -> None:
    """Keep the gauges of every fabric at its newest plan, until the store is closed."""
    told: dict[str, int] = {}
    while True:
        try:
            async for fabric in store.changes(facts=True):
                await _tell(fabric, store, telemetry, told)
        except Unavailable as error:
            await asyncio.sleep(error.retry_after)
        else:
            return


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
