"""A switch of network namespaces for the linux backend, with real packets on virtual cables.

There are three namespaces. The switch has uplinks ``up0`` … ``up3`` and a route that spreads over
all of them. Beyond it, every packet is read from the cable by which it arrives. A host has a raw
socket that sends packets of any source and port. Neighbours are fixed, so that no packet waits for
ARP. Everything has IPv4 and IPv6 addresses; a world sends and expects packets of one family.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias, TypeVar

from heddle_agent.conformance import ADDRESSES
from heddle_agent.fib import (
    Batch,
    Choice,
    Count,
    Failure,
    Fib,
    Group,
    Link,
    NextHop,
    Nic,
    Packet,
    Steering,
)
from heddle_agent.fib.linux import Cable, LinuxFib
from tests.support.agent_worlds import SPINES, SWITCH
from tests.support.needs import missing
from tests.support.waiting import wait_until

Result = TypeVar("Result")

Wire: TypeAlias = tuple[str, str, int, int]
"""Addresses and ports of a packet."""

_MARK = "hdfib."
_RCVBUFFORCE = 33
_NEW_NET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LABELS = 1 << 20  # flow labels, which identify IPv6 packets, small ones too
_ALL_FRAMES, _IPV4, _IPV6 = 3, 0x0800, 0x86DD
_WAIT = 20.0  # seconds: more than any delay of a busy machine; each lost packet costs it
CABLES = {hop.port: Cable(f"up{number}") for number, hop in enumerate(SPINES)}
SETTINGS = {
    "ip_forward": "1",
    "conf/all/rp_filter": "0",
    "conf/default/rp_filter": "0",
    "conf/default/ignore_routes_with_linkdown": "1",
    "fib_multipath_hash_policy": "3",
    "fib_multipath_hash_fields": "55",
    "fib_multipath_hash_seed": "7",
}
SETTINGS_IPV6 = {
    "conf/all/forwarding": "1",
    "conf/all/keep_addr_on_down": "1",
    "conf/default/ignore_routes_with_linkdown": "1",
    "fib_multipath_hash_policy": "3",
    "fib_multipath_hash_fields": "55",
}


def as_ipv6(address: str) -> str:
    """Return the IPv6 address that stands for an IPv4 one: fd09::7:1 for 10.9.7.1."""
    _, net, *rest = address.split(".")
    return str(ip_address(f"fd0{net}::{rest[0]}:{rest[1]}"))


def needed() -> None:
    """Skip the test if namespaces cannot be created."""
    if os.geteuid() != 0:
        missing("network namespaces need root")
    for program in ("ip", "nft"):
        if not any(Path(folder, program).exists() for folder in ("/usr/sbin", "/sbin", "/usr/bin")):
            missing(f"no {program}: apt-get install iproute2 nftables")


def run(*words: str, text: str = "") -> str:
    """Run a program to its end; return its output."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


