from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.loop import Reconciler
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.state.errors import StaleGeneration, Unavailable
from heddle_controller.store.store import Store
from tests.support.reconcile_world import ENGINE, IMPATIENT, House, ring, three_tiers
from tests.support.waiting import PATIENCE, until

J1 = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
J2 = ring("j2", "h0.0.1", "h1.0.1", "h0.1.1", "h1.1.1")


@pytest.fixture
def house(tmp_path: Path) -> House:
    """Two zones of two leaves, with two cores in each of two planes."""
    return House(tmp_path, three_tiers())


@asynccontextmanager
async def another(house: House) -> AsyncIterator[Reconciler]:
    """A second controller on the same store and switches, as a replica is."""
    reconciler = Reconciler(house.dependencies(house.store, house.gateway))
    task = asyncio.create_task(reconciler.run())
    try:
        yield reconciler
    finally:
        task.cancel()
        await asyncio.wait([task])


class Moody:
    """A store some of whose calls fail, for as long as that is wanted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.failing: dict[str, Exception] = {}
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in self.failing:
            return method
        return lambda *_, **__: self._fail(self.failing[name])

    async def _fail(self, error: Exception) -> None:
        self.failed += 1
        raise error


@asynccontextmanager
async def moody(house: House) -> AsyncIterator[Moody]:
    """A controller that runs, and its store, which does what it likes."""
    stores: list[Moody] = []

    def through(port: Any) -> Any:
        if port is house.store:
            stores.append(Moody(port))
            return stores[0]
        return port

    async with house.running(through=through):
        yield stores[0]


async def furnish(house: House) -> None:
    """Put the fabric and a job, and wait until it is programmed."""
    await house.store.put_fabric("f1", house.fabric)
    await house.store.submit_job("f1", J1)
    await house.programmed("j1")
    await house.settled()


async def test_the_second_waits_and_takes_over(house: House) -> None:
    """A replica leads when the leader hands over, under a greater epoch, and moves nothing."""
    async with house.running():
        await furnish(house)
        before, pushes = await house.committed(), house.push_count()
        assert house.reconciler is not None
        async with another(house) as second:
            await asyncio.wait_for(house.reconciler.known.wait(), PATIENCE)
            await asyncio.wait_for(second.known.wait(), PATIENCE)
            assert second.epoch == 0, "it knows who leads, and follows"
            await house.store.release_leadership(house.reconciler.epoch)
            await until(lambda: second.epoch > before.program.epoch, "the second to lead")
            await house.store.submit_job("f1", J2)
            await house.programmed("j1", "j2")
            await house.settled()
            after = await house.committed()
            assert (after.program.epoch, after.generation) == (second.epoch, before.generation + 1)
            assert house.push_count() > pushes
            assert all(
                switch.table.fence[0] == second.epoch for switch in house.gateway.switches.values()
            )


async def test_a_new_leader_fences_all_and_moves_nothing(house: House) -> None:
    """Every switch follows the new epoch as soon as it is known; none is sent an entry.

    Sessions that go on from the leader before say what they began with, which was an empty
    table: the new leader asks instead.
    """
    async with house.running():
        await furnish(house)
        changes = house.change_count()
        assert house.reconciler is not None
        async with another(house) as second:
            await house.store.release_leadership(house.reconciler.epoch)
            await asyncio.wait_for(second.known.wait(), PATIENCE)
            tables = [switch.table for switch in house.gateway.switches.values()]
            await house.until(
                lambda: all(table.fence[0] == second.epoch for table in tables), "all fenced"
            )
            await house.settled()
            assert house.change_count() == changes


async def test_what_an_older_leader_did_at_last_is_found(house: House) -> None:
    """An old push that arrives after all was well is in the answer to the new leader's question."""
    async with house.running():
        await furnish(house)
        assert house.reconciler is not None
        victim = next(s for s in house.gateway.switches.values() if s.table.entries)
        held = dict(victim.table.entries)
        async with another(house) as second:
            victim.table.entries.clear()
            await house.store.release_leadership(house.reconciler.epoch)
            await asyncio.wait_for(second.known.wait(), PATIENCE)
            await house.until(lambda: victim.table.entries == held, "put right")
            await house.settled()


