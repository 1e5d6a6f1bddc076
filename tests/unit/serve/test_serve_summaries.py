"""The summary of the newest plan, which is made once for everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentSession, LinkObservation, LinkReport
from heddle_controller.serve.plan import Summaries
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import LinkName, Programmed
from heddle_controller.store.embedded import open_embedded
from tests.support.store_samples import clos
from tests.unit.serve.test_serve_flow_index import commit


async def test_it_is_told_as_it_stands_and_made_once(tmp_path: Path) -> None:
    """Asking twice gives the same message. A new plan or a switch's progress gives another."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    summaries = Summaries(store, Observations())
    with pytest.raises(NotFound):
        await summaries.of("f1")
    await store.put_fabric("f1", clos())
    assert await summaries.of("f1") is None
    epoch = await store.acquire_leadership("test")
    await commit(store, epoch, 1)
    first = await summaries.of("f1")
    assert first is not None
    assert await summaries.of("f1") is first
    committed = await store.committed("f1")
    assert committed is not None
    assert (first.generation, first.programmed_switch_count) == (1, 0)
    switches = committed.switches()
    held = Programmed(0, dict.fromkeys(switches, 1), 1.0)
    await store.record_programmed("f1", epoch=epoch, programmed=held)
    second = await summaries.of("f1")
    assert second is not None
    assert second.programmed_switch_count == second.switch_count == len(switches)
    await commit(store, epoch, 2)
    third = await summaries.of("f1")
    assert third is not None
    assert (third.generation, third.programmed_switch_count) == (2, 0)
    await store.record_kept("f1", epoch=epoch, version=50)
    fourth = await summaries.of("f1")
    assert fourth is not None
    assert (third.answered_version, fourth.answered_version) == (third.intent_version, 50)
    await store.close()


async def test_a_plan_is_settled_when_every_switch_has_come_to_it(tmp_path: Path) -> None:
    """Switches without entries count too, because they may hold entries of earlier plans."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    summaries = Summaries(store, Observations())
    await store.put_fabric("f1", clos())
    epoch = await store.acquire_leadership("test")
    await commit(store, epoch, 1)
    told: list[tuple[int, int, list[str]]] = []
    for generation, others in (
        (0, {"l0": 1, "l1": 1, "s0": 1}),
        (1, {}),
        (1, {"l0": 2, "s1": 2}),
        (2, {}),
    ):
        if len(told) == 2:
            await commit(store, epoch, 2)
        held = Programmed(generation, others, 1.0)
        await store.record_programmed("f1", epoch=epoch, programmed=held)
        plan = await summaries.of("f1")
        assert plan is not None
        told.append((plan.generation, plan.settled_generation, list(plan.unsettled_switches)))
    assert told == [(1, 0, ["s1"]), (1, 1, []), (2, 1, ["l1", "s0"]), (2, 2, [])]
    await store.close()


async def test_it_says_whether_a_plan_is_of_links_as_they_are(tmp_path: Path) -> None:
    """Links are not current from a loss or a drain, also of a switch, until all are back."""
    store = await open_embedded(tmp_path / "store.sqlite3")
    observations = Observations()
    summaries = Summaries(store, observations)
    await store.put_fabric("f1", clos())
    await commit(store, await store.acquire_leadership("test"), 1)
    link = LinkName("l0", "s0", 0)

    async def current() -> bool:
        plan = await summaries.of("f1")
        assert plan is not None
        return plan.links_current

    def tell(sequence: int, state: State) -> None:
        seen = (LinkObservation(link, state, 1.0, sequence),)
        observations.report(about, LinkReport(seen, full=False), 1.0)

    about = AgentSession(1, "f1", "l0", "i1", "", frozenset(), 0, 0, 0, b"")
    observations.joined(about)
    assert await current()
    tell(1, State.DOWN)
    assert not await current()
    tell(2, State.UP)
    assert await current()
    await store.set_link_state("f1", link, State.DRAINED)
    assert not await current()
    await store.set_link_state("f1", link, State.UP)
    assert await current()
    await store.set_switch_state("f1", "s0", State.DRAINED)
    assert not await current()
    await store.set_switch_state("f1", "s0", State.UP)
    assert await current()
    await store.close()
