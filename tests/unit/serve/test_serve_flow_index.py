"""The index of a fabric's newest plan, for callers that ask once or again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heddle_controller.serve import flow_index
from heddle_controller.serve.flow_index import FlowIndex, FlowIndexes
from heddle_controller.state.records import Committed, PlanFacts
from heddle_controller.store.embedded import EmbeddedStore, open_embedded
from tests.support.store_samples import clos, plan_of, program_of
from tests.support.waiting import PATIENCE


async def commit(store: EmbeddedStore, epoch: int, generation: int) -> None:
    """Commit the next plan of the fabric f1."""
    plan = plan_of((await store.get_fabric("f1")).fabric)
    program = program_of(plan, epoch, generation)
    await store.commit(
        "f1",
        epoch=epoch,
        expected_generation=generation - 1,
        plan=plan,
        program=program,
        facts=PlanFacts(),
    )


def generation(index: FlowIndex | None) -> int:
    """Return the generation of an index's plan."""
    assert index is not None
    return index.generation


async def test_who_asks_once_hears_of_the_newest_who_asks_often_soon_after(tmp_path: Path) -> None:
    """``of`` returns a new plan at once. ``lately`` may return the one before, for a moment."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    await store.put_fabric("f1", clos())
    epoch, indexes = await store.acquire_leadership("test"), FlowIndexes(store)
    assert await indexes.lately("f1") is None
    await commit(store, epoch, 1)
    assert generation(await indexes.lately("f1")) == 1
    await commit(store, epoch, 2)
    assert generation(await indexes.lately("f1")) in {1, 2}
    async with asyncio.timeout(PATIENCE):
        while generation(await indexes.lately("f1")) == 1:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
    await commit(store, epoch, 3)
    assert generation(await indexes.of("f1")) == 3
    assert generation(await indexes.lately("f1")) == 3
    await store.close()


async def test_a_store_that_came_back_older_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index follows the store's plan, even if a newer one was known before."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    await store.put_fabric("f1", clos())
    epoch, indexes = await store.acquire_leadership("test"), FlowIndexes(store)
    await commit(store, epoch, 1)
    older = await store.committed("f1")
    await commit(store, epoch, 2)
    assert generation(await indexes.of("f1")) == 2

    async def restored(fabric: str) -> Committed | None:
        assert fabric == "f1"
        return older

    monkeypatch.setattr(store, "committed", restored)
    assert generation(await indexes.of("f1")) == 1
    await store.close()


async def test_what_was_asked_of_a_plan_is_ready_for_the_next(tmp_path: Path) -> None:
    """Only what was looked up in the last plan's index is prepared for the next plan."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    await store.put_fabric("f1", clos())
    epoch, indexes = await store.acquire_leadership("test"), FlowIndexes(store)
    await commit(store, epoch, 1)
    first = await indexes.of("f1")
    assert first is not None
    assert "f2" not in first.rows
    following = asyncio.create_task(indexes.run())
    await commit(store, epoch, 2)
    async with asyncio.timeout(PATIENCE):
        while generation(indexes.newest("f1")) == 1:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
    second = indexes.newest("f1")
    assert second is not None
    assert "rows" in vars(second)
    assert second.rows == first.rows
    await store.close()
    await following


async def test_a_flow_is_explained_at_once_where_that_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Explaining is quick once the indexes are made, for flows of few paths and unknown flows."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    await store.put_fabric("f1", clos())
    epoch, indexes = await store.acquire_leadership("test"), FlowIndexes(store)
    await commit(store, epoch, 1)
    index = await indexes.of("f1")
    assert index is not None
    assert not index.explains_at_once("j1/f0")
    assert index.rows["j1/f0"] == 0
    assert not index.explains_at_once("j1/f0")
    assert index.explain_index.uses.loads.any()
    assert index.explains_at_once("j1/f0")
    assert index.explains_at_once("nobody's")
    monkeypatch.setattr(flow_index, "FEW_PATHS", 0)
    assert not index.explains_at_once("j1/f0")
    await store.close()