class Space:
    """One network namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        run("ip", "netns", "add", name)

    def ip(self, *lines: str) -> None:
        """Run lines of ``ip`` in it."""
        run("ip", "-n", self.name, "-batch", "-", text="\n".join(lines) + "\n")

    def run(self, *words: str, text: str = "") -> str:
        """Run a program in it."""
        return run("ip", "netns", "exec", self.name, *words, text=text)

    def settings(self, family: str, values: Mapping[str, str]) -> None:
        """Write settings below ``net``."""

        def write() -> None:
            for name, value in values.items():
                Path("/proc/sys/net", family, name).write_text(value)

        self.inside(write)

    def inside(self, call: Callable[[], Result]) -> Result:
        """Call a function in a thread in the namespace; what it opens stays in the namespace."""
        results: list[Result] = []
        errors: list[BaseException] = []

        def go() -> None:
            try:
                with Path("/run/netns", self.name).open("rb") as file:
                    entered = _LIBC.setns(file.fileno(), _NEW_NET)
                assert entered == 0, os.strerror(ctypes.get_errno())
                results.append(call())
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                errors.append(error)

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def netlink(self, protocol: int) -> socket.socket:
        """Return a netlink socket of this namespace."""
        return self.inside(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol))

    def remove(self) -> None:
        """Remove the namespace and all in it."""
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


class Watch:
    """Reads packets that come out in a thread of its own, so that none is missed."""

    def __init__(self, seen: socket.socket) -> None:
        self._seen = seen
        self._arrived: list[tuple[str, Wire]] = []
        self._expected: int | None = None
        seen.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 26)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def until(self, number: int) -> list[tuple[str, Wire]]:
        """Return cable and wire fields of packets, once ``number`` arrived or no more come."""
        self._expected = number
        self._thread.join()
        return self._arrived

    def _run(self) -> None:
        while self._expected is None or len(self._arrived) < self._expected:
            try:
                data, origin = self._seen.recvfrom(2048)
            except TimeoutError:
                if self._expected is not None:
                    return
                continue
            if origin[1] == _IPV4 and data[9] == socket.IPPROTO_UDP:
                ends, ports = (data[12:16], data[16:20]), struct.unpack_from(">HH", data, 20)
            elif origin[1] == _IPV6 and data[6] == socket.IPPROTO_UDP:
                ends, ports = (data[8:24], data[24:40]), struct.unpack_from(">HH", data, 40)
            else:
                continue
            source, destination = (str(ip_address(end)) for end in ends)
            self._arrived.append((str(origin[0]), (source, destination, *ports)))


class World:
    """The switch, what is beyond it, and the host."""

    def __init__(self, *, ipv6: bool) -> None:
        self.ipv6 = ipv6
        self.addresses = {name: self.address(address) for name, address in ADDRESSES.items()}
        """Addresses of the NICs in this world."""
        mark = f"{_MARK}{os.getpid()}.{secrets.token_hex(2)}"
        self.switch, self.beyond, self.host = (Space(f"{mark}.{part}") for part in "sbh")
        self._build()
        protocol = socket.htons(_ALL_FRAMES)
        self._seen = self.beyond.inside(
            lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, protocol)
        )
        self._out = self.host.inside(
            lambda: socket.socket(
                socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW
            )
        )
        self._seen.settimeout(_WAIT)
        self._sent = 0
        self._came: dict[bytes, str] = {}  # cables of packets not asked for yet

    def close(self) -> None:
        """Remove everything."""
        self._seen.close()
        self._out.close()
        for space in (self.switch, self.beyond, self.host):
            space.remove()

    def _build(self) -> None:
        for space in (self.switch, self.beyond, self.host):
            space.settings("ipv6", {"conf/default/accept_dad": "0"})
        self.switch.settings("ipv4", SETTINGS)
        self.switch.settings("ipv6", SETTINGS_IPV6)
        far, near = self.beyond.name, self.host.name
        # Ends get unequal indexes; with equal ones the kernel reports a lost carrier up to 1 s
        # late.
        cables = [
            f"link add up{n} index {10 + n} type veth peer name up{n} index {20 + n} netns {far}"
            for n in range(4)
        ]
        ways = " ".join(f"nexthop via 10.1.{n}.1 dev up{n}" for n in range(4))
        ways6 = " ".join(f"nexthop via fd01::{n}:1 dev up{n}" for n in range(4))
        self.switch.ip(
            *cables,
            f"link add nics type veth peer name nics netns {near}",
            *(self._end(f"up{n}", f"10.1.{n}.0/31", f"02:00:00:00:02:0{n}") for n in range(4)),
            *(self.neighbour(n, f"up{n}") for n in range(4)),
            self._end("nics", "10.0.0.254/24", "02:00:00:00:03:00"),
        )
        self.beyond.ip(
            *(self._end(f"up{n}", f"10.1.{n}.1/31", f"02:00:00:00:01:0{n}") for n in range(4))
        )
        self.host.ip(
            self._end("nics", "10.0.0.1/24", "02:00:00:00:04:00"),
            "neigh add 10.0.0.254 lladdr 02:00:00:00:03:00 dev nics",
            "neigh add fd00::254 lladdr 02:00:00:00:03:00 dev nics",
            "route add default via 10.0.0.254",
            "route add default via fd00::254",
        )
        self.switch.ip(f"route add 10.9.0.0/16 {ways}", f"route add fd09::/16 {ways6}")

    def address(self, address: str) -> str:
        """Return an IPv4 address, or what stands for it in this world."""
        return as_ipv6(address) if self.ipv6 else address

    @property
    def family(self) -> str:
        """The family as an option for programs: -4 or -6."""
        return "-6" if self.ipv6 else "-4"

    @staticmethod
    def neighbour(number: int, name: str) -> str:
        """Return lines of ``ip`` that fix the neighbour of an uplink."""
        end = f"lladdr 02:00:00:00:01:0{number} dev {name}"
        return f"neigh replace 10.1.{number}.1 {end}\nneigh replace fd01::{number}:1 {end}"

    def replug(self, number: int, name: str) -> None:
        """Remove an uplink, and create it again with this name at the switch."""
        far, address = self.beyond.name, f"10.1.{number}"
        own, other = f"02:00:00:00:02:0{number}", f"02:00:00:00:01:0{number}"
        self.switch.ip(
            f"link delete up{number}",
            f"link add {name} index {30 + number} type veth peer name up{number} netns {far}",
            self._end(name, f"{address}.0/31", own),
            self.neighbour(number, name),
        )
        self.beyond.ip(self._end(f"up{number}", f"{address}.1/31", other))
        self._until_carried(name, up=True)

    @staticmethod
    def _end(name: str, address: str, mac: str) -> str:
        inner, bits = as_ipv6(address.partition("/")[0]), 127 if address.endswith("/31") else 64
        return (
            f"link set {name} address {mac} up\naddr add {address} dev {name}\n"
            f"addr add {inner}/{bits} dev {name} nodad"
        )

    def send(self, packet: Wire, size: int = 64, protocol: int = 17) -> bytes:
        """Send one packet; return a token that identifies it."""
        source, destination, *ports = packet
        self._sent += 1
        token = struct.pack(">Q", self._sent)
        ends = [ip_address(end).packed for end in (source, destination)]
        if self.ipv6:
            inner = struct.pack(">HHHH", *ports, size - 40, 0) + token
            token = struct.pack(">I", 6 << 28 | self._sent % _LABELS)
            head = struct.pack(">4sHBB16s16s", token, size - 40, protocol, 64, *ends)
        else:
            inner = struct.pack(">HHHH", *ports, size - 20, 0) + token
            head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, size, 0, 0, 64, protocol, 0, *ends)
        self._out.sendto((head + inner).ljust(size, b"\0"), (destination, 0))
        return token

    def arrives(self, token: bytes) -> str | None:
        """Return the cable by which a packet comes out; None if it does not.

        Earlier packets may come out later, since each core of a busy machine has its own queue.
        """
        deadline = time.monotonic() + _WAIT
        while token not in self._came and time.monotonic() < deadline:
            try:
                data, origin = self._seen.recvfrom(2048)
            except TimeoutError:
                break
            if origin[1] == (_IPV6 if self.ipv6 else _IPV4):
                self._came[data[:4] if self.ipv6 else data[28:36]] = str(origin[0])
        return self._came.pop(token, None)

    def watching(self) -> Watch:
        """Read everything that comes out from now on."""
        return Watch(self._seen)

    def cable(self, number: int, *, up: bool) -> None:
        """Take an uplink's carrier away at its far end, or restore it; wait until that is seen."""
        self.beyond.ip(f"link set up{number} {'up' if up else 'down'}")
        self._until_carried(f"up{number}", up=up)

    def _until_carried(self, name: str, *, up: bool) -> None:
        """Wait until the kernel's routes over an uplink have its carrier, or have lost it."""
        shown = ("ip", self.family, "route", "show", "dev", name)
        wait_until(lambda: ("linkdown" in self.switch.run(*shown)) != up, f"the carrier of {name}")


