"""A fabric with its agents and a controller, all real, in which everything takes its own time.

The reconcile loop with its store, the planner, the messages of pushes, and the agents with tables,
notices and repair are real. Only what carries messages is simulated, so that it can be late.

    link dies -> seen at either end, each in its time -> local repair -> notice to every peer
              -> report to the store -> intent -> plan -> commit -> push -> RIB -> FIB -> ack
              -> BGP, at each switch in its time

None of these waits for anything else, so the next link may die anywhere in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import cast

import numpy as np

from heddle_agent.agent import Agent
from heddle_agent.fib import Link
from heddle_agent.peers import PeerConfiguration
from heddle_agent.table import LinkObservation as Observed
from heddle_agent.watch import ManualLinks
from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.reconcile.loop import Reconciler
from heddle_controller.reconcile.observations import Observations, with_down
from heddle_controller.reconcile.ports import AgentSession, LinkObservation, LinkReport
from heddle_controller.reconcile.worker import Dependencies, ReconcileSettings
from heddle_controller.state.records import LinkName
from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.store import Store
from heddle_emulator.switches import Switches
from heddle_emulator.underlay import Underlay
from tests.race.delays import Delays, Post, SlowStore
from tests.race.gateway import RaceGateway
from tests.race.virtual import VirtualClock
from tests.support.direct_planner import DirectPlanner
from tests.support.reconcile_world import ENGINE, Figures

NAME = "f1"
KEY = b"a key that all agents share"


class Scene:
    """One fabric; ``watch`` is called whenever anything that forwards packets may have changed."""

    def __init__(self, fabric: Fabric, flows: Flows, random: Random) -> None:
        self.random, self.flows = random, flows
        self.delays = Delays(random)
        self.switches = Switches(fabric, seed=random.getrandbits(32))
        self.watch: Callable[[], None] = lambda: None
        self.post = Post(self.delays)
        self.agents: dict[str, Agent] = {}
        self.links: dict[str, ManualLinks] = {}
        self._whole = fabric
        self._unseen: dict[int, set[str]] = {}
        """Ends of each link that see it down."""
        self.version = 0
        """Grows with every change that BGP announces."""
        self.heard = dict.fromkeys(self.switches.fibs, 0)
        """The version that BGP has announced to each switch."""
        self.forgot: set[str] = set()
        """Switches whose table was cleared, until they hold a whole plan again."""
        self.dead: frozenset[Link] = frozenset()
        """Links that are down."""
        self.observations = Observations()
        self.store: Store
        self._reports: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._leader: asyncio.Task[None] | None = None
        self._settings = ReconcileSettings(compare_after=random.choice([0.05, 3600.0]))
        self._make_agents()
        self.gateway = RaceGateway(NAME, self.agents, self.delays, self._changed)

    @property
    def world(self) -> Fabric:
        """The fabric with the current states of its links."""
        return self.switches.world

    def _make_agents(self) -> None:
        structure = self.world.structure
        kind, index = structure.nodes.kind, structure.index
        for row, fib in self.switches.fibs.items():
            name = structure.nodes.ids[row]
            hops = [hop.node for hop in fib.next_hops]
            peers = {node: node for node in hops if kind[index[node]] != NodeKind.NIC}
            links = self.links[name] = ManualLinks(name, fib.next_hops)
            self.agents[name] = Agent(
                fabric=f"fabrics/{NAME}",
                switch=name,
                controllers=["127.0.0.1:9"],
                fib=fib,
                links=links,
                peer_configuration=PeerConfiguration(
                    self.post.attach(name), keys=[KEY], peers=peers
                ),
            )

    @asynccontextmanager
    async def running(self, folder: Path, demands: Demands) -> AsyncIterator[None]:
        """Start everything; nothing is planned yet."""
        self.store = await open_embedded(folder / "store.db")
        try:
            await self.store.put_fabric(NAME, self.world)
            await self.store.put_demands(NAME, "d", demands)
            for name, agent in self.agents.items():
                self._open(agent)
                self.connect(name)
            self.lead()
            yield
        finally:
            await self._end_leader()
            for task in [*self._tasks, *self._reports.values()]:
                task.cancel()
            await asyncio.gather(*self._tasks, *self._reports.values(), return_exceptions=True)
            await self.store.close()

    def _open(self, agent: Agent) -> None:
        """Let an agent take peer notices, and check packets whenever one changes what it knows."""
        notices, peer_configuration = agent.peer_notices, agent._peer_configuration
        assert notices is not None
        assert peer_configuration is not None

        def receive(datagram: bytes, address: str) -> None:
            before = agent.forwarding.table.down
            notices.receive(datagram, address)
            if agent.forwarding.table.down != before:
                self._changed()

        peer_configuration.network.open(receive)
        notices.set_peers(peer_configuration.peers)

    def lead(self) -> None:
        """Start a controller on the store as it is."""
        store = cast("Store", SlowStore(self.store, self.delays))
        clock, figures = VirtualClock(), Figures()
        planner = DirectPlanner(ENGINE)
        world = Dependencies(
            *(store, self.gateway, self.observations, clock, figures),
            *(planner, planner, planner),
            self._settings,
        )
        self._leader = asyncio.create_task(Reconciler(world).run())

    async def lead_anew(self) -> None:
        """End the controller wherever it was, and start another after a while.

        Either the new one was a follower, and agents have told it all that they told the leader. Or
        it has just been started, and each agent tells it everything in its own time.
        """
        await self._end_leader()
        await self.delays.pass_()
        if self.random.random() < 0.5:
            self.observations = Observations()
            for name in self.gateway.sessions(NAME):
                self._introduce(name)
        self.lead()

    def connect(self, switch: str) -> None:
        """Begin a session of an agent, which reports all its links."""
        self.gateway.connect(switch)
        self._introduce(switch)

    def _introduce(self, switch: str) -> None:
        self.observations.joined(self.gateway.sessions(NAME)[switch])
        self._tell(switch, self.links[switch].current(), full=True)

    def disconnect(self, switch: str) -> None:
        """End the session of an agent."""
        self.observations.left(self.gateway.sessions(NAME)[switch])
        self.gateway.disconnect(switch)

    async def _end_leader(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.cancel()
            await asyncio.wait([leader])

    def later(self, most: float, what: Callable[[], None]) -> None:
        """Do something after a random delay."""

        async def work() -> None:
            await self.delays.pass_(most)
            what()

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def change(self, link: int, *, up: bool) -> None:
        """Take a link down or repair it; its ends see that after a while."""
        self.switches.change({link: State.UP if up else State.DOWN})
        self.dead = self._dead()
        structure = self.world.structure
        ends = [
            structure.nodes.ids[int(end[link])] for end in (structure.links.a, structure.links.b)
        ]
        key = str(structure.links.key[link])
        for one, other in (ends, reversed(ends)):
            self.later(2e-3, lambda one=one, other=other: self._seen(one, other, key))  # type: ignore[misc]
        self._changed()

    def _dead(self) -> frozenset[Link]:
        structure = self.world.structure
        ids, links = structure.nodes.ids, structure.links
        return frozenset(
            Link.between(ids[int(links.a[row])], ids[int(links.b[row])], str(links.key[row]))
            for row in np.flatnonzero(~self.world.carries[::2]).tolist()
        )

    def _seen(self, switch: str, neighbour: str, key: str) -> None:
        """Let a switch see the current state of its link."""
        (row,) = self.world.find_links(switch, neighbour, int(key))
        up = bool(self.world.carries[2 * row])
        links, named = self.links[switch], Link.between(switch, neighbour, key)
        (links.up if up else links.down)(neighbour, key)
        observed = [seen for seen in links.current() if seen.link == named]
        self.agents[switch]._repair(observed)
        self._routed(row, switch, up=up)
        self._changed()
        self._tell(switch, observed, full=False)

    def _tell(self, switch: str, observed: Sequence[Observed], *, full: bool) -> None:
        """Send a report of links, if there is a session."""
        about = self.gateway.sessions(NAME).get(switch)
        if about is None:
            return
        links = [
            LinkObservation(
                LinkName(one.link.source, one.link.target, one.link.key),
                State.UP if one.up else State.DOWN,
                one.time,
                one.sequence,
            )
            for one in observed
        ]
        report = LinkReport(tuple(links), full)
        coming = self._report(self.observations, about, report, self._reports.get(switch))
        self._reports[switch] = asyncio.create_task(coming)

    async def _report(
        self,
        observations: Observations,
        about: AgentSession,
        report: LinkReport,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Deliver a report. Reports of one switch arrive in order, as in a stream."""
        await self.delays.pass_()
        if before is not None:
            await asyncio.wait([before])
        observations.report(about, report, VirtualClock().now())

    def _routed(self, link: int, switch: str, *, up: bool) -> None:
        """Let BGP announce a change; each switch hears of it after a delay of its own.

        BGP uses links that both ends see up. A switch that does not see a link itself has announced
        no route over it.
        """
        before = bool(self._unseen.get(link))
        ends = self._unseen.setdefault(link, set())
        (ends.discard if up else ends.add)(switch)
        if bool(ends) == before:
            return
        self.version += 1
        states = {row: State.DOWN if unseen else State.UP for row, unseen in self._unseen.items()}
        version, underlay = self.version, Underlay(self._whole.with_links(states))
        for row in self.heard:
            self.later(80e-3, lambda row=row: self._converged(row, version, underlay))  # type: ignore[misc]

    def _converged(self, row: int, version: int, underlay: Underlay) -> None:
        if version > self.heard[row]:
            self.heard[row] = version
            self.switches.routes[row].learn(underlay)
            self._changed()

    def _changed(self) -> None:
        self.forgot = {name for name in self.forgot if not self.agents[name].held.generation}
        self.watch()

    @property
    def all_know(self) -> bool:
        """Whether every agent knows exactly the links that are down, and BGP has converged."""
        if self.forgot:
            return False
        heard = all(version == self.version for version in self.heard.values())
        return heard and all(agent._view.down == self.dead for agent in self.agents.values())

    async def settled(self) -> None:
        """Wait until the newest plan is for the current fabric, and every switch holds it."""
        while not await self._is_settled():  # noqa: ASYNC110 - of things without an event
            await asyncio.sleep(0.05)

    async def _is_settled(self) -> bool:
        if self._tasks or self.post.under_way or not self.all_know:
            return False
        if any(not task.done() for task in self._reports.values()):
            return False
        intent = await self.store.intent(NAME)
        done = await self.store.committed(NAME)
        return (
            done is not None
            and np.array_equal(
                with_down(intent.fabric, self.observations.of(NAME).down).effective,
                self.world.effective,
            )
            and np.array_equal(done.plan.fabric.effective, self.world.effective)
            and len(done.plan.flows) == len(self.flows)
            and not done.lacking()
            and all(agent.held.generation for agent in self.agents.values())
        )
