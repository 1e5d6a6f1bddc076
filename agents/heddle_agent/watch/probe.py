"""Probes over the links themselves: echo requests that the neighbour's kernel answers.

An agent that is busy, stopped or absent must not look like a dead link. A kernel that answers is
proof enough that the link carries packets both ways. Requests leave by the link's interface, and
only answers that arrive on it count. They are marked CS6, like routing protocols, so that a full
link does not look like a dead one.

Each probe is judged once. Answers that have arrived are read first, so that an agent that was held
up sees answers and not silence. If the loop is late, probes are skipped and never sent in a burst.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from heddle_agent.watch.liveness import Liveness

_ECHO_REPLY, _ECHO_REQUEST = 0, 8
_ECHO_REPLY_6, _ECHO_REQUEST_6 = 129, 128
_ICMP = struct.Struct("!BBHHH")
_PAYLOAD = struct.Struct("!8sIQ")
_PKTINFO = struct.Struct("=i8x")
_PKTINFO_6 = struct.Struct("=16xi")
_CONTROL_TOS = 0xC0  # CS6
_PRIORITY = 6
_SOL_RAW, _ICMP_FILTER = 255, 1
_IP_PKTINFO = 8
_ICMP6_FILTER, _IPV6_RECVPKTINFO, _IPV6_PKTINFO, _IPV6_TCLASS = 1, 49, 50, 67
_BUFFER_BYTES = 1 << 20
_MOST_WAIT = 0.005


@dataclass(frozen=True, slots=True)
class Target:
    """The far end of one link."""

    interface: int
    """Index of the link's interface."""
    address: str
    """IP address of the neighbour on the link."""

    @property
    def ipv6(self) -> bool:
        """Whether it is probed by ICMPv6."""
        return ":" in self.address


def open_echo_sockets(targets: Iterable[Target]) -> dict[bool, socket.socket]:
    """Return sockets for echo requests, keyed by whether they are for IPv6, as targets need them.

    Raises ValueError if this process may not open raw sockets.
    """
    opened: dict[bool, socket.socket] = {}
    try:
        for ipv6 in {target.ipv6 for target in targets}:
            opened[ipv6] = _open_6() if ipv6 else _open_4()
    except PermissionError:
        for raw in opened.values():
            raw.close()
        raise ValueError(
            "probing links needs CAP_NET_RAW: run the agent with it, or give"
            " --probe-milliseconds 0 and do without"
        ) from None
    for raw in opened.values():
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _PRIORITY)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return opened


def _open_4() -> socket.socket:
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    only_replies = ~(1 << _ECHO_REPLY) & 0xFFFFFFFF
    raw.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", only_replies))
    raw.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _CONTROL_TOS)
    raw.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    return raw


def _open_6() -> socket.socket:
    raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    blocked = [0xFFFFFFFF] * 8
    blocked[_ECHO_REPLY_6 >> 5] &= ~(1 << (_ECHO_REPLY_6 & 31))
    raw.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, struct.pack("=8I", *blocked))
    raw.setsockopt(socket.IPPROTO_IPV6, _IPV6_TCLASS, _CONTROL_TOS)
    raw.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
    return raw


def request(
    identity: int, token: bytes, number: int, sequence: int, *, ipv6: bool = False
) -> bytes:
    """Return an echo request. The kernel fills in the checksum of ICMPv6."""
    payload = _PAYLOAD.pack(token, number, sequence)
    if ipv6:
        return _ICMP.pack(_ECHO_REQUEST_6, 0, 0, identity, sequence & 0xFFFF) + payload
    head = _ICMP.pack(_ECHO_REQUEST, 0, 0, identity, sequence & 0xFFFF)
    total = sum(struct.unpack(f"!{(len(head) + len(payload)) // 2}H", head + payload))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return _ICMP.pack(_ECHO_REQUEST, 0, checksum, identity, sequence & 0xFFFF) + payload


