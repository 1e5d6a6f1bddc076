from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from heddle_agent.fib import NextHop
from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Plan
from heddle_controller.reconcile.ports import FailureReason, PushMode
from heddle_controller.state.records import JobState, LinkName
from tests.support.reconcile_switches import match_of
from tests.support.reconcile_world import IMPATIENT, House, ring, three_tiers

J1 = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
INSIDE = ring("inside", "h0.0.1", "h0.1.1")
"""A job within zone 0: its flows need entries at leaves only."""


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A controller of two zones of two leaves, with two cores in each of two planes."""
    return House(tmp_path, three_tiers())


async def furnish(house: House, *jobs: Job) -> None:
    """Put the fabric and the jobs."""
    await house.store.put_fabric("f1", house.fabric)
    for job in jobs:
        await house.store.submit_job("f1", job)


async def test_a_silent_switch_holds_up_only_its_own(house: House) -> None:
    """A switch that does not answer delays only the jobs that need it, which name it."""
    house.settings = IMPATIENT
    async with house.running():
        house.gateway.switches["l1.0"].answers.clear()
        await furnish(house, J1)
        await house.store.submit_job("f1", INSIDE)
        await house.programmed("inside")
        await house.degraded("j1", "switch l1.0 has not answered for 0.2 s")
        done = await house.committed()
        assert not house.trouble(done.plan.fabric, done.plan.flows)
        house.gateway.switches["l1.0"].answers.set()
        await house.programmed("j1")
        await house.settled()


async def test_a_switch_that_is_away(house: House) -> None:
    """Flows of an absent switch use the underlay and jobs say so; once back, it is programmed."""
    house.settings = IMPATIENT
    house.gateway.switches["s0.0"].table.whole = 0
    async with house.running(connected=False):
        house.gateway.connect(*(n for n in house.gateway.switches if n not in ("l0.0", "s0.0")))
        await furnish(house, J1, INSIDE)
        await house.in_state(JobState.DEGRADED, "j1", "inside")
        await house.degraded("inside", "switch l0.0 is not connected")
        done = await house.committed()
        assert not house.trouble(done.plan.fabric, done.plan.flows)
        assert "l0.0" in done.lacking()
        house.gateway.connect("l0.0", "s0.0")
        await house.programmed("j1", "inside")
        await house.settled()


async def test_a_switch_that_went_away_still_forwards(house: House) -> None:
    """A programmed job stays so while a switch's agent is away, because its entries remain."""
    house.settings = IMPATIENT
    async with house.running():
        await furnish(house, J1)
        await house.programmed("j1")
        await house.settled()
        house.gateway.disconnect("l0.0")
        await asyncio.sleep(2 * IMPATIENT.rollout.patience)
        await house.store.submit_job("f1", replace(ring("alone", "h1.0.1"), collectives=()))
        await house.programmed("alone", "j1")
        house.gateway.connect("l0.0")
        await house.settled()


async def test_a_lost_leaf_is_not_waited_for(tmp_path: Path) -> None:
    """Others acknowledge a plan without a leaf whose agent is gone and whose links are down.

    The rollout's patience is longer than the test waits. When the leaf is back with its old
    entries, it is brought up to date like any other switch.
    """
    house = House(tmp_path, three_tiers())
    async with house.running():
        await furnish(house, J1, INSIDE)
        await house.programmed("j1", "inside")
        await house.settled()
        house.gateway.disconnect("l0.0")
        fabric = house.fabric
        index, structure = fabric.structure.index["l0.0"], fabric.structure
        lost = np.flatnonzero((structure.links.a == index) | (structure.links.b == index))
        names = structure.nodes.ids
        ends = [(names[structure.links.a[row]], names[structure.links.b[row]]) for row in lost]
        for one, other in ends:
            await house.store.set_link_state("f1", LinkName(one, other), State.DOWN)

        async def acknowledged() -> bool:
            done = await house.committed()
            mine = np.isin(done.plan.flows.source, _nics(done.plan, "l0.0"))
            mine |= np.isin(done.plan.flows.destination, _nics(done.plan, "l0.0"))
            gone = set(done.plan.unrouted) >= set(np.flatnonzero(mine).tolist())
            return gone and not done.lacking()

        await house.until(acknowledged, "the others hold the plan without it")
        assert "l0.0" not in (await house.committed()).switches()
        for one, other in ends:
            await house.store.set_link_state("f1", LinkName(one, other), State.UP)
        house.gateway.connect("l0.0")
        await house.programmed("j1", "inside")
        await house.settled()
        done = await house.committed()
        assert not house.trouble(done.plan.fabric, done.plan.flows)


