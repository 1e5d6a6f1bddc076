"""A fleet for virtual time: what happens to it happens in steps, each at its moment.

Links change in the world first; agents see it when they are told to. Pushes wait at a gate,
datagrams in their network. Agents die, hang, and lose the controller, alone or together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from heddle_agent.fib import Link
from heddle_agent.session import Backoff, SessionOptions
from heddle_agent.table import Forwarding, Turns
from heddle_agent.watch import ManualLinks
from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.fleet.agents import POLL_SECONDS, Fleet
from heddle_emulator.fleet.gate import Gate, GatedTurns
from heddle_emulator.fleet.notices import TimedNetwork
from heddle_emulator.fleet.relay import TcpRelay

SOON = SessionOptions(backoff=Backoff(first=0.05, longest=0.2))
"""Nobody is spared by a fleet that waits longer to look for its controller."""


class StagedFleet(Fleet):
    """Use as ``async with``, like ``Fleet``."""

    def __init__(
        self, fabric: Fabric, *, name: str, seed: int, notice: float, apart: Collection[str] = ()
    ) -> None:
        """``notice`` is the seconds of a datagram; ``apart`` are switches that may be cut off."""
        self.gate = Gate()
        self.air = TimedNetwork(notice)
        self.everybody = TcpRelay()
        """What all but those apart, and clients, reach the controller through."""
        self.alone = {switch: TcpRelay() for switch in apart}
        self.hung: set[int] = set()
        self.skew: dict[int, float] = {}
        """Seconds that the clocks of switches, by row, are ahead."""
        self._stack = AsyncExitStack()
        super().__init__(fabric, [self.everybody.address], name=name, seed=seed, notices=self.air)

    async def __aenter__(self) -> Self:
        for relay in (self.everybody, *self.alone.values()):
            await self._stack.enter_async_context(relay)
        return await super().__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.gate.shut = False
        for held in self.gate.take(self.agents.keys()):
            held.free.set()
        await super().__aexit__(kind, error, traceback)
        await self._stack.aclose()

    def aim(self, controller: str) -> None:
        """The controller is there from now on; empty: nowhere."""
        for relay in (self.everybody, *self.alone.values()):
            relay.target = controller

    def _prepare(self, row: int) -> None:
        self._options = SOON
        super()._prepare(row)

    def _links_of(self, row: int, switch: str) -> ManualLinks:
        return ManualLinks(switch, self.switches.fibs[row].next_hops, clock=lambda: self._time(row))

    def _time(self, row: int) -> float:
        return time.time() + self.skew.get(row, 0.0)

    def _dialled(self, switch: str) -> Sequence[str]:
        return [self.alone.get(switch, self.everybody).address]

    def _turns(self, row: int, forwarding: Forwarding) -> Turns:
        return GatedTurns(row, forwarding, self.gate)

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
        with self.air.speaking():
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
        self.air.live = True
        try:
            self._run(row)
            async with asyncio.timeout(seconds):
                notices = self.agents[row].peer_notices
                near = self._awake_names() - {self.agents[row].switch}
                while notices and notices.introduced < len(near & notices.peers.keys()):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
            await self.air.quiet()
        finally:
            self.air.live = False

    def hang(self, row: int) -> None:
        """An agent does nothing any more."""
        self.hung.add(row)
        self.air.deaf.add(self.agents[row].switch)

    async def resume(self, row: int) -> None:
        """It goes on, and sees how its links are by now."""
        self.hung.discard(row)
        self.air.deaf.discard(self.agents[row].switch)
        await self.see(self.links_at(row), {row})

    def links_at(self, row: int) -> list[int]:
        """Links of a switch."""
        first, arcs = self.world.structure.out
        return [arc >> 1 for arc in arcs[first[row] : first[row + 1]].tolist()]

    async def tick(self) -> None:
        """A second has passed for the peer notices of all."""
        with self.air.speaking():
            for row in sorted(self.awake):
                notices = self.agents[row].peer_notices
                if notices is not None:
                    notices.tick()
        await asyncio.sleep(0)

    def unreached(self) -> list[int]:
        """Switches with a running agent that could have a session, and has none."""
        cut = {switch for switch, relay in self.alone.items() if relay.is_cut}
        rows = [row for row in self.awake if self.agents[row].switch not in cut]
        return [row for row in rows if not self.agents[row].connected]

    @property
    def awake(self) -> set[int]:
        """Switches, by row, whose agent runs and does not hang."""
        return self._running.keys() - self.hung

    def _awake_names(self) -> set[str]:
        return {self.agents[row].switch for row in self.awake}

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