class Failing:
    """A store that fails whoever gives up waiting for it, as a connection may that is cut."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """See the port."""
        try:
            async for fabric in self._store.changes(facts=facts):
                yield fabric
        except asyncio.CancelledError:
            raise Unavailable("cut off") from None


async def test_a_loop_that_is_ended_ends(house: House) -> None:
    """Even where what it waits for fails at that very moment: it does not begin to lead again."""
    async with house.running():
        await furnish(house)
        raw: Any = Failing(house.store)
        other = Reconciler(house.dependencies(raw, house.gateway))
        assert house.reconciler is not None
        task = asyncio.create_task(other.run())
        await house.store.release_leadership(house.reconciler.epoch)
        await asyncio.wait_for(other.known.wait(), PATIENCE)
        await asyncio.sleep(0.05)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=PATIENCE)
        assert done, "it goes on"
        assert task.cancelled()


async def reach(house: House, moody: Moody, calls: int) -> None:
    """Wait until so many calls have failed."""
    await house.until(lambda: moody.failed >= calls, f"{calls} failed calls")


@pytest.mark.parametrize("call", ["versions", "intent", "commit", "committed"])
@pytest.mark.parametrize("error", [Unavailable("disk full"), StaleGeneration(1, 2)])
async def test_a_store_that_fails_for_a_while(house: House, call: str, error: Exception) -> None:
    """The loop tries again until the store is well, and nothing else is needed."""
    async with moody(house) as store:
        store.failing[call] = error
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await reach(house, store, 3)
        store.failing.clear()
        await house.programmed("j1")
        await house.settled()


@pytest.mark.parametrize("call", ["record_programmed", "record_jobs"])
async def test_facts_that_cannot_be_written(house: House, call: str) -> None:
    """Switches are programmed all the same, and the facts are written when they can be."""
    async with moody(house) as store:
        store.failing[call] = Unavailable("disk full")
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await house.until(
            lambda: all(s.table.whole for s in house.gateway.switches.values()), "programmed"
        )
        await reach(house, store, 1)
        store.failing.clear()
        await house.programmed("j1")
        await house.settled()


async def test_a_fault_in_one_fabric_stays_there(house: House) -> None:
    """A worker that breaks begins again; the other fabric does not notice."""

    def entries_of(plan: Plan, before: tuple[Plan, Entries] | None = None) -> Entries:
        entries = ENGINE.entries_of(plan, before)
        if plan.fabric.name == "broken":
            return replace(entries, switch=entries.switch[:0])  # no room of the house makes these
        return entries

    named = three_tiers()
    named = replace(named, structure=replace(named.structure, name="broken"))
    house.engine = replace(ENGINE, entries_of=entries_of)
    async with house.running():
        await house.store.put_fabric("f0", named)
        await house.store.submit_job("f0", J1)
        await furnish(house)
        assert house.reconciler is not None
        epoch = house.reconciler.epoch
        await house.store.submit_job("f1", J2)
        await house.programmed("j1", "j2")
        assert house.reconciler.epoch == epoch


@pytest.mark.parametrize("claim", [2**24 + 1, 2**53 + 1, 2**62 - 1, 2**64 - 1])
async def test_an_epoch_out_of_this_world_is_not_believed(house: House, claim: int) -> None:
    """An agent that claims one is left alone; the others are served, and its job is told.

    Believed, it would have all leaders to come share the last epoch that a store can count to.
    """
    house.settings = IMPATIENT
    house.gateway.switches["l0.0"].table.fence = (claim, 1)
    async with house.running():
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await house.degraded("j1", "switch l0.0 is not connected")
        assert house.reconciler is not None
        assert house.reconciler.epoch == 1


async def test_an_epoch_that_may_have_been_is_believed(house: House) -> None:
    """A store that knows less than the switches is led by no less than the furthest has seen."""
    for claim, switch in enumerate(house.gateway.switches.values(), 1000):
        switch.table.fence = (claim, 1)
    async with house.running():
        await furnish(house)
        assert house.reconciler is not None
        assert house.reconciler.epoch >= 999 + len(house.gateway.switches)


async def test_an_epoch_that_was_another_leaders_is_not_used_again(house: House) -> None:
    """A store that lost its newest writes gives an epoch twice: who finds it followed leads above.

    Else what the other leader still has under way would be let in beside what this one sends.
    """
    house.gateway.switches["s1.1"].table.fence = (1, 1)
    async with house.running():
        await furnish(house)
        assert house.reconciler is not None
        assert house.reconciler.epoch == 2
        fences = {switch.table.fence[0] for switch in house.gateway.switches.values()}
        assert fences == {2}


async def test_agents_that_come_back_do_not_end_the_epoch_they_follow(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the fabric's worker has begun anew in between: whom it sent something is known."""
    faults: list[Exception] = []

    async with house.running():
        await furnish(house)
        assert house.reconciler is not None
        epoch, sessions = house.reconciler.epoch, house.gateway.sessions

        def faulty(fabric: str) -> Mapping[str, AgentSession]:
            if faults:
                raise faults.pop()
            return sessions(fabric)

        monkeypatch.setattr(house.gateway, "sessions", faulty)
        faults.append(RuntimeError("a fault of ours"))
        house.gateway.connect(*house.gateway.switches)
        await house.until(lambda: not faults, "a worker that fails")
        await house.store.submit_job("f1", J2)
        await house.programmed("j1", "j2")
        await house.settled()
        assert house.reconciler.epoch == epoch
