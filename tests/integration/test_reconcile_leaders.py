from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.loop import Reconciler
from heddle_controller.reconcile.ports import AgentSession, Metric
from heddle_controller.state.errors import StaleGeneration, Unavailable
from heddle_controller.store.store import Store
from tests.support.reconcile_world import ENGINE, IMPATIENT, House, ring, three_tiers
from tests.support.waiting import PATIENCE, until

J1 = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
J2 = ring("j2", "h0.0.1", "h1.0.1", "h0.1.1", "h1.1.1")


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A controller of two zones of two leaves, with two cores in each of two planes."""
    return House(tmp_path, three_tiers())


@asynccontextmanager
async def another(house: House) -> AsyncIterator[Reconciler]:
    """Run a second controller on the same store and switches, as a replica does."""
    reconciler = Reconciler(house.dependencies(house.store, house.gateway))
    task = asyncio.create_task(reconciler.run())
    try:
        yield reconciler
    finally:
        task.cancel()
        await asyncio.wait([task])


async def fenced(house: House, leader: Reconciler) -> None:
    """Wait until every switch follows the epoch of a leader; some are told after all others."""
    tables = [switch.table for switch in house.gateway.switches.values()]
    await house.until(
        lambda: all(table.fence[0] == leader.epoch for table in tables), "all to be fenced"
    )


class Moody:
    """A store in which chosen calls fail for as long as the test wants."""

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
    """Run a controller and yield its store, whose calls the test can make fail."""
    stores: list[Moody] = []

    def through(port: Any) -> Any:
        if port is house.store:
            stores.append(Moody(port))
            return stores[0]
        return port

    async with house.running(through=through):
        yield stores[0]


async def furnish(house: House) -> None:
    """Put the fabric and a job, and wait until the job is programmed."""
    await house.store.put_fabric("f1", house.fabric)
    await house.store.submit_job("f1", J1)
    await house.programmed("j1")
    await house.settled()


async def test_the_second_waits_and_takes_over(house: House) -> None:
    """A replica leads under a higher epoch once the leader releases its lease, and plans."""
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
            await fenced(house, second)


async def test_who_leads_no_more_shows_no_switch_as_behind(house: House) -> None:
    """A leader shows how many switches lack its plan; later it does not know, and shows none.

    One that holds only entries of a deleted job lacks the plan, too.
    """
    house.settings = IMPATIENT
    async with house.running():
        house.gateway.disconnect("l0.0")
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await house.until(
            lambda: house.figures.values[Metric.PENDING_SWITCHES] == [1], "one to be behind"
        )
        house.gateway.connect("l0.0")
        await house.settled()
        hung = next(one for one, at in house.gateway.switches.items() if at.table.entries)
        house.gateway.switches[hung].answers.clear()
        await house.store.delete_job("f1", "j1")
        await house.until(
            lambda: (
                [one for one, at in house.gateway.switches.items() if at.table.entries] == [hung]
            ),
            "the others to be empty",
        )
        await house.until(
            lambda: house.figures.values[Metric.PENDING_SWITCHES] == [1], "one to be behind"
        )
    assert house.figures.values[Metric.PENDING_SWITCHES] == [0]


async def test_a_new_leader_fences_all_and_moves_nothing(house: House) -> None:
    """Every switch follows the new epoch as soon as the leader knows it; none is sent an entry.

    A session that continues from the previous leader still reports the table with which it began,
    which was empty. So the new leader asks for the current one.
    """
    async with house.running():
        await furnish(house)
        changes = house.change_count()
        assert house.reconciler is not None
        async with another(house) as second:
            await house.store.release_leadership(house.reconciler.epoch)
            await asyncio.wait_for(second.known.wait(), PATIENCE)
            await fenced(house, second)
            await house.settled()
            assert house.change_count() == changes


async def test_what_an_older_leader_did_at_last_is_found(house: House) -> None:
    """A new leader asks the switches, so it finds and repairs a change made by an older leader."""
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
    """A store whose change feed raises an error when its reader is cancelled, as a cut link may."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """Implement ``Store.changes``."""
        try:
            async for fabric in self._store.changes(facts=facts):
                yield fabric
        except asyncio.CancelledError:
            raise Unavailable("cut off") from None


async def test_a_loop_that_is_ended_ends(house: House) -> None:
    """A cancelled loop ends even if the store fails at that moment; it does not lead again."""
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
    """Wait until at least this many calls have failed."""
    await house.until(lambda: moody.failed >= calls, f"{calls} failed calls")


@pytest.mark.parametrize("call", ["versions", "intent", "commit", "committed"])
@pytest.mark.parametrize("error", [Unavailable("disk full"), StaleGeneration(1, 2)])
async def test_a_store_that_fails_for_a_while(house: House, call: str, error: Exception) -> None:
    """The loop counts each failure, tries again until the store works, and programs the job."""
    async with moody(house) as store:
        store.failing[call] = error
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await reach(house, store, 3)
        await house.until(
            lambda: house.figures.counts[Metric.RECONCILE_FAILURES] >= 2, "two counted failures"
        )
        store.failing.clear()
        await house.programmed("j1")
        await house.settled()


@pytest.mark.parametrize("call", ["record_programmed", "record_jobs"])
async def test_facts_that_cannot_be_written(house: House, call: str) -> None:
    """Switches are programmed although facts cannot be written; the facts follow once they can."""
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


async def test_a_store_that_is_gone_is_told_in_words(house: House) -> None:
    """A lost store is logged without tracebacks and without another leader; then the loop leads.

    Nobody has taken the place of this controller, so no log line may say so.
    """
    away = house.path.with_name("elsewhere.db")
    async with house.running():
        await furnish(house)
        with capture_logs() as logged:
            house.path.rename(away)
            with pytest.raises(Unavailable):
                await house.store.versions("f1")
            await house.until(
                lambda: any(one["event"] == "waits for the store to lead" for one in logged),
                "waits for the store",
            )
        away.rename(house.path)
        await house.store.submit_job("f1", J2)
        await house.programmed("j2")
    assert not [one for one in logged if one["log_level"] == "error"]
    (over,) = (one["why"] for one in logged if one["event"] == "leadership over")
    assert "no later leader is known" in over


async def test_a_fault_in_one_fabric_stays_there(house: House) -> None:
    """A worker that fails starts again; another fabric's jobs and the epoch are not affected."""

    def entries_of(plan: Plan, before: tuple[Plan, Entries] | None = None) -> Entries:
        entries = ENGINE.entries_of(plan, before)
        if plan.fabric.name == "broken":
            return replace(entries, switch=entries.switch[:0])  # no real code makes these
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
    """An agent that claims an impossible epoch counts as absent, and its job says so.

    If the leader believed the claim, all future leaders would have to share the last epoch that a
    store can count to.
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
    """A leader takes an epoch at least as high as any plausible one that a switch has seen."""
    for claim, switch in enumerate(house.gateway.switches.values(), 1000):
        switch.table.fence = (claim, 1)
    async with house.running():
        await furnish(house)
        assert house.reconciler is not None
        assert house.reconciler.epoch >= 999 + len(house.gateway.switches)


async def test_an_epoch_that_was_another_leaders_is_not_used_again(house: House) -> None:
    """A leader that finds its epoch already in use by switches takes a higher one.

    A store that lost its newest writes may issue an epoch twice. With the same epoch, agents would
    also accept what the other leader still has under way.
    """
    house.gateway.switches["s1.1"].table.fence = (1, 1)
    async with house.running():
        await furnish(house)
        assert house.reconciler is not None
        await fenced(house, house.reconciler)
        assert house.reconciler.epoch == 2


async def test_agents_that_come_back_do_not_end_the_epoch_they_follow(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reconnecting agents that follow the current epoch do not make the leader take a new one.

    This holds even if the fabric's worker has restarted in between: it still knows which agents it
    sent to.
    """
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
