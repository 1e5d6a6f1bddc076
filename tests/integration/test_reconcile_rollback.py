"""Rollback to an earlier plan, with real store, loop and solver, and switches in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Certificate, Paths, Plan
from heddle_controller.plan.diff import CauseKind, changed_flows
from heddle_controller.solve import LossScreen
from heddle_controller.state.errors import FailedPrecondition, NotFound
from heddle_controller.state.plans import KEPT
from heddle_controller.state.records import Committed, LinkName
from tests.support.reconcile_world import ENGINE, House, ring, three_tiers

JOB = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
LONG = 3600.0


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A controller of two zones of two leaves, with two cores in each of two planes."""
    return House(tmp_path, three_tiers())


async def planned(house: House, above: int, *, flows: bool = True) -> Committed:
    """Wait for a plan newer than a generation, with flows or without, and return it."""

    async def there() -> bool:
        done = await house.store.committed("f1")
        return done is not None and done.generation > above and bool(len(done.plan.flows)) == flows

    await house.until(there, f"a plan above {above}")
    return await house.committed()


async def answered(house: House) -> Committed:
    """Wait until the newest plan answers the newest intent, and return it."""
    version = (await house.store.versions("f1")).intent

    async def there() -> bool:
        return (await house.committed()).answered_version >= version

    await house.until(there, f"an answer to intent {version}")
    return await house.committed()


def used_link(plan: Plan) -> LinkName:
    """Return a link between switches that the first flow takes."""
    structure = plan.fabric.structure
    arc = int(plan.paths.of(0)[1])
    ids = structure.nodes.ids
    return LinkName(ids[int(structure.tail[arc])], ids[int(structure.head[arc])])


def same(one: Paths, other: Paths) -> bool:
    """Return whether all flows take the same paths."""
    return np.array_equal(one.flow, other.flow) and np.array_equal(one.arcs, other.arcs)


async def moved_away(house: House) -> tuple[Committed, Committed, LinkName]:
    """Return a plan, the plan made after one of its links was drained, and that link."""
    await house.store.put_fabric("f1", house.fabric)
    await house.store.submit_job("f1", JOB)
    first = await planned(house, 0)
    link = used_link(first.plan)
    await house.store.set_link_state("f1", link, State.DRAINED)
    second = await planned(house, first.generation)
    assert len(changed_flows(first.plan, second.plan))
    return first, second, link


async def test_flows_go_back_to_the_paths_of_an_earlier_plan(house: House) -> None:
    """A rollback returns all flows to the earlier paths, and a new leader does not repeat it."""
    async with house.running():
        first, second, link = await moved_away(house)
        await house.store.set_link_state("f1", link, State.UP)
        third = await planned(house, second.generation)
        await house.store.roll_back("f1", first.generation, LONG)
        back = await planned(house, third.generation)
        assert same(back.plan.paths, first.plan.paths)
        causes = [(cause.kind, cause.names) for cause in back.facts.causes]
        assert causes[0] == (CauseKind.ROLLED_BACK, (str(first.generation),))
        assert CauseKind.BETTER_PLAN not in dict(causes)
        assert back.facts.changed_count == len(changed_flows(third.plan, back.plan))
        await house.programmed("j1")
        await house.settled()
    async with house.running():
        lost = used_link(back.plan)
        await house.store.set_link_state("f1", lost, State.DRAINED)
        after = await planned(house, back.generation)
        assert after.generation == back.generation + 1
        assert {cause.kind for cause in after.facts.causes} == {CauseKind.LINK_DRAINED}


async def test_what_is_lost_meanwhile_is_repaired_from_there(house: House) -> None:
    """After a rollback, only flows whose earlier path crosses a drained link get another path."""
    async with house.running():
        first, second, _ = await moved_away(house)
        await house.store.roll_back("f1", first.generation, LONG)
        back = await planned(house, second.generation)
        rows = set(changed_flows(first.plan, back.plan).tolist())
        lossy = first.plan.paths.crosses(~back.plan.fabric.plannable)
        assert rows == set(first.plan.paths.flow[lossy].tolist()) != set()


