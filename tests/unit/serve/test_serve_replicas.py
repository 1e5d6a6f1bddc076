"""Two gateways and a relay between them: an agent of the one is programmed from the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.southbound import AgentSession, Push, PushMode, PushStatus
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.agents.tenure import Tenure
from heddle_controller.serve.replicas.exchange import Exchange
from heddle_controller.state.errors import SessionLost, StaleEpoch
from heddle_controller.telemetry.metrics import Telemetry
from tests.unit.serve.office import Office
from tests.unit.store.samples import clos, plan_of, program_of
from tests.waiting import PATIENCE, until

FABRIC = clos()
ENTRIES = program_of(plan_of(FABRIC), 1, 1).entries
PACE = 0.02


@dataclass
class Replica:
    """One controller's gateway and its end of the exchange."""

    gateway: Gateway
    exchange: Exchange
    epochs: set[int]
    """Those that it leads with, by its own clock."""
    task: asyncio.Task[None] | None = None

    def lead(self, epoch: int) -> None:
        """Lead with an epoch."""
        self.epochs.add(epoch)
        self.gateway.lead(epoch)

    def switches(self) -> set[str]:
        """Those that it can push to."""
        return set(self.gateway.sessions("f1"))

    def agent(self, switch: str, door: str = "") -> AgentStream:
        """An agent begins a session with it."""
        about = AgentSession(
            id=self.gateway.next_id(),
            fabric="f1",
            switch=switch,
            instance="i",
            software_version="0",
            capabilities=frozenset(),
            table_size=0,
            highest_epoch=1,
            generation=3,
            table_digest=b"d",
            peer_address=door,
        )
        return self.gateway.open(about)


@asynccontextmanager
async def replicas(office: Office, *names: str) -> AsyncIterator[list[Replica]]:
    """Replicas that run."""
    made = []
    for name in names:
        epochs: set[int] = set()
        gateway = Gateway(Telemetry(), 8, Tenure(epochs.__contains__))
        made.append(Replica(gateway, Exchange(office, gateway, name, PACE), epochs))
    for one in made:
        one.task = asyncio.create_task(one.exchange.run())
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        for one in made:
            assert one.task is not None
            one.task.cancel()
            with suppress(asyncio.CancelledError):
                await one.task


@asynccontextmanager
async def obedient(stream: AgentStream) -> AsyncIterator[list[pb.Push]]:
    """An agent that applies all it is sent; what that was."""
    taken: list[pb.Push] = []

    async def work() -> None:
        async for message in stream.outgoing():
            push = message.push
            taken.append(push)
            for stage in (pb.PUSH_STAGE_RIB, pb.PUSH_STAGE_FIB):
                stream.answered(
                    pb.PushResult(
                        nonce=push.nonce,
                        epoch=push.epoch,
                        generation=push.generation,
                        stage=stage,
                        status=pb.PUSH_STATUS_APPLIED,
                        highest_epoch=push.epoch,
                    ),
                    1.0,
                )

    task = asyncio.create_task(work())
    try:
        yield taken
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


def push(epoch: int, generation: int = 1) -> Push:
    """One entry to set."""
    return Push(PushMode.INCREMENTAL, epoch, generation, FABRIC, ENTRIES, no_entries())


async def test_the_leader_programs_agents_of_another() -> None:
    """The session is there with all it said; the push comes out, and the answer comes back."""
    async with replicas(Office(), "a", "b") as (a, b):
        stream = b.agent("l0")
        a.lead(1)
        await until(lambda: a.switches() == {"l0"})
        session = a.gateway.sessions("f1")["l0"]
        assert replace(session, id=stream.about.id) == stream.about
        async with obedient(stream) as taken:
            report = await asyncio.wait_for(a.gateway.push(session, push(1)), PATIENCE)
        assert report.status is PushStatus.APPLIED
        assert report.fib is not None
        assert [one.epoch for one in taken] == [1]
        assert list(taken[0].operations.sources) or len(ENTRIES) == 0


async def test_sessions_come_and_go_while_somebody_leads() -> None:
    """Both are heard of at once, by events too."""
    async with replicas(Office(), "a", "b") as (a, b):
        a.lead(1)
        stream = b.agent("l0")
        await until(lambda: a.switches() == {"l0"})
        session = a.gateway.sessions("f1")["l0"]
        waiting = asyncio.ensure_future(a.gateway.push(session, push(1)))
        await asyncio.sleep(0.01)
        b.gateway.close_session(stream)
        await until(lambda: not a.switches())
        with pytest.raises(SessionLost):
            await waiting


async def test_a_replica_that_is_gone_has_no_agents() -> None:
    """It does not answer calls any more; what was under way to its agents is lost."""
    async with replicas(Office(), "a", "b") as (a, b):
        b.agent("l0")
        a.lead(1)
        await until(lambda: a.switches() == {"l0"})
        waiting = asyncio.ensure_future(a.gateway.push(a.gateway.sessions("f1")["l0"], push(1)))
        assert b.task is not None
        b.task.cancel()
        await until(lambda: not a.switches())
        with pytest.raises(SessionLost):
            await waiting


