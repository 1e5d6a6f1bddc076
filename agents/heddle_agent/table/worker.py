"""Long work on a table, one piece at a time, and away from the event loop where that is safe.

To take in ten thousand entries keeps a processor and the kernel busy for a tenth of a second; a
notice of a lost link must not wait for so long. So where the backend can be lent, decoding, taking
in, programming and counting each go to a thread, and the loop goes on. Only the loop's own thread
ever changes ``Forwarding``: what a thread works from is a frozen table, and what it returns is
brought up to date with the links that changed meanwhile.

Backends that cannot be lent are memory, which is fast, and evaluated by the same loop: there, all
of it happens at once, as if it were not in between.

Work that was begun is finished, whatever becomes of the task that asked for it: what is in the
table goes into the backend, and nobody else may touch it before.
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
"""By pair of NICs, source first."""


class TableWorker:
    """Lets one task at a time work on the table of a switch, in the order of asking."""

    def __init__(self, forwarding: Forwarding) -> None:
        self.forwarding = forwarding
        self._turn = asyncio.Lock()
        self._work: set[asyncio.Task[Any]] = set()

    @property
    def at_once(self) -> bool:
        """Whether a push is in the backend as soon as it is in the table."""
        return not self.forwarding.can_lend

    async def away(self, call: Callable[[], _Result]) -> _Result:
        """Call something that touches neither table nor backend."""
        return await asyncio.to_thread(call) if self.forwarding.can_lend else call()

    async def receive(self, push: Push) -> Receipt:
        """Take a push into the table, as ``Forwarding.receive`` does."""
        if not self.forwarding.can_lend:
            return self.forwarding.receive(push)
        return await self._finish(self._receive(push))

    async def program(self, push: Push) -> list[OperationFailure]:
        """Bring everything that is dirty into the backend, as ``Forwarding.program`` does."""
        if not self.forwarding.can_lend:
            return self.forwarding.program(push)
        return Forwarding.own_failures(push, await self._finish(self._program()))

    async def mend(self) -> None:
        """Put back what others took, and try again what was refused."""
        if not self.forwarding.can_lend:
            self.forwarding.mend()
            return
        await self._finish(self._program(refresh=True))

    async def withdraw(self) -> None:
        """Take every entry out."""
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
        """Digest of what is programmed, once all that was begun is."""
        if not self.forwarding.can_lend:
            return self.forwarding.digest()
        return await self._finish(self._read(self.forwarding.digest))

    async def counters(self) -> tuple[Mapping[Match, Count], Unmatched]:
        """What the entries have carried, and pairs of NICs without one."""
        if not self.forwarding.can_lend:
            return self._counted()
        return await self._finish(self._read(self._counted))

    def _counted(self) -> tuple[Mapping[Match, Count], Unmatched]:
        return self.forwarding.counters(), self.forwarding.unmatched()

    async def meter(self, sources: Collection[Nic]) -> None:
        """Say whose packets to count where no entry matches them."""
        order = partial(self.forwarding.meter, sources)
        if not self.forwarding.can_lend:
            order()
            return
        await self._finish(self._read(order))

    async def idle(self) -> None:
        """Wait until all work that was begun is finished."""
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _finish(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do some work to its end, even if whoever waits for it gives up."""
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
        # Here groups have numbers, in the kernel: those that are alike shall be one.
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
        """Bring what is dirty into the backend, in a thread to which it is lent."""
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
