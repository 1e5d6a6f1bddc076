"""Leadership over Redis: a lease that expires, and an epoch that only grows.

A controller that takes the lease gets the next epoch in the same script. The script that writes
compares the epoch of each write with the newest one. So safety does not depend on the lease; it
only keeps two leaders from working against each other.

The holder measures the lease by its own clock, from the moment before it asked, so it never
believes that it holds a lease that has ended. A process that was suspended and resumes notices that
first of all.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from heddle_controller.state.errors import PortError, Unavailable
from heddle_controller.store.applier import Bounds, Following, Leader, Tokens, end, heed_nobody
from heddle_controller.store.redis.mirror import Mirror
from heddle_controller.store.redis.writes import LEAD, RENEW, RESIGN

log = structlog.stdlib.get_logger(__name__)

RENEWALS = 4
"""How often a lease is renewed during its length."""
MARGIN = 0.05
"""Seconds by which the holder considers its lease over before another one can begin."""


@dataclass(slots=True, eq=False)
class Term:
    """A lease that this controller holds."""

    until: float
    """End of the lease by the monotonic clock."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    renewing: asyncio.Task[None] | None = None

    def left(self) -> float:
        """Return the seconds for which the lease is certain to last."""
        return 0.0 if self.over.is_set() else max(self.until - time.monotonic(), 0.0)


class Leases:
    """Implements the methods of ``Applier`` for leadership."""

    def __init__(self, mirror: Mirror, writer: str, bounds: Bounds, seconds: float) -> None:
        """Begin without a lease. ``seconds`` is the length of each lease."""
        self._mirror = mirror
        self._link = mirror.link
        self._keys = mirror.keys
        self._writer = writer
        self._bounds = bounds
        self._seconds = seconds
        self._new_token = Tokens()
        self._terms: dict[int, Term] = {}
        """Leases that this controller holds, by epoch."""
        self._turn = asyncio.Event()
        """Set when any controller takes or gives up a lease."""

    def wake(self) -> None:
        """Note that some controller took or gave up a lease."""
        self._turn.set()

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """Implement ``Applier.acquire_leadership``."""
        while True:
            self._check_open()
            self._turn.clear()
            try:
                epoch, pause = await self._ask(holder, above)
                if not epoch:
                    following(await self.leader())
            except Unavailable:
                await self._until_returned()
                continue
            if epoch:
                self._check_open()  # if closing, ``resign_all`` gives this lease up too
                return epoch
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._turn.wait()

    def _check_open(self) -> None:
        if self._link.ending:
            raise Unavailable("the store is closed, the controller is stopping")

    async def _ask(self, holder: str, above: int) -> tuple[int, float]:
        """Ask for the lease.

        Returns:
            The new epoch and 0.0; or 0 and the seconds for which another's lease still lasts.
        """
        keys, asked = self._keys, time.monotonic()
        least = max(above, self._mirror.highest)
        names = [keys.lease, keys.leader, keys.sequence, keys.log]
        milliseconds = round(self._seconds * 1000)
        args = [
            holder,
            least,
            milliseconds,
            self._new_token(),
            self._writer,
            self._bounds.writes,
        ]
        given, left = await self._link.call(lambda c: LEAD.call(c, names, args))
        epoch = int(given)
        if not epoch:
            return 0, max(left, 0) / 1000 + 0.002
        self._mirror.highest = epoch
        term = Term(asked + self._seconds - MARGIN)
        self._terms[epoch] = term
        term.renewing = asyncio.create_task(self._renew(epoch, term), name="lease")
        return epoch, 0.0

    async def _until_returned(self) -> None:
        """Wait until the server is back or the store is closing."""
        link = self._link
        while not link.up and not link.ending:
            self._turn.clear()
            waits = [
                asyncio.create_task(link.returned.wait()),
                asyncio.create_task(self._turn.wait()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _renew(self, epoch: int, term: Term) -> None:
        try:
            while term.left():
                await asyncio.sleep(min(self._seconds / RENEWALS, term.left()))
                if term.left() and not await self._renewed(epoch, term):
                    break
        finally:
            self._end(epoch)

    async def _renewed(self, epoch: int, term: Term) -> bool:
        """Renew a lease. Return False only if the server says that it is over."""
        keys, asked = self._keys, time.monotonic()
        names, args = [keys.lease, keys.leader], [epoch, round(self._seconds * 1000)]
        try:
            async with asyncio.timeout(term.left()):
                done = await self._link.call(lambda c: RENEW.call(c, names, args))
        except (Unavailable, TimeoutError):
            return True
        if done:
            term.until = asked + self._seconds - MARGIN
        return bool(done)

    def _end(self, epoch: int) -> None:
        term = self._terms.pop(epoch, None)
        if term is not None:
            term.over.set()

    def end_all(self) -> None:
        """End all leases at once, because the server no longer knows them."""
        for epoch, term in list(self._terms.items()):
            if term.renewing is not None:
                term.renewing.cancel()
            self._end(epoch)

    async def leadership_lost(self, epoch: int) -> None:
        """Implement ``Applier.leadership_lost``."""
        term = self._terms.get(epoch)
        if term is not None:
            await term.over.wait()

    async def release_leadership(self, epoch: int) -> None:
        """Implement ``Applier.release_leadership``."""
        term = self._terms.get(epoch)
        if term is None:
            return
        self._end(epoch)
        if term.renewing is not None:
            await end(term.renewing)
        keys = self._keys
        names = [keys.lease, keys.leader, keys.sequence, keys.log]
        args = [epoch, self._new_token(), self._writer, self._bounds.writes]
        try:
            await self._link.call(lambda c: RESIGN.call(c, names, args))
        except PortError as error:
            log.warning("lease not handed over, it runs out", epoch=epoch, why=str(error))

    def leads(self, epoch: int) -> bool:
        """Implement ``Applier.leads``."""
        term = self._terms.get(epoch)
        return term is not None and term.left() > 0 and not self._link.closed

    async def leader(self) -> Leader:
        """Implement ``Applier.leader``."""
        await self._mirror.fresh()
        self._link.check()
        return self._mirror.leader

    async def resign_all(self) -> None:
        """Give up all leases."""
        for epoch in list(self._terms):
            await self.release_leadership(epoch)
