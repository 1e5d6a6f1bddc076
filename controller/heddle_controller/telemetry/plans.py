"""Certificates as metrics: read from the store, so that every replica tells the same."""

from __future__ import annotations

from heddle_controller.reconcile.errors import NotFound
from heddle_controller.reconcile.ports import Store
from heddle_controller.telemetry.metrics import Telemetry


async def follow_plans(store: Store, telemetry: Telemetry) -> None:
    """Keep the gauges of every fabric at its newest plan, until the store is closed."""
    told: dict[str, int] = {}
    async for fabric in store.changes(facts=True):
        try:
            generation = (await store.versions(fabric)).generation
        except NotFound:
            continue
        if told.get(fabric) == generation:
            continue
        committed = await store.committed(fabric)
        if committed is not None:
            telemetry.certificate(fabric, committed.plan.certificate)
            told[fabric] = committed.generation