def reply(packet: bytes, token: bytes, *, ipv6: bool = False) -> tuple[int, int] | None:
    """Return link number and sequence of an echo reply to us; None for any other packet.

    ``packet`` includes the IP header for IPv4, but not for IPv6.
    """
    if not packet:
        return None
    start, kind = (0, _ECHO_REPLY_6) if ipv6 else ((packet[0] & 0xF) * 4, _ECHO_REPLY)
    if len(packet) != start + _ICMP.size + _PAYLOAD.size or packet[start] != kind:
        return None
    seen, number, sequence = _PAYLOAD.unpack_from(packet, start + _ICMP.size)
    return (number, sequence) if seen == token else None


class Prober:
    """Probes all links of a switch at the same interval."""

    def __init__(
        self,
        targets: Mapping[int, Target],
        interval: float,
        judged: Callable[[], None],
        sockets: Mapping[bool, socket.socket],
    ) -> None:
        """Take ``targets`` by the caller's numbers, and their ``sockets`` by whether they are IPv6.

        ``interval`` is in seconds. ``judged`` is called after each judgement.
        """
        self.links = {number: Liveness() for number in targets}
        self._targets = dict(targets)
        self._interval = interval
        self._wait = min(interval / 2, _MOST_WAIT)
        self._judged = judged
        self._sockets = dict(sockets)
        self._token = secrets.token_bytes(8)
        self._identity = secrets.randbits(16)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin to probe."""
        for raw in self._sockets.values():
            self._loop.add_reader(raw, self._drain)
        self._due = self._loop.time()
        self._send()

    def aim(self, number: int, target: Target) -> None:
        """Probe a link at this target from now on, even if it was not probed before.

        Raises ValueError if this process may not open the socket for it.
        """
        if target.ipv6 not in self._sockets:
            opened = open_echo_sockets([target])
            self._loop.add_reader(opened[target.ipv6], self._drain)
            self._sockets |= opened
        self.links.setdefault(number, Liveness())
        self._targets[number] = target

    def close(self) -> None:
        """Stop probing and close the sockets."""
        if self._timer is not None:
            self._timer.cancel()
        for raw in self._sockets.values():
            self._loop.remove_reader(raw)
            raw.close()

    def _send(self) -> None:
        for number, target in self._targets.items():
            sequence, ipv6 = self.links[number].send(), target.ipv6
            packet = request(self._identity, self._token, number, sequence, ipv6=ipv6)
            if ipv6:
                about = (socket.IPPROTO_IPV6, _IPV6_PKTINFO, _PKTINFO_6.pack(target.interface))
                to: tuple[str, int] | tuple[str, int, int, int]
                to = (target.address, 0, 0, target.interface)
            else:
                about = (socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO.pack(target.interface))
                to = (target.address, 0)
            with suppress(OSError):  # no carrier or no neighbour: the missing answer tells
                self._sockets[ipv6].sendmsg([packet], [about], 0, to)
        self._timer = self._loop.call_later(self._wait, self._judge)

    def _judge(self) -> None:
        self._drain()
        for liveness in self.links.values():
            liveness.judge()
        self._judged()
        now = self._loop.time()
        self._due += self._interval
        if self._due < now:  # held up: begin a new rhythm
            self._due = now + self._wait
        self._timer = self._loop.call_at(self._due, self._send)

    def _drain(self) -> None:
        for ipv6, raw in self._sockets.items():
            self._read(raw, ipv6=ipv6)

    def _read(self, raw: socket.socket, *, ipv6: bool) -> None:
        while True:
            try:
                packet, control, _, _ = raw.recvmsg(2048, 64)
            except BlockingIOError:
                return
            except OSError:
                continue
            found = reply(packet, self._token, ipv6=ipv6)
            if found is None:
                continue
            number, sequence = found
            target = self._targets.get(number)
            if target is not None and _interface(control) == target.interface:
                self.links[number].answer(sequence)


def _interface(control: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the index of the interface by which a packet arrived; 0 if unknown."""
    for level, kind, data in control:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
            return int(_PKTINFO.unpack_from(data)[0])
        if level == socket.IPPROTO_IPV6 and kind == _IPV6_PKTINFO:
            return int(_PKTINFO_6.unpack_from(data)[0])
    return 0
