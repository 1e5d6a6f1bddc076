"""Request ids in every store: a replay answers again, and reuse is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.state.errors import AlreadyExists, NotFound, RequestReused
from heddle_controller.state.records import LinkName, Request
from heddle_controller.store.store import Store
from tests.contract.store_worlds import StoreWorld
from tests.support.store_samples import clos, demands, job, plain

Write = Callable[[Store, Request], Awaitable[Any]]

# A request, and a request of the same kind with other content.
WRITES: dict[str, tuple[Write, Write]] = {
    "put_fabric": (
        lambda s, r: s.put_fabric("f1", clos(spines=3), request=r),
        lambda s, r: s.put_fabric("f1", clos(spines=4), request=r),
    ),
    "put_fabric states": (
        lambda s, r: s.put_fabric("f1", clos(), request=r),
        lambda s, r: s.put_fabric("f1", clos().with_links({0: State.DOWN}), request=r),
    ),
    "set_link_state": (
        lambda s, r: s.set_link_state("f1", LinkName("l0", "s0"), State.DOWN, request=r),
        lambda s, r: s.set_link_state("f1", LinkName("l0", "s0"), State.UP, request=r),
    ),
    "set_switch_state": (
        lambda s, r: s.set_switch_state("f1", "s0", State.DOWN, request=r),
        lambda s, r: s.set_switch_state("f1", "s1", State.DOWN, request=r),
    ),
    "submit_job": (
        lambda s, r: s.submit_job("f1", job("new", ("h0.1",)), request=r),
        lambda s, r: s.submit_job("f1", job("new", ("h1.1",)), request=r),
    ),
    "update_job": (
        lambda s, r: s.update_job("f1", job("j1", qps=2), request=r),
        lambda s, r: s.update_job("f1", job("j1", qps=3), request=r),
    ),
    "delete_job": (
        lambda s, r: s.delete_job("f1", "j1", request=r),
        lambda s, r: s.delete_job("f1", "j2", request=r),
    ),
    "reserve": (
        lambda s, r: s.reserve("f1", "r1", ("h0.1",), 1000, request=r),
        lambda s, r: s.reserve("f1", "r1", ("h0.1",), 2000, request=r),
    ),
    "release": (
        lambda s, r: s.release("f1", "r0", request=r),
        lambda s, r: s.release("f1", "r2", request=r),
    ),
    "put_demands": (
        lambda s, r: s.put_demands("f1", "d1", demands(("n0.0", "n1.0")), request=r),
        lambda s, r: s.put_demands("f1", "d1", demands(("n1.0", "n0.0")), request=r),
    ),
    "delete_demands": (
        lambda s, r: s.delete_demands("f1", "d0", request=r),
        lambda s, r: s.delete_demands("f1", "d2", request=r),
    ),
}


async def furnished(world: StoreWorld) -> Store:
    """A store with a fabric, a job, a demand set and a reservation."""
    store = await world.open()
    await store.put_fabric("f1", clos())
    await store.submit_job("f1", job())
    await store.put_demands("f1", "d0", demands(("n0.0", "n1.0"), ids="d0-"))
    await store.reserve("f1", "r0", ("h1.1",), 1000)
    return store


@pytest.mark.parametrize("kind", sorted(WRITES))
async def test_replay(world: StoreWorld, kind: str) -> None:
    """A repeated request gets the first answer and writes nothing, also in the next process."""
    ask, _ = WRITES[kind]
    store = await furnished(world)
    first = await ask(store, Request("r1"))
    versions, intent = await store.versions("f1"), await store.intent("f1")
    assert plain(await ask(store, Request("r1"))) == plain(first)
    await store.close()
    again = await world.open()
    assert plain(await ask(again, Request("r1"))) == plain(first)
    assert await again.versions("f1") == versions
    assert plain(await again.intent("f1")) == plain(intent)
    await again.close()


@pytest.mark.parametrize("kind", sorted(WRITES))
async def test_reuse(world: StoreWorld, kind: str) -> None:
    """A request id with other content is refused, and writes nothing."""
    ask, other = WRITES[kind]
    store = await furnished(world)
    await ask(store, Request("r1"))
    versions = await store.versions("f1")
    with pytest.raises(RequestReused, match="'r1'"):
        await other(store, Request("r1"))
    assert await store.versions("f1") == versions
    await store.close()


async def test_replay_comes_before_every_check(world: StoreWorld) -> None:
    """A replay answers even if the job is gone or the fabric has changed since."""
    store = await furnished(world)
    wanted = job("new", ("h0.1",))
    first = await store.submit_job("f1", wanted, request=Request("r1"))
    await store.put_fabric("f1", clos(spines=3), request=Request("r2"))
    await store.delete_job("f1", "new")
    assert await store.submit_job("f1", wanted, request=Request("r1")) == first
    await store.put_fabric("f1", clos(spines=3), request=Request("r2"))
    with pytest.raises(NotFound):
        await store.get_job("f1", "new")
    await store.close()


async def test_refused_requests_are_not_remembered(world: StoreWorld) -> None:
    """A refused request is not remembered, so it may succeed later."""
    store = await furnished(world)
    with pytest.raises(AlreadyExists):
        await store.submit_job("f1", job(), request=Request("r1"))
    await store.delete_job("f1", "j1")
    await store.submit_job("f1", job(), request=Request("r1"))
    await store.close()


async def test_replays_at_once(world: StoreWorld) -> None:
    """Of many requests with one id at the same time, one writes and all get its answer."""
    store = await furnished(world)
    wanted = job("new", ("h0.1",))
    answers = await asyncio.gather(
        *(store.submit_job("f1", wanted, request=Request("r1")) for _ in range(20))
    )
    assert len({a.etag for a in answers}) == 1
    assert len(await store.list_jobs("f1")) == 2
    await store.close()


async def test_no_id_no_memory(world: StoreWorld) -> None:
    """Requests without an id are independent of each other."""
    store = await furnished(world)
    with pytest.raises(AlreadyExists):
        await store.submit_job("f1", job(), request=Request(actor="me"))
    await store.close()
