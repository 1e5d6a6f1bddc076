"""When primary and backup are lost, packets avoid next hops that routing still uses in error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing

import pytest

from heddle_agent.fib import Group, Link, NextHop, Packet
from heddle_agent.fib.linux import LinuxFib, clean_kernel, detours, marks
from heddle_agent.table import Forwarding
from tests.support import fib_linux
from tests.support.agent_worlds import SPINES, SWITCH, far, push, take, uplink
from tests.support.fib_linux import CABLES, World

PAIR, OTHER = ("nic0", "far0", 0, 0), ("nic0", "far1", 0, 0)
TABLE = marks.TABLES + marks.DETOUR
KEY = (SPINES[0], SPINES[1], (far(0),), (far(1),))


@pytest.fixture(params=["ipv4", "ipv6"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A switch whose underlay spreads over four spines."""
    with fib_linux.world(ipv6=request.param == "ipv6") as world:
        yield world


@pytest.fixture
def forwarding(world: World) -> Iterator[Forwarding]:
    """Two entries with the same primary and backup, each of which depends on a far link."""
    with closing(LinuxFib(SWITCH, CABLES, opener=world.switch.netlink)) as backend:
        forwarding = Forwarding(SWITCH, backend, [hop.port for hop in SPINES])
        take(forwarding, push([(PAIR, KEY), (OTHER, KEY)], addresses=world.addresses))
        yield forwarding


def ways(world: World, destination: str = "far0") -> set[NextHop]:
    """Return the uplinks that packets of 64 source ports take."""
    packets = [Packet("nic0", destination, port) for port in range(64)]
    ends = world.addresses
    wire = [(ends[p.source], ends[p.destination], *p[2:]) for p in packets]
    tokens = [world.send(one) for one in wire]
    return {SPINES[int(str(world.arrives(token)).removeprefix("up"))] for token in tokens}


def laid(world: World) -> list[str]:
    """Return the detours in the kernel; none if their table does not exist."""
    return world.switch.run(
        "sh", "-c", f"ip {world.family} route show table {TABLE} 2>&1; true"
    ).splitlines()


def lose(forwarding: Forwarding, *links: Link, up: bool = False) -> None:
    """Report links as lost, or as back, one after the other."""
    for link in links:
        forwarding.links_changed({link: up})


def test_packets_keep_off_ways_that_are_lost(world: World, forwarding: Forwarding) -> None:
    """All flows avoid the lost ones of four equal ways, and come back when their links do.

    This also holds after others have removed the rules.
    """
    lose(forwarding, far(0))
    assert ways(world) == {SPINES[1]}
    lose(forwarding, far(1))
    assert ways(world) == ways(world, "far1") == {SPINES[2], SPINES[3]}
    lose(forwarding, far(2))
    assert ways(world) == {SPINES[3]}
    lose(forwarding, far(1), up=True)
    assert ways(world) == {SPINES[1]}
    world.switch.run("ip", world.family, "rule", "flush", "protocol", str(marks.PROTOCOL))
    forwarding.mend()
    lose(forwarding, far(1))
    assert ways(world) == {SPINES[3]}
    lose(forwarding, far(1), up=True)
    lose(forwarding, far(0), far(2), up=True)
    assert ways(world) == {SPINES[0]}


def test_a_carrier_lost_meanwhile_is_left_by_the_kernel_alone(
    world: World, forwarding: Forwarding
) -> None:
    """The kernel itself stops using a next hop of a detour that loses its carrier."""
    world.switch.run("sysctl", "-qw", "net.ipv4.conf.up2.ignore_routes_with_linkdown=1")
    lose(forwarding, far(0), far(1))
    world.cable(2, up=False)
    assert ways(world) == {SPINES[3]}


def test_without_another_way_the_underlay_is_left_as_it_is(
    world: World, forwarding: Forwarding
) -> None:
    """If all four ways are lost there is no detour: the underlay may know more."""
    lose(forwarding, *(far(number) for number in range(4)))
    assert not any("nexthop" in line or "via" in line for line in laid(world))
    assert len(ways(world)) > 1


def test_links_elsewhere_are_no_reason_to_keep_off(world: World, forwarding: Forwarding) -> None:
    """A spine that has lost its link to another leaf is still used."""
    lose(forwarding, far(0), far(1), Link.between("spine2", "leaf7"))
    assert ways(world) == {SPINES[2], SPINES[3]}


def test_routing_has_its_way_again_after_a_while(
    world: World, forwarding: Forwarding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detour ends after a while, not before: by then routing knows best."""
    monkeypatch.setattr(detours, "LASTING_SECONDS", math.inf)
    lose(forwarding, far(0), far(1))
    forwarding.mend()
    assert ways(world) == {SPINES[2], SPINES[3]}
    monkeypatch.setattr(detours, "LASTING_SECONDS", 0.0)
    forwarding.mend()
    assert laid(world) == []
    assert ways(world) == set(SPINES)
    lose(forwarding, far(0), far(1), up=True)
    assert ways(world) == {SPINES[0]}


def test_what_a_dead_agent_left_goes(world: World, forwarding: Forwarding) -> None:
    """The next agent removes old detours and makes its own; cleaning leaves none."""
    lose(forwarding, far(0), far(1))
    assert len(laid(world)) > 0
    forwarding.fib.close()
    with closing(LinuxFib(SWITCH, CABLES, opener=world.switch.netlink)) as backend:
        again = Forwarding(SWITCH, backend, [hop.port for hop in SPINES])
        assert ways(world) == {SPINES[0]}
        lose(again, uplink(0), far(1))
        assert {SPINES[0], SPINES[1]}.isdisjoint(ways(world))
    assert clean_kernel(world.switch.netlink).routes > 0
    assert laid(world) == []


def test_a_group_that_is_not_there_takes_no_detour(world: World, forwarding: Forwarding) -> None:
    """A detour for a group without entries changes nothing."""
    assert isinstance(forwarding.fib, LinuxFib)
    forwarding.fib.detour({Group(SPINES[0]): {SPINES[1].port}})
    assert ways(world) == {SPINES[0]}
