from __future__ import annotations

from collections import Counter

import numpy as np

from heddle_agent.fib import NicIds, flow_hash, flow_hashes
from heddle_agent.fib.hashing import choose, chosen


def test_scalar_and_array_agree_on_every_packet() -> None:
    """The two forms of the hash, and of the choice, give the same values, bit for bit."""
    names = NicIds(f"nic{number}" for number in range(50))
    draw = np.random.default_rng(3)
    source, destination = draw.integers(0, 50, 500), draw.integers(0, 50, 500)
    ports, other = draw.integers(0, 65536, 500), draw.integers(0, 65536, 500)
    hashes = names.hashes
    many = flow_hashes(2**64 - 1, hashes[source], hashes[destination], ports, other)
    one = [
        flow_hash(2**64 - 1, names.name(s), names.name(d), p, o)
        for s, d, p, o in zip(
            source.tolist(), destination.tolist(), ports.tolist(), other.tolist(), strict=True
        )
    ]
    assert many.tolist() == one
    assert chosen(many, np.full(500, 7)).tolist() == [choose(value, 7) for value in one]


def test_the_hash_is_even_and_switches_differ() -> None:
    """16,000 flows on 16 next hops come to about 1,000 each. Two seeds agree on about 1 in 16."""
    first = [choose(flow_hash(1, "a", "b", port, 4791), 16) for port in range(16_000)]
    second = [choose(flow_hash(2, "a", "b", port, 4791), 16) for port in range(16_000)]
    loads = Counter(first).values()
    assert len(loads) == 16
    assert min(loads) > 850
    assert max(loads) < 1150
    same = sum(one == other for one, other in zip(first, second, strict=True))
    assert 800 < same < 1200


def test_the_hash_tells_directions_and_ports_apart() -> None:
    """Swapping the two ends or the two ports gives another hash."""
    value = flow_hash(1, "a", "b", 1, 2)
    assert len({value, flow_hash(1, "b", "a", 1, 2), flow_hash(1, "a", "b", 2, 1)}) == 3


def test_the_hash_does_not_depend_on_the_order_of_names() -> None:
    """Two processes that number the NICs in different orders hash them alike."""
    assert NicIds(["a", "b"]).hashes.tolist() == NicIds(["b", "a"]).hashes.tolist()[::-1]


def test_names_keep_their_ids() -> None:
    """A name keeps one id for ever, and the id leads back to the name."""
    names = NicIds(["x", "y"])
    assert names.ids(["y", "z", "x", "z"]).tolist() == [1, 2, 0, 2]
    assert [names.name(number) for number in range(len(names))] == ["x", "y", "z"]
    assert len(names.hashes) == 3
