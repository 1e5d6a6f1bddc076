"""A fleet for virtual time, in which the caller decides when each thing happens.

Links change in the world first, and agents see it when they are told to look. Pushes wait at a gate
until they are due. Meanwhile the controller waits for the answer, as it does for a slow switch.
Peer notices take a while to arrive, and can be cut between any two agents. Agents can die, hang,
and lose the controller, alone or together.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Self

from heddle_agent.fib import Link
from heddle_agent.peers import MemoryNetwork
from heddle_agent.session import Backoff, SessionOptions
from heddle_agent.table import Forwarding, Push, Receipt, TableWorker
from heddle_agent.table.push import OperationFailure
from heddle_agent.watch import ManualLinks
from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.fleet.agents import FLEET_POLL_SECONDS, Fleet
from heddle_emulator.fleet.relay import TcpRelay


@dataclass(slots=True, eq=False)
class Held:
    """A push that waits at the gate."""

    switch: int
    """Node row of the switch."""
    push: Push
    came: float
    """When it came, in seconds of the monotonic clock."""
    free: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to let the push in."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the push is programmed, or given up."""


class Gate:
    """Holds back the pushes to all agents while it is shut. It is open at first."""

    def __init__(self) -> None:
        self.shut = False
        self.waiting: list[Held] = []
        """Pushes that wait, in the order they came."""
        self.last = 0.0
        """When the last push came, in seconds of the monotonic clock."""

    def stop(self, switch: int, push: Push) -> Held | None:
        """Add a push to those that wait, and return it; None if the gate is open."""
        if not self.shut:
            return None
        self.last = time.monotonic()
        held = Held(switch, push, self.last)
        self.waiting.append(held)
        return held

    def waiting_for(self, switches: Collection[int]) -> list[Held]:
        """Return the pushes that wait for some switches, given by node row."""
        return [held for held in self.waiting if held.switch in switches]

    def take(self, switches: Collection[int]) -> list[Held]:
        """Remove and return the pushes that wait for some switches. The caller must free them."""
        found = self.waiting_for(switches)
        self.waiting = [held for held in self.waiting if held.switch not in switches]
        return found

    def forget(self, switch: int) -> None:
        """Free and remove the pushes that wait for a switch whose agent is gone."""
        for held in self.waiting:
            if held.switch == switch:
                held.free.set()
        self.waiting = [held for held in self.waiting if held.switch != switch]


class GatedWorker(TableWorker):
    """Takes in the pushes of one switch, each when the gate lets it through."""

    def __init__(self, switch: int, forwarding: Forwarding, gate: Gate) -> None:
        super().__init__(forwarding)
        self._switch, self._gate = switch, gate
        self._present: Held | None = None

    async def receive(self, push: Push) -> Receipt:
        """Take a push into the table once the gate lets it through."""
        held = self._gate.stop(self._switch, push)
        if held is None:
            return await super().receive(push)
        try:
            await held.free.wait()
            self._present = held
            return await super().receive(push)
        except BaseException:
            held.done.set()
            raise

    async def program(self, push: Push) -> list[OperationFailure]:
        """Program a push, and set its ``done`` event."""
        held, self._present = self._present, None
        try:
            return await super().program(push)
        finally:
            if held is not None:
                held.done.set()


