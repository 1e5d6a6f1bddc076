"""What a new leader plans with before agents have reported anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Plan
from heddle_controller.reconcile.ports import LinkObservation, LinkReport
from heddle_controller.state.records import LinkName
from tests.support.reconcile_world import IMPATIENT, House, ring, three_tiers

J1 = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A controller of two zones of two leaves, with two cores in each of two planes."""
    return House(tmp_path, three_tiers())


def used(plan: Plan) -> LinkName:
    """Return a link from a leaf to a spine that a flow of a plan takes."""
    structure = plan.fabric.structure
    kinds = structure.nodes.kind
    arcs = [int(a) for a in plan.paths.arcs]
    arc = next(a for a in arcs if (kinds[structure.tail[a]], kinds[structure.head[a]]) == (2, 3))
    ids = structure.nodes.ids
    return LinkName(ids[structure.tail[arc]], ids[structure.head[arc]])


def tell(house: House, switch: str, link: LinkName, state: State) -> None:
    """Send a full report of a switch's agent that contains only this link."""
    about = house.gateway.sessions("f1")[switch]
    seen = LinkObservation(link, state, time=1.0, sequence=2)
    house.observations.report(about, LinkReport((seen,), full=True), 1.0)


async def down_in_plan(house: House, link: LinkName) -> bool:
    """Return whether the newest plan holds a link to be down."""
    fabric = (await house.committed()).plan.fabric
    (row,) = fabric.find_links(link.source, link.target)
    return bool(fabric.link_state[row] == State.DOWN)


async def with_a_lost_link(house: House) -> LinkName:
    """Run a controller until it has planned around a lost link, then end it; return the link."""
    async with house.running():
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await house.programmed("j1")
        link = used((await house.committed()).plan)
        tell(house, link.source, link, State.DOWN)
        await house.until(lambda: down_in_plan(house, link), "a plan without the link")
        await house.programmed("j1")
    return link


async def test_what_the_last_plan_held_down_stays_so_until_both_ends_have_told(
    house: House,
) -> None:
    """A link that the last plan held down stays down until both ends have reported it up.

    Plans made for other changes in the meantime leave the link out.
    """
    link = await with_a_lost_link(house)
    async with house.running():
        before = (await house.committed()).generation
        await house.store.set_link_state("f1", _other(house, link), State.DRAINED)
        await house.until(lambda: _newer(house, before), "a plan of the new leader")
        assert await down_in_plan(house, link)
        tell(house, link.source, link, State.UP)
        drained = (await house.committed()).generation
        await house.store.set_link_state("f1", _other(house, link), State.UP)
        await house.until(lambda: _newer(house, drained), "another plan")
        assert await down_in_plan(house, link), "one end has told, the other has not"
        tell(house, link.target, link, State.UP)
        await house.until(lambda: _up(house, link), "a plan with the link")
        await house.programmed("j1")


async def test_it_is_believed_up_when_patience_is_over(house: House) -> None:
    """A link that the last plan held down counts as up once the leader's patience has run out."""
    link = await with_a_lost_link(house)
    house.settings = IMPATIENT
    async with house.running():
        await house.until(lambda: _up(house, link), "a plan with the link")


async def test_a_link_told_down_is_believed_at_once(house: House) -> None:
    """A link that one end reports down is down at once, even if the other end is silent."""
    link = await with_a_lost_link(house)
    async with house.running():
        tell(house, link.target, link, State.UP)
        other = _other(house, link)
        tell(house, other.target, other, State.DOWN)
        await house.until(lambda: down_in_plan(house, other), "a plan without the other link")
        assert await down_in_plan(house, link)


def _other(house: House, link: LinkName) -> LinkName:
    """Return another link from the same leaf to a spine."""
    structure = house.fabric.structure
    row, ids = structure.index[link.source], structure.nodes.ids
    first, arcs = structure.out
    heads = structure.head[arcs[first[row] : first[row + 1]]]
    spines = [ids[head] for head in heads.tolist() if structure.nodes.kind[head] == 3]
    return LinkName(link.source, next(one for one in spines if one != link.target))


async def _newer(house: House, generation: int) -> bool:
    return (await house.committed()).generation > generation


async def _up(house: House, link: LinkName) -> bool:
    return not await down_in_plan(house, link)
