"""Predicts which path a port takes by a model of the switches' hashes, so that fewer are probed.

Two families of hashes are known:

- *linear*: CRCs and XORs, of which a switch uses some bits. For two NICs, each of these bits is
  then an XOR of bits of the port, so ports whose difference (XOR) lies in one space over GF(2)
  take the same next hop. That space is spanned by the differences of ports that were seen to do
  so (the idea of RePaC, Zhang et al., USENIX ATC 2021). Nothing else of the hash need be known.
- *linux*: a kernel with ``fib_multipath_hash_policy=1`` whose ``fib_multipath_hash_seed`` is known:
  SipHash-2-4 of the flow's five-tuple, cut into equal ranges, one for each next hop.

``sampled`` probes some ports, predicts others by a model, and probes those that no model predicts.
A model is fitted switch by switch along the path. Some probed ports are held out, and a model is
believed only if it contradicts none of them and is right about too many to be a guess. ``luck``
is the chance that as many guesses, each as good as naming the most common path, are all right.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeAlias

from heddle_agent.host.addresses import nodes_by_address
from heddle_agent.host.trace import ROCE_PORT, Tracer, plain_address

MOST_LUCK = 1e-3
_HELD_OUT = 3
"""One probed port in this many is held out."""
_DRAW = 1
"""Seed that draws the ports to probe: the same each time, so that changes are seen."""
_UDP = 17
_MASK = 2**64 - 1
_STARTS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)

HopNames: TypeAlias = tuple[str, ...]
"""The switches that answered, hop by hop: addresses or names."""
_Class: TypeAlias = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Flow:
    """Everything that is hashed except the source port."""

    source: str
    destination: str
    seeds: Mapping[str, int]
    """``fib_multipath_hash_seed`` of switches, by their names in paths."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model predicts for ports that were not probed."""

    hops: dict[int, HopNames]
    """Paths by port; ports that the model knows nothing about are missing."""
    families: tuple[str, ...]
    """Families of the hashes used, "linear" and "linux"."""
    held_out: int
    """Number of held-out ports that were predicted correctly."""
    luck: float
    """Chance that guesses would be right as often."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of switches beforehand."""

    seeds: Mapping[str, int] = field(default_factory=dict)
    """``fib_multipath_hash_seed`` by address, or by name for switches with a name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names by address: a switch that answers from several addresses is still one switch."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The paths of ports, some of them predicted."""

    traces: dict[tuple[str, int], HopNames]
    """Paths by destination and port, as ``Tracer.trace`` returns them."""
    modelled: frozenset[tuple[str, int]]
    """Destinations and ports that were predicted and not probed."""
    told: dict[str, Prediction]
    """The predictions that were believed, by destination."""


def sampled(
    tracer: Tracer,
    destinations: Sequence[str],
    ports: Sequence[int],
    sample: int,
    known: Known,
) -> Sampled:
    """Probe ``sample`` of the ports, and of the others only those that no model predicts."""
    chosen = Random(_DRAW).sample(ports, min(sample, len(ports)))  # noqa: S311 - any will do
    traces = tracer.trace(destinations, chosen)
    told: dict[str, Prediction] = {}
    for to in destinations:
        named: dict[HopNames, HopNames] = {}
        probed: dict[int, HopNames] = {}
        for port in chosen:
            if hops := traces[to, port]:
                probed[port] = tuple(known.names.get(hop, hop) for hop in hops)
                named.setdefault(probed[port], hops)
        flow = Flow(tracer.source, to, known.seeds)
        if found := predict(flow, probed, set(ports) - set(chosen)):
            hops_of = {port: named[path] for port, path in found.hops.items()}
            told[to] = replace(found, hops=hops_of)
    modelled = {(to, port): hops for to, each in told.items() for port, hops in each.hops.items()}
    done = traces.keys() | modelled.keys()
    rest = [(to, port) for port in ports for to in destinations if (to, port) not in done]
    traces = {**traces, **modelled, **(tracer.follow(rest) if rest else {})}
    return Sampled(traces, frozenset(modelled), told)


