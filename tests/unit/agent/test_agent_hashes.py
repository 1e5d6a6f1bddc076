"""Models of hashes: right where a switch hashes so, and not believed elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from heddle_agent.host.hashes import MOST_LUCK, Flow, linux_hash, predict, seeds_of

FLOW = Flow("10.0.0.1", "10.0.1.1", {})
Choose = Callable[[int], tuple[str, ...]]


def linear(draw: random.Random, bits: int) -> Callable[[int], int]:
    """A drawn affine map over GF(2): each bit of the choice is an XOR of bits of the port."""
    masks, offset = [draw.getrandbits(16) for _ in range(bits)], draw.getrandbits(bits)
    return lambda port: (
        sum(((mask & port).bit_count() & 1) << at for at, mask in enumerate(masks)) ^ offset
    )


def crc16(port: int) -> int:
    """CRC-16 (CCITT) of the five-tuple of a flow of ``FLOW``."""
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
    """What a model tells of all ports from a sample of them."""
    probed = {port: choose(port) for port in random.Random(0).sample(ports, sample)}
    found = predict(flow, probed, ports)
    if found is None:
        return {}
    assert found.luck <= MOST_LUCK
    return found.hops


@pytest.mark.parametrize(("bits", "sample"), [(1, 60), (2, 36), (3, 48), (4, 96)])
def test_linear_hashes_are_told(bits: int, sample: int) -> None:
    """Twenty drawn ones over 1,024 ports: nothing wrong, and nearly all, from as few probes."""
    ports = range(49152, 50176)
    for seed in range(20):
        chosen = linear(random.Random(f"{bits}/{seed}"), bits)
        right = {port: ("leaf", f"spine{chosen(port)}", "far") for port in ports}
        found = told(right.__getitem__, ports, sample)
        assert found.items() <= right.items(), f"seed {seed}"
        several = len(set(right.values())) > 1
        assert len(found) >= 0.9 * several * len(ports), f"seed {seed}: {len(found)} told"


def test_a_crc_of_the_five_tuple_is_linear() -> None:
    """Its lowest three bits choose; 36 probes tell 1,024 ports."""
    ports = range(49152, 50176)
    right = {port: ("leaf", f"spine{crc16(port) & 7}", "far") for port in ports}
    assert told(right.__getitem__, ports, 36) == right


def test_each_switch_may_hash_in_its_own_way() -> None:
    """Three tiers: which core a spine chooses follows from that spine's hash."""
    draw, ports = random.Random(3), range(49152, 50176)
    leaf, spines = linear(draw, 1), [linear(draw, 1) for _ in range(2)]

    def choose(port: int) -> tuple[str, ...]:
        spine = leaf(port)
        return "leaf", f"spine{spine}", f"core{spines[spine](port)}", "spine9", "far"

    assert told(choose, ports, 90) == {port: choose(port) for port in ports}


@pytest.mark.parametrize("count", [3, 5, 6, 8])
def test_other_hashes_are_not_believed(count: int) -> None:
    """Remainders of a CRC by what is no power of two, and chance: never a wrong port is told."""
    for seed in range(50):
        ports, chance = range(49152, 49216), random.Random(f"{count}/{seed}")
        chosen = {port: chance.randrange(count) for port in ports}
        for choice in (chosen, {port: (crc16(port) ^ seed) % count for port in ports}):
            right = {port: ("leaf", f"spine{choice[port]}", "far") for port in ports}
            found = told(right.__getitem__, ports, 32)
            assert found.items() <= right.items(), f"count {count} seed {seed}"
            assert not found or choice is not chosen


def test_one_path_alone_proves_no_model() -> None:
    """Ports that were not probed may take another."""
    assert told(lambda _: ("leaf", "spine0", "far"), range(49152, 49216), 32) == {}


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_seed_that_is_known_tells_all_ports(count: int) -> None:
    """Equal ranges of the kernel's hash, in whatever order; with another seed nothing is told."""
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
    """Objects of whole numbers alone, none of them 0: that is a seed that nobody knows."""
    with pytest.raises(ValueError, match="seeds: "):
        seeds_of(document)
    assert seeds_of({"fd00:0::1": 5}) == {"fd00::1": 5}