def _nics(plan: Plan, leaf: str) -> list[int]:
    structure = plan.fabric.structure
    heads = structure.head[structure.tail == structure.index[leaf]]
    return [row for row in heads.tolist() if structure.nodes.kind[row] == NodeKind.NIC]


async def test_a_refused_entry_is_told_and_tried_again(house: House) -> None:
    """Job and log name switch and cause of a refused entry, which is tried again."""
    async with house.running():
        await furnish(house, INSIDE)
        await house.programmed("inside")
        done = await house.committed()
        entries, fabric = done.program.entries, done.plan.fabric
        switch = fabric.structure.nodes.ids[entries.switch[0]]
        match = match_of(fabric, entries, 0)
        await house.store.delete_job("f1", "inside")
        await house.until(lambda: not house.gateway.switches[switch].table.entries, "emptied")
        house.gateway.switches[switch].refuses[match] = FailureReason.BACKEND
        with capture_logs() as logged:
            await house.store.submit_job("f1", INSIDE)
            why = f"1 flow not programmed as planned: switch {switch}: BACKEND: no"
            await house.degraded("inside", why)
        told = [one for one in logged if one["event"] == "entries refused"]
        assert {(one["switch"], one["failures"]) for one in told} == {(switch, 1)}
        assert {(one["entry"], one["reason"], one["why"]) for one in told} == {
            (" ".join(map(str, match)), "BACKEND", "no")
        }
        house.gateway.switches[switch].refuses.clear()
        await house.programmed("inside")
        await house.settled()


async def test_a_malformed_push_degrades_and_recovers(house: House) -> None:
    """A job names the switch that refuses its pushes as malformed, and recovers later."""
    async with house.running():
        house.gateway.switches["l0.0"].refuses_whole = "what is this"
        await furnish(house, INSIDE)
        why = "switch l0.0: BACKEND: refused as malformed: what is this"
        await house.degraded("inside", why)
        house.gateway.switches["l0.0"].refuses_whole = ""
        await house.programmed("inside")


async def test_a_full_table_makes_room_first(house: House) -> None:
    """If the new entry does not fit beside the old one, the old one is deleted first."""
    async with house.running():
        await furnish(house, INSIDE)
        await house.programmed("inside")
        await house.settled()
        table = house.gateway.switches["l0.0"].table
        assert len(table.entries) == 1
        table.size = 1
        await house.store.delete_job("f1", "inside")
        await house.store.submit_job("f1", ring("next", "h0.0.0", "h0.1.0"))
        await house.programmed("next")
        await house.settled()
        assert len(table.entries) == 1


async def test_a_table_too_small_is_told(house: House) -> None:
    """What fits into a table is programmed; the job whose entry does not fit names the switch."""
    async with house.running():
        house.gateway.switches["l0.0"].table.size = 1
        await furnish(house, INSIDE, ring("next", "h0.0.0", "h0.1.0"))
        await house.until(lambda: _one_each(house), "one programmed, one degraded")
        done = await house.committed()
        assert not house.trouble(done.plan.fabric, done.plan.flows)


async def _one_each(house: House) -> bool:
    facts = [(await house.job(name)).facts for name in ("inside", "next")]
    told = [f.reason for f in facts if f.state == JobState.DEGRADED]
    well = [f for f in facts if f.state == JobState.PROGRAMMED]
    return len(told) == len(well) == 1 and "switch l0.0: TABLE_FULL" in told[0]


STRANGE = ("n0.0.0", "n0.1.0", 0, 0)
"""A match that no plan contains."""


def hold_strange_entries(house: House, *, told: bool) -> None:
    """Give every switch an entry that no plan has, over a next hop that only some switches have.

    ``told`` says whether agents report their entries.
    """
    for switch in house.gateway.switches.values():
        switch.tells_entries = told
        switch.table.entries[STRANGE] = (NextHop("s0.0", "0"), None, (), ())


async def test_tables_that_agents_tell_need_no_sync(house: House) -> None:
    """If agents report their tables, unknown entries are deleted by name, without a full sync."""
    hold_strange_entries(house, told=True)
    async with house.running():
        await furnish(house)
        # A push that the next plan overtakes leaves its switch in doubt, which is not tested here.
        await house.settled()
        await house.store.submit_job("f1", J1)
        await house.programmed("j1")
        await house.settled()
    for leaf in ("l0.0", "l0.1"):
        switch = house.gateway.switches[leaf]
        assert [push.tell_entries for push in switch.questions] == [False, True]
        assert {push.mode for push in switch.pushes} == {PushMode.INCREMENTAL}
        assert not any(push.sweep_stale for push in switch.pushes)
        assert switch.pushes[-1].completes_generation
        assert STRANGE not in switch.table.entries


