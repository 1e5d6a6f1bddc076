"""What the linux backend says when it cannot do something; the rest is programmed."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from heddle_agent.conformance import ADDRESSES
from heddle_agent.fib import Batch, Choice, Group, Match, NextHop, Packet, Reason, Steering
from heddle_agent.fib.linux import Cable, LinuxFib, UnavailableError, clean_kernel
from heddle_agent.fib.linux.nft import NEW_SET, Transaction
from heddle_agent.netlink import big, nest
from tests.support import fib_linux
from tests.support.agent_worlds import SPINES, SWITCH, far, uplink
from tests.support.fib_linux import CABLES, LinuxBench, World

GOOD, BAD = ("nic0", "far0", 0, 0), ("nic0", "far1", 0, 0)
NETFILTER = 12


@pytest.fixture
def world() -> Iterator[World]:
    """A switch without a backend."""
    with fib_linux.world() as made:
        yield made


@pytest.fixture
def bench(world: World) -> Iterator[LinuxBench]:
    """A switch with the backend."""
    bench = LinuxBench(world)
    yield bench
    bench.fib.close()


def in_a_child(call: Callable[[], object]) -> str:
    """Return the error of a call in a child process without root rights."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            call()
            said = "nothing"
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def test_without_root_it_says_which_right_is_missing() -> None:
    """The error names the missing capability."""
    fib_linux.needed()
    said = in_a_child(lambda: LinuxFib(SWITCH, CABLES))
    assert said.startswith("UnavailableError: the linux backend may not change routes and rules")
    assert "CAP_NET_ADMIN" in said
    assert "CAP_NET_ADMIN" in in_a_child(clean_kernel)


def test_a_kernel_without_nftables_is_named(world: World) -> None:
    """If there is no netfilter socket, the error says that the kernel has no nf_tables."""

    def opener(protocol: int) -> socket.socket:
        if protocol == NETFILTER:
            raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))
        return world.switch.netlink(protocol)

    with pytest.raises(UnavailableError, match="the kernel has no nf_tables"):
        LinuxFib(SWITCH, CABLES, opener=opener)


def test_a_foreign_table_of_our_name_is_not_touched(world: World) -> None:
    """A foreign table makes the backend refuse, and stays; the cure in the error works."""
    theirs = "table inet heddle {\n map pairs {\n type ipv4_addr : mark\n }\n }\n"
    world.switch.run("nft", "-f", "-", text=theirs)
    before = world.switch.run("nft", "list", "ruleset")
    with pytest.raises(UnavailableError, match="heddle-agent clean"):
        LinuxFib(SWITCH, CABLES, opener=world.switch.netlink)
    assert world.switch.run("nft", "list", "ruleset") == before
    clean_kernel(world.switch.netlink)
    LinuxFib(SWITCH, CABLES, opener=world.switch.netlink).close()


@pytest.mark.parametrize(
    ("hop", "cable", "said"),
    [
        (NextHop("spine8"), None, "no link to spine8 key 0"),
        (NextHop("spine8"), Cable("up8"), "interface up8, which this switch does not have"),
        (NextHop("spine8"), Cable("nics"), "no IPv4 address for spine8 key 0"),
        (NextHop("spine8", "0", "fe80::1"), Cable("nics"), "no IPv4 address for spine8 key 0"),
        (NextHop("spine8"), Cable("up1", "10.1.1.0"), "the kernel refuses its route: "),
    ],
)
def test_a_next_hop_that_does_not_resolve_fails_alone(
    world: World, hop: NextHop, cable: Cable | None, said: str
) -> None:
    """An entry whose primary or backup does not resolve fails; the other entry is programmed."""
    cables = CABLES if cable is None else {**CABLES, hop.port: cable}
    backend = LinuxFib(SWITCH, cables, opener=world.switch.netlink)
    for group in (Group(hop), Group(SPINES[0], hop)):
        sets = {BAD: group, GOOD: Group(SPINES[2])}
        (failure,) = backend.apply(Batch(sets, addresses=ADDRESSES))
        assert (failure.match, failure.reason) == (BAD, Reason.UNKNOWN_NEXT_HOP)
        assert said in failure.message
        assert backend.read_back().keys() == {GOOD}
    backend.close()


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        ({}, "far1 has no address: give it one in the fabric"),
        ({"far1": "2001:db8::1"}, "nic0 and far1 have addresses of two families"),
        ({"far1": "10.0.0.1"}, "far1 has address 10.0.0.1, which is nic0's already"),
        ({"far1": "garbage"}, "far1 has address 'garbage': give it one of IPv4 or of IPv6"),
    ],
)
def test_a_nic_without_an_address_of_its_own_fails_alone(
    bench: LinuxBench, addresses: dict[str, str], said: str
) -> None:
    """The entry of such a NIC fails with a reason; the other entry is programmed and stays so."""
    known = {name: ADDRESSES[name] for name in ("nic0", "far0")}
    sets: dict[Match, Group] = {GOOD: Group(SPINES[1]), BAD: Group(SPINES[1])}
    for _ in range(2):
        (failure,) = bench.fib.apply(Batch(sets, addresses={**known, **addresses}))
        assert (failure.match, failure.reason) == (BAD, Reason.UNSUPPORTED_MATCH)
        assert said in failure.message
        assert bench.where(Packet("nic0", "far0", 1)) == SPINES[1]


