"""Who sends to whom: the patterns of the literature, drawn from a seed.

A pattern is told the NICs that take part and answers with places among them, one
pair a flow. The random permutation is the one to fear: every NIC sends and receives
at line rate, so a non-blocking fabric carries it, and hashing does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.errors import refuse

_Pairs: TypeAlias = tuple[Ints, Ints]
Pattern: TypeAlias = Callable[[int, np.random.Generator], _Pairs]
"""From the number of NICs and a generator to places of sources and destinations."""

MOST_FLOWS = 10_000_000
"""More would not fit into the memory of an ordinary machine as a file."""


def permutation(nics: int, random: np.random.Generator) -> _Pairs:
    """Everyone to one other, and nobody to oneself."""
    target = random.permutation(nics).astype(np.int64)
    # Those who drew themselves hand what they drew on in a ring; one alone takes a partner.
    fixed = np.flatnonzero(target == np.arange(nics))
    if len(fixed) == 1:
        fixed = np.append(fixed, (fixed[0] + 1 + random.integers(nics - 1)) % nics)
    target[fixed] = target[np.roll(fixed, 1)]
    return np.arange(nics, dtype=np.int64), target


def shift(nics: int, _: np.random.Generator) -> _Pairs:
    """Everyone to the one half the fabric further: every flow takes the longest way."""
    source = np.arange(nics, dtype=np.int64)
    return source, (source + max(nics // 2, 1)) % nics


def _all_to_all(nics: int, _: np.random.Generator) -> _Pairs:
    """Everyone to everyone else."""
    if nics * (nics - 1) > MOST_FLOWS:
        reason = f"makes {nics * (nics - 1):,} flows of {nics:,} NICs; take fewer with --nics"
        raise refuse("traffic", "all-to-all", reason)
    source, offset = np.divmod(np.arange(nics * (nics - 1), dtype=np.int64), nics - 1)
    return source, (source + 1 + offset) % nics


def incast(nics: int, random: np.random.Generator) -> _Pairs:
    """Everyone to the same one."""
    target = int(random.integers(nics))
    source = np.delete(np.arange(nics, dtype=np.int64), target)
    return source, np.full(nics - 1, target, dtype=np.int64)


def uniform(nics: int, random: np.random.Generator) -> _Pairs:
    """Everyone to any other: some are sent to more often than they can take."""
    source = np.arange(nics, dtype=np.int64)
    return source, (source + 1 + random.integers(nics - 1, size=nics)) % nics


def incasts(nics: int, fan_in: int, random: np.random.Generator) -> _Pairs:
    """Groups of one that receives and ``fan_in`` that send to it; those left over do nothing.

    Raises:
        InputError: not a single group has so many.
    """
    if not 1 <= fan_in < nics:
        raise refuse("traffic", "fan-in", f"is {fan_in}; give 1 to {nics - 1}, the others of a NIC")
    groups = nics // (fan_in + 1)
    drawn = random.permutation(nics)[: groups * (fan_in + 1)].astype(np.int64)
    members = drawn.reshape(groups, fan_in + 1)
    return members[:, 1:].ravel(), np.repeat(members[:, 0], fan_in)


PATTERNS: dict[str, Pattern] = {
    "permutation": permutation,
    "shift": shift,
    "all-to-all": _all_to_all,
    "incast": incast,
    "uniform": uniform,
}