async def test_an_agent_that_moves_is_where_it_began_last() -> None:
    """A session that lingers where the agent was before does not take its place."""
    async with replicas(Office(), "a", "b", "c") as (a, b, c):
        a.lead(1)
        old = b.agent("l0")
        await until(lambda: a.switches() == {"l0"})
        new = c.agent("l0")
        async with obedient(new) as taken:
            await until(lambda: a.gateway.sessions("f1")["l0"].pushed is False and bool(a))
            await asyncio.sleep(0.05)
            session = a.gateway.sessions("f1")["l0"]
            await asyncio.wait_for(a.gateway.push(session, push(1)), PATIENCE)
            assert len(taken) == 1
        c.gateway.close_session(new)
        async with obedient(old) as taken:
            await asyncio.sleep(0.05)
            await until(lambda: a.switches() == {"l0"})
            await asyncio.wait_for(
                a.gateway.push(a.gateway.sessions("f1")["l0"], push(1)), PATIENCE
            )
            assert len(taken) == 1


async def test_an_older_leader_is_refused_everywhere() -> None:
    """Its pushes to agents of others, and to its own, and after it has slept."""
    async with replicas(Office(), "a", "b", "c") as (a, b, c):
        own, other = a.agent("l0"), c.agent("l1")
        a.lead(1)
        await until(lambda: a.switches() == {"l0", "l1"})
        mine, theirs = (a.gateway.sessions("f1")[name] for name in ("l0", "l1"))
        async with obedient(own) as at_own, obedient(other) as at_other:
            b.lead(2)
            await until(lambda: b.switches() == {"l0", "l1"})
            for session in (mine, theirs):
                with pytest.raises((StaleEpoch, SessionLost)):
                    await asyncio.wait_for(a.gateway.push(session, push(1)), PATIENCE)
            assert not at_own
            assert not at_other
            for switch in ("l0", "l1"):
                session = b.gateway.sessions("f1")[switch]
                await asyncio.wait_for(b.gateway.push(session, push(2)), PATIENCE)


async def test_a_leader_whose_lease_is_over_holds_its_tongue() -> None:
    """Nobody else has said anything yet: its own clock is enough."""
    async with replicas(Office(), "a") as (a,):
        stream = a.agent("l0")
        a.lead(1)
        a.epochs.clear()
        async with obedient(stream) as taken:
            with pytest.raises(StaleEpoch):
                await asyncio.wait_for(a.gateway.push(stream.about, push(1)), PATIENCE)
            assert not taken


async def test_a_forged_letter_of_an_old_epoch_is_dropped() -> None:
    """A push that was on its way from an old leader is refused by the replica, and told so."""
    office = Office()
    async with replicas(office, "a", "b", "c") as (a, b, c):
        stream = c.agent("l0")
        a.lead(1)
        await until(lambda: a.switches() == {"l0"})
        session = a.gateway.sessions("f1")["l0"]
        async with obedient(stream) as taken:
            c.gateway.tenure.heard(2)  # before any line to the new leader is open
            with suppress(SessionLost):
                report = await asyncio.wait_for(a.gateway.push(session, push(1)), PATIENCE)
                assert report.status is PushStatus.STALE_EPOCH
                assert report.highest_epoch == 2
            assert not taken
        assert b.switches() == set()


async def test_replicas_tell_each_other_where_agents_take_notices() -> None:
    """Whoever has a first agent of a fabric asks, and hears of all that come."""
    async with replicas(Office(), "a", "b") as (a, b):
        known: dict[str, str] = {}
        b.exchange.addresses.learned = lambda _, addresses: known.update(addresses)
        a.agent("l0", door="10.0.0.1:1")
        b.agent("l1", door="10.0.0.2:1")
        await until(lambda: known == {"l0": "10.0.0.1:1"})
        known.clear()
        a.agent("l2", door="10.0.0.3:1")
        await until(lambda: known == {"l2": "10.0.0.3:1"})


@pytest.mark.parametrize("seed", range(3))
async def test_lost_letters_cost_time_only(seed: int) -> None:
    """A third of all letters vanish: every push is answered or its session lost, none hangs."""
    chance, office = random.Random(seed), Office()
    office.loses = lambda _box, _letter: chance.random() < 0.3
    async with replicas(office, "a", "b") as (a, b):
        streams = [b.agent(f"l{number}") for number in range(4)]
        a.lead(1)
        outcomes = {"done": 0, "lost": 0}
        async with obedient(streams[0]), obedient(streams[1]), obedient(streams[2]):
            async with asyncio.timeout(PATIENCE):
                while outcomes["done"] < 10:
                    sessions = a.gateway.sessions("f1")
                    if "l0" not in sessions:
                        await asyncio.sleep(0.01)
                        continue
                    try:
                        await a.gateway.push(sessions["l0"], push(1))
                        outcomes["done"] += 1
                    except SessionLost:
                        outcomes["lost"] += 1
        office.loses = lambda _box, _letter: False
        await until(lambda: a.switches() == {"l0", "l1", "l2", "l3"})
