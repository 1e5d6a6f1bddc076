"""The change feed of every store: who is woken by which write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.state.errors import NotFound, Unavailable
from heddle_controller.state.records import LinkName, Programmed
from heddle_controller.store.store import Store
from tests.support.store_samples import clos, demands, job
from tests.support.waiting import PATIENCE


async def heard(changes: AsyncIterator[str]) -> str:
    """The next name from the feed."""
    async with asyncio.timeout(PATIENCE):
        return await anext(changes)


async def silent(changes: AsyncIterator[str], store: Store) -> bool:
    """Whether nothing is heard until a fabric is changed to end the silence."""
    await store.put_fabric("end", clos())
    return await heard(changes) == "end"


async def test_every_fabric_at_the_start(store: Store) -> None:
    """A new watcher is told every fabric once, since it cannot know what it missed."""
    for name in ("f1", "f2"):
        await store.put_fabric(name, clos())
    changes = store.changes()
    assert {await heard(changes), await heard(changes)} == {"f1", "f2"}
    assert await silent(changes, store)


async def test_every_write_of_intent_is_heard(store: Store) -> None:
    """Each write of a fabric, a state, a job or demands wakes the watchers."""
    await store.put_fabric("f1", clos())
    changes = store.changes()
    await heard(changes)
    record = await store.submit_job("f1", job("j0", ("h0.1",)))
    await heard(changes)
    for write in (
        store.put_fabric("f1", clos(), title="again"),
        store.set_link_state("f1", LinkName("l0", "s1"), State.DOWN),
        store.set_switch_state("f1", "s0", State.DRAINED),
        store.submit_job("f1", job()),
        store.update_job("f1", job(qps=2)),
        store.delete_job("f1", "j0", etag=record.etag),
        store.put_demands("f1", "d", demands(("n0.0", "n1.0"))),
        store.delete_demands("f1", "d"),
    ):
        await write
        assert await heard(changes) == "f1"


async def test_slow_watchers_hear_once(store: Store) -> None:
    """A name that is not yet taken is told once, however often it changes."""
    await store.put_fabric("f1", clos())
    changes = store.changes()
    await heard(changes)
    for state in (State.DOWN, State.UP, State.DRAINED):
        await store.set_switch_state("f1", "s0", state)
    assert await heard(changes) == "f1"
    assert await silent(changes, store)


async def test_facts_only_for_those_who_ask(store: Store) -> None:
    """Facts wake only watchers that ask for them, so the loop does not wake itself."""
    await store.put_fabric("f1", clos())
    epoch = await store.acquire_leadership("c1")
    loop, screen = store.changes(), store.changes(facts=True)
    await heard(loop)
    await heard(screen)
    await store.record_programmed("f1", epoch=epoch, programmed=Programmed(0, {"l0": 1}, 1.0))
    assert await heard(screen) == "f1"
    assert await silent(loop, store)


async def test_refused_writes_are_silent(store: Store) -> None:
    """A refused write wakes nobody."""
    await store.put_fabric("f1", clos())
    changes = store.changes()
    await heard(changes)
    with pytest.raises(NotFound):
        await store.delete_job("f1", "j1")
    assert await silent(changes, store)


async def test_a_cancelled_write_is_heard(store: Store) -> None:
    """A write wakes the watchers even if its caller has been cancelled."""
    await store.put_fabric("f1", clos())
    changes = store.changes()
    await heard(changes)
    write = asyncio.create_task(store.submit_job("f1", job()))
    while (await store.versions("f1")).intent == 1:
        write.cancel()
        if write.done():
            write = asyncio.create_task(store.submit_job("f1", job()))
    assert await heard(changes) == "f1"


async def test_close_ends_all(store: Store) -> None:
    """``close`` ends watchers, tells waiters for leadership, and refuses later calls."""
    await store.put_fabric("f1", clos())
    epoch = await store.acquire_leadership("c1")
    changes = store.changes()
    await heard(changes)
    waiting = asyncio.ensure_future(anext(changes))
    second = asyncio.create_task(store.acquire_leadership("c2"))
    lost = asyncio.create_task(store.leadership_lost(epoch))
    await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(Unavailable):
            await second
        await lost
    with pytest.raises(Unavailable):
        await store.versions("f1")
    await store.close()
