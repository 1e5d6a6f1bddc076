"""Pushes in a thread that are stopped on their way while links change.

A gate stops the other thread at certain places. There it waits until the test has done what should
happen in between. So a seed decides every interleaving, and none depends on luck.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable

from heddle_agent.fib import Link, Match, NextHop, Packet
from heddle_agent.table import Forwarding, GroupKey, TableWorker
from tests.support.agent_worlds import ROCE, SPINES, SWITCH, entry, far, push, uplink

USED = 3  # spines of entries; the last one is for the underlay only, and never lost
LEAVES = 2
LINKS = [*map(uplink, range(USED)), *(far(s, leaf) for s in range(USED) for leaf in range(LEAVES))]
MATCHES: list[Match] = [("nic0", f"far{n}", port, ROCE) for n in range(LEAVES) for port in (5, 6)]
_LONG = 60.0  # seconds: a test that hangs ends after this
_ALL = 10**6


class Gate:
    """Stops threads other than the one that made it; belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._arrived: asyncio.Queue[str] = asyncio.Queue()
        self._open = threading.Semaphore(0)

    def come(self, place: str) -> None:
        """Wait at a place until the test lets the thread continue."""
        if threading.get_ident() != self._home:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, place)
            assert self._open.acquire(timeout=_LONG), place

    async def see_off(self, work: asyncio.Task[object], meet: Callable[[str], None]) -> None:
        """Call ``meet`` whenever the work is at a place, then let it go on, until it is done."""
        while not work.done():
            place = asyncio.create_task(self._arrived.get())
            await asyncio.wait({work, place}, return_when=asyncio.FIRST_COMPLETED)
            if place.done():
                try:
                    meet(place.result())
                except BaseException:
                    self._open.release(_ALL)  # the test has failed: let all threads continue
                    raise
                self._open.release()
            else:
                place.cancel()


class Play:
    """One switch, and checks of what its packets do at any moment."""

    def __init__(
        self,
        seed: int,
        forwarding: Forwarding,
        gate: Gate,
        where: Callable[[Packet], NextHop],
    ) -> None:
        """Start; ``where`` asks the data plane for a packet's next hop."""
        self.forwarding = forwarding
        self.worker = TableWorker(forwarding)
        self._seed = seed
        self._random = random.Random(seed)
        self._gate = gate
        self._where = where
        self._generation = 0
        self.happened: list[object] = []

    async def run(self, pushes: int) -> None:
        """Run pushes one after the other, with changes of links in between."""
        for _ in range(pushes):
            self.happen()
            await self._one()
            await self._settle()

    def happen(self) -> None:
        """Change some links; from then on no packet may meet a dead one."""
        for _ in range(self._random.choice((0, 1, 1, 2))):
            links = self._random.sample(LINKS, self._random.choice((1, 1, 2)))
            changes = {link: self._random.random() < 0.4 for link in links}
            self.happened.append(changes)
            self.forwarding.links_changed(changes)
            for match in MATCHES:
                self._check(match, self._where(Packet(*match)))

    async def _one(self) -> None:
        self._generation += 1
        rows = {match: self._entry(match) for match in MATCHES if self._random.random() < 0.8}
        wanted = push(rows.items(), version=(1, self._generation), addresses=ADDRESSES)
        self.happened.append(rows)

        async def take() -> None:
            try:
                receipt = await self.worker.receive(wanted)
                assert not receipt.failures
            finally:
                assert not await self.worker.program(wanted)

        work: list[Awaitable[None]] = [take()]
        if self._random.random() < 0.3:
            work.insert(self._random.randrange(2), self.worker.mend())
        tasks: asyncio.Task[object] = asyncio.ensure_future(_all(work))
        given_up = self._random.random() < 0.2

        def meet(place: str) -> None:
            self.happened.append(place)
            self.happen()
            if given_up:
                tasks.cancel()

        await self._gate.see_off(tasks, meet)
        self.happened.append("given up" if tasks.cancelled() else "done")
        rest: asyncio.Task[object] = asyncio.ensure_future(_all([self.worker.idle()]))
        await self._gate.see_off(rest, meet)
        await rest
        if not tasks.cancelled():
            tasks.result()

    async def _settle(self) -> None:
        """Check that all entries are exactly right: nothing is avoided longer than necessary."""
        rest: asyncio.Task[object] = asyncio.ensure_future(self.worker.mend())
        await self._gate.see_off(rest, lambda _: None)
        table = self.forwarding.table
        assert not table.dirty, self
        assert table.programmed.keys() == self.forwarding.fib.read_back().keys(), self
        for match, group in table.programmed.items():
            at = self._where(Packet(*match))
            alive = [
                hop
                for hop, risks in ((group.primary, group.risks), (group.backup, group.backup_risks))
                if hop is not None and self._whole(hop, risks)
            ]
            assert at == (alive or [SPINES[-1]])[0], (match, group, at, self)

    def _check(self, match: Match, at: NextHop) -> None:
        """Check that whichever entry answers, programmed or about to be, its path is alive."""
        if at != SPINES[-1]:
            leaf = int(match[1].removeprefix("far"))
            assert self._whole(at, (far(SPINES.index(at), leaf),)), (match, at, self)

    def _whole(self, hop: NextHop, risks: tuple[Link, ...]) -> bool:
        return self.forwarding.table.down.isdisjoint({Link.between(SWITCH, hop.node), *risks})

    def _entry(self, match: Match) -> GroupKey | None:
        if self._random.random() < 0.15:
            return None
        leaf = int(match[1].removeprefix("far"))
        first, second = self._random.sample(range(USED), 2)
        if self._random.random() < 0.2:
            return entry(first, None, far(first, leaf))
        return entry(first, second, far(first, leaf), spare=[far(second, leaf)])

    def __repr__(self) -> str:
        """Return all that happened, starting with the seed, for messages of assertions."""
        return f"seed {self._seed}: {self.happened}, down {sorted(self.forwarding.table.down)}"


ADDRESSES = {"nic0": "10.0.0.1", **{f"far{n}": f"10.9.0.{n + 1}" for n in range(LEAVES)}}


async def _all(work: list[Awaitable[None]]) -> None:
    await asyncio.gather(*work)
