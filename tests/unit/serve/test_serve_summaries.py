"""What everybody is told of the newest plan, counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle_controller.reconcile.errors import NotFound
from heddle_controller.serve.summaries import Summaries
from heddle_controller.store.embedded import open_embedded
from tests.unit.serve.test_serve_flow_index import commit
from tests.unit.store.samples import clos


async def test_it_is_told_as_it_stands_and_made_once(tmp_path: Path) -> None:
    """Asked twice, the very same message; another once a switch or a plan has come."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    summaries = Summaries(store)
    with pytest.raises(NotFound):
        await summaries.of("f1")
    await store.put_fabric("f1", clos())
    assert await summaries.of("f1") is None
    epoch = await store.acquire_leadership("test")
    await commit(store, epoch, 1)
    first = await summaries.of("f1")
    assert first is not None
    assert await summaries.of("f1") is first
    committed = await store.committed("f1")
    assert committed is not None
    assert (first.generation, first.programmed_switch_count) == (1, 0)
    switches = committed.switches()
    await store.record_programmed("f1", epoch=epoch, generation=1, switches=switches, time=1.0)
    second = await summaries.of("f1")
    assert second is not None
    assert second.programmed_switch_count == second.switch_count == len(switches)
    await commit(store, epoch, 2)
    third = await summaries.of("f1")
    assert third is not None
    assert (third.generation, third.programmed_switch_count) == (2, 0)
    await store.close()
