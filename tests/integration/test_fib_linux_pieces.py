"""Long batches go to the kernel in pieces and still take effect at once."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from heddle_agent.conformance import ADDRESSES
from heddle_agent.fib import Batch, Group, Match, NextHop, Packet
from heddle_agent.fib.linux import LinuxFib
from heddle_agent.netlink import NETFILTER
from heddle_agent.table import Forwarding
from tests.support import fib_linux
from tests.support.agent_worlds import ROCE, SPINES, SWITCH, far
from tests.support.fib_linux import CABLES, World

PAIR = ("nic0", "far0", 0, 0)
OLD, NEW, OTHER = SPINES[0], SPINES[1], SPINES[2]
PORTS = range(5, 11)
PACKETS = [Packet("nic0", name, port) for name in ("far0", "far1") for port in PORTS]
_DUMP = 0x300


class Watched(socket.socket):
    """A netlink socket that calls a function before and after each change of nftables."""

    changing: Callable[[], None] | None = None

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """Send a message."""
        tell = self.changing if self.proto == NETFILTER and not _asks(buffers[0]) else None
        if tell is not None:
            tell()
        sent = super().sendmsg(buffers, *more)
        if tell is not None:
            tell()
        return sent


def _asks(message: bytes) -> bool:
    """Return whether a message only reads: it is a dump, or too short for a change."""
    return bool(int.from_bytes(message[6:8], sys.byteorder) & _DUMP) or len(message) < 64


@pytest.fixture
def world() -> Iterator[World]:
    """A switch whose underlay leads to another spine than all entries."""
    with fib_linux.world() as world:
        world.switch.ip("route replace 10.9.0.0/16 via 10.1.3.1 dev up3")
        yield world


def opened(world: World, sockets: list[Watched]) -> LinuxFib:
    """Return the backend with pieces of two entries; its sockets are added to ``sockets``."""

    def opener(protocol: int) -> socket.socket:
        sockets.append(Watched(fileno=world.switch.netlink(protocol).detach()))
        return sockets[-1]

    backend = LinuxFib(SWITCH, CABLES, opener=opener)
    backend.piece = 2
    return backend


def where(world: World, packets: list[Packet]) -> list[NextHop]:
    """Return the next hops that packets leave by; all packets are on their way at once."""
    tokens = [world.send((ADDRESSES[p.source], ADDRESSES[p.destination], *p[2:])) for p in packets]
    return [SPINES[int(str(world.arrives(token)).removeprefix("up"))] for token in tokens]


def scenes() -> Iterator[tuple[dict[Match, Group], dict[Match, Group], list[Match]]]:
    """Yield what is programmed at first, what a batch sets, and what it deletes."""
    exact: list[Match] = [("nic0", name, port, ROCE) for name in ("far0", "far1") for port in PORTS]
    old, new, other = Group(OLD, OTHER), Group(NEW, OTHER, (far(0),)), Group(OTHER)
    yield {}, dict.fromkeys(exact, new), []
    yield dict.fromkeys(exact, old), dict.fromkeys(exact, new), []
    yield {PAIR: old, **dict.fromkeys(exact[6:], other)}, dict.fromkeys(exact, new), [PAIR]
    yield dict.fromkeys(exact, new), {PAIR: old}, exact[:6]


@pytest.mark.parametrize("scene", range(4))
def test_all_entries_of_a_batch_take_effect_at_once(world: World, scene: int) -> None:
    """At each moment of a batch either all packets go the old way, or all the new one.

    Deletes come after that, one by one.
    """
    before, sets, deletes = list(scenes())[scene]
    sockets: list[Watched] = []
    seen: list[list[NextHop]] = []
    with closing(opened(world, sockets)) as backend:
        assert not backend.apply(Batch(before, addresses=ADDRESSES))
        first = where(world, PACKETS)
        for opened_one in sockets:
            opened_one.changing = lambda: seen.append(where(world, PACKETS))
        assert not backend.apply(Batch(sets, deletes, addresses=ADDRESSES))
        last = where(world, PACKETS)
    assert len(seen) > 8  # several transactions
    if scene < 3:
        assert all(found in (first, last) for found in seen)
        assert sorted(seen, key=lambda found: found != first) == seen
    else:  # deletes come one by one: each packet goes its old way or its new one
        for row in range(len(PACKETS)):
            assert {found[row] for found in seen} <= {first[row], last[row]}


@pytest.mark.parametrize("scene", range(4))
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_an_agent_that_dies_in_the_middle_leaves_whole_entries(
    world: World, scene: int, steps: int
) -> None:
    """The next agent finds only old or new entries, and then completes the batch."""
    before, sets, deletes = list(scenes())[scene]
    sockets: list[Watched] = []
    left = steps

    def die() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    with closing(opened(world, sockets)) as backend:
        assert not backend.apply(Batch(before, addresses=ADDRESSES))
        first = where(world, PACKETS)
        for one in sockets:
            one.changing = die
        with pytest.raises(KeyboardInterrupt):
            backend.apply(Batch(sets, deletes, addresses=ADDRESSES))
    if scene < 3:  # the last one sets so little that it has already taken effect
        assert where(world, PACKETS) == first
    with closing(opened(world, [])) as backend:
        Forwarding(SWITCH, backend, [hop.port for hop in SPINES])
        for match, group in backend.read_back().items():
            possible = [found[match].primary for found in (before, sets) if match in found]
            assert group.primary in possible
        assert not backend.apply(Batch(sets, deletes, addresses=ADDRESSES))
        held = {match: group.primary for match, group in backend.read_back().items()}
        assert held == {
            match: group.primary
            for match, group in {**before, **sets}.items()
            if match not in deletes
        }
