"""Healthy 1:1 fabrics: the worst link of permutation sets, compared with the least possible.

The least is computed here from counts alone: how many flows leave a leaf, and how many uplinks it
has. Heddle has to reach it exactly, and to have proven it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import arc_loads, worst_by_tier
from heddle_controller.solve import solve
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos, rail_optimised, three_tier
from tests.bench import opensm
from tests.bench.pool import each
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.bench.workloads import permutations

TITLE = "healthy 1:1, sets of 1 to 5 permutations"
TIER = "leaf-spine"
EXACT = 1e-9
SETS = (1, 2, 3, 4, 5)
PEERS = {
    "ECMP": "ecmp",
    "E-ECMP, 32 QPs": "e-ecmp:32",
    "static by destination": "static",
    "d-mod-k": "dmodk",
    "greedy by intensity": "greedy",
}
FABRICS: Sequence[tuple[str, Callable[[], Fabric]]] = (
    ("8 x 8 x 8", lambda: clos(leaves=8, spines=8, nics_per_leaf=8)),
    ("16 x 16 x 16", lambda: clos(leaves=16, spines=16, nics_per_leaf=16)),
    ("2 units of rails", lambda: rail_optimised(units=2)),
    (
        "3 zones of 8 x 8 x 8",
        lambda: three_tier(zones=3, leaves=8, spines=8, nics_per_leaf=8, cores=8),
    ),
    (
        "4 zones of 6 x 4 x 4, mesh",
        lambda: three_tier(zones=4, leaves=6, spines=4, nics_per_leaf=4, cores=4, wiring="mesh"),
    ),
    (
        "5 zones of 4 x 6 x 6, 2 cores a plane",
        lambda: three_tier(zones=5, leaves=4, spines=6, nics_per_leaf=6, cores=12),
    ),
    ("8 x 4 x 8, links doubled", lambda: clos(leaves=8, spines=4, nics_per_leaf=8, parallel=2)),
    ("32 x 32 x 32", lambda: clos(leaves=32, spines=32, nics_per_leaf=32)),
    ("64 x 32 x 32", lambda: clos(leaves=64, spines=32, nics_per_leaf=32)),
    ("192 x 16 x 16", lambda: clos(leaves=192, spines=16, nics_per_leaf=16)),
)
"""Fabrics named leaves x spines x NICs per leaf, in order of size."""
SHOWN = "32 x 32 x 32"
"""The fabric whose worst link under one permutation is shown in flows, as publications do."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of permutations on one fabric."""

    fabric: int
    """Index into ``FABRICS``."""
    sets: int
    seed: int


