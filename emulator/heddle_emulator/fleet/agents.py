"""An agent for every switch of a fabric, all in this event loop, over real gRPC.

The agents are the same as on switches, but their tables are in memory and their links are set by
hand. The agents at both ends of a link see it change. As in a real fabric, the other agents learn
of it from BGP (``converge``), from the controller, or from peer notices if these are on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import structlog

from heddle.names import link_name
from heddle_agent.agent import Agent
from heddle_agent.fib import Link
from heddle_agent.peers import MemoryNetwork, PeerConfiguration
from heddle_agent.session import Channels, SessionOptions
from heddle_agent.table import Forwarding, TableWorker
from heddle_agent.watch import ManualLinks
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, LinkKey, NodeKind, State
from heddle_emulator.switches import Switches

FLEET_POLL_SECONDS = 0.01


class Fleet:
    """All agents of a fabric. Leaving its ``async with`` stops them and closes all connections."""

    def __init__(
        self,
        fabric: Fabric,
        controllers: Sequence[str],
        *,
        name: str = "fabrics/f1",
        seed: int = 0,
        notices: bool | MemoryNetwork = False,
    ) -> None:
        """Prepare an agent for each programmed switch.

        Args:
            fabric: The fabric, with the states that its links have at first.
            controllers: Addresses where agents look for controllers.
            name: The controllers' name of the fabric.
            seed: Seeds the hashes of all switches.
            notices: Whether agents exchange peer notices with their neighbours; a network given
                here carries them.
        """
        self.switches = Switches(fabric, seed)
        self.links: dict[int, ManualLinks] = {}
        self.agents: dict[int, Agent] = {}
        self.network = MemoryNetwork() if notices is True else notices or None
        self._key = secrets.token_bytes(32)
        self._name, self._controllers = name, controllers
        self._channels = Channels()
        self._options = SessionOptions()
        self._running: dict[int, asyncio.Task[None]] = {}
        for row in fabric.structure.programmed.tolist():
            self._prepare(row)

    def _prepare(self, row: int) -> None:
        """Make a new agent for a switch, over the table that the switch has."""
        switch, fib = self.world.structure.nodes.ids[row], self.switches.fibs[row]
        self.links[row] = self._links_of(row, switch)
        first, arcs = self.world.structure.out
        for arc, hop in zip(arcs[first[row] : first[row + 1]], fib.next_hops, strict=True):
            if not self.world.carries[arc]:
                self.links[row].down(*hop.port)
        self.agents[row] = Agent(
            fabric=self._name,
            switch=switch,
            controllers=self._dialled(switch),
            fib=fib,
            links=self.links[row],
            channels=self._channels,
            options=self._options,
            peer_configuration=self._peer_configuration(row),
            worker=partial(self._worker, row),
        )

    def _links_of(self, row: int, switch: str) -> ManualLinks:
        """Make the links that a switch's agent watches."""
        return ManualLinks(switch, self.switches.fibs[row].next_hops)

    def _dialled(self, _switch: str) -> Sequence[str]:
        """Return the addresses where a switch's agent looks for controllers."""
        return self._controllers

    def _worker(self, _row: int, forwarding: Forwarding) -> TableWorker:
        """Make the worker that takes in the pushes of a switch."""
        return TableWorker(forwarding)

    def _peer_configuration(self, row: int) -> PeerConfiguration | None:
        """Return the peers of a switch, which are its neighbours; None without peer notices."""
        if self.network is None:
            return None
        peers = {name: name for name in self._neighbours(row)}
        name = self.world.structure.nodes.ids[row]
        return PeerConfiguration(self.network.attach(name), keys=[self._key], peers=peers)

    def _neighbours(self, row: int) -> set[str]:
        """Return the names of the switches next to a switch."""
        nodes, index = self.world.structure.nodes, self.world.structure.index
        hops = self.switches.fibs[row].next_hops
        return {hop.node for hop in hops if nodes.kind[index[hop.node]] != NodeKind.NIC}

    @property
    def world(self) -> Fabric:
        """The fabric with the present states of its links."""
        return self.switches.world

    @property
    def running(self) -> Collection[int]:
        """Rows of the switches whose agent runs."""
        return self._running.keys()

    async def __aenter__(self) -> Self:
        for row in self.agents:
            self._run(row)
        return self

    def _run(self, row: int) -> None:
        agent = self.agents[row]
        self._running[row] = asyncio.create_task(agent.run(), name=f"agent {agent.switch}")

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channels.close()

    async def stop(self, switch: int) -> None:
        """End one agent as if its process died: entries stay, but links are not watched."""
        if switch in self._running:
            await self.agents[switch].stop()
            await self._running.pop(switch)

    def boot(self, switch: int) -> None:
        """Start a new agent with an empty table for a switch whose agent was stopped."""
        if switch not in self._running:
            self.switches.boot(switch)
            self._prepare(switch)
            self._run(switch)

    async def connected(
        self, seconds: float, report: Callable[[int, int], None] | None = None
    ) -> None:
        """Wait until every running agent has a session, and has met its peers.

        ``report`` is called with the number of such agents and the number of running agents
        whenever the former changes.

        Raises:
            TimeoutError: this took longer than ``seconds``.
        """
        async with asyncio.timeout(seconds):
            before = -1
            while before < len(self._running):
                self._check()
                count = sum(self._ready(self.agents[row]) for row in self._running)
                if count != before and report is not None:
                    report(count, len(self._running))
                before = count
                await asyncio.sleep(FLEET_POLL_SECONDS)

    async def set_link(self, a: str, b: str, key: LinkKey | None, *, up: bool) -> None:
        """Take the links between two nodes down or up. With ``key`` it is only that link.

        Returns when the agents at both ends, and those that get their peer notices, have
        reacted on their own.

        Raises:
            InputError: there is no such link.
        """
        rows = self.world.find_links(a, b, key)
        if not rows:
            named = f"{a},{b}" if key is None else link_name(a, b, key)
            raise refuse("fleet", f"link {named}", "is not in the fabric; name both ends and key")
        await self.set_links(rows, up=up)

    async def set_links(self, rows: Sequence[int], *, up: bool) -> None:
        """Take links, given by row, down or up all at once; see ``set_link``."""
        self.switches.change(dict.fromkeys(rows, State.UP if up else State.DOWN))
        self._tell(rows)
        ends = {end for row in rows for end in self._ends(row) if end in self._running}
        await asyncio.gather(*(self.links[end].settled() for end in ends))
        if self.network is not None:
            await self.network.quiet()

    def converge(self, links: Mapping[int, State] | None = None) -> None:
        """Tell every switch's underlay the state of all links, or only the given states by row."""
        self.switches.converge(links)

    def _tell(self, rows: Iterable[int]) -> None:
        """Let the agents at both ends of links see the links' present state."""
        ids, keys = self.world.structure.nodes.ids, self.world.structure.links.key
        for row in rows:
            a, b = self._ends(row)
            for end, other in ((a, b), (b, a)):
                if end in self._running:
                    links = self.links[end]
                    change = links.up if self.world.carries[2 * row] else links.down
                    change(ids[other], str(keys[row]))

    def _ends(self, row: int) -> tuple[int, int]:
        links = self.world.structure.links
        return int(links.a[row]), int(links.b[row])

    def _ready(self, agent: Agent) -> bool:
        notices = agent.peer_notices
        if notices is None:
            return agent.connected
        running = {self.agents[row].switch for row in self._running}
        return agent.connected and notices.introduced >= len(running & notices.peers.keys())

    def _check(self) -> None:
        """Raise the error of any agent that has ended although it should run."""
        for task in self._running.values():
            if task.done():
                task.result()