def seeds_of(document: object) -> dict[str, int]:
    """Return seeds by address or name from a JSON object; ValueError if it is malformed."""
    if not isinstance(document, dict):
        raise ValueError("seeds: give an object, switch to seed")  # noqa: TRY004 - bad input
    seeds: dict[str, int] = {}
    for switch, seed in document.items():
        if type(seed) is not int or not 0 < seed < 1 << 32:
            raise ValueError(f"seeds: {switch!r} has {seed!r}: give one from 1 to 4294967295")
        seeds[plain_address(switch)] = seed
    return seeds


def names_of(fabric: object) -> dict[str, str]:
    """Return node names by all their addresses in a fabric.json; ValueError if it is none.

    The result is empty if any links are parallel, because then only the address tells by which of
    them a packet arrived.
    """
    node_at = nodes_by_address(fabric)
    ends = Counter(frozenset((edge["source"], edge["target"])) for edge in fabric["edges"])  # type: ignore[index]
    return node_at if max(ends.values(), default=1) == 1 else {}


def predict(flow: Flow, probed: Mapping[int, HopNames], ports: Iterable[int]) -> Prediction | None:
    """Predict the paths of ports from those of probed ones; None if no model is believed."""
    rows = [*probed.items()]
    held = rows[::_HELD_OUT]
    trained = _fit(flow, dict(row for at, row in enumerate(rows) if at % _HELD_OUT), 0)
    if trained is None:
        return None
    told = [(_follow(trained, port), hops) for port, hops in held]
    right = sum(found == hops for found, hops in told)
    if any(found not in {None, hops} for found, hops in told):
        return None
    commonest = max(Counter(probed.values()).values()) / len(rows)
    luck = commonest**right
    model = _fit(flow, dict(rows), 0)
    if luck > MOST_LUCK or model is None:
        return None
    found = {port: _follow(model, port) for port in ports}
    known = {port: hops for port, hops in found.items() if hops is not None}
    return Prediction(known, tuple(sorted(_families(model))), right, luck)


@dataclass(frozen=True, slots=True)
class _Switch:
    """A fitted model of the choice that one switch makes."""

    family: str
    class_of: _Class
    ways: Mapping[int, _Switch | HopNames]
    """By class: the next switch that chooses, or the path if there is no further choice."""


def _follow(model: _Switch | HopNames, port: int) -> HopNames | None:
    """Return the path of a port; None if nothing is known of its class."""
    at: _Switch | HopNames | None = model
    while isinstance(at, _Switch):
        at = at.ways.get(at.class_of(port))
    return at


def _families(model: _Switch | HopNames) -> set[str]:
    if not isinstance(model, _Switch):
        return set()
    return {model.family}.union(*map(_families, model.ways.values()))


def _fit(flow: Flow, probed: Mapping[int, HopNames], hop: int) -> _Switch | HopNames | None:
    """Return a model of ports that are alike up to some hop; None if no family fits."""
    paths = list(dict.fromkeys(probed.values()))
    if len(paths) <= 1:
        return paths[0] if paths else None
    nexts = {port: hops[hop : hop + 1] for port, hops in probed.items()}
    names = list(dict.fromkeys(nexts.values()))
    if len(names) == 1:
        return _fit(flow, probed, hop + 1)
    seed = flow.seeds.get(paths[0][hop - 1]) if hop else None
    tried = [_linear(nexts)] if seed is None else _linux(flow, seed, len(names))
    fit = [pair for each in tried if (pair := _classes(each, nexts))]
    if len(fit) != 1:  # if several fit, nothing tells which is right
        return None
    class_of, of_class = fit[0]
    fitted = {
        name: _fit(flow, {port: probed[port] for port in probed if nexts[port] == name}, hop + 1)
        for name in names
    }
    ways: dict[int, _Switch | HopNames] = {}
    for number, name in of_class.items():
        way = fitted[name]
        if way is None:
            return None
        ways[number] = way
    return _Switch("linear" if seed is None else "linux", class_of, ways)