class TimedNetwork(MemoryNetwork):
    """Carries peer notices in virtual time, ``delay`` seconds from one agent to the next.

    While it is ``live`` it delivers at once, so that agents get to know each other. Later it
    carries only what agents send inside ``speaking``, as a reaction to an event. What they send by
    the machine's clock belongs to no moment of virtual time and is dropped.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay
        self.now = 0.0
        self.live = True
        self.deaf: set[str] = set()
        """Names of agents that hang: they neither send nor receive."""
        self.cut: set[frozenset[str]] = set()
        """Pairs of agents that cannot reach each other."""
        self._speaking = False
        self._due: list[tuple[float, int, str, str, bytes]] = []
        self._number = 0

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Carry what agents send inside this context, as reactions to the present event."""
        self._speaking = True
        try:
            yield
        finally:
            self._speaking = False

    def put(self, source: str, target: str, datagram: bytes) -> None:
        """Send a datagram, which arrives after ``delay``, at once while live, or never."""
        if frozenset((source, target)) in self.cut or source in self.deaf:
            return
        if self.live:
            super().put(source, target, datagram)
        elif self._speaking:
            self._number += 1
            due = (self.now + self.delay, self._number, source, target, datagram)
            heapq.heappush(self._due, due)

    @property
    def next_due(self) -> float:
        """When the next datagram arrives, in virtual seconds; infinite if none is under way."""
        return self._due[0][0] if self._due else float("inf")

    def deliver(self) -> int:
        """Deliver all datagrams due by ``now``, and return how many were received."""
        count = 0
        with self.speaking():
            while self._due and self._due[0][0] <= self.now:
                _, _, source, target, datagram = heapq.heappop(self._due)
                receive = self._open.get(target)
                if receive is not None and target not in self.deaf:
                    receive(datagram, source)
                    count += 1
        return count


SOON = SessionOptions(backoff=Backoff(first=0.05, longest=0.2))
"""Agents look for their controller again after a short time, as waiting helps nobody here."""


