"""Finds the path of each UDP source port by asking the switches: traceroute with a fixed 5-tuple.

The method follows Paris traceroute (Augustin et al., IMC 2006). All probes of a port have the
addresses and ports of the QP that is to use it, so switches that hash these send probes and QP the
same way. Probes differ in length, which comes back in the ICMP error and is not part of any hash.
The switch at which the TTL ends answers, from an address of its own choice.

Probes are sent at a steady pace, in rounds. Those that were not answered are sent again, because
switches limit how many errors they send.

IPv6 probes have the flow label 0. If switches hash the label, QPs must have it too.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

ROCE_PORT = 4791
MOST_HOPS = 16
_UDP = struct.Struct("!HHHH")
_ICMP = struct.Struct("!BBHI")
_TIME_EXCEEDED = 11
_SOL_RAW, _ICMP_FILTER = 255, 1
_BUFFER_BYTES = 4 << 20
_IPV4_HEADER, _IPV6_HEADER = 20, 40
_TIME_EXCEEDED_6, _ICMP6_FILTER = 3, 1
_IPV6_HOP_LIMIT, _IPV6_AUTO_FLOW_LABEL = 52, 70

Probe = tuple[str, int, int]
"""Probed address, UDP source port, TTL."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast and how often probes are sent."""

    hops: int = 5
    """Number of switches on the longest path: 3 in two tiers, 5 in three."""
    per_second: float = 1000.0
    wait_seconds: float = 0.5
    """How long to wait for the answers of a round."""
    rounds: int = 3


class Tracer:
    """Probes from one NIC; use it in a ``with`` statement."""

    def __init__(self, source: str, pace: Pace) -> None:
        """Open sockets; ValueError if this process may not, or has no such address."""
        self.source, self._pace = source, pace
        self.sent = 0
        self.answered = 0
        self._send, self._hear = open_trace_sockets(source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        self._send.close()
        self._hear.close()

    def trace(
        self, destinations: Sequence[str], ports: Sequence[int]
    ) -> dict[tuple[str, int], tuple[str, ...]]:
        """Return the addresses that answered, hop by hop, by destination and port.

        A hop that did not answer is "". Hops after the last one that answered are left out.
        """
        return self.follow([(to, port) for port in ports for to in destinations])

    def follow(self, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[str, ...]]:
        """Do what ``trace`` does, for single pairs of destination and port."""
        hops = range(1, self._pace.hops + 1)
        plain = {to: plain_address(to) for to, _ in wanted}
        open_ = [(plain[to], port, hop) for to, port in wanted for hop in hops]
        found: dict[Probe, str] = {}
        for _ in range(self._pace.rounds):
            self._round(open_, found)
            last: dict[tuple[str, int], int] = defaultdict(int)
            for to, port, hop in found:
                last[to, port] = max(last[to, port], hop)
            # Silence after the last answer usually means that the destination was reached.
            open_ = [
                probe for probe in open_ if probe not in found and probe[2] <= last[probe[:2]] + 1
            ]
            if not open_:
                break
        return {
            (to, port): tuple(_trimmed([found.get((plain[to], port, hop), "") for hop in hops]))
            for to, port in wanted
        }

    def _round(self, probes: Sequence[Probe], found: dict[Probe, str]) -> None:
        start, enough = time.monotonic(), len(found) + len(probes)
        for count, probe in enumerate(probes):
            self._listen(start + count / self._pace.per_second, found)
            with suppress(OSError):  # no route or no buffer: the next round tries again
                self._send.sendmsg(*message(probe))
                self.sent += 1
        self._listen(time.monotonic() + self._pace.wait_seconds, found, enough)

    def _listen(self, until: float, found: dict[Probe, str], enough: int = -1) -> None:
        """Receive answers until a time, or until there are ``enough``."""
        while True:
            wait = until - time.monotonic()
            if not select.select([self._hear], [], [], max(wait, 0.0))[0]:
                return
            packet, origin = self._hear.recvfrom(2048)
            about = probed(packet, self.source)
            if about is not None:
                found[about[0]] = origin[0]
                self.answered += 1
            if len(found) == enough:
                return


def open_trace_sockets(source: str) -> tuple[socket.socket, socket.socket]:
    """Return non-blocking sockets that send probes and receive ICMP errors.

    Raises ValueError if this process may not send such packets, or has no such address.
    """
    ipv6 = ":" in source
    family, icmp = socket.AF_INET, socket.IPPROTO_ICMP
    if ipv6:
        family, icmp = socket.AF_INET6, socket.IPPROTO_ICMPV6
    try:
        send = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_UDP)
        hear = socket.socket(family, socket.SOCK_RAW, icmp)
    except PermissionError:
        raise ValueError("probing paths needs CAP_NET_RAW: run it with that, or as root") from None
    try:
        send.bind((source, 0))
    except OSError as error:
        send.close()
        hear.close()
        raise ValueError(f"{source} is no address of this host: {error.strerror}") from None
    send.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)  # this socket never receives
    hear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    if ipv6:
        send.setsockopt(socket.IPPROTO_IPV6, _IPV6_AUTO_FLOW_LABEL, 0)
        blocked = struct.pack("=8I", ~(1 << _TIME_EXCEEDED_6) & 0xFFFFFFFF, *[0xFFFFFFFF] * 7)
        hear.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, blocked)
    else:
        only = ~(1 << _TIME_EXCEEDED) & 0xFFFFFFFF
        hear.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", only))
    hear.setblocking(False)
    return send, hear


