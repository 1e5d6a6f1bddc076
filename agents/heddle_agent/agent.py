"""One switch's agent: link events go to the table first, then up; pushes come down.

It has no process of its own: hundreds may live in one event loop. Its parts do not know each other;
what passes between them passes here:

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
        peer_configuration: PeerConfiguration | None = None,
        worker: Callable[[Forwarding], TableWorker] = TableWorker,
    ) -> None:
        """ValueError for addresses that cannot be used.

        ``channels`` are the caller's to close; without them the agent has its own, in plain text to
        loopback. ``fence`` is what an earlier agent of this switch has accepted; ``remember`` is
        told of newer ones. Without a ``peer_configuration`` there are no peer
        notices. ``worker`` takes pushes in.
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
        """What the switch holds."""
        return self.forwarding.held

    @property
    def connected(self) -> bool:
        """Whether there is a session with any controller."""
        return self.sessions.connected > 0

    def link_notice(self, link: Link, *, up: bool) -> None:
        """A link elsewhere was lost or is back, as the caller says: repair around it at once."""
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
        """End ``run`` and wait until it has ended. Entries stay as they are."""
        self.request_stop()
        await self._stopped.wait()

    def request_stop(self) -> None:
        """Have ``run`` end soon; for signal handlers, which cannot wait."""
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
        """Move flows off own links that are down, then let the peers do so."""
        self._own.update((seen.link, seen.up) for seen in observations)
        down = self._own_down()
        self._heard(self.switch, down)
        if self.peer_notices is not None:
            self.peer_notices.announce(down)

    def _heard(self, switch: str, down: Collection[Link]) -> None:
        """A switch, this one or another, says that these of its links are down and no others."""
        changes = self._view.report(switch, down)
        if changes:
            self.forwarding.links_changed(changes)

    def _introduced(self, peers: Mapping[str, str], keys: Sequence[bytes]) -> None:
        if self._peer_configuration is not None and self.peer_notices is not None:
            self._peer_configuration.update(self.peer_notices, peers, keys)

    async def _exchange_notices(self, peers: PeerConfiguration, notices: PeerNotices) -> None:
        """Take notices, and keep the peers in agreement."""
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
        """Bring what the backend refused into it, once it can."""
        while True:
            await asyncio.sleep(_MEND_SECONDS)
            await self._worker.mend()


def _identity(fabric: str, switch: str, peers: PeerConfiguration | None) -> Identity:
    """This start of the agent, and where its peers reach it if the controller is to tell them."""
    reached = peers.network.address if peers and peers.asks else ""
    return Identity(fabric, switch, secrets.token_hex(8), _VERSION, reached)
