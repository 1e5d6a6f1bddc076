"""Which interfaces are links: files that say so, as far as any machine can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heddle_agent.fib import NextHop
from heddle_agent.watch import find_ports


def test_a_file_names_interfaces(tmp_path: Path) -> None:
    """The neighbour, the key and its address; without an address nothing is probed."""
    file = tmp_path / "links.json"
    file.write_text('{"lo": {"neighbour": "spine0", "key": "1", "address": "10.0.0.1"}}')
    (port,) = find_ports(str(file), "leaf0")
    assert (port.hop, port.interface, port.probe) == (
        NextHop("spine0", "1", "10.0.0.1"),
        "lo",
        True,
    )
    file.write_text('{"lo": {"neighbour": "spine0"}}')
    (port,) = find_ports(str(file), "leaf0")
    assert (port.hop, port.probe) == (NextHop("spine0"), False)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "give an object"),
        ('{"lo": {}}', 'lo: give {"neighbour": NODE}'),
        ('{"up7": {"neighbour": "spine0"}}', "has no interface up7"),
        ('{"lo": {"neighbour": "leaf0"}}', "lo leads to leaf0 itself"),
        ('{"lo": {"neighbour": "a", "speed": 4}}', "speed is none of neighbour, key, address"),
        ('{"lo": {"neighbour": "a", "address": "b"}}', "'b' is no IPv4 address"),
        ('{"lo": {"neighbour": "a", "probe": 1}}', "probe is 1, not a bool"),
        ("{}", "no interface is a link of leaf0"),
    ],
)
def test_links_that_cannot_be(tmp_path: Path, links: str, words: str) -> None:
    """The file is named, and what is wrong with it."""
    file = tmp_path / "links.json"
    file.write_text(links)
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        find_ports(str(file), "leaf0")
    assert str(file) in str(refused.value)
