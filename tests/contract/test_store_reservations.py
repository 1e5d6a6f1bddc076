"""Reservations in every store: hosts that are kept for a future job."""

from __future__ import annotations

import asyncio

import pytest

from heddle_controller.state.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotFound,
)
from heddle_controller.state.records import JobRecord, Request, Reservation
from heddle_controller.store.store import Store
from tests.contract.store_worlds import StoreWorld
from tests.support.store_samples import clos, job

LONG = 10_000.0


@pytest.fixture
async def fabric(store: Store) -> Store:
    """A store with fabric f1 of hosts h0.0 to h1.1, revision 1."""
    await store.put_fabric("f1", clos())
    return store


async def reserved(store: Store, name: str, *hosts: str, seconds: float = LONG) -> Reservation:
    """Reserve hosts in f1."""
    return await store.reserve("f1", name, hosts, seconds)


def problems(caught: pytest.ExceptionInfo[FailedPrecondition]) -> str:
    """All problems of a refusal in one text."""
    return "; ".join(map(str, caught.value.problems))


async def test_reserved_hosts_are_nobody_elses(fabric: Store) -> None:
    """Reserved hosts are refused to jobs and other reservations, and each is told who has them."""
    one = await reserved(fabric, "r1", "h0.0", "h1.0")
    assert one.end_time == one.create_time + LONG
    assert await fabric.list_reservations("f1") == [one]
    with pytest.raises(FailedPrecondition) as caught:
        await fabric.submit_job("f1", job("j", ("h0.0", "h0.1")))
    assert "host 'h0.0': is reserved by 'r1' until" in problems(caught)
    assert "h0.1" not in problems(caught)
    with pytest.raises(FailedPrecondition) as caught:
        await reserved(fabric, "r2", "h1.0", "h1.1")
    assert "host 'h1.0': is reserved by 'r1' until" in problems(caught)
    await fabric.submit_job("f1", job("k", ("h0.1",)))
    with pytest.raises(FailedPrecondition) as caught:
        await fabric.update_job("f1", job("k", ("h0.1", "h1.0")))
    assert "reserved by 'r1'" in problems(caught)
    with pytest.raises(FailedPrecondition) as caught:
        await reserved(fabric, "r2", "h0.1", "h1.1")
    assert "host 'h0.1': is in use by job 'k'" in problems(caught)
    with pytest.raises(AlreadyExists):
        await reserved(fabric, "r1", "h1.1")
    assert await fabric.list_reservations("f1") == [one]
    assert [found.job.name for found in await fabric.list_jobs("f1")] == ["k"]


async def test_a_job_redeems_a_reservation(fabric: Store) -> None:
    """A job that redeems a reservation gets its hosts, and the hosts it does not take are free.

    A job that does not change otherwise redeems one, too.
    """
    await reserved(fabric, "r1", "h0.0", "h1.0", "h1.1")
    await fabric.submit_job("f1", job("j", ("h1.0", "h0.1", "h0.0")), reservation="r1")
    assert await fabric.list_reservations("f1") == []
    await reserved(fabric, "r1", "h1.1")
    with pytest.raises(FailedPrecondition, match="in use by job 'j'"):
        await reserved(fabric, "r2", "h0.0")
    await fabric.update_job("f1", job("j", ("h1.1",)), reservation="r1")
    await reserved(fabric, "r1", "h0.1")
    await fabric.update_job("f1", job("j", ("h1.1",)), reservation="r1")
    assert await fabric.list_reservations("f1") == []
    await fabric.delete_job("f1", "j")
    await reserved(fabric, "r3", "h0.0", "h0.1", "h1.0", "h1.1")


async def test_a_reservation_that_is_over_is_refused(fabric: Store) -> None:
    """An expired reservation is refused with the reason, and its hosts are free by themselves."""
    await reserved(fabric, "r2", "h1.1", seconds=1.0)
    await reserved(fabric, "r1", "h0.0", "h1.0", seconds=1.0)  # this removes the expired other
    for name, why in (("r1", "is over since"), ("r2", "is over or redeemed, or never was")):
        with pytest.raises(FailedPrecondition) as caught:
            await fabric.submit_job("f1", job(), reservation=name)
        assert f"reservation {name!r}: {why}" in problems(caught)
    assert await fabric.list_jobs("f1") == []
    assert await fabric.list_reservations("f1") == []
    with pytest.raises(NotFound):
        await fabric.release("f1", "r1")
    await fabric.submit_job("f1", job("j", ("h0.0",)))
    again = await reserved(fabric, "r1", "h1.0", "h1.1")
    assert await fabric.list_reservations("f1") == [again]
    await fabric.release("f1", "r1", request=Request("q", "operator ann"))
    told = (await fabric.audit()).records[-1].entry
    assert (told.actor, told.action, told.name) == (
        "operator ann",
        "release",
        "fabrics/f1/reservations/r1",
    )
    assert '"host_count":2' in told.before
    assert told.after == ""
    await fabric.submit_job("f1", job("k", ("h1.0", "h1.1")))


async def test_one_of_many_gets_a_host(fabric: Store) -> None:
    """Of jobs and reservations that want the same host at the same time, one gets it."""
    asked = [reserved(fabric, f"r{n}", "h0.0", f"h{n % 2}.1") for n in range(8)]
    jobs = [fabric.submit_job("f1", job(f"j{n}", ("h0.0",))) for n in range(8)]
    answers = await asyncio.gather(*asked, *jobs, return_exceptions=True)
    won = [one for one in answers if isinstance(one, Reservation | JobRecord)]
    assert len(won) == 1
    assert sum(isinstance(one, FailedPrecondition) for one in answers) == 15
    kept = [*await fabric.list_reservations("f1"), *await fabric.list_jobs("f1")]
    assert kept == won


async def test_a_reservation_outlives_the_controller(world: StoreWorld) -> None:
    """A reservation survives a restart and does not change the version of the intent."""
    store = await world.open()
    await store.put_fabric("f1", clos())
    version = (await store.versions("f1")).intent
    one = await reserved(store, "r1", "h0.0")
    assert (await store.versions("f1")).intent == version
    await store.close()
    store = await world.open()
    assert await store.list_reservations("f1") == [one]
    with pytest.raises(FailedPrecondition, match="reserved by 'r1'"):
        await store.submit_job("f1", job())
    await store.close()


async def test_what_is_not_there(fabric: Store) -> None:
    """An unknown fabric or reservation is not found."""
    with pytest.raises(NotFound):
        await fabric.reserve("f9", "r1", ("h0.0",), LONG)
    with pytest.raises(NotFound):
        await fabric.list_reservations("f9")
    with pytest.raises(NotFound, match=r"reservations/r1 does not exist; .*job reservations"):
        await fabric.release("f1", "r1")
    assert await fabric.list_reservations("f1") == []