class InstantNoticeFleet(Fleet):
    """A fleet whose agents learn of every changed link at once, without datagrams.

    In a fabric of 3,072 NICs one lost link causes 12,000 datagrams. Each is signed and checked, and
    most go to switches that already know. A campaign plays a thousand failures in minutes, and only
    needs what tables do with the news. Other tests cover the delivery of every datagram.
    """

    async def set_links(self, rows: Sequence[int], *, up: bool) -> None:
        """Change links. The agents at their ends react first, because they see the change."""
        await super().set_links(rows, up=up)
        for row in rows:
            link = self._link(row)
            for switch in self._running:
                if switch not in self._ends(row):
                    self.agents[switch].link_notice(link, up=up)

    def boot(self, switch: int) -> None:
        """Start an agent, and tell it the links that are down, as its peers would."""
        super().boot(switch)
        for row in np.flatnonzero(~self.world.carries[::2]).tolist():
            if switch not in self._ends(row):
                self.agents[switch].link_notice(self._link(row), up=False)

    def _link(self, row: int) -> Link:
        a, b = self._ends(row)
        ids, keys = self.world.structure.nodes.ids, self.world.structure.links.key
        return Link.between(ids[a], ids[b], str(keys[row]))


@contextmanager
def agent_logs(folder: Path) -> Iterator[Path]:
    """Write the logs of this process's agents to a file in a folder, and yield its path."""
    path = folder / "agents.log"
    before = structlog.get_config()
    with path.open("w", encoding="utf-8") as file:
        structlog.configure(
            processors=[
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.add_log_level,
                structlog.processors.LogfmtRenderer(bool_as_flag=False),
            ],
            logger_factory=structlog.WriteLoggerFactory(file),
            cache_logger_on_first_use=False,
        )
        try:
            yield path
        finally:
            structlog.configure(**before)