@dataclass(frozen=True, slots=True)
class Found:
    """Worst links of a case, as utilisation."""

    case: Case
    least: float
    """The least possible for the leaves' uplinks, computed from counts."""
    reached: float
    met: bool
    """Whether Heddle reaches and proves the least in every tier between switches."""
    peers: dict[str, float]


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for Heddle and one for each peer."""
    cases = [
        Case(fabric, sets, seed)
        for fabric in reversed(range(min(scale.healthy_fabrics, len(FABRICS))))
        for sets in SETS
        for seed in range(scale.healthy_seeds)
    ]
    found: list[Found] = []
    with screen.progress(TITLE, len(cases)) as advance:
        for one in each(run, cases, scale.workers):
            found.append(one)
            advance(len(found))
    found.sort(key=lambda one: (one.case.fabric, one.case.sets, one.case.seed))
    return [_heddle(found), *(_peer(name, found) for name in PEERS), *_opensm(found)]


def run(case: Case) -> Found:
    """Plan one case with Heddle and with every peer."""
    fabric = FABRICS[case.fabric][1]()
    flows = permutations(fabric, case.seed, case.sets)
    plan = solve(fabric, flows)
    worst = worst_by_tier(fabric, arc_loads(2 * fabric.link_count, flows, plan.paths))
    least = least_uplink(fabric, flows)
    proven = {tier.tier: tier.lower_bound for tier in plan.certificate.tiers}
    met = all(abs(worst[tier] - proven[tier]) <= EXACT for tier in worst if tier != "nic-leaf")
    return Found(
        case,
        least,
        worst[TIER],
        met and abs(worst[TIER] - least) <= EXACT and not plan.unrouted,
        {name: strategy(key)(fabric, flows, case.seed).worst[TIER] for name, key in PEERS.items()},
    )


def least_uplink(fabric: Fabric, flows: Flows) -> float:
    """Return the most flows that leave or enter a leaf, divided by its uplinks, rounded up.

    It is rounded up since whole flows share links. All links must have one speed, and each flow
    must fill a link.
    """
    structure = fabric.structure
    kind = structure.nodes.kind
    leaf = _leaf_of(fabric)
    ends = leaf[flows.source], leaf[flows.destination]
    crossing = ends[0] != ends[1]
    rising = (kind[structure.tail] == NodeKind.LEAF) & (kind[structure.head] == NodeKind.SPINE)
    uplinks = np.bincount(structure.tail[rising], minlength=fabric.node_count)
    used = [np.bincount(end[crossing], minlength=fabric.node_count) for end in ends]
    return float(np.ceil(np.maximum(*used) / np.maximum(uplinks, 1)).max())


def _leaf_of(fabric: Fabric) -> Ints:
    structure = fabric.structure
    up = np.flatnonzero(structure.nodes.kind[structure.tail] == NodeKind.NIC)
    leaf = np.full(fabric.node_count, NONE, dtype=np.int64)
    leaf[structure.tail[up]] = structure.head[up]
    return leaf


def _heddle(found: list[Found]) -> Row:
    met = sum(one.met for one in found)
    return Row(
        TITLE,
        "Heddle",
        f"at the least in {met} of {len(found)}, worst {_times(found, lambda one: one.reached)}",
        "exactly the least, proven, in all",
        met == len(found),
        f"32 x 32 x 32, one permutation: {_shown(found, lambda one: one.reached)}",
        {
            "cases": len(found),
            "met": met,
            "missed": [_named(one.case) for one in found if not one.met][:20],
        },
    )


def _peer(name: str, found: list[Found]) -> Row:
    return _peer_row(name, found, lambda one: one.peers[name])


def _peer_row(name: str, found: list[Found], worst: Callable[[Found], float]) -> Row:
    ratios = [worst(one) / one.least for one in found]
    middle = quantile(ratios, 0.5)
    return Row(
        TITLE,
        name,
        f"median {middle:.2f} x the least, worst {max(ratios):.2f} x",
        note=f"32 x 32 x 32, one permutation: {_shown(found, worst)}",
        data={"cases": len(found), "median": middle, "worst": max(ratios)},
    )


def _opensm(found: list[Found]) -> list[Row]:
    """Return a row for OpenSM's own forwarding tables on the two-tier fabrics among the cases."""
    reason = opensm.missing()
    if reason:
        return [Row(TITLE, "OpenSM ftree", "not run", note=reason)]
    worst: dict[Case, float] = {}
    for number in sorted({one.case.fabric for one in found}):
        fabric = FABRICS[number][1]()
        if not opensm.walkable(fabric):
            continue
        tables = opensm.tables(fabric)
        for one in (one for one in found if one.case.fabric == number):
            flows = permutations(fabric, one.case.seed, one.case.sets)
            worst[one.case] = tables.measure(flows).worst[TIER]
    tried = [one for one in found if one.case in worst]
    return [_peer_row("OpenSM ftree", tried, lambda one: worst[one.case])] if tried else []


def _times(found: list[Found], worst: Callable[[Found], float]) -> str:
    return f"{max(worst(one) / one.least for one in found):.2f} x"


def _shown(found: list[Found], worst: Callable[[Found], float]) -> str:
    values = [worst(o) for o in found if o.case.sets == 1 and FABRICS[o.case.fabric][0] == SHOWN]
    return f"worst link {np.mean(values):.1f} on average" if values else "not tried"


def _named(case: Case) -> str:
    return f"{FABRICS[case.fabric][0]}, {case.sets} permutations, seed {case.seed}"
