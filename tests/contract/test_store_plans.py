"""Plans in every store: commits, leadership, certificates, facts and what is programmed."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Certificate, TierCertificate
from heddle_controller.plan.diff import Cause, CauseKind
from heddle_controller.state.errors import NotFound, StaleEpoch, StaleGeneration
from heddle_controller.state.plans import KEPT
from heddle_controller.state.records import (
    Committed,
    JobFacts,
    JobState,
    PlanFacts,
    Programmed,
    Request,
)
from heddle_controller.store.applier import Leader
from heddle_controller.store.store import Store
from tests.contract.store_worlds import StoreWorld
from tests.support.store_samples import clos, job, plain, plan_of, program_of
from tests.support.waiting import PATIENCE

CAUSES = (Cause(CauseKind.LINK_LOST, ("l0,s0,0",), 1), Cause(CauseKind.FLOWS_CHANGED))
BETTER = Certificate(1.0, 0.75, "lp", (TierCertificate("leaf-spine", 1.0, 0.75),))


async def commit(store: Store, epoch: int, generation: int) -> Committed:
    """Commit the sample plan on the current intent."""
    intent = await store.intent("f1")
    plan = plan_of(intent.fabric)
    return await store.commit(
        "f1",
        epoch=epoch,
        expected_generation=generation - 1,
        plan=plan,
        program=program_of(plan, epoch, generation, intent.version),
        facts=PlanFacts(changed_count=3, solve_seconds=0.25, causes=CAUSES),
    )


@pytest.fixture
async def led(store: Store) -> Store:
    """A store with fabric f1, job j1, and a leader of epoch 1."""
    await store.put_fabric("f1", clos())
    await store.submit_job("f1", job())
    assert await store.acquire_leadership("c1") == 1
    return store


async def test_committed_is_got_back(led: Store) -> None:
    """The newest plan is read back as committed; before the first commit there is none."""
    assert await led.committed("f1") is None
    done = await commit(led, 1, 1)
    assert done.facts.commit_time > 0
    assert plain(await led.committed("f1")) == plain(done)
    assert await led.versions("f1") == replace(await led.versions("f1"), generation=1)
    assert (done.switches(), done.lacking()) == (("l0",), ("l0",))


async def test_commit_leaves_the_intent_alone(led: Store) -> None:
    """A plan, acks and job facts change the version of the facts, never that of the intent."""
    before = await led.versions("f1")
    await commit(led, 1, 1)
    await led.record_programmed("f1", epoch=1, programmed=Programmed(0, {"l0": 1}, 7.0))
    etag = (await led.get_job("f1", "j1")).etag
    await led.record_jobs("f1", epoch=1, facts={"j1": JobFacts(etag, JobState.PLANNED)})
    after = await led.versions("f1")
    assert after.intent == before.intent
    assert after.facts == before.facts + 3


async def test_stale_epoch(led: Store) -> None:
    """A former leader can write nothing: no plan, certificate, ack or fact."""
    await led.release_leadership(1)
    assert await led.acquire_leadership("c2") == 2
    etag = (await led.get_job("f1", "j1")).etag
    for write in (
        commit(led, 1, 1),
        led.certify("f1", epoch=1, generation=1, certificate=BETTER),
        led.record_programmed("f1", epoch=1, programmed=Programmed(0, {"l0": 1}, 7.0)),
        led.record_jobs("f1", epoch=1, facts={"j1": JobFacts(etag, JobState.PLANNED)}),
    ):
        with pytest.raises(StaleEpoch, match="epoch 1 is over"):
            await write
    assert await led.committed("f1") is None
    assert (await led.get_job("f1", "j1")).facts.state == JobState.ACCEPTED


@pytest.mark.parametrize("generation", [1, 3])
async def test_stale_generation(led: Store, generation: int) -> None:
    """A commit must follow the newest plan, or it is refused."""
    first = await commit(led, 1, 1)
    with pytest.raises(StaleGeneration):
        await commit(led, 1, generation)
    assert plain(await led.committed("f1")) == plain(first)


async def test_program_must_be_of_its_commit(led: Store) -> None:
    """A program of another epoch or generation than its commit is an error of the caller."""
    plan = plan_of((await led.intent("f1")).fabric)
    for program in (program_of(plan, 2, 1), program_of(plan, 1, 2)):
        with pytest.raises(ValueError, match="generation"):
            await led.commit(
                "f1",
                epoch=1,
                expected_generation=0,
                plan=plan,
                program=program,
                facts=PlanFacts(),
            )


async def test_old_plans_are_kept_a_while_then_trimmed(led: Store) -> None:
    """Recent plans are read back by generation; of older ones only summaries are kept."""
    last = KEPT + 2
    for generation in range(1, last + 1):
        await commit(led, 1, generation)
    newest, before = await led.committed("f1"), await led.committed("f1", last - 1)
    assert newest is not None
    assert before is not None
    assert (newest.generation, before.generation) == (last, last - 1)
    assert await led.committed("f1", 2) is None
    assert await led.committed("f1", 3) is not None
    assert await led.committed("f1", last + 1) is None
    summaries = await led.plan_summaries("f1")
    assert [one.generation for one in summaries] == [*range(last, 0, -1)]
    assert summaries[0].facts == newest.facts
    assert summaries[0].facts.causes == CAUSES
    assert await led.plan_summaries("f1", below=4, limit=2) == summaries[-3:-1]


async def test_the_plan_of_a_rollback_is_kept_as_long_as_it(led: Store) -> None:
    """Links may come back late, and flows then return to its paths; afterwards it is trimmed."""
    await commit(led, 1, 1)
    await commit(led, 1, 2)
    await led.roll_back("f1", 1, 1000.0)
    last = KEPT + 3
    for generation in range(3, last + 1):
        await commit(led, 1, generation)
    kept = await led.committed("f1", 1)
    assert kept is not None
    assert kept.generation == 1
    assert await led.committed("f1", 2) is None
    await led.end_rollback("f1")
    await commit(led, 1, last + 1)
    assert await led.committed("f1", 1) is None


async def test_what_is_gone_back_to_is_intent(world: StoreWorld) -> None:
    """A rollback is intent: all readers see it until it ends, and it survives a restart.

    A replay changes nothing.
    """
    store = await world.open()
    await store.put_fabric("f1", clos())
    assert await store.acquire_leadership("c1") == 1
    await commit(store, 1, 1)
    before = await store.versions("f1")
    wanted = await store.roll_back("f1", 1, 1000.0, request=Request("r1"))
    assert (wanted.generation, wanted.version) == (1, before.intent + 1)
    assert (await store.versions("f1")).intent == wanted.version
    assert await store.roll_back("f1", 1, 1000.0, request=Request("r1")) == wanted
    await store.close()
    store = await world.open()
    assert (await store.intent("f1")).rollback == await store.rollback("f1") == wanted
    await store.end_rollback("f1")
    assert (await store.intent("f1")).rollback is None
    with pytest.raises(NotFound, match="a rollback of fabrics/f1/plan does not exist; nothing"):
        await store.end_rollback("f1")
    await store.roll_back("f1", 1, 0.0)
    assert await store.rollback("f1") is None
    actions = [record.entry.action for record in (await store.audit()).records[-3:]]
    assert actions == ["roll_back", "end_rollback", "roll_back"]
    await store.close()


async def test_plan_outlives_the_fabric_it_was_made_on(led: Store) -> None:
    """A plan keeps the fabric that it was made on, even after another one is put."""
    done = await commit(led, 1, 1)
    await led.put_fabric("f1", clos(spines=3))
    assert plain(await led.committed("f1")) == plain(done)


async def test_commit_on_a_fabric_that_was_just_replaced(led: Store) -> None:
    """The structure of a plan is stored even if the store has dropped it meanwhile."""
    plan = plan_of((await led.intent("f1")).fabric.with_links({0: State.DRAINED}))
    await led.put_fabric("f1", clos(spines=3))
    done = await led.commit(
        "f1",
        epoch=1,
        expected_generation=0,
        plan=plan,
        program=program_of(plan, 1, 1),
        facts=PlanFacts(),
    )
    assert plain(await led.committed("f1")) == plain(done)


async def test_a_better_certificate(world: StoreWorld) -> None:
    """The newest plan gets another certificate for good, announced as a fact; the rest stays."""
    store = await world.open()
    await store.put_fabric("f1", clos())
    await store.acquire_leadership("c1")
    done = await commit(store, 1, 1)
    versions = await store.versions("f1")
    assert await store.certify("f1", epoch=1, generation=1, certificate=BETTER)
    expected = plain(replace(done, plan=replace(done.plan, certificate=BETTER)))
    assert plain(await store.committed("f1")) == expected
    assert await store.versions("f1") == replace(versions, facts=versions.facts + 1)
    await store.close()
    again = await world.open()
    assert plain(await again.committed("f1")) == expected
    await again.close()


async def test_a_certificate_of_another_plan(led: Store) -> None:
    """A certificate for an older or an unknown plan changes nothing."""
    assert not await led.certify("f1", epoch=1, generation=1, certificate=BETTER)
    await commit(led, 1, 1)
    second = await commit(led, 1, 2)
    versions = await led.versions("f1")
    for generation in (1, 3):
        assert not await led.certify("f1", epoch=1, generation=generation, certificate=BETTER)
    assert plain(await led.committed("f1")) == plain(second)
    assert await led.versions("f1") == versions


async def test_programmed_only_grows(led: Store) -> None:
    """A late ack of an older plan does not take back what is programmed."""
    await commit(led, 1, 1)
    await led.record_programmed("f1", epoch=1, programmed=Programmed(1, {"s0": 0}, 7.0))
    first = await led.committed("f1")
    assert first is not None
    assert (first.lacking(), first.programmed_time()) == ((), 7.0)
    await commit(led, 1, 2)
    second = await led.committed("f1")
    assert second is not None
    assert (second.lacking(), second.programmed_time()) == (("l0",), 0.0)
    await led.record_programmed("f1", epoch=1, programmed=Programmed(1, {"l0": 2}, 8.0))
    await led.record_programmed("f1", epoch=1, programmed=Programmed(0, {"l0": 1}, 9.0))
    third = await led.committed("f1")
    assert third is not None
    assert third.programmed == Programmed(1, {"l0": 2}, 8.0)
    assert third.programmed_time() == 8.0


async def test_switches_that_come_hold_nothing(led: Store) -> None:
    """A switch that is new in the fabric has not programmed any earlier plan."""
    await commit(led, 1, 1)
    await led.record_programmed("f1", epoch=1, programmed=Programmed(1, time=7.0))
    await led.put_fabric("f1", clos(spines=3))
    await commit(led, 1, 2)
    done = await led.committed("f1")
    assert done is not None
    assert done.settled() == (0, ("s2",))
    await led.record_programmed("f1", epoch=1, programmed=Programmed(2, time=8.0))
    done = await led.committed("f1")
    assert done is not None
    assert done.settled() == (2, ())


async def test_what_a_plan_was_kept_for_only_grows(led: Store) -> None:
    """``kept_for`` survives commits; an older version, or a former leader, cannot change it."""
    first = await commit(led, 1, 1)
    assert (first.kept_for, first.answered_version) == (0, first.program.intent_version)
    await led.record_kept("f1", epoch=1, version=70)
    await led.record_kept("f1", epoch=1, version=60)
    kept = await led.committed("f1")
    assert kept is not None
    assert (kept.kept_for, kept.answered_version) == (70, 70)
    second = await commit(led, 1, 2)
    assert second.kept_for == 70
    with pytest.raises(StaleEpoch):
        await led.record_kept("f1", epoch=0, version=80)
    last = await led.committed("f1")
    assert last is not None
    assert (last.kept_for, (await led.versions("f1")).intent) == (70, 2)


async def test_facts_are_true_of_one_specification(led: Store) -> None:
    """Facts for a specification that has been replaced are dropped."""
    old = await led.get_job("f1", "j1")
    facts = JobFacts(old.etag, JobState.DEGRADED, "no path", 4, 1, 7, 9.0)
    await led.record_jobs("f1", epoch=1, facts={"j1": facts, "gone": facts})
    assert (await led.get_job("f1", "j1")).facts == facts
    new = await led.update_job("f1", job(qps=2))
    await led.record_jobs("f1", epoch=1, facts={"j1": facts})
    assert (await led.get_job("f1", "j1")).facts == new.facts


async def test_epochs_only_grow(world: StoreWorld) -> None:
    """Epochs grow across leaders and processes, and above the highest that an agent knows."""
    store = await world.open()
    assert await store.acquire_leadership("c1") == 1
    await store.release_leadership(1)
    assert await store.acquire_leadership("c1", above=41) == 42
    await store.close()
    again = await world.open()
    assert await again.acquire_leadership("c2") == 43
    await again.close()


async def test_one_leads_at_a_time(store: Store) -> None:
    """A second leader waits for the first, which learns that it no longer leads.

    The store names the leader, and nobody while nobody leads.
    """
    first = await store.acquire_leadership("c1")
    assert await store.leader() == Leader(first, "c1")
    waiting = asyncio.create_task(store.acquire_leadership("c2"))
    lost = asyncio.create_task(store.leadership_lost(first))
    await store.list_fabrics()
    assert not waiting.done()
    assert not lost.done()
    await store.release_leadership(first)
    async with asyncio.timeout(PATIENCE):
        assert await waiting > first
        await lost
    lost = asyncio.create_task(store.leadership_lost(waiting.result()))
    await store.release_leadership(first)
    await store.list_fabrics()
    assert not lost.done()
    lost.cancel()
    second = waiting.result()
    assert await store.leader() == Leader(second, "c2")
    await store.release_leadership(second)
    assert await store.leader() == Leader(second, "")


async def test_survives_reopening(world: StoreWorld) -> None:
    """The next process finds plan, program, acks and facts, and can commit the next plan."""
    store = await world.open()
    await store.put_fabric("f1", clos())
    await store.submit_job("f1", job())
    await store.acquire_leadership("c1")
    await commit(store, 1, 1)
    await store.record_programmed("f1", epoch=1, programmed=Programmed(0, {"l0": 1}, 7.0))
    before, versions = await store.committed("f1"), await store.versions("f1")
    await store.close()
    again = await world.open()
    assert plain(await again.committed("f1")) == plain(before)
    assert await again.versions("f1") == versions
    epoch = await again.acquire_leadership("c2")
    with pytest.raises(StaleEpoch):
        await commit(again, 1, 2)
    await commit(again, epoch, 2)
    await again.close()


async def test_a_plan_that_nobody_waits_for_any_more_ends_in_silence(
    led: Store, world: StoreWorld
) -> None:
    """A store that closes while it reads a plan for a caller who is gone complains to nobody."""
    await commit(led, 1, 1)
    await led.close()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    for steps in range(12):
        store = await world.open()
        reading = asyncio.create_task(store.committed("f1"))
        for _ in range(steps):  # cancelled at another point each time
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await store.close()
    await asyncio.sleep(0)
    gc.collect()
    assert not told
