"""Dual-ToR fabrics, 1:1: the worst link of permutations, and how long plans take.

Every NIC has a link of half its rate to each leaf of a pair, with one plane or with two. The time
of a plan is compared with that of a plan for as many NICs with a single link, in the same run. This
is also done where each NIC sends to a neighbour, most often below the same leaves.

Where some links of NICs are down, no flow should be slower than those links make it. Where a spine
or some links between switches are down, the time is compared with that for NICs with a single link
and the same damage, and the worst link with the proven bound.
"""

from __future__ import annotations

import time
from itertools import product
from statistics import mean, median

import numpy as np

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.solve import solve
from heddle_controller.solve.network import Network
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos, dual_tor
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches, flows_of, frayed, permutations

TITLE = "dual-ToR 1:1, permutations of 8 QPs"
QPS = 8
SETS = (1, 2, 3)
PEERS = {"ECMP": "ecmp", "E-ECMP, 32 QPs": "e-ecmp:32", "greedy by intensity": "greedy"}
EXACT = 1e-9
LOST = 50
"""One link in this many links of NICs is down."""
FRAYED = 0.005
"""Share of links between switches that are down."""
DAMAGE = ("a spine", f"{FRAYED:.1%} of leaf-spine links")
SLOWER = 6.0
"""A plan may take this many times as long as one for NICs with a single link.

There are twice as many links and paths, and which link each NIC uses is a choice.
"""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return rows for Heddle, for each peer, with damage, and for each size that is timed."""
    leaves, _, nics = scale.zone
    small = [_dual(planes, pairs=4, nics=16) for planes in (1, 2)]
    cases = [(fabric, permutations(fabric, 1, sets, QPS)) for fabric in small for sets in SETS]
    least: list[float] = []
    met = 0
    with screen.progress(TITLE, len(cases)) as advance:
        for number, (fabric, flows) in enumerate(cases, 1):
            told = solve(fabric, flows).certificate
            least.append(told.lower_bound)
            met += told.max_utilization <= told.lower_bound + EXACT
            advance(number)
    text = "exactly the least, proven, in all"
    rows = [Row(TITLE, "Heddle", f"at the least in {met} of {len(cases)}", text, met == len(cases))]
    for name, key in PEERS.items():
        ratios = [
            max(strategy(key)(fabric, flows, 1).worst.values()) / best
            for (fabric, flows), best in zip(cases, least, strict=True)
        ]
        shown = f"median {median(ratios):.2f} x the least, worst {max(ratios):.2f} x"
        rows.append(Row(TITLE, name, shown, data={"worst": max(ratios)}))
    rows += _hurt(small)
    rows += _damaged([_dual(planes, pairs=8, nics=32) for planes in (1, 2)])
    pairs = max(2, leaves // 8)
    sizes = [(pairs, nics * 8), (pairs * scale.zones, nics * 8)]
    rows += [_timed(scale, planes, *size) for size in sizes for planes in (1, 2)]
    rows.append(_timed(scale, 2, *sizes[-1], permutation=False))
    drawn = product(sizes, (1, 2), DAMAGE)
    return [*rows, *(_timed_damaged(planes, damage, *size) for size, planes, damage in drawn)]


def _dual(planes: int, pairs: int, nics: int) -> Fabric:
    return dual_tor(pairs=pairs, spines=planes * nics // 2, nics_per_pair=nics, planes=planes)


def _hurt(fabrics: list[Fabric]) -> list[Row]:
    """Compare the rates of flows with what the links of their NICs can carry, some being down."""
    title = f"dual-ToR 1:1, one link of a NIC in {LOST} down"
    shares: dict[str, list[float]] = {name: [] for name in ("Heddle", *PEERS)}
    for fabric, seed in product(fabrics, SETS):
        links = np.flatnonzero(~between_switches(fabric))
        lost = np.random.default_rng(seed).choice(links, len(links) // LOST, replace=False)
        hurt = fabric.with_links(dict.fromkeys(lost.tolist(), State.DOWN))
        flows = permutations(hurt, seed, 1, QPS)
        plan = solve(hurt, flows)
        left = Network(hurt).uplinks
        most = np.minimum(left[flows.source], left[flows.destination]) / 2
        most[[*plan.unrouted]] = 0.0
        ratios = {"Heddle": flow_ratios(hurt.structure.capacity, flows, plan.paths)}
        ratios |= {name: strategy(key)(hurt, flows, seed).ratios for name, key in PEERS.items()}
        for name, ratio in ratios.items():
            shares[name] += np.minimum(ratio[most > 0] / most[most > 0], 1.0).tolist()
    rows = []
    for name, got in shares.items():
        shown = f"mean {np.mean(got):.1%} of it, slowest {min(got):.1%}"
        if name == "Heddle":
            met = min(got) >= 1 - EXACT
            rows.append(Row(title, name, shown, "all that links of NICs carry", met))
        else:
            rows.append(Row(title, name, shown))
    return rows


def _without(fabric: Fabric, damage: str, seed: int) -> Fabric:
    """Return the fabric with a spine or some links between switches down."""
    if damage == DAMAGE[0]:
        spines = fabric.rows_of_kind(NodeKind.SPINE)
        return fabric.with_nodes({int(spines[seed % len(spines)]): State.DOWN})
    return frayed(fabric, np.random.default_rng(seed), FRAYED)


def _damaged(fabrics: list[Fabric]) -> list[Row]:
    """Return rows of worst links and slowest flows where a spine or inner links are down."""
    title = f"dual-ToR 1:1, {' or '.join(DAMAGE)} down"
    worst: dict[str, list[float]] = {name: [] for name in ("Heddle", *PEERS)}
    slowest: dict[str, list[float]] = {name: [] for name in worst}
    for whole, damage, seed in product(fabrics, DAMAGE, SETS):
        fabric = _without(whole, damage, seed)
        flows = permutations(fabric, seed, 1, QPS)
        plan = solve(fabric, flows)
        least = max(plan.certificate.lower_bound, 1.0)
        ratios = {"Heddle": flow_ratios(fabric.structure.capacity, flows, plan.paths)}
        worst["Heddle"].append(plan.certificate.max_utilization / least)
        for name, key in PEERS.items():
            peer = strategy(key)(fabric, flows, seed)
            ratios[name] = peer.ratios
            worst[name].append(max(peer.worst.values()) / least)
        for name, ratio in ratios.items():
            slowest[name].append(float(ratio.min()))
    rows = []
    for name, full in worst.items():
        shown = f"worst {max(full):.2f} x the least, slowest flow mean {mean(slowest[name]):.1%}"
        if name == "Heddle":
            met = max(full) <= 1 + EXACT
            met &= all(
                a >= b for p in PEERS for a, b in zip(slowest[name], slowest[p], strict=True)
            )
            text = "the least, proven, and no slowest flow faster by any other"
            rows.append(Row(title, name, shown, text, met))
        else:
            rows.append(Row(title, name, shown))
    return rows


def _timed_damaged(planes: int, damage: str, pairs: int, nics: int) -> Row:
    """Time a damaged plan beside one for NICs with one link and the same damage."""
    whole = _dual(planes, pairs, nics)
    fabric = _without(whole, damage, 1)
    single = _without(clos(leaves=2 * pairs, spines=nics // 2, nics_per_leaf=nics // 2), damage, 1)
    flows = permutations(fabric, 1, 1, QPS)
    beside = _seconds(single, permutations(single, 1, 1, QPS))
    start = time.process_time()
    told = solve(fabric, flows).certificate
    took = time.process_time() - start
    least = max(told.lower_bound, 1.0)
    words = "1 plane" if planes == 1 else "2 planes"
    return Row(
        f"dual-ToR plan, {size_of(fabric)}, {words}, {damage} down",
        "Heddle",
        f"{took:.2f} s of processor, {took / beside:.1f} x that of NICs of one link; worst link"
        f" {told.max_utilization:.3f}, at least {told.lower_bound:.3f}",
        f"at most {SLOWER:g} x, and proven",
        took <= SLOWER * beside and told.max_utilization <= least + EXACT,
        data={"seconds": took, "single_seconds": beside, "worst": told.max_utilization},
    )


def _timed(scale: Scale, planes: int, pairs: int, nics: int, *, permutation: bool = True) -> Row:
    """Time a plan beside one for as many NICs with a single link, in processor seconds."""
    drawn = permutations if permutation else _to_neighbours
    fabric = _dual(planes, pairs, nics)
    single = clos(leaves=2 * pairs, spines=nics // 2, nics_per_leaf=nics // 2)
    runs = [
        tuple(_seconds(some, drawn(some, run, 1, QPS)) for some in (fabric, single))
        for run in range(max(2, scale.plan_runs // 2))
    ]
    took, beside = (median(column) for column in zip(*runs, strict=True))
    ratio = took / beside
    words = "1 plane" if planes == 1 else "2 planes"
    words += "" if permutation else ", to neighbours"
    return Row(
        f"dual-ToR plan, {size_of(fabric)}, {words}",
        "Heddle",
        f"{took:.2f} s of processor, {ratio:.1f} x that of NICs of one link",
        f"at most {SLOWER:g} x",
        ratio <= SLOWER,
        data={"seconds": took, "single_seconds": beside},
    )


def _to_neighbours(fabric: Fabric, turn: int, sets: int, qps: int) -> Flows:
    """Return flows from each NIC to the same NIC of the next ``sets`` hosts.

    Each run (``turn``) begins one host further on.
    """
    nics = fabric.rows_of_kind(NodeKind.NIC)
    to = [np.roll(nics, -8 * (turn + place + 1)) for place in range(sets)]
    return flows_of("ring", np.tile(nics, sets), np.concatenate(to), qps)


def _seconds(fabric: Fabric, flows: Flows) -> float:
    start = time.process_time()
    solve(fabric, flows)
    return time.process_time() - start
