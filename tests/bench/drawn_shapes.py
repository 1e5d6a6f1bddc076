"""Fabrics, damage and traffic drawn from a seed, to find cases that nobody thought of.

Fabrics have two tiers, three tiers in planes or as a mesh, or rails. Their sizes are odd, and they
are over- or undersubscribed. In a quarter of them the links between switches have different speeds.
Up to eight links fail, of one switch or anywhere. Traffic is one or two permutations of all NICs or
of half of them, or every NIC sends to a random one. All flows of a case ask for line rate and have
the same number of QPs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows, concatenate
from heddle_emulator.topology import clos, rail_optimised, three_tier
from tests.bench.workloads import between_switches, flows_of, shuffled, with_speeds, without

QPS = (4, 8, 16, 32, 64)
MOST_FAILED = 8
TRAFFIC = ("permutations", "half of the NICs", "anyone")

Random = np.random.Generator


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One drawn case."""

    name: str
    """A description for people."""
    fabric: Fabric
    flows: Flows


def two_tiers(random: Random) -> Fabric:
    """Return leaves and spines; a leaf's uplinks carry a tenth to many times its NICs' rate."""
    return clos(
        leaves=_any(random, 2, 6),
        spines=_any(random, 2, 9),
        nics_per_leaf=_any(random, 2, 10),
        parallel=int(random.choice([1, 1, 2])),
        uplink_gbps=float(random.choice([200, 400, 400, 800])),
    )


def planes(random: Random) -> Fabric:
    """Return zones in which each spine has cores of its own."""
    spines = _any(random, 2, 6)
    return three_tier(
        zones=_any(random, 2, 3),
        leaves=_any(random, 2, 4),
        spines=spines,
        nics_per_leaf=_any(random, 2, 7),
        cores=spines * _any(random, 1, 2),
        taper=float(random.choice([1, 2, 4, 7])),
    )


def mesh(random: Random) -> Fabric:
    """Return zones in which every spine is linked to every core."""
    return three_tier(
        zones=_any(random, 2, 3),
        leaves=_any(random, 2, 4),
        spines=_any(random, 2, 5),
        nics_per_leaf=_any(random, 2, 6),
        cores=_any(random, 2, 5),
        taper=float(random.choice([1, 2, 4])),
        wiring="mesh",
    )


def rails(random: Random) -> Fabric:
    """Return units in which each NIC of a host is on a leaf of its own."""
    return rail_optimised(
        units=_any(random, 1, 2),
        servers=_any(random, 3, 8),
        rails=_any(random, 2, 4),
        spines=_any(random, 2, 7),
        parallel=_any(random, 1, 2),
    )


KINDS: Mapping[str, Callable[[Random], Fabric]] = {
    "two tiers": two_tiers,
    "planes": planes,
    "mesh": mesh,
    "rails": rails,
}


def drawn(seed: int) -> Drawn:
    """Return the case of a seed. The kinds of fabric take turns."""
    random = np.random.default_rng([7, seed])
    kind = [*KINDS][seed % len(KINDS)]
    fabric = KINDS[kind](random)
    unlike = random.random() < 1 / 4
    if unlike:
        rows = np.flatnonzero(between_switches(fabric))
        gbps = fabric.structure.links.gbps.copy()
        gbps[rows] *= random.choice([0.5, 1.0, 1.0, 2.0], len(rows))
        fabric = with_speeds(fabric, gbps)
    failed = _failing(random, fabric)
    qps, traffic = int(random.choice(QPS)), str(random.choice(TRAFFIC))
    nics = fabric.rows_of_kind(NodeKind.NIC)
    sets = [_set(random, f"p{turn}", nics, qps, traffic) for turn in range(_any(random, 1, 2))]
    speeds = ", unlike speeds" if unlike else ""
    name = f"{seed}: {kind}, {len(nics)} NICs{speeds}, {len(failed)} links down"
    return Drawn(f"{name}, {traffic} x {len(sets)}, {qps} QPs", without(fabric, failed), _all(sets))


def _any(random: Random, least: int, most: int) -> int:
    return int(random.integers(least, most + 1))


def _failing(random: Random, fabric: Fabric) -> Ints:
    """Draw links between switches: at most all but one of one switch, or half of all links."""
    rows, count = np.flatnonzero(between_switches(fabric)), _any(random, 0, MOST_FAILED)
    if random.random() < 1 / 2:
        lower = fabric.structure.links.a[rows]
        rows = rows[lower == random.choice(np.unique(lower))]
        return random.choice(rows, min(count, len(rows) - 1), replace=False)
    return random.choice(rows, min(count, len(rows) // 2), replace=False)


def _set(random: Random, job: str, nics: Ints, qps: int, traffic: str) -> Flows:
    if traffic == "anyone":
        to = random.choice(nics, len(nics))
        apart = to != nics
        return flows_of(job, nics[apart], to[apart], qps)
    if traffic == "half of the NICs":
        nics = np.sort(random.choice(nics, max(3, len(nics) // 2), replace=False))
    return flows_of(job, nics, shuffled(nics, random), qps)


def _all(sets: list[Flows]) -> Flows:
    return sets[0] if len(sets) == 1 else concatenate(sets)
