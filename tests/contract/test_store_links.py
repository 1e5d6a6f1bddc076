from __future__ import annotations

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.reconcile.ports import Store
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import LinkName, LinkObservation, LinkReport
from tests.contract.store_worlds import StoreWorld
from tests.unit.store.samples import clos

UPLINK = LinkName("l0", "s0")


def seen(state: State, sequence: int, link: LinkName = UPLINK) -> LinkObservation:
    """One observation."""
    return LinkObservation(link, state, time=float(sequence), sequence=sequence)


def report(
    switch: str, *links: LinkObservation, instance: str = "i1", full: bool = False
) -> LinkReport:
    """A report of one agent."""
    return LinkReport(switch, instance, links, full)


async def observed(store: Store, link: LinkName = UPLINK) -> State:
    """Observed state of a link."""
    record = await store.get_fabric("f1")
    (row,) = record.fabric.find_links(link.source, link.target)
    return record.link(row).observed_state


@pytest.fixture
async def fabric(store: Store) -> Store:
    """A store with fabric f1."""
    await store.put_fabric("f1", clos())
    return store


async def test_down_and_up_again(fabric: Store) -> None:
    """What an agent sees is merged into the intent, and moves its version and its time."""
    assert await fabric.report_links("f1", report("l0", seen(State.DOWN, 1)))
    assert await observed(fabric) == State.DOWN
    intent = await fabric.intent("f1")
    (row,) = intent.fabric.find_links("l0", "s0")
    assert (intent.version, intent.fabric.link_state[row]) == (2, State.DOWN)
    assert (await fabric.get_fabric("f1")).state_time[row] > 0
    assert await fabric.report_links("f1", report("l0", seen(State.UP, 2)))
    assert await observed(fabric) == State.UP


async def test_no_change_no_version(fabric: Store) -> None:
    """All up at the start of a session, or the same again, is no change of intent."""
    links = (seen(State.UP, 1), seen(State.UP, 2, LinkName("l0", "s1")))
    assert not await fabric.report_links("f1", report("l0", *links, full=True))
    await fabric.report_links("f1", report("l0", seen(State.DOWN, 3)))
    before = await fabric.versions("f1")
    assert not await fabric.report_links("f1", report("l0", seen(State.DOWN, 4)))
    assert await fabric.versions("f1") == before


@pytest.mark.parametrize("sequence", [1, 2])
async def test_old_sequence_is_ignored(fabric: Store, sequence: int) -> None:
    """An observation that was overtaken, or comes twice, changes nothing."""
    await fabric.report_links("f1", report("l0", seen(State.UP, 2)))
    assert not await fabric.report_links("f1", report("l0", seen(State.DOWN, sequence)))
    assert await observed(fabric) == State.UP


async def test_a_new_instance_counts_from_the_start(fabric: Store) -> None:
    """A restarted agent's sequence begins again and is believed."""
    await fabric.report_links("f1", report("l0", seen(State.DOWN, 9)))
    assert await fabric.report_links("f1", report("l0", seen(State.UP, 1), instance="i2"))
    assert await observed(fabric) == State.UP


async def test_down_at_either_end_is_down(fabric: Store) -> None:
    """A link is up again only when neither end says it is down."""
    await fabric.report_links("f1", report("l0", seen(State.DOWN, 1)))
    assert not await fabric.report_links("f1", report("s0", seen(State.DOWN, 1)))
    assert not await fabric.report_links("f1", report("l0", seen(State.UP, 2)))
    assert await observed(fabric) == State.DOWN
    assert await fabric.report_links("f1", report("s0", seen(State.UP, 2)))
    assert await observed(fabric) == State.UP


async def test_full_report_forgets_what_it_does_not_name(fabric: Store) -> None:
    """A full report is all there is to say of a switch; a partial one is not."""
    other = LinkName("s1", "l0")
    await fabric.report_links("f1", report("l0", seen(State.DOWN, 1)))
    await fabric.report_links("f1", report("l0", seen(State.UP, 2, other)))
    assert await observed(fabric) == State.DOWN
    assert await fabric.report_links("f1", report("l0", seen(State.UP, 3, other), full=True))
    assert await observed(fabric) == State.UP


async def test_foreign_and_unknown_links_are_ignored(fabric: Store) -> None:
    """An agent speaks for links of its own switch, as far as the fabric knows them."""
    foreign = report("l1", seen(State.DOWN, 1), seen(State.DOWN, 2, LinkName("l1", "s9")))
    assert not await fabric.report_links("f1", foreign)
    assert await observed(fabric) == State.UP
    with pytest.raises(NotFound):
        await fabric.report_links("f2", foreign)


async def test_administrative_state_stays_apart(fabric: Store) -> None:
    """An observation leaves the operator's wish, and the etag that guards it, alone."""
    drained = await fabric.set_link_state("f1", UPLINK, State.DRAINED)
    etag = (await fabric.get_fabric("f1")).etag
    await fabric.report_links("f1", report("l0", seen(State.DOWN, 1)))
    after = await fabric.get_fabric("f1")
    (row,) = after.fabric.find_links("l0", "s0")
    assert after.link(row).admin_state == drained.admin_state
    assert after.merged().link_state[row] == State.DOWN
    assert after.etag == etag


async def test_put_keeps_observations(fabric: Store) -> None:
    """A link that is down stays down when the fabric is put anew around it."""
    await fabric.report_links("f1", report("l0", seen(State.DOWN, 1)))
    await fabric.put_fabric("f1", clos(leaves=3, spines=4))
    assert await observed(fabric) == State.DOWN


async def test_survives_reopening(world: StoreWorld) -> None:
    """Links that were down are down for the next process, and can come up again."""
    store = await world.open()
    await store.put_fabric("f1", clos())
    await store.report_links("f1", report("l0", seen(State.DOWN, 5)))
    await store.close()
    again = await world.open()
    assert await observed(again) == State.DOWN
    assert not await again.report_links("f1", report("l0", seen(State.UP, 5)))
    assert await again.report_links("f1", report("l0", seen(State.UP, 6)))
    await again.close()
