"""A fleet for virtual time: what happens to it happens in steps, each at its moment.

Links change in the world first; agents see it when they are told to. Pushes wait at a gate until
it is time to take them in; meanwhile the controller waits for the answer, as it does for a slow
switch. Notices among agents are under way for a while, and can be cut between any two. Agents die,
hang, and lose the controller, alone or together.
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
    """A push that waits."""

    switch: int
    """Node row."""
    push: Push
    came: float
    """Monotonic seconds."""
    free: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """It is in the table, or nobody waits for it any more."""


class Gate:
    """One for all agents; open at first."""

    def __init__(self) -> None:
        self.shut = False
        self.waiting: list[Held] = []
        """In the order they came."""
        self.last = 0.0
        """When the last one came, monotonic."""

    def stop(self, switch: int, push: Push) -> Held | None:
        """Have a push wait; None where the gate is open."""
        if not self.shut:
            return None
        self.last = time.monotonic()
        held = Held(switch, push, self.last)
        self.waiting.append(held)
        return held

    def waiting_for(self, switches: Collection[int]) -> list[Held]:
        """Those that wait for some switches, by node row."""
        return [held for held in self.waiting if held.switch in switches]

    def take(self, switches: Collection[int]) -> list[Held]:
        """Those that wait for some switches, which from now on are the caller's to let through."""
        found = self.waiting_for(switches)
        self.waiting = [held for held in self.waiting if held.switch not in switches]
        return found

    def forget(self, switch: int) -> None:
        """Let through what waits for a switch, whose agent is gone."""
        for held in self.waiting:
            if held.switch == switch:
                held.free.set()
        self.waiting = [held for held in self.waiting if held.switch != switch]


class GatedWorker(TableWorker):
    """What a switch's pushes come in by."""

    def __init__(self, switch: int, forwarding: Forwarding, gate: Gate) -> None:
        super().__init__(forwarding)
        self._switch, self._gate = switch, gate
        self._present: Held | None = None

    async def receive(self, push: Push) -> Receipt:
        """Take a push in once the gate lets it through."""
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
        """Program it, and say that it is done."""
        held, self._present = self._present, None
        try:
            return await super().program(push)
        finally:
            if held is not None:
                held.done.set()


class TimedNetwork(MemoryNetwork):
    """Carries notices in virtual time, ``delay`` seconds from one agent to the next.

    While it is ``live`` it delivers at once, as agents get to know each other. After that only
    what agents say because of something that happened (within ``speaking``) is carried: what they
    say by themselves, by this machine's clock, belongs to no moment of virtual time.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay
        self.now = 0.0
        self.live = True
        self.deaf: set[str] = set()
        """Who takes nothing in, for as long as it hangs."""
        self.cut: set[frozenset[str]] = set()
        """Pairs that cannot reach each other."""
        self._speaking = False
        self._due: list[tuple[float, int, str, str, bytes]] = []
        self._number = 0

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """What agents send meanwhile, they send because of what happens at this moment."""
        self._speaking = True
        try:
            yield
        finally:
            self._speaking = False

    def put(self, source: str, target: str, datagram: bytes) -> None:
        """Have a datagram arrive a while later, or never."""
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
        """When the next datagram arrives, virtual seconds; infinite if none is under way."""
        return self._due[0][0] if self._due else float("inf")

    def deliver(self) -> int:
        """Hand over all that arrive at ``now``; returns how many took something in."""
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
"""Nobody is spared by a fleet that waits longer to look for its controller."""


class StagedFleet(Fleet):
    """Use as ``async with``, like ``Fleet``."""

    def __init__(
        self, fabric: Fabric, *, name: str, seed: int, notice: float, apart: Collection[str] = ()
    ) -> None:
        """``notice`` is the seconds of a datagram; ``apart`` are switches that may be cut off."""
        self.gate = Gate()
        self.notices = TimedNetwork(notice)
        self.shared_relay = TcpRelay()
        """What all but those apart, and clients, reach the controller through."""
        self.own_relays = {switch: TcpRelay() for switch in apart}
        self.hung: set[int] = set()
        self.skew: dict[int, float] = {}
        """Seconds that the clocks of switches, by row, are ahead."""
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
        """The controller is there from now on; empty: nowhere."""
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
        """Links change, and nobody has seen it yet."""
        self.switches.change(dict.fromkeys(rows, State.UP if up else State.DOWN))

    async def see(self, rows: Sequence[int], ends: Collection[int] | None = None) -> None:
        """The agents at the ends of links see how these are, and act on their own.

        With ``ends``, only those of these switches. Where no agent does anything the kernel
        still knows its own carriers: it leaves dead next hops by itself.
        """
        seeing = {end for row in rows for end in self._ends(row)} & self.agents.keys()
        seeing = seeing if ends is None else seeing & set(ends)
        with self.notices.speaking():
            for end in sorted(seeing):
                self._look(end, rows)
            awake = seeing & self.awake
            await asyncio.gather(*(self.links[end].settled() for end in awake))

    async def crash(self, row: int) -> None:
        """An agent's process ends; what its switch's table holds stays."""
        self.gate.forget(row)
        await self.stop(row)
        self.hung.discard(row)

    async def start(self, row: int, seconds: float, *, empty: bool = False) -> None:
        """An agent starts again, over the table that its switch has or an empty one.

        It gets to know its peers at once: greetings are not what takes time.
        """
        if empty:
            self.switches.boot(row)
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
        """An agent does nothing any more."""
        self.hung.add(row)
        self.notices.deaf.add(self.agents[row].switch)

    async def resume(self, row: int) -> None:
        """It goes on, and sees how its links are by now."""
        self.hung.discard(row)
        self.notices.deaf.discard(self.agents[row].switch)
        await self.see(self.links_at(row), {row})

    def links_at(self, row: int) -> list[int]:
        """Links of a switch."""
        first, arcs = self.world.structure.out
        return [arc >> 1 for arc in arcs[first[row] : first[row + 1]].tolist()]

    async def tick(self) -> None:
        """A second has passed for the peer notices of all."""
        with self.notices.speaking():
            for row in sorted(self.awake):
                notices = self.agents[row].peer_notices
                if notices is not None:
                    notices.tick()
        await asyncio.sleep(0)

    def unreached(self) -> list[int]:
        """Switches with a running agent that could have a session, and has none."""
        cut = {switch for switch, relay in self.own_relays.items() if relay.is_cut}
        rows = [row for row in self.awake if self.agents[row].switch not in cut]
        return [row for row in rows if not self.agents[row].connected]

    @property
    def awake(self) -> set[int]:
        """Switches, by row, whose agent runs and does not hang."""
        return self._running.keys() - self.hung

    def _within_reach(self, row: int) -> set[str]:
        """Neighbours of a switch whose agents run, and take what its agent sends."""
        name = self.agents[row].switch
        near = self._neighbours(row) & {self.agents[other].switch for other in self.awake}
        return {other for other in near if frozenset((name, other)) not in self.notices.cut}

    def _look(self, end: int, rows: Iterable[int]) -> None:
        """What becomes of a switch when it looks at some of its links."""
        ids, keys = self.world.structure.nodes.ids, self.world.structure.links.key
        for row in rows:
            if end not in self._ends(row):
                continue
            other = ids[sum(self._ends(row)) - end]
            key, up = str(keys[row]), bool(self.world.carries[2 * row])
            if end in self.awake:
                (self.links[end].up if up else self.links[end].down)(other, key)
            else:
                link = Link.between(ids[end], other, key)
                self.agents[end].forwarding.links_changed({link: up})