async def test_unknown_tables_are_synced_and_swept(house: House) -> None:
    """Without reports of tables, unknown entries forward until a final sweep deletes them."""
    hold_strange_entries(house, told=False)
    async with house.running():
        await furnish(house, J1)
        await house.programmed("j1")
        await house.settled()
    for switch in house.gateway.switches.values():
        first, last = switch.pushes[0], switch.pushes[-1]
        assert first.mode == PushMode.FULL_SYNC
        assert not first.sweep_stale or not len(first.sets)
        # If the fabric was planned before the job came, the sweep was in an earlier push.
        sweeps = [push for push in switch.pushes if push.sweep_stale]
        assert sweeps
        assert not any(len(push.sets) for push in sweeps)
        assert last.completes_generation
        assert STRANGE not in switch.table.entries


async def test_a_greater_epoch_is_outdone(house: House) -> None:
    """A leader takes an epoch above one that a switch already follows, and programs that switch.

    Switches can follow such an epoch when the store was restored to an older state.
    """
    house.gateway.switches["l0.0"].table.fence = (77, 5)
    async with house.running():
        await furnish(house, J1)
        await house.programmed("j1")
        await house.settled()
        assert house.reconciler is not None
        assert house.reconciler.epoch > 77


async def test_a_greater_epoch_met_in_an_answer(house: House) -> None:
    """A leader also takes a higher epoch if it learns of another one only from a refused push."""
    async with house.running():
        await furnish(house, J1)
        await house.programmed("j1")
        house.gateway.switches["l0.0"].table.fence = (99, 1)
        await house.store.submit_job("f1", INSIDE)
        await house.programmed("inside", "j1")
        await house.settled()
        assert house.reconciler is not None
        assert house.reconciler.epoch > 99


async def test_a_dead_way_is_given_up_though_the_new_one_cannot_be_made(house: House) -> None:
    """A flow with a dead path takes the underlay while its new path waits for a switch."""
    house.settings = IMPATIENT
    async with house.running():
        await furnish(house, J1)
        await house.programmed("j1")
        await house.settled()
        plan = (await house.committed()).plan
        arc = core_arc(plan)
        link, pairs = link_of(plan, arc), pairs_over(plan, arc)
        spines = [s for n, s in house.gateway.switches.items() if n.startswith(link.source[:3])]
        for spine in spines:
            spine.answers.clear()
        await house.store.set_link_state("f1", link, State.DOWN)
        leaves = [s.table for n, s in house.gateway.switches.items() if n.startswith("l")]
        await house.until(
            lambda: not any(match[:2] in pairs for leaf in leaves for match in leaf.entries),
            "the leaves gave the dead way up",
        )
        await house.in_state(JobState.DEGRADED, "j1")
        for spine in spines:
            spine.answers.set()
        await house.programmed("j1")
        await house.settled()
        done = await house.committed()
        assert not house.trouble(done.plan.fabric, done.plan.flows)


def core_arc(plan: Plan) -> int:
    """Return an arc from a spine to a core that some path takes."""
    structure, arcs = plan.fabric.structure, plan.paths.arcs
    tails, heads = structure.nodes.kind[structure.tail], structure.nodes.kind[structure.head]
    up = (tails == NodeKind.SPINE) & (heads == NodeKind.CORE)
    return int(arcs[up[arcs]][0])


def link_of(plan: Plan, arc: int) -> LinkName:
    """Return the link of an arc, named from the arc's tail."""
    structure = plan.fabric.structure
    ids = structure.nodes.ids
    return LinkName(ids[structure.tail[arc]], ids[structure.head[arc]])


def pairs_over(plan: Plan, arc: int) -> set[tuple[str, str]]:
    """Return the source and destination NICs of the flows over an arc."""
    ids, flows = plan.fabric.structure.nodes.ids, plan.flows
    over = plan.paths.crosses(np.arange(len(plan.fabric.structure.tail)) == arc)
    rows = plan.paths.flow[over].tolist()
    return {(ids[flows.source[row]], ids[flows.destination[row]]) for row in rows}
