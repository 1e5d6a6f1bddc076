"""Fabrics in every store: structure, states, etags and revisions."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.state.errors import Conflict, NotFound
from heddle_controller.state.records import FabricRecord, LinkName
from heddle_controller.state.view import Ask, Change, Outcome
from heddle_controller.store.store import Store
from tests.contract.store_worlds import StoreWorld
from tests.support.store_samples import clos, plain
from tests.support.waiting import PATIENCE, until


async def test_put_is_got_back(store: Store) -> None:
    """A fabric is read back as it was put, with states, and links and nodes in the same rows."""
    fabric = clos().with_links({5: State.DRAINED})
    fabric = fabric.with_nodes({fabric.structure.index["s0"]: State.DOWN})
    put = await store.put_fabric("f1", fabric, title="Lab")
    got = await store.get_fabric("f1")
    assert plain(got) == plain(put)
    assert plain(got.fabric) == plain(fabric)
    assert (got.title, got.revision) == ("Lab", 1)
    assert (await store.versions("f1")).intent == 1


async def test_faulty_is_refused(store: Store) -> None:
    """A faulty fabric, whose links join nodes to themselves, is refused and not stored."""
    fabric = clos()
    links = fabric.structure.links
    cut = replace(links, b=links.a.copy(), a=links.a)
    with pytest.raises(InputError):
        await store.put_fabric(
            "f1", replace(fabric, structure=replace(fabric.structure, links=cut))
        )
    assert await store.list_fabrics() == []


async def test_unknown_is_not_found(store: Store) -> None:
    """Every question about an unknown fabric raises NotFound."""
    for question in (
        store.get_fabric("f1"),
        store.intent("f1"),
        store.versions("f1"),
        store.list_jobs("f1"),
        store.committed("f1"),
        store.set_switch_state("f1", "l0", State.DOWN),
    ):
        with pytest.raises(NotFound, match=r"fabrics/f1 does not exist; .*heddle fabric list"):
            await question


async def test_list_by_name_and_page(store: Store) -> None:
    """Fabrics are listed by name, page by page."""
    for name in ("b", "c", "a"):
        await store.put_fabric(name, clos())
    assert [f.name for f in await store.list_fabrics()] == ["a", "b", "c"]
    assert [f.name for f in await store.list_fabrics(limit=2)] == ["a", "b"]
    assert [f.name for f in await store.list_fabrics(after="b", limit=2)] == ["c"]
    (summary, *_) = await store.list_fabrics()
    assert (summary.node_count, summary.link_count) == (8, 8)


async def test_etag_guards_a_put(store: Store) -> None:
    """A put with an etag that is not the stored one is refused and changes nothing."""
    first = await store.put_fabric("f1", clos())
    second = await store.put_fabric("f1", clos(spines=3), etag=first.etag)
    with pytest.raises(Conflict):
        await store.put_fabric("f1", clos(spines=4), etag=first.etag)
    with pytest.raises(Conflict):
        await store.put_fabric("f2", clos(), etag=first.etag)
    assert plain(await store.get_fabric("f1")) == plain(second)
    assert [f.name for f in await store.list_fabrics()] == ["f1"]


async def test_revision_grows_with_the_structure_only(store: Store) -> None:
    """States, even those of a put, keep the revision; another structure raises it."""
    await store.put_fabric("f1", clos())
    await store.set_switch_state("f1", "s0", State.DOWN)
    again = await store.put_fabric("f1", clos().with_links({0: State.DOWN}))
    assert again.revision == 1
    other = await store.put_fabric("f1", clos(spines=3))
    assert other.revision == 2


async def test_link_state(store: Store) -> None:
    """A link is found by its ends in either order; its new state and time are stored."""
    await store.put_fabric("f1", clos())
    record = await store.set_link_state("f1", LinkName("s1", "l0"), State.DRAINED)
    assert (record.admin_state, record.gbps) == (
        State.DRAINED,
        400.0,
    )
    got = await store.get_fabric("f1")
    (row,) = got.fabric.find_links("l0", "s1")
    assert got.link(row) == record
    assert record.state_time == got.state_time[row] > 0
    assert (got.state_time > 0).sum() == 1
    assert (await store.intent("f1")).fabric.link_state[row] == State.DRAINED


async def test_setting_what_is_set_writes_nothing(store: Store) -> None:
    """Setting the same state again changes no version, etag or time."""
    await store.put_fabric("f1", clos())
    await store.set_link_state("f1", LinkName("l0", "s1"), State.DOWN)
    await store.set_switch_state("f1", "s0", State.DRAINED)
    before, record = await store.versions("f1"), await store.get_fabric("f1")
    await store.set_link_state("f1", LinkName("l0", "s1"), State.DOWN)
    await store.set_switch_state("f1", "s0", State.DRAINED)
    assert await store.versions("f1") == before
    assert plain(await store.get_fabric("f1")) == plain(record)


async def test_states_of_what_is_not_there(store: Store) -> None:
    """An unknown link or switch, and a NIC, are not found."""
    await store.put_fabric("f1", clos())
    with pytest.raises(NotFound, match=r"fabrics/f1/links/l0,s9,0 .*fabric show --links"):
        await store.set_link_state("f1", LinkName("l0", "s9"), State.DOWN)
    with pytest.raises(NotFound, match="l0,s0,7"):
        await store.set_link_state("f1", LinkName("l0", "s0", 7), State.DOWN)
    for node, why in (("x", "see heddle fabric show --links"), ("n0.0", "is a NIC, not a switch")):
        with pytest.raises(NotFound, match=f"{node} does not exist; .*{why}"):
            await store.set_switch_state("f1", node, State.DOWN)
    assert (await store.versions("f1")).intent == 1


async def test_etag_changes_with_administrative_states(store: Store) -> None:
    """A client that read a fabric before an operator's change cannot overwrite it."""
    first = await store.put_fabric("f1", clos())
    await store.set_switch_state("f1", "s0", State.DRAINED)
    second = await store.get_fabric("f1")
    await store.set_link_state("f1", LinkName("l0", "s0"), State.DOWN)
    third = await store.get_fabric("f1")
    assert len({first.etag, second.etag, third.etag}) == 3
    with pytest.raises(Conflict):
        await store.put_fabric("f1", clos(), etag=second.etag)


