"""Which interfaces are links, by a file, and what the kernel's counters say of them."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from heddle_agent.fib import NextHop
from heddle_agent.watch import find_ports, rtnetlink
from heddle_agent.watch.errors import ErrorShare


def test_packets_in_error_are_told_once_they_matter() -> None:
    """Ten errors in the last ten looks and one packet in 10,000 are reported, until they stop."""
    share, packets = ErrorShare(), 0
    shares = []
    for errors in (5, 5, 14, 15, *[15] * 11):
        packets += 1000
        shares.append(share.look(packets, errors))
    assert shares[:3] == [0.0, 0.0, 0.0]
    assert shares[3] == pytest.approx(10 / 3010)
    assert shares[-1] == 0.0
    rare = ErrorShare()
    rare.look(0, 0)
    assert rare.look(10**6, 20) == 0.0
    assert rare.look(5, 3) == 0.0  # counters fell, so this is another interface of the same name
    assert rare.look(100, 13) == pytest.approx(10 / 105)


def test_the_kernel_counts_what_comes_in() -> None:
    """Packets over loopback are counted, and none of them is an error."""
    (index,) = [one.number for one in rtnetlink.interface_states() if one.name == "lo"]
    before = rtnetlink.counts()[index]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(50):
            sender.sendto(b"x", ("127.0.0.1", 9))
    after = rtnetlink.counts()[index]
    assert after.packets >= before.packets + 50
    assert after.sent >= before.sent + 50 * 29  # with their IP and UDP headers
    assert after.errors == 0


def test_a_file_names_interfaces(tmp_path: Path) -> None:
    """A link has a neighbour, a key and an address; the address may be unknown."""
    file = tmp_path / "links.json"
    file.write_text('{"lo": {"neighbour": "spine0", "key": "1", "address": "10.0.0.1"}}')
    (port,) = find_ports(str(file), "leaf0")
    assert (port.hop, port.interface, port.given) == (
        NextHop("spine0", "1", "10.0.0.1"),
        "lo",
        True,
    )
    file.write_text('{"lo": {"neighbour": "spine0"}}')
    (port,) = find_ports(str(file), "leaf0")
    assert (port.hop, port.given) == (NextHop("spine0"), False)


def test_a_file_may_say_how_fast_a_link_should_be(tmp_path: Path) -> None:
    """The speed is in Gbit/s, and 0 where the file does not give it."""
    file = tmp_path / "links.json"
    for text, gbps in (('"gbps": 400', 400.0), ('"gbps": 0.02', 0.02), ('"key": "0"', 0.0)):
        file.write_text(f'{{"lo": {{"neighbour": "spine0", {text}}}}}')
        (port,) = find_ports(str(file), "leaf0")
        assert port.gbps == gbps


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "give an object"),
        ('{"lo": {}}', 'lo: give {"neighbour": NODE}'),
        ('{"up7": {"neighbour": "spine0"}}', "has no interface up7"),
        ('{"lo": {"neighbour": "leaf0"}}', "lo leads to leaf0 itself"),
        ('{"lo": {"neighbour": "a", "speed": 4}}', "speed is not one of neighbour, key, address"),
        ('{"lo": {"neighbour": "a", "gbps": "4"}}', "gbps is '4', not a float"),
        ('{"lo": {"neighbour": "a", "gbps": true}}', "gbps is True, not a float"),
        ('{"lo": {"neighbour": "a", "gbps": -4}}', "lo has speed -4: give it in Gbit/s"),
        ('{"lo": {"neighbour": "a", "address": "b"}}', "'b' is no IP address"),
        ('{"lo": {"neighbour": "a", "probe": 1}}', "probe is 1, not a bool"),
        ("{}", "no interface is a link of leaf0"),
    ],
)
def test_links_that_cannot_be(tmp_path: Path, links: str, words: str) -> None:
    """The error names the file and says what is wrong with it."""
    file = tmp_path / "links.json"
    file.write_text(links)
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        find_ports(str(file), "leaf0")
    assert str(file) in str(refused.value)
