"""One switch's agent: link events go to the table first, then up; pushes come down.

It has no process of its own: hundreds may live in one event loop. Its parts do not know each other;
what passes between them passes here:

- links -> table: every step of link changes, at once (local repair, no controller)
- links -> session: the same changes, afterwards
- session -> table -> backend: pushes
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from importlib.metadata import version

from heddle_agent.fib import Fib, Link
from heddle_agent.session import Address, Channels, Identity, Session, SessionOptions
from heddle_agent.table import NO_FENCE, Fence, Forwarding, Held, LinkObservation, keep_in_memory
from heddle_agent.watch import LinkWatch

_VERSION = version("heddle-agent")
_MEND_SECONDS = 5.0  # how often entries that the backend refused are tried again


class Agent:
    """The agent of one switch; ``run`` it in a task, ``stop`` it from another."""

    def __init__(
        self,
        *,
        fabric: str,
        switch: str,
        controllers: Sequence[str],
        fib: Fib,
        links: LinkWatch,
        channels: Channels | None = None,
        options: SessionOptions | None = None,
        fence: Fence = NO_FENCE,
        remember: Callable[[Fence], None] = keep_in_memory,
    ) -> None:
        """ValueError for addresses that cannot be used.

        ``channels`` are the caller's to close; without them the agent has its own, in plain text to
        loopback. ``fence`` is what an earlier agent of this switch has accepted; ``remember`` is
        told of newer ones.
        """
        self.switch = switch
        self.forwarding = Forwarding(
            switch,
            fib,
            (hop.port for hop in links.next_hops),
            down=[seen.link for seen in links.current() if not seen.up],
            fence=fence,
            remember=remember,
        )
        self.links = links
        self._channels = Channels() if channels is None else channels
        self._owns_channels = channels is None
        self.session = Session(
            Identity(fabric, switch, secrets.token_hex(8), _VERSION),
            self.forwarding,
            links.current,
            controllers=[Address.parse(text) for text in controllers],
            channels=self._channels,
            options=options or SessionOptions(),
        )
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()

    @property
    def held(self) -> Held:
        """What the switch holds."""
        return self.forwarding.held

    @property
    def connected(self) -> bool:
        """Whether a controller has accepted the session and it still stands."""
        return self.session.connected

    def link_notice(self, link: Link, *, up: bool) -> None:
        """A link elsewhere was lost or is back, as a peer says: repair around it at once."""
        self.forwarding.links_changed({link: up})

    async def run(self) -> None:
        """Run until ``stop`` is called or the task is cancelled."""
        self._stopped.clear()
        self._repair(self.links.current())
        try:
            async with asyncio.TaskGroup() as tasks:
                parts = (self._watch(), self.session.run(), self._mend())
                workers = [tasks.create_task(part) for part in parts]
                await self._stopping.wait()
                for worker in workers:
                    worker.cancel()
        finally:
            if self._owns_channels:
                await self._channels.close()
            self.forwarding.fib.close()
            self._stopped.set()

    async def stop(self) -> None:
        """End ``run`` and wait until it has ended. Entries stay as they are."""
        self.request_stop()
        await self._stopped.wait()

    def request_stop(self) -> None:
        """Have ``run`` end soon; for signal handlers, which cannot wait."""
        self._stopping.set()

    def _repair(self, observations: Sequence[LinkObservation]) -> None:
        self.forwarding.links_changed({seen.link: seen.up for seen in observations})

    async def _watch(self) -> None:
        async with aclosing(self.links.changes()) as changes:
            async for observations in changes:
                self._repair(observations)
                self.session.report(observations)

    async def _mend(self) -> None:
        """Bring what the backend refused into it, once it can."""
        while True:
            await asyncio.sleep(_MEND_SECONDS)
            self.forwarding.mend()
