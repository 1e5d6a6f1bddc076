"""Deleted fabrics in every store: what is refused, what goes, and what goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.state.audit import verify
from heddle_controller.state.errors import (
    Conflict,
    FabricDeleted,
    FailedPrecondition,
    NotFound,
    RequestReused,
)
from heddle_controller.state.plans import plan_rows
from heddle_controller.state.records import Committed, LinkName, PlanFacts, Programmed, Request
from heddle_controller.state.view import Ask, Change, Outcome
from heddle_controller.store.store import Store
from tests.contract.store_worlds import StoreWorld
from tests.support.store_samples import clos, demands, job, plain, plan_of, program_of
from tests.support.waiting import PATIENCE

NUMBERS = {"version", "change_time", "facts", "revision", "generation"}
"""What is left of a deleted fabric."""


async def commit(store: Store, epoch: int) -> Committed:
    """Commit the sample plan as the next generation."""
    newest = (await store.versions("f1")).generation
    plan = plan_of((await store.intent("f1")).fabric)
    program = program_of(plan, epoch, newest + 1)
    return await store.commit(
        "f1",
        epoch=epoch,
        expected_generation=newest,
        plan=plan,
        program=program,
        facts=PlanFacts(),
    )


async def furnished(store: Store) -> int:
    """Put f1 with something of everything that is kept of a fabric; return the epoch."""
    await store.put_fabric("f1", clos())
    epoch = await store.acquire_leadership("c1")
    await commit(store, epoch)
    await store.record_programmed("f1", epoch=epoch, programmed=Programmed(1, {"l0": 0}, 7.0))
    await store.put_fabric("f1", clos(spines=3))
    for _ in range(2):
        await commit(store, epoch)
    await store.record_kept("f1", epoch=epoch, version=9)
    await store.set_link_state("f1", LinkName("l0", "s0"), State.DRAINED)
    await store.set_overlay("f1", withdrawn=True)
    await store.roll_back("f1", 3, 1000.0)
    await store.reserve("f1", "over", ["h0.0"], 1.0)
    await store.submit_job("f1", job())
    await store.delete_job("f1", "j1")
    await store.put_demands("f1", "d", demands(("n0.0", "n1.0")))
    await store.delete_demands("f1", "d")
    return epoch


async def test_nothing_of_a_deleted_fabric_is_left(world: StoreWorld) -> None:
    """Fields and blobs go, except the numbers that must not go back; the audit trail tells of it.

    Another fabric with the same nodes and links stays. The next process finds the same.
    """
    store = await world.open()
    await store.put_fabric("f2", clos())
    await furnished(store)
    rows, etag = plan_rows(store.applier.view("f1")), (await store.get_fabric("f1")).etag
    await store.delete_fabric("f1", etag=etag, request=Request("q", "operator ann"))
    told = await store.audit()
    entry = told.records[-1].entry
    assert (entry.action, entry.name) == ("delete_fabric", "fabrics/f1")
    assert entry.actor == "operator ann"
    assert ('"links":{"l0,s0,0":"DRAINED"}' in entry.before, entry.after) == (True, "")
    assert verify(told.anchor, told.records) == told.head
    for _ in range(2):
        assert [one.name for one in await store.list_fabrics()] == ["f2"]
        assert plain((await store.get_fabric("f2")).fabric) == plain(clos())
        for question in (store.get_fabric, store.committed, store.list_jobs, store.versions):
            with pytest.raises(FabricDeleted, match="fabrics/f1 does not exist"):
                await question("f1")
        assert store.applier.view("f1").fields().keys() == NUMBERS
        gone = {blob for row in rows.values() for blob in row.pointed_at()}
        kept = {blob for blob in gone if await store.applier.blob(blob) is not None}
        assert (len(gone) > 3, kept) == (True, set())
        await store.close()
        store = await world.open()
    await store.close()


async def test_a_fabric_of_the_same_name_starts_clean(store: Store) -> None:
    """It has no plan, state or setting of the deleted one, but its numbers are higher."""
    epoch = await furnished(store)
    before = await store.versions("f1")
    await store.delete_fabric("f1")
    await store.put_fabric("f1", clos())
    after = await store.versions("f1")
    assert after.intent > before.intent
    assert after.facts > before.facts
    assert after.generation > before.generation
    assert await store.committed("f1") is None
    assert await store.plan_summaries("f1") == []
    record, intent = await store.get_fabric("f1"), await store.intent("f1")
    assert not record.overlay.withdrawn
    assert not record.state_time.any()
    assert intent.rollback is None
    done = await commit(store, epoch)
    assert (done.generation, done.programmed) == (after.generation + 1, Programmed())
    assert plain(await store.committed("f1")) == plain(done)


async def test_a_fabric_in_use_is_not_deleted(store: Store) -> None:
    """A refusal names the jobs, demand sets and reservations; nothing is changed."""
    await store.put_fabric("f1", clos(hosts=8))
    for number in range(7):
        await store.submit_job("f1", job(f"j{number}", (f"h0.{number}",)))
    await store.put_demands("f1", "d", demands(("n0.0", "n1.0")))
    await store.reserve("f1", "r", ["h1.0"], 1000.0)
    before = store.applier.view("f1").fields()
    with pytest.raises(FailedPrecondition, match="fabric 'f1': jobs: it still has 'j0'") as caught:
        await store.delete_fabric("f1")
    jobs, sets, reservations = map(str, caught.value.problems)
    assert "'j0', 'j1', 'j2', 'j3', 'j4' and 2 more; delete them first by 'heddle job" in jobs
    assert "'d'; delete them first by 'heddle demand delete'" in sets
    assert "'r'; delete them first by 'heddle job release'" in reservations
    assert store.applier.view("f1").fields() == before
    for number in range(7):
        await store.delete_job("f1", f"j{number}")
    await store.delete_demands("f1", "d")
    with pytest.raises(FailedPrecondition, match="reservations: it still has 'r'"):
        await store.delete_fabric("f1")
    await store.release("f1", "r")
    with pytest.raises(Conflict):
        await store.delete_fabric("f1", etag="x")
    await store.delete_fabric("f1")
    assert await store.list_fabrics() == []


async def test_a_repeated_deletion(store: Store) -> None:
    """The same request is answered once more; any other one finds no fabric."""
    await store.put_fabric("f1", clos())
    request = Request("q")
    await store.delete_fabric("f1", request=request)
    await store.delete_fabric("f1", request=request)
    await store.put_fabric("f1", clos())
    await store.delete_fabric("f1", request=request)
    assert [one.name for one in await store.list_fabrics()] == ["f1"]
    with pytest.raises(RequestReused):
        await store.delete_fabric("f1", etag="x", request=request)
    await store.delete_fabric("f1")
    with pytest.raises(NotFound):
        await store.delete_fabric("f1")


WRITES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "job": lambda store: store.submit_job("f1", job()),
    "demands": lambda store: store.put_demands("f1", "d", demands(("n0.0", "n1.0"))),
    "reservation": lambda store: store.reserve("f1", "r", ["h0.0"], 1000.0),
    "plan": lambda store: commit(store, 1),
    "programmed": lambda store: store.record_programmed(
        "f1", epoch=1, programmed=Programmed(1, {}, 7.0)
    ),
    "switch": lambda store: store.set_switch_state("f1", "s0", State.DRAINED),
    "rollback": lambda store: store.roll_back("f1", 1, 1000.0),
}


@pytest.mark.parametrize("first", ["deletion", "write"])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("kind", WRITES)
async def test_a_write_at_the_same_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str, first: str, *, planned: bool
) -> None:
    """What is decided before a deletion and written after it is refused, and the other way round.

    A write that comes first is deleted with the fabric, or keeps it. Nothing is left of a write
    that comes second.
    """
    await store.put_fabric("f1", clos())
    await store.acquire_leadership("c1")
    if planned:
        await commit(store, 1)
    elif kind == "rollback":
        return
    apply, decided, go = store.applier.apply, asyncio.Event(), asyncio.Event()

    async def applied(change: Change, ask: Ask) -> Outcome:
        if not decided.is_set():
            decided.set()
            await go.wait()
        return await apply(change, ask)

    monkeypatch.setattr(store.applier, "apply", applied)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "deletion": lambda: store.delete_fabric("f1"),
        "write": lambda: WRITES[kind](store),
    }
    (second,) = calls.keys() - {first}
    async with asyncio.timeout(PATIENCE):
        late = asyncio.ensure_future(calls[second]())
        await decided.wait()
        await calls[first]()
        go.set()
        (ended,) = await asyncio.gather(late, return_exceptions=True)
    view = store.applier.view("f1")
    if second == "write":
        assert isinstance(ended, NotFound)
    assert view.known == (second == "deletion" and kind in {"job", "demands", "reservation"})
    if view.known:
        assert isinstance(ended, FailedPrecondition)
    else:
        assert view.fields().keys() == NUMBERS


async def test_a_fabric_that_was_checked_is_another_one_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that fits a deleted fabric is checked again against the one that took its name."""
    await store.put_fabric("f1", clos())
    apply, decided, go = store.applier.apply, asyncio.Event(), asyncio.Event()

    async def applied(change: Change, ask: Ask) -> Outcome:
        if not decided.is_set():
            decided.set()
            await go.wait()
        return await apply(change, ask)

    monkeypatch.setattr(store.applier, "apply", applied)
    late = asyncio.ensure_future(store.submit_job("f1", job()))
    await decided.wait()
    await store.delete_fabric("f1")
    await store.put_fabric("f1", clos(leaves=1))
    go.set()
    with pytest.raises(ValueError, match=r"h1\.0"):
        await late
    assert await store.list_jobs("f1") == []


async def test_a_deletion_is_announced(store: Store) -> None:
    """Whoever follows changes of intent hears of a deletion, and finds no fabric."""
    await store.put_fabric("f1", clos())
    changes = store.changes()
    assert await anext(changes) == "f1"
    await store.delete_fabric("f1")
    async with asyncio.timeout(PATIENCE):
        assert await anext(changes) == "f1"
    with pytest.raises(NotFound):
        await store.intent("f1")
