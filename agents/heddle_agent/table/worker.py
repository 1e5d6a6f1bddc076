"""Long work on a table, one piece at a time, and outside the event loop where that is safe.

Programming ten thousand entries keeps a processor and the kernel busy for a tenth of a second. A
notice of a lost link must not wait that long. So if the backend can be lent, decoding, receiving,
programming and counting each run in a thread, and the loop continues. Only the loop's own thread
ever changes ``Forwarding``. A thread works from a frozen table, and its result is then updated with
the links that changed meanwhile.

A backend that cannot be lent, such as memory, is fast and is used by the loop itself. There all
work happens at once, in the calling task.

Work that has begun is always finished, even if the task that asked for it is cancelled: what is in
the table must reach the backend before anybody else uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from heddle_agent.fib import Count, Failure, Match, Nic
from heddle_agent.table.forwarding import Forwarding
from heddle_agent.table.program import confirm, pending, withdraw
from heddle_agent.table.push import OperationFailure, Push, PushTargets, Receipt
from heddle_agent.table.receive import receive
from heddle_agent.table.state import Table

_Result = TypeVar("_Result")
Unmatched: TypeAlias = Mapping[tuple[Nic, Nic], Count]
"""Unmatched packets and bytes by pair of NICs, source first."""


class TableWorker:
    """Lets one task at a time work on the table of a switch, in the order of their requests."""

    def __init__(self, forwarding: Forwarding) -> None:
        self.forwarding = forwarding
        self._turn = asyncio.Lock()
        self._work: set[asyncio.Task[Any]] = set()

    @property
    def at_once(self) -> bool:
        """Whether a push is in the backend as soon as it is in the table."""
        return not self.forwarding.can_lend

    async def away(self, call: Callable[[], _Result]) -> _Result:
        """Run ``call``, which touches neither table nor backend, in a thread if useful."""
        return await asyncio.to_thread(call) if self.forwarding.can_lend else call()

    async def receive(self, push: Push) -> Receipt:
        """Take a push into the table, as ``Forwarding.receive`` does."""
        if not self.forwarding.can_lend:
            return self.forwarding.receive(push)
        return await self._finish(self._receive(push))

    async def program(self, push: Push) -> list[OperationFailure]:
        """Bring everything dirty into the backend, as ``Forwarding.program`` does."""
        if not self.forwarding.can_lend:
            return self.forwarding.program(push)
        return Forwarding.own_failures(push, await self._finish(self._program()))

    async def mend(self) -> None:
        """Restore and retry, as ``Forwarding.mend`` does."""
        if not self.forwarding.can_lend:
            self.forwarding.mend()
            return
        await self._finish(self._program(refresh=True))

    async def withdraw(self) -> None:
        """Delete every entry."""
        if not self.forwarding.can_lend:
            self.forwarding.withdraw()
            return
        await self._finish(self._program(withdrawn=True))

    async def set_overlay(self, *, withdrawn: bool, epoch: int) -> str:
        """Withdraw or restore the overlay, as ``Forwarding.set_overlay`` does."""
        order = partial(self.forwarding.set_overlay, withdrawn=withdrawn, epoch=epoch)
        if not self.forwarding.can_lend:
            return order()
        return await self._finish(self._read(order))

    async def digest(self) -> bytes:
        """Return the digest of the programmed entries, after all work that has begun."""
        if not self.forwarding.can_lend:
            return self.forwarding.digest()
        return await self._finish(self._read(self.forwarding.digest))

    async def counters(self) -> tuple[Mapping[Match, Count], Unmatched]:
        """Return what entries have carried, and what pairs of NICs have sent without one."""
        if not self.forwarding.can_lend:
            return self._counted()
        return await self._finish(self._read(self._counted))

    def _counted(self) -> tuple[Mapping[Match, Count], Unmatched]:
        return self.forwarding.counters(), self.forwarding.unmatched()

    async def meter(self, sources: Collection[Nic]) -> None:
        """Set the source NICs whose unmatched packets are counted."""
        order = partial(self.forwarding.meter, sources)
        if not self.forwarding.can_lend:
            order()
            return
        await self._finish(self._read(order))

    async def idle(self) -> None:
        """Wait until all work that has begun is finished."""
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _finish(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run work to its end, even if the task that waits for it is cancelled."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return await asyncio.shield(task)

    async def _receive(self, push: Push) -> Receipt:
        forwarding = self.forwarding
        async with self._turn:
            taken, receipt = await asyncio.to_thread(self._taken, forwarding.table, push)
            forwarding.follow(taken)
        return receipt

    def _taken(self, table: Table, push: Push) -> tuple[Table, Receipt]:
        # Groups have numbers in the kernel, so equal groups are merged. That needs their risks.
        keys = push.operations.keys
        if isinstance(keys, PushTargets):
            keys.link_risks.read()
        taken, receipt = receive(table, push)
        if taken.fence > table.fence:
            self.forwarding.remember(taken.fence)
        return taken, receipt

    async def _program(
        self, *, refresh: bool = False, withdrawn: bool = False
    ) -> Sequence[Failure]:
        """Bring everything dirty into the backend, which is lent to a thread for this."""
        forwarding = self.forwarding
        async with self._turn:
            table = done = forwarding.lend()
            try:
                if withdrawn:
                    table = done = withdraw(table)
                done, failures = await asyncio.to_thread(self._programmed, table, refresh=refresh)
            finally:
                forwarding.take_back(done)
        return failures

    def _programmed(self, table: Table, *, refresh: bool) -> tuple[Table, Sequence[Failure]]:
        if refresh:
            self.forwarding.fib.refresh()
            if not table.dirty:
                return table, ()
        failures = self.forwarding.fib.apply(pending(table)) if table.dirty else ()
        return confirm(table, {failure.match for failure in failures}), failures

    async def _read(self, call: Callable[[], _Result]) -> _Result:
        async with self._turn:
            return await asyncio.to_thread(call)