async def test_put_keeps_the_times_of_links_that_stand_as_before(store: Store) -> None:
    """A put stamps links whose state it changes; others keep their time; new ones have none."""
    await store.put_fabric("f1", clos())
    await store.set_link_state("f1", LinkName("l0", "s1"), State.DOWN)
    before = await store.get_fabric("f1")
    wanted = clos(spines=3)
    (kept,), (turned,) = wanted.find_links("l0", "s1"), wanted.find_links("l1", "s1")
    (new,) = wanted.find_links("l1", "s2")
    after = await store.put_fabric(
        "f1", wanted.with_links({kept: State.DOWN, turned: State.DRAINED})
    )
    (old,) = before.fabric.find_links("l0", "s1")
    assert after.state_time[kept] == before.state_time[old]
    assert after.state_time[turned] == after.update_time
    assert after.state_time[new] == 0


async def test_many_that_ask_at_once_cause_one_read(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A structure is read from the database once, although thousands of sessions need it.

    A caller that gives up does not keep the others from their answer.
    """
    store = await world.open()
    await store.put_fabric("f1", clos())
    await store.close()
    store = await world.open()
    asked: list[str] = []
    read, given_up = store.applier.blob, asyncio.Event()

    async def counted(identity: str) -> bytes | None:
        asked.append(identity)
        await given_up.wait()
        return await read(identity)

    monkeypatch.setattr(store.applier, "blob", counted)
    tasks = [asyncio.create_task(store.get_fabric("f1")) for _ in range(50)]
    await until(lambda: bool(asked))
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    given_up.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert all(isinstance(one, FabricRecord) for one in found[1:])
    assert len(asked) == 1
    assert plain((await store.get_fabric("f1")).fabric) == plain(clos())
    await store.close()


async def test_survives_reopening(world: StoreWorld) -> None:
    """The next process finds what was stored."""
    store = await world.open()
    await store.put_fabric("f1", clos(), title="Lab")
    await store.set_link_state("f1", LinkName("l0", "s1"), State.DRAINED)
    record, versions = await store.get_fabric("f1"), await store.versions("f1")
    await store.close()
    again = await world.open()
    assert plain(await again.get_fabric("f1")) == plain(record)
    assert await again.versions("f1") == versions
    await again.close()


async def test_a_fabric_that_is_put_while_another_one_is_checked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two fabrics put at the same time the later one stays, and neither put fails."""
    await store.put_fabric("f1", clos())
    begun, checked = asyncio.Event(), threading.Event()
    stored, told = asyncio.Event(), asyncio.Event()
    loop, apply = asyncio.get_running_loop(), store.applier.apply

    def check(_name: str, fabric: Fabric, *_wanted: object) -> None:
        if fabric.node_count == clos(spines=3).node_count:
            loop.call_soon_threadsafe(begun.set)
            assert checked.wait(PATIENCE)

    async def applied(change: Change, ask: Ask) -> Outcome:
        outcome = await apply(change, ask)
        if not stored.is_set():
            stored.set()
            await told.wait()
        return outcome

    monkeypatch.setattr("heddle_controller.store.store.admit_fabric", check)
    monkeypatch.setattr(store.applier, "apply", applied)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        later = tasks.create_task(store.put_fabric("f1", clos(spines=3)))
        await begun.wait()
        tasks.create_task(store.put_fabric("f1", clos(spines=4)))
        await stored.wait()
        checked.set()
        await later
        told.set()
    assert plain(await store.get_fabric("f1")) == plain(later.result())
