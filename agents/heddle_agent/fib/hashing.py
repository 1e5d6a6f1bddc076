"""The hash by which an underlay chooses among equal next hops.

It mixes the 5-tuple and a seed per switch into 64 bits, so that switches along a path do not all
choose alike (polarisation). It does not depend on the order in which names were seen, so runs can
be repeated. The scalar form and the array form give the same value for the same packet.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Hashes: TypeAlias = NDArray[np.uint64]
Ints: TypeAlias = NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_NUMPY_FIRST, _NUMPY_SECOND = np.uint64(_FIRST), np.uint64(_SECOND)
_HALF = np.uint64(32)


def name_hash(name: str) -> int:
    """Return a 64-bit hash of a name, the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _mix(value: int) -> int:
    """Mix 64 bits with SplitMix64's finaliser: every input bit affects every output bit."""
    value ^= value >> 30
    value = value * _FIRST & _MASK
    value ^= value >> 27
    value = value * _SECOND & _MASK
    return value ^ value >> 31


def _mixed(values: Hashes) -> Hashes:
    """Apply ``_mix`` to an array, in place."""
    values ^= values >> np.uint64(30)
    values *= _NUMPY_FIRST
    values ^= values >> np.uint64(27)
    values *= _NUMPY_SECOND
    values ^= values >> np.uint64(31)
    return values


def _start(seed: int) -> int:
    return _mix((seed + _GOLDEN) & _MASK)


def flow_hash(
    seed: int, source: str, destination: str, source_port: int, destination_port: int
) -> int:
    """Hash one UDP packet to 64 bits."""
    value = _mix(_start(seed) ^ name_hash(source))
    value = _mix(value ^ name_hash(destination))
    return _mix(value ^ (source_port << 16 | destination_port))


def flow_hashes(
    seed: int, sources: Hashes, destinations: Hashes, source_ports: Ints, destination_ports: Ints
) -> Hashes:
    """Hash packets, one element each; sources and destinations are ``NicIds.hashes``."""
    ports = (source_ports.astype(np.uint64) << np.uint64(16)) | destination_ports.astype(np.uint64)
    values = _mixed(sources ^ np.uint64(_start(seed)))
    values = _mixed(values ^ destinations)
    return _mixed(values ^ ports)


def choose(value: int, among: int) -> int:
    """Turn a hash into an index below ``among``, evenly and without a division."""
    return (value >> 32) * among >> 32


def chosen(values: Hashes, among: Ints) -> Ints:
    """Apply ``choose`` to arrays."""
    return ((values >> _HALF) * among.astype(np.uint64) >> _HALF).astype(np.int64)