async def test_flows_that_came_since_stay_where_they_are(house: House) -> None:
    """They keep their paths, even over drained links, which they could not get anew."""
    async with house.running():
        first, _, link = await moved_away(house)
        await house.store.set_link_state("f1", link, State.UP)
        await house.store.submit_job("f1", ring("a-new", "h0.0.1", "h1.1.1"))
        await house.store.submit_job("f1", ring("new", "h0.1.1", "h1.0.1"))
        await answered(house)
        for spine in ("s0.0", "s0.1"):
            await house.store.set_link_state("f1", LinkName("l0.0", spine), State.DRAINED)
        fourth = await answered(house)
        assert not fourth.plan.unrouted
        await house.store.roll_back("f1", first.generation, LONG)
        back = await planned(house, fourth.generation)
        assert not back.plan.unrouted
        moved = [back.plan.flows.ids[row] for row in changed_flows(fourth.plan, back.plan)]
        assert {one.partition("/")[0] for one in moved} <= {"j1"}


async def test_links_that_return_during_a_rollback_are_used_again(house: House) -> None:
    """Flows that had to leave the paths of the earlier plan go back to them, and no others move."""
    async with house.running():
        first, second, link = await moved_away(house)
        await house.store.roll_back("f1", first.generation, LONG)
        back = await planned(house, second.generation)
        assert not same(back.plan.paths, first.plan.paths)
        await house.store.set_link_state("f1", link, State.UP)
        again = await planned(house, back.generation)
        assert same(again.plan.paths, first.plan.paths)
        assert again.facts.changed_count == len(changed_flows(back.plan, again.plan))


@pytest.mark.parametrize("how", ["ended", "over"])
async def test_plans_are_made_freely_again_when_it_is_over(house: House, how: str) -> None:
    """Once a rollback ends or expires, and not before, the plan is compared with a new one."""

    def prove(plan: Plan, screen: LossScreen) -> Certificate:
        return replace(ENGINE.prove(plan, screen), proof="late")

    house.engine = replace(ENGINE, prove=prove)
    house.settings = replace(house.settings, compare_after=0.01)
    async with house.running():
        first, second, _ = await moved_away(house)
        await house.store.roll_back("f1", first.generation, LONG)
        back = await planned(house, second.generation)
        await house.settled()
        assert (await house.committed()).plan.certificate.proof != "late"
        if how == "ended":
            await house.store.end_rollback("f1")
        else:
            await house.store.roll_back("f1", first.generation, 0.5)

        async def compared() -> bool:
            done = await house.committed()
            return done.generation >= back.generation and done.plan.certificate.proof == "late"

        await house.until(compared, "a comparison")
        assert await house.store.rollback("f1") is None


async def test_there_must_be_such_a_plan_of_this_fabric(house: House) -> None:
    """A rollback that is impossible is refused and changes nothing.

    The generation may never have been made, or may be too old to be kept. The fabric of the plan
    may have other nodes or links. A rollback that was never begun, or has been ended, cannot be
    ended.
    """
    async with house.running():
        first, newest, link = await moved_away(house)
        version = (await house.store.versions("f1")).intent
        with pytest.raises(NotFound, match="generation 99 "):
            await house.store.roll_back("f1", 99, LONG)
        with pytest.raises(NotFound, match="rollback"):
            await house.store.end_rollback("f1")
        assert (await house.store.versions("f1")).intent == version
        await house.store.roll_back("f1", newest.generation, LONG)
        await house.store.end_rollback("f1")
        version = (await house.store.versions("f1")).intent
        with pytest.raises(NotFound, match="rollback"):
            await house.store.end_rollback("f1")
        assert (await house.store.versions("f1")).intent == version
        for state in (State.UP, State.DRAINED) * KEPT:
            await house.store.set_link_state("f1", link, state)
            newest = await answered(house)
            if newest.generation - first.generation >= KEPT:
                break
        version = (await house.store.versions("f1")).intent
        with pytest.raises(NotFound, match=f"generation {first.generation} "):
            await house.store.roll_back("f1", first.generation, LONG)
        assert (await house.store.versions("f1")).intent == version
        await house.store.put_fabric("f1", three_tiers(leaves=3))
        version = (await house.store.versions("f1")).intent
        with pytest.raises(FailedPrecondition, match="other nodes or links"):
            await house.store.roll_back("f1", newest.generation, LONG)
        assert (await house.store.versions("f1")).intent == version
        assert await house.store.rollback("f1") is None