def test_a_nic_cannot_take_the_address_of_one_that_the_batch_uses(bench: LinuxBench) -> None:
    """If two NICs have one address, the one that had it first keeps it, even without an entry."""
    known = {**ADDRESSES, "far1": ADDRESSES["far0"]}
    assert not bench.fib.apply(Batch({GOOD: Group(SPINES[1])}, addresses=known))
    assert not bench.fib.apply(Batch(deletes=[GOOD]))
    sets: dict[Match, Group] = {BAD: Group(SPINES[2]), GOOD: Group(SPINES[1])}
    (failure,) = bench.fib.apply(Batch(sets, addresses=known))
    assert (failure.match, failure.reason) == (BAD, Reason.UNSUPPORTED_MATCH)
    assert bench.where(Packet("nic0", "far0", 1)) == SPINES[1]


class Unsteady:
    """A netlink socket that fails while it is told to."""

    failing = False

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sendmsg(self, parts: Any) -> int:
        """Send, or fail as the kernel does if it has no memory."""
        if self.failing:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return self._inner.sendmsg(parts)


def test_what_the_kernel_failed_to_do_is_done_once_it_works_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that fail leave no wrong belief, and repairs that fail are made up for."""
    bench = LinuxBench(world)
    bench.fib.close()
    bench.fib = LinuxFib(
        SWITCH, CABLES, opener=lambda protocol: cast(Any, Unsteady(world.switch.netlink(protocol)))
    )
    group, other = Group(SPINES[0], SPINES[2], (far(0),)), Group(SPINES[1], SPINES[2])
    assert not bench.fib.apply(Batch({GOOD: group}, addresses=ADDRESSES))
    batch = Batch({GOOD: other}, addresses=ADDRESSES)
    monkeypatch.setattr(Unsteady, "failing", True)
    assert len(bench.fib.apply(batch)) == 1
    bench.fib.steer(Steering({group: Choice.BACKUP}, frozenset({far(0), uplink(1)})))
    bench.fib.refresh()
    assert bench.where(Packet("nic0", "far0", 1)) == SPINES[0]
    monkeypatch.setattr(Unsteady, "failing", False)
    bench.fib.refresh()
    assert bench.where(Packet("nic0", "far0", 1)) == SPINES[2]
    assert not bench.fib.apply(batch)
    assert bench.where(Packet("nic0", "far0", 1)) == SPINES[2]
    bench.fib.steer(Steering({}, frozenset()))
    assert bench.where(Packet("nic0", "far0", 1)) == SPINES[1]
    bench.fib.close()


@pytest.mark.parametrize("piece", [1, 3, LinuxFib.piece])
def test_entries_that_the_kernel_has_no_room_for_fail_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """If the kernel's map is full, the other entries fail with TABLE_FULL.

    The map has room for four entries here. These forward, whatever the size of pieces.
    """
    add = Transaction.add

    def small(self: Transaction, kind: int, *values: bytes, **more: Any) -> None:
        room = (nest(9, big(1, 4)),) if kind == NEW_SET and b"pairs" in values[0] else ()
        add(self, kind, *values, *room, **more)

    monkeypatch.setattr(Transaction, "add", small)
    addresses = {"nic0": "10.0.0.1", **{f"far{n}": f"10.9.0.{n + 1}" for n in range(7)}}
    backend = LinuxFib(SWITCH, CABLES, opener=world.switch.netlink)
    backend.piece = piece
    sets: dict[Match, Group] = {("nic0", f"far{n}", 0, 0): Group(SPINES[n % 4]) for n in range(7)}
    failures = backend.apply(Batch(sets, addresses=addresses))
    assert {failure.reason for failure in failures} == {Reason.TABLE_FULL}
    assert len(failures) == 3
    assert backend.read_back().keys() == sets.keys() - {failure.match for failure in failures}
    for match in backend.read_back():
        token = world.send(("10.0.0.1", addresses[match[1]], 5, 6))
        assert world.arrives(token) == sets[match].primary.node.replace("spine", "up")
    assert not backend.apply(Batch(deletes=list(sets)))
    backend.close()


def test_a_kernel_that_fails_is_told_and_forwarding_goes_on(bench: LinuxBench) -> None:
    """With closed sockets each operation of a batch fails, and nothing raises; packets go on."""
    group = Group(SPINES[1], SPINES[2])
    assert not bench.fib.apply(Batch({GOOD: group}, addresses=ADDRESSES))
    bench.fib.close()
    batch = Batch({BAD: Group(SPINES[0])}, [GOOD], addresses=ADDRESSES)
    failures = bench.fib.apply(batch)
    assert {(f.match, f.reason) for f in failures} == {
        (GOOD, Reason.BACKEND),
        (BAD, Reason.BACKEND),
    }
    bench.fib.steer(Steering({group: Choice.BACKUP}, frozenset()))
    bench.fib.refresh()
    assert bench.where(Packet("nic0", "far0", 1)) == SPINES[1]
