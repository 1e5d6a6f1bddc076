"""Local repair on real packets: what the kernel does alone, and what the agent adds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from heddle_agent.conformance import ADDRESSES
from heddle_agent.fib import Batch, Choice, Group, Link, Match, Packet, Steering
from heddle_agent.fib.linux import Cable, LinuxFib
from heddle_agent.table import Forwarding
from tests.support import fib_linux
from tests.support.agent_worlds import ROCE, SPINES, SWITCH, entry, far, push, take, uplink
from tests.support.fib_linux import CABLES, LinuxBench, OverIpv6, World

PAIR = ("nic0", "far0", 0, 0)
PACKET = Packet("nic0", "far0", 100)
MANY = 10_000


@pytest.fixture(params=["ipv4", "ipv6"])
def bench(request: pytest.FixtureRequest) -> Iterator[LinuxBench]:
    """A switch with the backend."""
    with fib_linux.world(ipv6=request.param == "ipv6") as world:
        bench = LinuxBench(world)
        yield bench
        bench.fib.close()


def many(count: int, shift: int = 0) -> tuple[dict[Match, Group], dict[str, str]]:
    """Return entries in four groups, and all addresses.

    They lead from one NIC to far ones, with 16 source ports to each. ``shift`` gives each entry
    another group.
    """
    groups = [Group(SPINES[n], SPINES[(n + 1) % 4], (far(n),)) for n in range(4)]
    sets, addresses = {}, dict(ADDRESSES)
    for row in range(count):
        number, port = divmod(row, 16)
        addresses[f"far{number}"] = f"10.9.{number >> 8}.{number & 255}"
        sets["nic0", f"far{number}", 1000 + port, ROCE] = groups[(row + shift) % 4]
    return sets, addresses


class Counting(socket.socket):
    """A netlink socket that counts the bytes sent to the kernel."""

    said = 0

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """Send a message and count it."""
        sent = super().sendmsg(buffers, *more)
        Counting.said += sent
        return sent


def counted(world: World) -> LinuxFib:
    """Return the backend with counting sockets."""

    def opener(protocol: int) -> socket.socket:
        plain = world.switch.netlink(protocol)
        return Counting(fileno=plain.detach())

    return (OverIpv6 if world.ipv6 else LinuxFib)(SWITCH, CABLES, opener=opener)


@pytest.mark.parametrize("link", [uplink(0), far(0)], ids=["local", "remote"])
def test_a_repair_says_the_same_to_the_kernel_however_many_entries(
    bench: LinuxBench, link: Link
) -> None:
    """A repair of 10,000 entries in few groups sends no byte more than one of 100."""
    said = []
    for count in (100, MANY):
        backend = counted(bench.world)
        sets, addresses = many(count)
        assert not backend.apply(Batch(sets, addresses=addresses))
        touched = {g: Choice.BACKUP for g in sets.values() if g.primary == SPINES[0]}
        backend.steer(Steering({}, frozenset()))
        Counting.said = 0
        backend.steer(Steering(touched, frozenset({link})))
        said.append(Counting.said)
        backend.steer(Steering(dict.fromkeys(touched, Choice.PRIMARY), frozenset()))
        assert not backend.apply(Batch({}, list(sets)))
        backend.close()
    assert said[0] == said[1] < 1000


def test_the_kernel_alone_moves_to_the_backup_when_a_carrier_goes(bench: LinuxBench) -> None:
    """Without an agent the kernel moves to the backup, and back when the carrier returns.

    If the backup has no carrier either, the underlay takes over.
    """
    bench.world.switch.run("sysctl", "-qw", "net.ipv4.conf.up0.ignore_routes_with_linkdown=0")
    bench.fib.apply(Batch({PAIR: Group(SPINES[0], SPINES[2])}, addresses=ADDRESSES))
    bench.fib.close()
    assert bench.where(PACKET) == SPINES[0]
    bench.world.cable(0, up=False)
    assert bench.where(PACKET) == SPINES[2]
    bench.world.cable(2, up=False)
    assert bench.where(PACKET) in {SPINES[1], SPINES[3]}
    bench.world.cable(0, up=True)
    assert bench.where(PACKET) == SPINES[0]


@pytest.mark.parametrize("name", ["up0", "swp7"])
def test_a_link_on_an_interface_made_anew_carries_again(bench: LinuxBench, name: str) -> None:
    """Flows of a link use the backup until its interface is made again, and then return.

    The agent must report the interface only if it has another name.
    """
    bench.fib.apply(Batch({PAIR: Group(SPINES[0], SPINES[2])}, addresses=ADDRESSES))
    assert bench.where(PACKET) == SPINES[0]
    bench.world.replug(0, name)
    assert bench.where(PACKET) == SPINES[2]
    if name != "up0":
        assert isinstance(bench.fib, LinuxFib)
        bench.fib.plug(SPINES[0].port, Cable(name))
        bench.fib.steer(Steering({}, frozenset()))
    else:
        bench.fib.refresh()
    assert bench.where(PACKET) == SPINES[0]


def test_a_link_with_other_addresses_carries_on(bench: LinuxBench) -> None:
    """The route over a link leads to the address that its neighbour has now."""
    bench.fib.apply(Batch({PAIR: Group(SPINES[0])}, addresses=ADDRESSES))
    assert isinstance(bench.fib, LinuxFib)
    old, new = (bench.world.address(f"10.1.0.{end}") for end in (1, 9))
    bench.fib.plug(SPINES[0].port, Cable("up0", new))
    bench.fib.refresh()
    show = ("ip", bench.world.family, "route", "show", "table", str(0x48000001))
    told = bench.world.switch.run(*show)
    assert (f"via {new} " in told, f"via {old} " in told) == (True, False)


def test_a_backup_that_is_dead_farther_away_is_not_fallen_back_to(bench: LinuxBench) -> None:
    """Not even the kernel falls back to a backup with a lost far link: the underlay takes over.

    Once the far link is back, the backup is used.
    """
    forwarding = Forwarding(SWITCH, bench.fib, [hop.port for hop in SPINES])
    key = (SPINES[0], SPINES[2], (), (far(2),))
    take(forwarding, push([(PAIR, key)], addresses=ADDRESSES))
    forwarding.links_changed({far(2): False})
    assert bench.where(PACKET) == SPINES[0]
    bench.world.cable(0, up=False)
    ways = {bench.where(PACKET._replace(source_port=port)) for port in range(100, 116)}
    assert len(ways) > 1
    assert SPINES[0] not in ways
    bench.world.cable(0, up=True)
    forwarding.links_changed({far(2): True})
    bench.world.cable(0, up=False)
    assert bench.where(PACKET) == SPINES[2]


def test_silent_loss_takes_one_route_away_for_primaries_and_backups(bench: LinuxBench) -> None:
    """A dead link that keeps its carrier is left by all, whether it was primary or backup."""
    forwarding = Forwarding(SWITCH, bench.fib, [hop.port for hop in SPINES])
    second = ("nic0", "far1", 0, 0)
    rows = [(PAIR, entry(0, 1)), (second, entry(2, 0, far(2)))]
    take(forwarding, push(rows, addresses=ADDRESSES))
    forwarding.links_changed({far(2): False})
    assert bench.where(Packet("nic0", "far1", 1)) == SPINES[0]
    forwarding.links_changed({uplink(0): False})
    routes = bench.world.switch.run(
        "ip", bench.world.family, "route", "show", "table", "all", "proto", "72"
    )
    assert "up0" not in routes
    assert bench.where(PACKET) == SPINES[1]


def test_a_mended_link_does_not_bring_back_a_path_dead_farther_away(bench: LinuxBench) -> None:
    """A path is used again only when its own link and its far link are both back."""
    forwarding = Forwarding(SWITCH, bench.fib, [hop.port for hop in SPINES])
    take(forwarding, push([(PAIR, entry(0, 1, far(0)))], addresses=ADDRESSES))
    for first, second in ((uplink(0), far(0)), (far(0), uplink(0))):
        forwarding.links_changed({first: False})
        forwarding.links_changed({second: False})
        assert bench.where(PACKET) == SPINES[1]
        forwarding.links_changed({uplink(0): True})
        assert bench.where(PACKET) == SPINES[1]
        forwarding.links_changed({far(0): True})
        assert bench.where(PACKET) == SPINES[0]


def test_an_interface_switched_off_and_on_forwards_again(bench: LinuxBench) -> None:
    """The kernel forgets the routes of an interface that is off; they come back with the link."""
    forwarding = Forwarding(SWITCH, bench.fib, [hop.port for hop in SPINES])
    take(forwarding, push([(PAIR, entry(0, 1))], addresses=ADDRESSES))
    for told in (True, False):  # the second time it is over before the agent hears of it
        bench.world.switch.ip("link set up0 down")
        if told:
            forwarding.links_changed({uplink(0): False})
        assert bench.where(PACKET) == SPINES[1]
        bench.world.switch.ip("link set up0 up", bench.world.neighbour(0, "up0"))
        if told:
            forwarding.links_changed({uplink(0): True})
        else:
            forwarding.mend()
        assert bench.where(PACKET) == SPINES[0]


def test_entries_may_come_while_an_interface_is_off(bench: LinuxBench) -> None:
    """Entries are accepted while an interface is off, and forward by their backup meanwhile."""
    bench.world.switch.ip("link set up0 down")
    forwarding = Forwarding(SWITCH, bench.fib, [hop.port for hop in SPINES], down=[uplink(0)])
    assert not take(forwarding, push([(PAIR, entry(0, 1))], addresses=ADDRESSES)).failures
    assert bench.where(PACKET) == SPINES[1]


class Stream:
    """Numbered packets of many flows in turn, sent by a thread."""

    def __init__(self, world: World, flows: list[tuple[str, str, int, int]]) -> None:
        self._world = world
        self._flows = flows
        self._ending = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send while inside."""
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._world.send(self._flows[self.sent % len(self._flows)])
            self.sent += 1
            time.sleep(0.0002)


def test_a_change_of_ten_thousand_entries_under_traffic_loses_nothing(bench: LinuxBench) -> None:
    """No packet is lost; each takes the old or the new way, and after the change the new one."""
    (old, addresses), (new, _) = many(MANY), many(MANY, 1)
    assert not bench.fib.apply(Batch(old, addresses=addresses))
    ends = {name: bench.world.address(address) for name, address in addresses.items()}
    wires = [(ends[m[0]], ends[m[1]], *m[2:]) for m in list(old)[::97]]
    ways = {
        w: {old[m].primary, new[m].primary} for w, m in zip(wires, list(old)[::97], strict=True)
    }
    stream = Stream(bench.world, wires)
    seen = bench.world.watching()
    with stream.running():
        for entries in (new, old, new):
            assert not bench.fib.apply(Batch(entries, addresses=addresses))
    arrived = seen.until(stream.sent)
    assert len(arrived) == stream.sent
    for cable, wire in arrived:
        assert SPINES[int(cable[2:])] in ways[wire], (cable, wire)
    for match in list(new)[::997]:
        token = bench.world.send((ends[match[0]], ends[match[1]], *match[2:]))
        assert bench.world.arrives(token) == f"up{SPINES.index(new[match].primary)}"
