"""The agent of one switch: connects link watching, peer notices, sessions and the table.

It has no process of its own: hundreds may live in one event loop. Its parts do not know each other.
Everything that passes between them passes through this module:

- links -> table: every step of link changes, at once (local repair, no controller)
- links -> peer notices -> peers: the same changes, next
- links -> sessions: the same changes, last
- peers -> peer notices -> table: links lost elsewhere (local repair, no controller)
- sessions -> peer notices: who the peers are, and their keys
- sessions -> table -> backend: pushes
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from importlib.metadata import version

from heddle_agent.fib import Fib, Link
from heddle_agent.peers import TICK_SECONDS, LinkView, PeerConfiguration, PeerNotices
from heddle_agent.session import Address, Channels, Identity, SessionOptions, Sessions
from heddle_agent.table import (
    NO_FENCE,
    Fence,
    Forwarding,
    Held,
    LinkObservation,
    TableWorker,
    keep_in_memory,
)
from heddle_agent.watch import LinkWatch

_VERSION = version("heddle-agent")
_MEND_SECONDS = 5.0  # how often entries that the backend refused are tried again


class Agent:
    """The agent of one switch. Call ``run`` in one task and ``stop`` from another."""

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
        peer_configuration: PeerConfiguration | None = None,
        worker: Callable[[Forwarding], TableWorker] = TableWorker,
    ) -> None:
        """Create an agent that takes over the entries that ``fib`` already holds.

        Args:
            fabric: Resource name of the fabric, such as ``fabrics/f1``.
            switch: Node id of the switch.
            controllers: Addresses of all controllers, ``host:port``.
            fib: The backend that forwards packets.
            links: Watches the links of the switch.
            channels: gRPC channels, which the caller closes. If None, the agent opens its own, in
                plain text to loopback only, and closes them.
            options: Settings of the sessions.
            fence: The highest (epoch, generation) that an earlier agent of the switch accepted.
            remember: Is called with every newer fence.
            peer_configuration: Keys, addresses and network of peer notices, None to have none.
            worker: Makes the worker that takes pushes into the table.

        Raises:
            ValueError: There is no controller, or an address of one cannot be used.
        """
        self.switch = switch
        self._view = LinkView()
        self._own = {seen.link: seen.up for seen in links.current()}
        self._view.report(switch, self._own_down())
        self.forwarding = Forwarding(
            switch,
            fib,
            (hop.port for hop in links.next_hops),
            down=self._view.down,
            fence=fence,
            remember=remember,
        )
        self._worker = worker(self.forwarding)
        self.links = links
        self._channels = Channels() if channels is None else channels
        self._owns_channels = channels is None
        self._peer_configuration = peer_configuration
        self.peer_notices = self._open(fabric, peer_configuration) if peer_configuration else None
        self.sessions = Sessions(
            _identity(fabric, switch, peer_configuration),
            self._worker,
            links.current,
            introduced=self._introduced,
            controllers=[Address.parse(text) for text in controllers],
            channels=self._channels,
            options=options or SessionOptions(),
        )
        self._stopping, self._stopped = asyncio.Event(), asyncio.Event()
        self._stopped.set()

    @property
    def held(self) -> Held:
        """Epoch, generation and number of entries that the switch holds."""
        return self.forwarding.held

    @property
    def connected(self) -> bool:
        """Whether there is a session with at least one controller."""
        return self.sessions.connected > 0

    def link_notice(self, link: Link, *, up: bool) -> None:
        """Repair at once around a link elsewhere that the caller saw go down or come back."""
        before = self._view.said("")
        self._heard("", before - {link} if up else before | {link})

    async def run(self) -> None:
        """Run until ``stop`` is called or the task is cancelled."""
        self._stopped.clear()
        self._repair(self.links.current())
        try:
            async with asyncio.TaskGroup() as tasks:
                parts = [self._watch(), self.sessions.run(), self._mend()]
                if self._peer_configuration is not None and self.peer_notices is not None:
                    parts.append(
                        self._exchange_notices(self._peer_configuration, self.peer_notices)
                    )
                workers = [tasks.create_task(part) for part in parts]
                await self._stopping.wait()
                for worker in workers:
                    worker.cancel()
        finally:
            if self._owns_channels:
                await self._channels.close()
            await self._worker.idle()
            self.forwarding.fib.close()
            self._stopped.set()

    async def stop(self) -> None:
        """End ``run`` and wait until it has ended. Entries stay in the backend."""
        self.request_stop()
        await self._stopped.wait()

    def request_stop(self) -> None:
        """Make ``run`` end soon, without waiting. Signal handlers use this."""
        self._stopping.set()

    def _open(self, fabric: str, peer_configuration: PeerConfiguration) -> PeerNotices:
        notices = PeerNotices(
            fabric=fabric,
            switch=self.switch,
            keys=peer_configuration.keys,
            network=peer_configuration.network,
            heard=self._heard,
            boot=peer_configuration.boot,
        )
        notices.announce(self._own_down())
        return notices

    def _own_down(self) -> list[Link]:
        return [link for link, up in self._own.items() if not up]

    def _repair(self, observations: Sequence[LinkObservation]) -> None:
        """Move flows off this switch's links that are down, then notify the peers."""
        self._own.update((seen.link, seen.up) for seen in observations)
        down = self._own_down()
        self._heard(self.switch, down)
        if self.peer_notices is not None:
            self.peer_notices.announce(down)

    def _heard(self, switch: str, down: Collection[Link]) -> None:
        """Apply a switch's report (this one's or another's) that exactly these links are down."""
        changes = self._view.report(switch, down)
        if changes:
            self.forwarding.links_changed(changes)

    def _introduced(self, peers: Mapping[str, str], keys: Sequence[bytes]) -> None:
        if self._peer_configuration is not None and self.peer_notices is not None:
            self._peer_configuration.update(self.peer_notices, peers, keys)

    async def _exchange_notices(self, peers: PeerConfiguration, notices: PeerNotices) -> None:
        """Receive notices, and keep this agent and its peers in agreement."""
        peers.network.open(notices.receive)
        notices.set_peers(peers.peers)
        try:
            while True:
                await asyncio.sleep(TICK_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - spread
                peers.poll(notices)
                notices.tick()
        finally:
            peers.network.close()

    async def _watch(self) -> None:
        async with aclosing(self.links.changes()) as changes:
            async for observations in changes:
                self._repair(observations)
                self.sessions.report(observations)

    async def _mend(self) -> None:
        """Retry entries that the backend refused, every few seconds."""
        while True:
            await asyncio.sleep(_MEND_SECONDS)
            await self._worker.mend()


def _identity(fabric: str, switch: str, peers: PeerConfiguration | None) -> Identity:
    """Return the identity of this start; with the peer address if controllers may want it."""
    reached = peers.network.address if peers and peers.asks else ""
    return Identity(fabric, switch, secrets.token_hex(8), _VERSION, reached)