def _classes(
    class_of: _Class, nexts: Mapping[int, HopNames]
) -> tuple[_Class, dict[int, HopNames]] | None:
    """Return the next hop of each class; None if classes and next hops do not match one to one."""
    of_class: dict[int, HopNames] = {}
    for port, name in nexts.items():
        if of_class.setdefault(class_of(port), name) != name:
            return None
    return (class_of, of_class) if len(set(of_class.values())) == len(of_class) else None


def _linear(nexts: Mapping[int, HopNames]) -> _Class:
    """Return classes of ports whose differences lie in the space that equal next hops span."""
    first: dict[HopNames, int] = {}
    basis: list[int] = []  # by descending leading bit, each different
    for port, name in nexts.items():
        difference = _reduced(port ^ first.setdefault(name, port), basis)
        if difference:
            basis = sorted([*basis, difference], reverse=True)
    return lambda port: _reduced(port, basis)


def _reduced(value: int, basis: Sequence[int]) -> int:
    for vector in basis:
        value = min(value, value ^ vector)
    return value


def _linux(flow: Flow, seed: int, seen: int) -> Iterator[_Class]:
    """Yield ranges of the kernel's hash for each number of next hops that is likely.

    All next hops have the same weight. Some may not have been seen: up to as many again as
    ``seen``.
    """
    for count in range(seen, 2 * seen):
        yield _ranges(flow, seed, count)


def _ranges(flow: Flow, seed: int, count: int) -> _Class:
    bounds = [((at + 1) * 2**31 + count // 2) // count - 1 for at in range(count)]
    return lambda port: bisect_left(bounds, linux_hash(flow.source, flow.destination, port, seed))


def linux_hash(source: str, destination: str, port: int, seed: int) -> int:
    """Return the 31-bit hash of a Linux router for UDP packets from ``port`` to port 4791.

    Addresses and ports are first put in order, as the kernel does it (little endian). The layout is
    that of the kernel's flow keys, where unused fields are 0.
    """
    ends = [ipaddress.ip_address(end).packed for end in (source, destination)]
    ends.sort(key=lambda end: end if len(end) > 4 else end[::-1])  # noqa: PLR2004 - IPv4's bytes
    ports = sorted((one.to_bytes(2, "big") for one in (port, ROCE_PORT)), key=lambda one: one[::-1])
    flow = bytes((0, 0, _UDP)).ljust(28, b"\0") + b"".join(ports).ljust(8, b"\0")
    hashed = _siphash(flow + b"".join(ends) + bytes(4), seed << 32 | seed) & 0xFFFFFFFF
    return max(hashed, 1) >> 1


def _siphash(message: bytes, half: int) -> int:
    """Return SipHash-2-4 (Aumasson, Bernstein 2012); both 64-bit halves of the key are ``half``."""
    a, b, c, d = (start ^ half for start in _STARTS)
    padded = message.ljust(len(message) // 8 * 8 + 7, b"\0") + bytes((len(message) & 0xFF,))
    words = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
    for word in words:
        a, b, c, d = _rounds(2, a, b, c, d ^ word)
        a ^= word
    a, b, c, d = _rounds(4, a, b, c ^ 0xFF, d)
    return a ^ b ^ c ^ d


def _rounds(count: int, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        a = a + b & _MASK
        b = _rotated(b, 13) ^ a
        c = c + d & _MASK
        d = _rotated(d, 16) ^ c
        a = _rotated(a, 32) + d & _MASK
        d = _rotated(d, 21) ^ a
        c = c + b & _MASK
        b = _rotated(b, 17) ^ c
        c = _rotated(c, 32)
    return a, b, c, d


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK
