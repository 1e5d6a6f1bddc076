"""Fabrics for which no closed form gives the optimum, each drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_emulator.topology import clos, dragonfly, rail_optimised, random_regular, three_tier
from tests.bench.workloads import between_switches, flows_of, frayed, permutations, with_speeds

Random = np.random.Generator
Drawn = tuple[Fabric, Flows]


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of fabric and traffic."""

    draw: Callable[[Random, int], Drawn]
    """Draws a case from a random generator and the number of QPs of a flow."""
    irregular: bool = False
    """Whether the planner picks candidate paths by hop count, so that others might be better."""


def _pairs(fabric: Fabric, random: Random, count: int, qps: int) -> Flows:
    """Return flows between random pairs of NICs; some NICs are sent to more often than others."""
    nics = fabric.rows_of_kind(NodeKind.NIC)
    ends = np.array([random.choice(nics, 2, replace=False) for _ in range(count)])
    return flows_of("pairs", ends[:, 0], ends[:, 1], qps)


def _several(fabric: Fabric, random: Random, qps: int, most: int = 2) -> Flows:
    return permutations(fabric, int(random.integers(2**31)), int(random.integers(1, most + 1)), qps)


def _damaged(random: Random, qps: int) -> Drawn:
    """Return a zone with 2, 8 or 20 % of its links down."""
    leaves = int(random.choice([8, 16]))
    fabric = clos(leaves=leaves, spines=8, nics_per_leaf=8)
    fabric = frayed(fabric, random, float(random.choice([0.02, 0.08, 0.2])))
    return fabric, _several(fabric, random, qps)


def _tapered_planes(random: Random, qps: int) -> Drawn:
    """Return three zones under cores in planes, 1:2 or 1:7, whole or damaged."""
    taper = float(random.choice([2.0, 7.0]))
    fabric = three_tier(zones=3, leaves=6, spines=4, nics_per_leaf=4, cores=4, taper=taper)
    fabric = frayed(fabric, random, float(random.choice([0.0, 0.05])))
    return fabric, _several(fabric, random, qps)


def _tapered_mesh(random: Random, qps: int) -> Drawn:
    """Return two zones in which every spine meets every core, 1:3, whole or damaged."""
    fabric = three_tier(
        zones=2, leaves=6, spines=4, nics_per_leaf=4, cores=3, taper=3.0, wiring="mesh"
    )
    fabric = frayed(fabric, random, float(random.choice([0.0, 0.05])))
    return fabric, _several(fabric, random, qps)


def _mixed_speeds(random: Random, qps: int) -> Drawn:
    """Return a fabric with links of 100, 200 and 400 Gbit/s between the same tiers, some down."""
    fabric = clos(leaves=8, spines=6, nics_per_leaf=6, parallel=int(random.choice([1, 2])))
    drawn = random.choice([100, 200, 400], fabric.link_count)
    inner = between_switches(fabric)
    fabric = with_speeds(fabric, np.where(inner, drawn, fabric.structure.links.gbps))
    fabric = frayed(fabric, random, 0.05)
    return fabric, _several(fabric, random, qps)


def _rails(random: Random, qps: int) -> Drawn:
    """Return two rail-optimised units with parallel uplinks, some down."""
    fabric = rail_optimised(units=2, servers=8, rails=4, spines=4, parallel=2)
    fabric = frayed(fabric, random, float(random.choice([0.03, 0.1])))
    return fabric, _several(fabric, random, qps)


def _random_regular(random: Random, qps: int) -> Drawn:
    """Return plain switches in a random regular graph, whole or damaged."""
    fabric = random_regular(
        switches=16, degree=5, nics_per_switch=3, seed=int(random.integers(10**6))
    )
    fabric = frayed(fabric, random, float(random.choice([0.0, 0.05])))
    return fabric, _pairs(fabric, random, 60, qps)


def _dragonfly(random: Random, qps: int) -> Drawn:
    """Return nine groups of plain switches with one link between any two, whole or damaged."""
    fabric = dragonfly(routers=4, global_links=2, nics_per_switch=2)
    fabric = frayed(fabric, random, float(random.choice([0.0, 0.03])))
    return fabric, _pairs(fabric, random, 60, qps)


FAMILIES: Mapping[str, Family] = {
    "damaged": Family(_damaged),
    "tapered, planes": Family(_tapered_planes),
    "tapered, mesh": Family(_tapered_mesh),
    "mixed speeds": Family(_mixed_speeds),
    "rails": Family(_rails),
    "random regular": Family(_random_regular, irregular=True),
    "dragonfly": Family(_dragonfly, irregular=True),
}


def draw(family: str, qps: int, seed: int) -> Drawn:
    """Return one case. The same arguments always give the same case."""
    number = [*FAMILIES].index(family)
    return FAMILIES[family].draw(np.random.default_rng([number, qps, seed]), qps)