class OverIpv6(LinuxFib):
    """The linux backend; IPv4 addresses in batches are replaced by IPv6 ones."""

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Implement ``Fib.apply`` with IPv6 addresses."""
        told = {n: a if ":" in a else as_ipv6(a) for n, a in batch.addresses.items()}
        return super().apply(replace(batch, addresses=told))

    def meter(self, sources: Collection[Nic]) -> None:
        """Implement ``Fib.meter`` for the same NICs."""
        super().meter([nic._replace(address=as_ipv6(nic.address)) for nic in sources])

    def unmatched(self) -> Mapping[tuple[Nic, Nic], Count]:
        """Implement ``Fib.unmatched`` by the addresses that cases know."""
        known = {as_ipv6(address): address for address in ADDRESSES.values()}
        return {
            (Nic(address=known[source.address]), Nic(address=known[to.address])): count
            for (source, to), count in super().unmatched().items()
        }


class LinuxBench:
    """The linux backend in a world of its own."""

    def __init__(self, world: World, table_size: int = 0) -> None:
        self.world = world
        self._down: frozenset[Link] = frozenset()
        kind = OverIpv6 if world.ipv6 else LinuxFib
        self.fib: Fib = kind(SWITCH, CABLES, table_size=table_size, opener=world.switch.netlink)

    def where(self, packet: Packet) -> NextHop | None:
        """Send a packet, and return the next hop by whose cable it arrives."""
        cable = self.world.arrives(self.world.send(self._wire(packet)))
        return None if cable is None else SPINES[int(cable.removeprefix("up"))]

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Send packets, and wait for each."""
        for _ in range(number):
            self.world.arrives(self.world.send(self._wire(packet), size))

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """Take and restore the carriers of this switch's cables; then let the agent steer."""
        for number, hop in enumerate(SPINES):
            link = Link.between(SWITCH, hop.node)
            if (link in down) != (link in self._down):
                self.world.cable(number, up=link not in down)
        self._down = down
        self.fib.steer(Steering(choices, down))

    def _wire(self, packet: Packet) -> Wire:
        source, destination, *ports = packet
        ends = self.world.addresses
        return (ends[source], ends[destination], ports[0], ports[1])


def sweep() -> None:
    """Remove what killed tests have left; the names contain the process ids of their owners."""
    spaces = Path("/run/netns")
    for name in [path.name for path in spaces.iterdir()] if spaces.exists() else []:
        owner = name.removeprefix(_MARK).partition(".")[0]
        if name.startswith(_MARK) and not Path("/proc", owner).exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def world(*, ipv6: bool = False) -> Iterator[World]:
    """Create a world, and remove it afterwards."""
    needed()
    sweep()
    made = World(ipv6=ipv6)
    try:
        yield made
    finally:
        made.close()
