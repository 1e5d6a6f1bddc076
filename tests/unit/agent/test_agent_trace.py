"""Probes, and the ICMP errors that answer them."""

from __future__ import annotations

import socket
import struct

import pytest

from heddle_agent.host.trace import message, probed, traced_document

SOURCE, TO = "10.0.0.1", "10.0.1.1"
NUMBER = 40_000


def ip(protocol: int, source: str, to: str, content: bytes) -> bytes:
    """Return an IPv4 packet without options."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(content), 0, 0, 1, protocol, 0)
    return head + socket.inet_aton(source) + socket.inet_aton(to) + content


def error(
    probe: tuple[str, int, int], kind: int = 11, source: str = SOURCE, kept: int = 28
) -> bytes:
    """Return a switch's ICMP error for a probe, with the first ``kept`` bytes of the probe."""
    (sent,), *_ = message(probe, NUMBER)
    quoted = ip(socket.IPPROTO_UDP, source, probe[0], sent)[:kept]
    return ip(socket.IPPROTO_ICMP, "10.9.9.9", source, struct.pack("!BBHI", kind, 0, 0, 0) + quoted)


def error_6(probe: tuple[str, int, int], kind: int = 3, source: str = "fd00::1") -> bytes:
    """Return the error of IPv6 as a raw socket receives it, without its IP header."""
    (sent,), *_ = message(probe, NUMBER)
    ends = b"".join(socket.inet_pton(socket.AF_INET6, end) for end in (source, probe[0]))
    quoted = struct.pack("!IHBB", 6 << 28, len(sent), socket.IPPROTO_UDP, 1) + ends + sent
    return struct.pack("!BBHI", kind, 0, 0, 0) + quoted


def test_an_error_of_ipv6_tells_its_probe() -> None:
    """The error identifies its probe however addresses are written. Other errors give None."""
    probe = ("fd00::2", 50000, 3)
    assert probed(error_6(probe), "fd00:0::1") == (probe, NUMBER)
    assert probed(error_6(probe, kind=1), "fd00::1") is None
    assert probed(error_6(probe, source="fd00::7"), "fd00::1") is None
    for length in range(len(error_6(probe)) - 4):
        assert probed(error_6(probe)[: min(length, 55)], "fd00::1") is None


@pytest.mark.parametrize("hop", [1, 3, 16])
def test_an_error_tells_its_probe(hop: int) -> None:
    """Destination, port, TTL and number follow from the 28 bytes that every router quotes."""
    assert probed(error((TO, 50000, hop)), SOURCE) == ((TO, 50000, hop), NUMBER)


def test_the_five_tuple_is_the_same_for_every_ttl() -> None:
    """Probes of one port differ only in length and TTL."""
    one, two = (message((TO, 50000, hop)) for hop in (1, 2))
    assert one[0][0][:4] == two[0][0][:4] == struct.pack("!HH", 50000, 4791)
    assert one[1] != two[1]
    assert one[3] == two[3]


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        error((TO, 50000, 1))[:30],
        error((TO, 50000, 1), kind=3),
        error((TO, 50000, 1), source="10.0.0.2"),
        error((TO, 50000, 1), kept=27),
        error((TO, 50000, 17)),
    ],
    ids=["nothing", "cut", "other-kind", "other-source", "short-quote", "no-ttl-of-ours"],
)
def test_what_is_about_no_probe_is_left_alone(packet: bytes) -> None:
    """Packets of others and damaged packets give None and raise nothing."""
    assert probed(packet, SOURCE) is None


def test_ports_of_one_path_stand_together() -> None:
    """In the document, silent hops are null, and a port that nobody answered is left out."""
    traces = {(TO, 1): ("a", "", "b"), (TO, 2): ("a", "", "b"), (TO, 3): ("a",), (TO, 4): ()}
    (pair,) = traced_document(SOURCE, traces)
    assert [(path["hops"], path["ports"]) for path in pair["paths"]] == [
        (["a", None, "b"], [1, 2]),
        (["a"], [3]),
    ]
