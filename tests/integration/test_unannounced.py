"""Elephants that nobody announced: found by counters, planned, and forgotten when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from heddle.v1 import fabric_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle_agent.fib import Packets
from heddle_controller.model.flows import SET, UNANNOUNCED_JOB, Flows, flow_id, unannounced_rows
from heddle_controller.plan.diff import CauseKind
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.reconcile.unannounced import PairRates, UnannouncedTerms
from heddle_emulator.client.api import fabric_to_pb
from heddle_emulator.fleet import Fleet
from heddle_emulator.topology import clos
from tests.support.operating import Controller, controlling
from tests.support.reconcile_world import SETTINGS, House, ring, three_tiers
from tests.support.waiting import PATIENCE, until

PAIR = ("n0.0.0", "n1.1.0")
OTHER = ("n0.1.1", "n1.0.1")


class Watched(House):
    """A controller that plans unannounced flows, with switches' reports made by the test."""

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """Run a controller that plans found flows without a pause between such plans."""
        self.settings = replace(SETTINGS, found_pace=0.0)
        async with self.running():
            yield

    def fresh_observations(self) -> Observations:
        """Return observations in which a pair counts from a tenth of its NICs' speed."""
        return Observations(UnannouncedTerms(0.1, 10.0))

    def say(self, switch: str, rates: dict[tuple[str, str], float]) -> None:
        """Report a switch's rates after one interval, in Gbps by source and destination."""
        structure = self.fabric.structure
        source, destination = (
            np.array([structure.index[pair[end]] for pair in rates], dtype=np.int64)
            for end in (0, 1)
        )
        told = PairRates(structure, source, destination, np.array([*rates.values()]))
        about = AgentSession(1, "f1", switch, "i", "", frozenset(), 0, 0, 0, b"")
        self.observations.report_pairs(about, told, time.monotonic(), time.time())

    async def found(self) -> dict[str, float]:
        """Return the unannounced flows of the newest plan, in Gbps by id."""
        flows: Flows = (await self.committed()).plan.flows
        rows = unannounced_rows(flows).tolist()
        return {flows.ids[row]: float(flows.gbps[row]) for row in rows}

    async def until_found(self, wanted: dict[str, float]) -> None:
        """Wait for a plan with just these unannounced flows, and for every switch to hold it."""

        async def reached() -> bool:
            return await self.store.committed("f1") is not None and await self.found() == wanted

        await self.until(reached, f"{wanted} in the plan")
        await self.settled()


@pytest.fixture
def house(tmp_path: Path) -> Watched:
    """A controller of two zones of two leaves."""
    return Watched(tmp_path, three_tiers())


async def test_an_elephant_is_planned_after_one_report_and_forgotten_after_two(
    house: Watched,
) -> None:
    """One report is enough for a plan with entries; two quiet reports in a row end it."""
    elephant = flow_id(*PAIR)
    async with house.leading():
        await house.store.put_fabric("f1", house.fabric)
        await house.until_found({})
        house.say("l0.0", {PAIR: 100.0, OTHER: 399.0})
        await house.until_found({elephant: 100.0})
        committed = await house.committed()
        assert [cause.kind for cause in committed.facts.causes] == [CauseKind.TRAFFIC_FOUND]
        assert committed.facts.causes[0].names == ("->".join(PAIR),)
        entries, ids = committed.program.entries, house.fabric.structure.nodes.ids
        pairs = {
            (ids[one], ids[other])
            for one, other in zip(
                entries.source.tolist(), entries.destination.tolist(), strict=True
            )
        }
        assert pairs == {PAIR}
        assert not house.trouble(house.fabric, committed.plan.flows)
        generation = committed.generation
        house.say("l0.0", {})
        house.say("l0.0", {PAIR: 120.0})
        house.say("l0.0", {})
        await house.store.submit_job("f1", ring("j1", "h0.1.0", "h1.0.0"))
        await house.programmed("j1")
        assert await house.found() == {elephant: 100.0}
        assert (await house.committed()).generation == generation + 1
        house.say("l0.0", {})
        await house.until_found({})
        causes = (await house.committed()).facts.causes
        assert [(cause.kind, cause.names) for cause in causes] == [
            (CauseKind.TRAFFIC_GONE, ("->".join(PAIR),))
        ]


async def test_a_leader_goes_on_with_what_the_plan_was_made_with(house: Watched) -> None:
    """A new leader keeps a found flow and moves nothing, until two quiet reports end it."""
    async with house.leading():
        await house.store.put_fabric("f1", house.fabric)
        house.say("l0.0", {PAIR: 100.0})
        await house.until_found({flow_id(*PAIR): 100.0})
        before = (await house.committed()).generation
    async with house.leading():
        await house.store.submit_job("f1", ring("j1", "h0.1.0", "h1.0.0"))
        await house.programmed("j1")
        assert await house.found() == {flow_id(*PAIR): 100.0}
        assert (await house.committed()).generation == before + 1
        house.say("l0.0", {})
        house.say("l0.0", {})
        await house.until_found({})


