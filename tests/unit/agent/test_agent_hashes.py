"""Models of hashes are right where a switch hashes that way, and are not believed elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from heddle_agent.host.hashes import MOST_LUCK, Flow, linux_hash, predict, seeds_of

FLOW = Flow("10.0.0.1", "10.0.1.1", {})
Choose = Callable[[int], tuple[str, ...]]


def linear(draw: random.Random, bits: int) -> Callable[[int], int]:
    """Draw an affine map over GF(2): each bit of the choice is an XOR of bits of the port."""
    masks, offset = [draw.getrandbits(16) for _ in range(bits)], draw.getrandbits(bits)
    return lambda port: (
        sum(((mask & port).bit_count() & 1) << at for at, mask in enumerate(masks)) ^ offset
    )


def crc16(port: int) -> int:
    """Return the CRC-16 (CCITT) of the five-tuple that ``FLOW`` has with this source port."""
    ends = b"".join(ip_address(end).packed for end in (FLOW.source, FLOW.destination))
    value = 0xFFFF
    for byte in ends + bytes((17,)) + port.to_bytes(2, "big") + (4791).to_bytes(2, "big"):
        value ^= byte << 8
        for _ in range(8):
            value = (value << 1 ^ 0x1021 if value & 0x8000 else value << 1) & 0xFFFF
    return value


def told(
    choose: Choose, ports: range, sample: int, flow: Flow = FLOW
) -> dict[int, tuple[str, ...]]:
    """Return the hops of all ports that a model predicts from ``sample`` probed ports."""
    probed = {port: choose(port) for port in random.Random(0).sample(ports, sample)}
    found = predict(flow, probed, ports)
    if found is None:
        return {}
    assert found.luck <= MOST_LUCK
    return found.hops


@pytest.mark.parametrize(("bits", "sample"), [(1, 60), (2, 36), (3, 48), (4, 96)])
def test_linear_hashes_are_told(bits: int, sample: int) -> None:
    """For twenty drawn hashes over 1,024 ports, few probes predict nearly all ports, none wrongly.

    A drawn hash that leads all ports to one next hop predicts nothing or the truth.
    """
    ports = range(49152, 50176)
    for seed in range(20):
        chosen = linear(random.Random(f"{bits}/{seed}"), bits)
        right = {port: ("leaf", f"spine{chosen(port)}", "far") for port in ports}
        found = told(right.__getitem__, ports, sample)
        assert found.items() <= right.items(), f"seed {seed}"
        several = len(set(right.values())) > 1
        assert len(found) >= 0.9 * several * len(ports), f"seed {seed}: {len(found)} told"


def test_a_crc_of_the_five_tuple_is_linear() -> None:
    """The lowest three bits of the CRC choose, and 36 probes predict 1,024 ports."""
    ports = range(49152, 50176)
    right = {port: ("leaf", f"spine{crc16(port) & 7}", "far") for port in ports}
    assert told(right.__getitem__, ports, 36) == right


def test_each_switch_may_hash_in_its_own_way() -> None:
    """In three tiers, the core that a spine chooses follows from the hash of that spine."""
    draw, ports = random.Random(3), range(49152, 50176)
    leaf, spines = linear(draw, 1), [linear(draw, 1) for _ in range(2)]

    def choose(port: int) -> tuple[str, ...]:
        spine = leaf(port)
        return "leaf", f"spine{spine}", f"core{spines[spine](port)}", "spine9", "far"

    assert told(choose, ports, 90) == {port: choose(port) for port in ports}


@pytest.mark.parametrize("count", [3, 5, 6, 8])
def test_other_hashes_are_not_believed(count: int) -> None:
    """A CRC's remainder or chance never makes the model predict a wrong port."""
    for seed in range(50):
        ports, chance = range(49152, 49216), random.Random(f"{count}/{seed}")
        chosen = {port: chance.randrange(count) for port in ports}
        for choice in (chosen, {port: (crc16(port) ^ seed) % count for port in ports}):
            right = {port: ("leaf", f"spine{choice[port]}", "far") for port in ports}
            found = told(right.__getitem__, ports, 32)
            assert found.items() <= right.items(), f"count {count} seed {seed}"
            assert not found or choice is not chosen


def test_one_path_alone_proves_no_model() -> None:
    """Ports that were not probed may take another path, so nothing is predicted."""
    assert told(lambda _: ("leaf", "spine0", "far"), range(49152, 49216), 32) == {}


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_seed_that_is_known_tells_all_ports(count: int) -> None:
    """With the seed, equal ranges of the kernel's hash predict all ports, in any order of hops.

    With a wrong seed or none, nothing is predicted.
    """
    names = random.Random(count).sample(range(count), count)
    ports = range(49152, 50176)

    def choose(port: int) -> tuple[str, ...]:
        part = linux_hash(FLOW.source, FLOW.destination, port, 77) * count >> 31
        return "10.9.9.9", f"spine{names[part]}", "far"

    known = Flow(FLOW.source, FLOW.destination, {"10.9.9.9": 77})
    assert told(choose, ports, 48, known) == {port: choose(port) for port in ports}
    assert told(choose, ports, 48, Flow(FLOW.source, FLOW.destination, {"10.9.9.9": 78})) == {}
    assert told(choose, ports, 48) == {}


@pytest.mark.parametrize(
    "document", [[], {"10.0.0.1": 0}, {"10.0.0.1": True}, {"10.0.0.1": 1 << 32}]
)
def test_seeds_that_are_none_are_refused(document: object) -> None:
    """Seeds are an object of whole numbers other than 0.

    A 0 stands for a seed that nobody knows.
    """
    with pytest.raises(ValueError, match="seeds: "):
        seeds_of(document)
    assert seeds_of({"fd00:0::1": 5}) == {"fd00::1": 5}