class StagedFleet(Fleet):
    """A fleet in virtual time. Use it with ``async with``, like ``Fleet``."""

    def __init__(
        self, fabric: Fabric, *, name: str, seed: int, notice: float, apart: Collection[str] = ()
    ) -> None:
        """Take the delay of a notice in seconds, and the switches that a drill may cut off."""
        self.gate = Gate()
        self.notices = TimedNetwork(notice)
        self.shared_relay = TcpRelay()
        """The way to the controller for clients and for all switches that are not in ``apart``."""
        self.own_relays = {switch: TcpRelay() for switch in apart}
        self.hung: set[int] = set()
        self.skew: dict[int, float] = {}
        """Seconds by which the clock of a switch is ahead, by row."""
        self._had: dict[int, int] = {}
        """Entries of a switch before its agent began with an empty table, by row."""
        self._before: dict[int, dict[Link, bool]] = {}
        """States of links that only the kernel of a switch saw change, as its agent left them."""
        self._stack = AsyncExitStack()
        super().__init__(
            fabric, [self.shared_relay.address], name=name, seed=seed, notices=self.notices
        )

    async def __aenter__(self) -> Self:
        for relay in (self.shared_relay, *self.own_relays.values()):
            await self._stack.enter_async_context(relay)
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        self.gate.shut = False
        for held in self.gate.take(self.agents.keys()):
            held.free.set()
        await super().__aexit__()
        await self._stack.aclose()

    def aim(self, controller: str) -> None:
        """Point all relays to the controller at host:port; with "" they refuse connections."""
        for relay in (self.shared_relay, *self.own_relays.values()):
            relay.target = controller

    def _prepare(self, row: int) -> None:
        self._options = SOON
        super()._prepare(row)

    def _links_of(self, row: int, switch: str) -> ManualLinks:
        return ManualLinks(switch, self.switches.fibs[row].next_hops, clock=lambda: self._time(row))

    def _time(self, row: int) -> float:
        return time.time() + self.skew.get(row, 0.0)

    def _dialled(self, switch: str) -> Sequence[str]:
        return [self.own_relays.get(switch, self.shared_relay).address]

    def _worker(self, row: int, forwarding: Forwarding) -> TableWorker:
        return GatedWorker(row, forwarding, self.gate)

    def change(self, rows: Iterable[int], *, up: bool) -> None:
        """Change the state of links. No agent has seen it yet."""
        self.switches.change(dict.fromkeys(rows, State.UP if up else State.DOWN))

    async def see(self, rows: Sequence[int], ends: Collection[int] | None = None) -> None:
        """Let the agents at the ends of links see the links' present state, and react.

        With ``ends``, only the agents of these switches see it. On a switch whose agent is gone
        or hangs, the kernel still knows its own carriers and avoids dead next hops.
        """
        seeing = {end for row in rows for end in self._ends(row)} & self.agents.keys()
        seeing = seeing if ends is None else seeing & set(ends)
        with self.notices.speaking():
            for end in sorted(seeing):
                self._look(end, rows)
            awake = seeing & self.awake
            await asyncio.gather(*(self.links[end].settled() for end in awake))

    async def crash(self, row: int) -> None:
        """End an agent as if its process died. The entries of its switch stay."""
        self.gate.forget(row)
        await self.stop(row)
        self.hung.discard(row)

    async def start(self, row: int, seconds: float, *, empty: bool = False) -> None:
        """Start an agent again, over the present table of its switch or, if ``empty``, a new one.

        It meets its peers at once, as no virtual time passes for that.

        Raises:
            TimeoutError: it has not met its peers after ``seconds``.
        """
        if empty:
            self._had[row] = self.agents[row].held.entries
            self.switches.boot(row)
        self._before.pop(row, None)
        self._prepare(row)
        self.notices.live = True
        try:
            self._run(row)
            async with asyncio.timeout(seconds):
                notices, near = self.agents[row].peer_notices, self._within_reach(row)
                while notices and notices.introduced < len(near):  # noqa: ASYNC110
                    await asyncio.sleep(FLEET_POLL_SECONDS)
            await self.notices.quiet()
        finally:
            self.notices.live = False

    def hang(self, row: int) -> None:
        """Make an agent do nothing until ``resume``."""
        self.hung.add(row)
        self.notices.deaf.add(self.agents[row].switch)

    async def resume(self, row: int) -> None:
        """Let an agent continue that hung. It sees the present state of its links."""
        self.hung.discard(row)
        self.notices.deaf.discard(self.agents[row].switch)
        self.agents[row].forwarding.links_changed(self._before.pop(row, {}))
        await self.see(self.links_at(row), {row})

    def links_at(self, row: int) -> list[int]:
        """Return the rows of a switch's links."""
        return [arc >> 1 for arc in self.world.structure.leaving(row).tolist()]

    async def tick(self) -> None:
        """Let one second pass for the peer notices of all agents that are awake."""
        with self.notices.speaking():
            for row in sorted(self.awake):
                notices = self.agents[row].peer_notices
                if notices is not None:
                    notices.tick()
        await asyncio.sleep(0)

    def unreached(self) -> list[int]:
        """Return rows of switches that are awake and not cut off, but have no session."""
        cut = {switch for switch, relay in self.own_relays.items() if relay.is_cut}
        rows = [row for row in self.awake if self.agents[row].switch not in cut]
        return [row for row in rows if not self.agents[row].connected]

    @property
    def bare(self) -> set[int]:
        """Rows of the switches that lost their entries and have not been given any again."""
        return {row for row, had in self._had.items() if had and not self.agents[row].held.entries}

    @property
    def awake(self) -> set[int]:
        """Rows of the switches whose agent runs and does not hang."""
        return self._running.keys() - self.hung

    def _within_reach(self, row: int) -> set[str]:
        """Return the neighbours of a switch that are awake and not cut off from it."""
        name = self.agents[row].switch
        near = self._neighbours(row) & {self.agents[other].switch for other in self.awake}
        return {other for other in near if frozenset((name, other)) not in self.notices.cut}

    def _look(self, end: int, rows: Iterable[int]) -> None:
        """Let a switch see the state of its own links among ``rows``."""
        ids, keys = self.world.structure.nodes.ids, self.world.structure.links.key
        for row in rows:
            if end not in self._ends(row):
                continue
            other = ids[sum(self._ends(row)) - end]
            key, up = str(keys[row]), bool(self.world.carries[2 * row])
            if end in self.awake:
                (self.links[end].up if up else self.links[end].down)(other, key)
            else:
                link, forwarding = Link.between(ids[end], other, key), self.agents[end].forwarding
                self._before.setdefault(end, {}).setdefault(link, link not in forwarding.table.down)
                forwarding.links_changed({link: up})