async def test_a_pair_that_is_announced_is_planned_once(house: Watched) -> None:
    """A job's flow replaces the found flow of its pair; other found flows weigh next to nothing."""
    async with house.leading():
        await house.store.put_fabric("f1", house.fabric)
        house.say("l0.0", {PAIR: 100.0})
        house.say("l0.1", {OTHER: 200.0})
        await house.until_found({flow_id(*PAIR): 100.0, flow_id(*OTHER): 200.0})
        job = replace(ring("j1", "h0.0.0", "h1.1.0"), priority=3.0)
        await house.store.submit_job("f1", job)
        await house.programmed("j1")
        await house.until_found({flow_id(*OTHER): 200.0})
        flows = (await house.committed()).plan.flows
        weight = {name: flows.weight[flows.job == row] for row, name in enumerate(flows.job_names)}
        assert weight[UNANNOUNCED_JOB].max() <= weight["j1"].min() / 1000
        await house.store.delete_job("f1", "j1")
        await house.until_found({flow_id(*PAIR): 100.0, flow_id(*OTHER): 200.0})


GBPS = 200.0


@dataclass
class Sender:
    """Sends packets from one NIC to another through the first leaf's table, at a steady rate."""

    fleet: Fleet
    leaf: str
    pair: tuple[str, str]

    def __post_init__(self) -> None:
        self.fib = self.fleet.switches.fibs[self.fleet.world.structure.index[self.leaf]]
        names = self.fib.names
        ports = (np.array([50_000]), np.array([4791]))
        self.packet = Packets(names.ids(self.pair[:1]), names.ids(self.pair[1:]), *ports)

    async def run(self) -> None:
        """Send until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            self.fib.count(self.packet, int(GBPS / 8 * 1e9 * (now - last)))
            last = now

    def has_entry(self) -> bool:
        """Return whether an entry forwards its packets."""
        return bool(self.fib.entry_hits(self.packet)[0])


async def tells(controller: Controller, what: str, *words: str, there: bool = True) -> list[str]:
    """Run ``heddle`` until a line contains ``what``, and return the words of that line.

    With ``there`` false, run it until no line does, and return an empty list. It is repeated
    because an elephant may be forgotten and found again while a busy machine holds up agents.
    """
    end = time.monotonic() + PATIENCE
    while True:
        done = await controller.does(*words)
        found = [line.split() for line in done.out.splitlines() if what in line]
        if bool(found) is there:
            return found[0] if there else []
        assert time.monotonic() < end, done
        await asyncio.sleep(0.05)


async def test_what_a_host_sends_unasked_gets_its_path_from_counters_alone(tmp_path: Path) -> None:
    """What a host sends is found by real agents' counters, shown, routed, and later forgotten.

    Nobody can put or delete the set of found flows.
    """
    fabric = clos(leaves=2, spines=2, nics_per_leaf=4, nics_per_host=1)
    pair = ("l0-h0-n0", "l1-h3-n0")
    async with (
        controlling(tmp_path, "--counter-interval-seconds", "0.2") as controller,
        controller.channel() as channel,
    ):
        request = fabric_pb2.PutFabricRequest(fabric=fabric_to_pb("fabrics/f1", fabric))
        await FabricServiceStub(channel).PutFabric(request)
        async with Fleet(fabric, [controller.address]) as fleet:
            await fleet.connected(PATIENCE)
            sender = Sender(fleet, "l0", pair)
            sending = asyncio.create_task(sender.run())
            await until(sender.has_entry, "an entry of the elephant")
            line = await tells(controller, f"{SET}  PLANNED", "demand", "list")
            assert line[:4] == [SET, "PLANNED", "1", "0"]
            async with asyncio.timeout(PATIENCE):
                gbps = 0.0
                while not GBPS / 2 < gbps <= 400.0:  # it may be found by a part of an interval
                    shown = await tells(controller, flow_id(*pair), "demand", "show", SET)
                    assert shown[1:3] == [*pair]
                    gbps = float(shown[3])
            named = f"{pair[0]}->{pair[1]}"
            assert "found:" in await tells(controller, named, "history")
            assert await tells(controller, named, "doctor")
            refused = await controller.does("demand", "delete", SET)
            assert (refused.code, "cannot be deleted" in refused.err) == (2, True)
            flows = tmp_path / "flows.csv"
            flows.write_text(
                f"flow,src,dst,gbps,job,phase\n{flow_id('a', 'b')},{pair[0]},{pair[1]},1,,\n"
            )
            for name, why in ((SET, "take another name"), ("mine", "rename it")):
                refused = await controller.does("demand", "put", name, flows)
                assert (refused.code, why in refused.err) == (2, True), refused
            sending.cancel()
            await until(lambda: not sender.has_entry(), "the entry to go")
            await tells(controller, SET, "demand", "list", there=False)