def plain_address(address: str) -> str:
    """Return an address as the kernel writes it; other texts are returned unchanged."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


def message(
    probe: Probe, number: int = 0
) -> tuple[list[bytes], list[tuple[int, int, bytes]], int, tuple[str, int]]:
    """Return a probe as arguments of ``sendmsg``; its length is a header plus one byte per hop.

    The low 16 bits of ``number`` take the place of the checksum. They come back with the error, and
    a host that receives the probe by mistake drops it.
    """
    to, port, hop = probe
    head = _UDP.pack(port, ROCE_PORT, _UDP.size + hop, number & 0xFFFF)
    level, kind = socket.IPPROTO_IP, socket.IP_TTL
    if ":" in to:
        level, kind = socket.IPPROTO_IPV6, _IPV6_HOP_LIMIT
    return [head + bytes(hop)], [(level, kind, struct.pack("=i", hop))], 0, (to, 0)


def probed(packet: bytes, source: str) -> tuple[Probe, int] | None:
    """Return the probe that an ICMP error is about, and its number; None if it is not ours."""
    quoted = _quoted_6(packet) if ":" in source else _quoted_4(packet)
    if quoted is None:
        return None
    own, to, content = quoted
    if len(content) < _UDP.size or own != ipaddress.ip_address(source).packed:
        return None
    port, to_port, length, number = _UDP.unpack_from(content)
    hop = length - _UDP.size
    if to_port != ROCE_PORT or not 1 <= hop <= MOST_HOPS:
        return None
    return (str(ipaddress.ip_address(to)), port, hop), number


def _quoted_4(packet: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return addresses and content of the UDP packet in an IPv4 error that has its IP header."""
    if len(packet) < _IPV4_HEADER:
        return None
    start = (packet[0] & 0xF) * 4
    if len(packet) < start + _ICMP.size + _IPV4_HEADER or packet[start] != _TIME_EXCEEDED:
        return None
    inner = packet[start + _ICMP.size :]
    if inner[9] != socket.IPPROTO_UDP:
        return None
    return inner[12:16], inner[16:20], inner[(inner[0] & 0xF) * 4 :]


def _quoted_6(packet: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Do what ``_quoted_4`` does for an IPv6 error, which has no IP header."""
    if len(packet) < _ICMP.size + _IPV6_HEADER or packet[0] != _TIME_EXCEEDED_6:
        return None
    inner = packet[_ICMP.size :]
    if inner[6] != socket.IPPROTO_UDP:
        return None
    return inner[8:24], inner[24:40], inner[_IPV6_HEADER:]


def _trimmed(hops: list[str]) -> list[str]:
    while hops and not hops[-1]:
        hops.pop()
    return hops


def traced_document(
    source: str,
    traces: dict[tuple[str, int], tuple[str, ...]],
    modelled: Collection[tuple[str, int]] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the pairs of a port-paths.json, in which hops are the addresses that answered.

    ``modelled`` are destinations and ports that were predicted and not probed.
    """
    pairs: dict[str, dict[tuple[tuple[str, ...], str], list[int]]] = {}
    for (to, port), hops in traces.items():
        learned = "modelled" if (to, port) in modelled else "probed"
        pairs.setdefault(to, {}).setdefault((hops, learned), []).append(port)
    for to, ways in pairs.items():
        paths = [
            {"hops": [hop or None for hop in hops], "ports": ports, "learned": learned}
            for (hops, learned), ports in ways.items()
            if hops
        ]
        yield {"source": source, "destination": to, "paths": paths}
