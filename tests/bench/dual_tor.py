"""Dual-ToR fabrics, 1:1: the worst link of permutations, and how long plans take.

Every NIC has a link of half its rate to each leaf of a pair, with one plane or with two. A
plan of as many NICs of one link, of the same run, is what its time is held against.
"""

from __future__ import annotations

import time
from statistics import median

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.solve import solve
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos, dual_tor
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.bench.workloads import permutations

TITLE = "dual-ToR 1:1, permutations of 8 QPs"
QPS = 8
SETS = (1, 2, 3)
PEERS = {"ECMP": "ecmp", "E-ECMP, 32 QPs": "e-ecmp:32", "greedy by intensity": "greedy"}
EXACT = 1e-9
SLOWER = 6.0
"""Times that a plan may take what one of NICs of one link takes: there are twice as many links
and twice as many paths, and each NIC's links are a choice."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """A row for Heddle, one for each peer, and one for each size that is timed."""
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
    pairs = max(2, leaves // 8)
    sizes = [(pairs, nics * 8), (pairs * scale.zones, nics * 8)]
    return rows + [_timed(scale, planes, *size) for size in sizes for planes in (1, 2)]


def _dual(planes: int, pairs: int, nics: int) -> Fabric:
    return dual_tor(pairs=pairs, spines=planes * nics // 2, nics_per_pair=nics, planes=planes)


def _timed(scale: Scale, planes: int, pairs: int, nics: int) -> Row:
    """Processor time of a plan beside that of as many NICs of one link."""
    fabric = _dual(planes, pairs, nics)
    single = clos(leaves=2 * pairs, spines=nics // 2, nics_per_leaf=nics // 2)
    runs = [
        (_seconds(fabric, permutations(fabric, run, 1, QPS)), _seconds(single, flows))
        for run in range(max(2, scale.plan_runs // 2))
        for flows in [permutations(single, run, 1, QPS)]
    ]
    took, beside = (median(column) for column in zip(*runs, strict=True))
    ratio = took / beside
    words = "1 plane" if planes == 1 else "2 planes"
    return Row(
        f"dual-ToR plan, {size_of(fabric)}, {words}",
        "Heddle",
        f"{took:.2f} s of processor, {ratio:.1f} x that of NICs of one link",
        f"at most {SLOWER:g} x",
        ratio <= SLOWER,
        data={"seconds": took, "single_seconds": beside},
    )


def _seconds(fabric: Fabric, flows: Flows) -> float:
    start = time.process_time()
    solve(fabric, flows)
    return time.process_time() - start
