from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from heddle_controller.model.plan import Certificate, TierCertificate
from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.errors import Refusal
from heddle_controller.serve.watch import Changes
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import Committed, PlanFacts
from heddle_controller.store.embedded import EmbeddedStore, open_embedded
from heddle_controller.store.store import Store
from heddle_controller.telemetry.metrics import Telemetry, follow_plans
from tests.support.store_samples import clos, plan_of, program_of
from tests.support.waiting import PATIENCE, until


class Torn:
    """A store in which the plan of one fabric cannot be read."""

    def __init__(self, store: EmbeddedStore, fabric: str) -> None:
        self._store = store
        self._fabric = fabric

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def committed(self, fabric: str, generation: int = 0) -> Committed | None:
        """Raise for the one fabric, and return the plan of any other."""
        if fabric == self._fabric:
            raise ValueError("columns of unlike lengths")
        return await self._store.committed(fabric, generation)


class Deleting:
    """A store in which somebody deletes a fabric just before its plan is read."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def committed(self, fabric: str, generation: int = 0) -> Committed | None:
        """Delete the fabric, and raise ``NotFound`` for it."""
        await self._store.delete_fabric(fabric)
        return await self._store.committed(fabric, generation)


class Flaky:
    """A store whose change notices break off once."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """Break off at the first notice, and yield all the next time."""
        async for name in self._store.changes(facts=facts):
            if not self.broken:
                self.broken = True
                raise Unavailable("the connection broke", retry_after=0.01)
            yield name

    async def follow(self, look: Callable[[str], Awaitable[object]], *, facts: bool = True) -> None:
        """Implement ``Store.follow`` with these notices."""
        await Store.follow(cast("Store", self), look, facts=facts)


async def test_a_watcher_hears_of_changes_and_merges_those_it_missed(tmp_path: Path) -> None:
    """A watcher is woken at the start, and then far less often than there are writes."""
    store = await open_embedded(tmp_path / "s")
    await store.put_fabric("f1", clos())
    changes = Changes(store, Observations())
    running = asyncio.create_task(changes.run())
    async with aclosing(changes.watch("f1")) as watch:
        await anext(watch)
        for _ in range(50):
            await store.put_fabric("f1", clos())
        async with asyncio.timeout(PATIENCE):
            await anext(watch)
        woken = 1
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(1):
                    await anext(watch)
                woken += 1
        assert woken < 25
    running.cancel()
    await store.close()


async def test_notices_go_on_after_the_store_was_away(tmp_path: Path) -> None:
    """The hub asks again, and no change is missed."""
    store = await open_embedded(tmp_path / "s")
    await store.put_fabric("f1", clos())
    flaky = Flaky(store)
    changes = Changes(cast("Store", flaky), Observations())
    running = asyncio.create_task(changes.run())
    async with aclosing(changes.watch("f1")) as watch:
        await anext(watch)
        async with asyncio.timeout(PATIENCE):
            await anext(watch)
    assert flaky.broken
    await store.close()
    await running


async def test_watchers_end_when_the_controller_stops(tmp_path: Path) -> None:
    """Watchers that wait are refused, and so are those that come later."""
    store = await open_embedded(tmp_path / "s")
    changes = Changes(store, Observations())
    watch = changes.watch("f1")
    await anext(watch)
    changes.close()
    for late in (watch, changes.watch("f2")):
        with pytest.raises(Refusal, match="shutting down"):
            await anext(late)
    await store.close()


async def test_a_plan_that_cannot_be_told_ends_nothing(tmp_path: Path) -> None:
    """The error is logged, and metrics of other fabrics follow."""
    store, telemetry = await open_embedded(tmp_path / "s"), Telemetry()
    following = asyncio.create_task(follow_plans(cast("Store", Torn(store, "f1")), telemetry))
    epoch = await store.acquire_leadership("test")
    with capture_logs() as logs:
        for fabric in ("f1", "f2"):
            await store.put_fabric(fabric, clos())
            plan = plan_of((await store.get_fabric(fabric)).fabric)
            await store.commit(
                fabric,
                epoch=epoch,
                expected_generation=0,
                plan=plan,
                program=program_of(plan, epoch, 1),
                facts=PlanFacts(),
            )
        labels = {"fabric": "f2", "tier": "leaf-spine"}
        async with asyncio.timeout(PATIENCE):
            name = "heddle_tier_lower_bound_ratio"
            while not telemetry.registry.get_sample_value(name, labels):  # noqa: ASYNC110 - a gauge
                await asyncio.sleep(0.005)
    assert any(log["event"] == "fabric not told as metrics" for log in logs)
    assert not following.done()
    await store.close()
    await following


async def test_a_fabric_that_is_deleted_meanwhile_is_not_shown(tmp_path: Path) -> None:
    """It leaves no metrics behind and no fault in the log."""
    store, telemetry = await open_embedded(tmp_path / "s"), Telemetry()
    with capture_logs() as logs:
        following = asyncio.create_task(follow_plans(cast("Store", Deleting(store)), telemetry))
        await store.put_fabric("f1", clos())
        await until(lambda: not [*store.applier.fabrics()], "the deletion")
        await store.close()
        await following
    assert not logs
    assert b'fabric="f1"' not in generate_latest(telemetry.registry)


async def test_plans_become_metrics_even_after_a_break(tmp_path: Path) -> None:
    """Metrics are those of the newest plan, whoever made it, and follow a bound that comes later.

    A tier that it does not have is no longer shown. A break in the store's notices stops nothing.
    """
    store, telemetry = await open_embedded(tmp_path / "s"), Telemetry()
    await store.put_fabric("f1", clos())
    following = asyncio.create_task(follow_plans(cast("Store", Flaky(store)), telemetry))
    epoch = await store.acquire_leadership("test")
    plan = plan_of((await store.get_fabric("f1")).fabric)
    assert plan.certificate != Certificate()
    await store.commit(
        "f1",
        epoch=epoch,
        expected_generation=0,
        plan=plan,
        program=program_of(plan, epoch, 1),
        facts=PlanFacts(),
    )

    def shown(name: str, **labels: str) -> float | None:
        return telemetry.registry.get_sample_value(name, {"fabric": "f1", **labels})

    await until(lambda: shown("heddle_plan_generation") == 1, "the plan")
    assert shown("heddle_plan_unrouted_flows") == len(plan.unrouted)
    assert shown("heddle_plan_max_utilization_ratio") == plan.certificate.max_utilization
    assert shown("heddle_tier_gap_ratio", tier="leaf-spine") == 1
    proven = replace(plan.certificate, tiers=(TierCertificate("leaf-spine", 1.0, 0.8),))
    assert await store.certify("f1", epoch=epoch, generation=1, certificate=proven)
    gap = pytest.approx(0.25)
    await until(lambda: shown("heddle_tier_gap_ratio", tier="leaf-spine") == gap, "the bound")
    other = replace(plan.certificate, tiers=(TierCertificate("leaf-core", 1.0, 1.0),))
    assert await store.certify("f1", epoch=epoch, generation=1, certificate=other)
    await until(lambda: shown("heddle_tier_gap_ratio", tier="leaf-core") == 0, "the other tier")
    assert shown("heddle_tier_gap_ratio", tier="leaf-spine") is None
    await store.close()
    await following
