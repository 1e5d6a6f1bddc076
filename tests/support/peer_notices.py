"""Peer notices over a network that loses, doubles and reorders datagrams as a test wants."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from heddle_agent.fib import Link
from heddle_agent.peers import KeyRing, PeerNotices
from heddle_agent.peers.network import Receive

KEY = b"a key of sixteen bytes or more"
FABRIC = "fabrics/f1"


class LossyNetwork:
    """All datagrams under way. Time moves only if the test moves it."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.now = 0.0
        self.loss = self.doubled = 0.0
        self.waiting: list[tuple[str, str, bytes]] = []
        self.agents: dict[str, PeerNotices] = {}
        self._chance = chance

    def put(self, source: str, target: str, datagram: bytes) -> None:
        """Send a datagram; it may be lost or doubled."""
        chance = self._chance
        if chance is not None and chance.random() < self.loss:
            return
        copies = 2 if chance is not None and chance.random() < self.doubled else 1
        self.waiting += [(source, target, datagram)] * copies

    def deliver(self, most: int = 10_000_000) -> None:
        """Deliver at most so many datagrams, in random order."""
        while self.waiting and most > 0:
            step, self.waiting = self.waiting, []
            if self._chance is not None:
                self._chance.shuffle(step)
            self.waiting, step = step[most:], step[:most]
            most -= len(step)
            for source, target, datagram in step:
                if target in self.agents:
                    self.agents[target].receive(datagram, source)


class Place:
    """One agent's place in the network."""

    def __init__(self, network: LossyNetwork, address: str) -> None:
        self.network, self.address = network, address

    def send(self, address: str, datagram: bytes) -> bool:
        """Implement ``send`` of the agent's network."""
        self.network.put(self.address, address, datagram)
        return True

    def open(self, receive: Receive) -> None:
        """Do nothing, because the test delivers datagrams itself."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""


def notices_of(
    switch: str,
    network: LossyNetwork,
    heard: Callable[[str, Collection[Link]], None],
    *,
    boot: int = 1,
    keys: Sequence[bytes] = (KEY,),
    fabric: str = FABRIC,
) -> PeerNotices:
    """Return the peer notices of a switch, whose address is its name."""
    one = PeerNotices(
        fabric=fabric,
        switch=switch,
        keys=KeyRing(keys, clock=lambda: network.now),
        network=Place(network, switch),
        heard=heard,
        boot=boot,
        clock=lambda: network.now,
    )
    network.agents[switch] = one
    return one


def clos(leaves: int, spines: int) -> list[Link]:
    """Return the links of two tiers."""
    return [
        Link.between(f"leaf{leaf}", f"spine{spine}")
        for leaf in range(leaves)
        for spine in range(spines)
    ]
