"""The audit trail of every store: what is recorded, in which words, and that it is one chain."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from heddle_controller.model.fabric import State
from heddle_controller.state.audit import GENESIS, AuditBroken, Mark, verify
from heddle_controller.state.errors import AlreadyExists, NotFound, RequestReused
from heddle_controller.state.records import (
    LinkName,
    PlanFacts,
    Request,
)
from heddle_controller.store.store import Store
from tests.contract.store_worlds import StoreWorld
from tests.support.store_samples import clos, demands, job, plan_of, program_of

ANN = Request(actor="operator ann", call="c1")
NEW_HOSTS = ("h0.1", "h1.1")


async def furnished(world: StoreWorld) -> Store:
    """A store with a fabric, a job and a demand set."""
    store = await world.open()
    await store.put_fabric("f1", clos())
    await store.submit_job("f1", job())
    await store.put_demands("f1", "d0", demands(("n0.0", "n1.0"), ids="d0-"))
    return store


async def newest(store: Store) -> Any:
    """The entry of the newest record."""
    page = await store.audit()
    return page.records[-1].entry


WRITES: dict[str, tuple[Any, str, str]] = {
    "put_fabric": (
        lambda s, r: s.put_fabric("f1", clos(spines=3), request=r),
        "fabrics/f1",
        "ba",
    ),
    "put_fabric new": (lambda s, r: s.put_fabric("f2", clos(), request=r), "fabrics/f2", "a"),
    "set_link_state": (
        lambda s, r: s.set_link_state("f1", LinkName("s0", "l0"), State.DOWN, request=r),
        "fabrics/f1/links/l0,s0,0",
        "ba",
    ),
    "set_switch_state": (
        lambda s, r: s.set_switch_state("f1", "s0", State.DRAINED, request=r),
        "fabrics/f1/switches/s0",
        "ba",
    ),
    "set_overlay": (
        lambda s, r: s.set_overlay("f1", withdrawn=True, request=r),
        "fabrics/f1",
        "ba",
    ),
    "submit_job": (
        lambda s, r: s.submit_job("f1", job("new", NEW_HOSTS), request=r),
        "fabrics/f1/jobs/new",
        "a",
    ),
    "update_job": (
        lambda s, r: s.update_job("f1", job("j1", qps=2), request=r),
        "fabrics/f1/jobs/j1",
        "ba",
    ),
    "delete_job": (lambda s, r: s.delete_job("f1", "j1", request=r), "fabrics/f1/jobs/j1", "b"),
    "reserve": (
        lambda s, r: s.reserve("f1", "r1", NEW_HOSTS, 1000, request=r),
        "fabrics/f1/reservations/r1",
        "a",
    ),
    "put_demands": (
        lambda s, r: s.put_demands("f1", "d1", demands(("n0.0", "n1.0")), request=r),
        "fabrics/f1/demands/d1",
        "a",
    ),
    "put_demands again": (
        lambda s, r: s.put_demands("f1", "d0", demands(("n1.0", "n0.0"), ids="d0-"), request=r),
        "fabrics/f1/demands/d0",
        "ba",
    ),
    "delete_demands": (
        lambda s, r: s.delete_demands("f1", "d0", request=r),
        "fabrics/f1/demands/d0",
        "b",
    ),
}


@pytest.mark.parametrize("kind", sorted(WRITES))
async def test_every_change_is_recorded(world: StoreWorld, kind: str) -> None:
    """A change records who, request id, action, before and after; its replay records nothing."""
    write, name, sides = WRITES[kind]
    store = await furnished(world)
    before = (await store.audit()).head
    await write(store, replace(ANN, id="r1"))
    page = await store.audit(after=before.number)
    (record,) = page.records
    entry = record.entry
    assert (entry.actor, entry.request, entry.action) == (
        "operator ann",
        "r1",
        kind.partition(" ")[0],
    )
    assert entry.name == name
    assert entry.time > 0
    assert [bool(entry.before), bool(entry.after)] == ["b" in sides, "a" in sides]
    for side in filter(None, (entry.before, entry.after)):
        assert isinstance(orjson.loads(side), dict)
    assert entry.before != entry.after
    assert verify(before, page.records) == page.head
    await write(store, replace(ANN, id="r1"))
    assert (await store.audit()).head == page.head
    await store.close()


async def test_what_a_person_reads(world: StoreWorld) -> None:
    """States are recorded as words, jobs as requested, the overlay as what it is."""
    store = await furnished(world)
    await store.set_link_state("f1", LinkName("l0", "s0"), State.DOWN)
    entry = await newest(store)
    assert orjson.loads(entry.before) == {"admin_state": "UP"}
    assert orjson.loads(entry.after) == {"admin_state": "DOWN"}
    await store.update_job("f1", job("j1", qps=7))
    entry = await newest(store)
    assert [orjson.loads(side)["qps"] for side in (entry.before, entry.after)] == [1, 7]
    await store.put_fabric("f1", clos().with_links({0: State.DRAINED}))
    assert orjson.loads((await newest(store)).after)["links"] == {"n0.0,l0,0": "DRAINED"}
    await store.set_overlay("f1", withdrawn=True)
    assert orjson.loads((await newest(store)).after) == {"overlay": "withdrawn"}
    await store.close()


async def test_without_a_request_id(world: StoreWorld) -> None:
    """If the client gave no request id, the id of the call is recorded."""
    store = await furnished(world)
    await store.delete_job("f1", "j1", request=ANN)
    assert (await newest(store)).request == "c1"
    await store.close()


async def test_what_changes_nothing_is_not_recorded(world: StoreWorld) -> None:
    """Refused writes, states that were set already, and facts add no record."""
    store = await furnished(world)
    head = (await store.audit()).head
    with pytest.raises(AlreadyExists):
        await store.submit_job("f1", job(), request=Request("r1"))
    with pytest.raises(NotFound):
        await store.delete_job("f1", "none", request=ANN)
    await store.set_link_state("f1", LinkName("l0", "s0"), State.UP)
    await store.set_switch_state("f1", "s0", State.UP)
    await store.set_overlay("f1", withdrawn=False)
    epoch = await store.acquire_leadership("me")
    plan = plan_of((await store.get_fabric("f1")).fabric)
    facts = (await store.intent("f1")).jobs[0].facts
    await store.record_jobs("f1", epoch=epoch, facts={"j1": facts})
    program = program_of(plan, epoch, 1)
    made: dict[str, Any] = {"plan": plan, "program": program, "facts": PlanFacts()}
    await store.commit("f1", epoch=epoch, expected_generation=0, **made)
    assert (await store.audit()).head == head
    await store.close()


async def test_reuse_is_not_recorded(world: StoreWorld) -> None:
    """A request id that was used for another request is refused and leaves no record."""
    store = await furnished(world)
    await store.delete_job("f1", "j1", request=Request("r1"))
    head = (await store.audit()).head
    with pytest.raises(RequestReused):
        await store.delete_demands("f1", "d0", request=Request("r1"))
    assert (await store.audit()).head == head
    await store.close()


async def test_one_chain(world: StoreWorld) -> None:
    """Numbers go up by one from 1, over all fabrics and restarts; pages make up the whole."""
    store = await furnished(world)
    await store.put_fabric("f2", clos())
    await store.close()
    store = await world.open()
    await store.delete_job("f1", "j1")
    page = await store.audit()
    assert [record.number for record in page.records] == [1, 2, 3, 4, 5]
    assert page.anchor == Mark(0, GENESIS)
    assert verify(page.anchor, page.records) == page.head
    first = await store.audit(limit=2)
    rest = await store.audit(after=2)
    assert first.records + rest.records == page.records
    assert (first.head, rest.head) == (page.head, page.head)
    await store.close()


async def test_many_at_once(world: StoreWorld) -> None:
    """Writes at the same time still make one chain."""
    store = await furnished(world)
    await asyncio.gather(
        *(
            store.put_demands("f1", f"many{n}", demands(("n0.0", "n1.0"), ids=f"many{n}-"))
            for n in range(50)
        )
    )
    page = await store.audit()
    assert len({record.entry.name for record in page.records}) == 53
    assert verify(page.anchor, page.records) == page.head
    await store.close()


async def test_altered_records_show(world: StoreWorld) -> None:
    """A record that is altered, removed or moved breaks the chain at its place."""
    store = await furnished(world)
    page = await store.audit()
    one, two, three = page.records
    forged = replace(two, entry=replace(two.entry, actor="somebody else"))
    for records, broken in (
        ((one, forged, three), 2),
        ((one, three), 2),
        ((two, one, three), 1),
        ((two, three), 1),
    ):
        with pytest.raises(AuditBroken) as found:
            verify(page.anchor, records)
        assert found.value.number == broken
    await store.close()


async def test_overlay_survives(world: StoreWorld) -> None:
    """The overlay's flag is intent: it survives a restart and a new fabric; all readers see it."""
    store = await furnished(world)
    version = (await store.versions("f1")).intent
    summary = await store.set_overlay("f1", withdrawn=True)
    assert summary.overlay.withdrawn
    assert summary.overlay.time > 0
    assert (await store.versions("f1")).intent == version + 1
    await store.close()
    store = await world.open()
    await store.put_fabric("f1", clos(spines=3))
    record = await store.get_fabric("f1")
    assert record.overlay == summary.overlay
    assert (await store.intent("f1")).overlay == summary.overlay
    assert (await store.list_fabrics())[0].overlay == summary.overlay
    assert not (await store.set_overlay("f1", withdrawn=False)).overlay.withdrawn
    with pytest.raises(NotFound):
        await store.set_overlay("none", withdrawn=True)
    await store.close()


async def test_overlay_replay(world: StoreWorld) -> None:
    """A replay answers as the first request did, although the flag has changed since."""
    store = await furnished(world)
    first = await store.set_overlay("f1", withdrawn=True, request=Request("r1"))
    await store.set_overlay("f1", withdrawn=False)
    assert await store.set_overlay("f1", withdrawn=True, request=Request("r1")) == first
    assert not (await store.get_fabric("f1")).overlay.withdrawn
    with pytest.raises(RequestReused):
        await store.set_overlay("f1", withdrawn=False, request=Request("r1"))
    await store.close()
