"""Graphs without tiers, as large as they are built: Heddle beside hashing and greedy.

The graphs are random regular ones (jellyfish) and dragonflies, with one permutation of all NICs at
line rate in eight QPs. The limit is the planner's proven bound. A plan may exceed it by 1 % and one
QP. Times are processor time, so that other work on the machine hardly matters.
"""

from __future__ import annotations

import time

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, arc_loads, utilization
from heddle_controller.solve import solve
from heddle_emulator.strategy import greedy_paths, strategy
from heddle_emulator.topology import dragonfly, random_regular
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches, permutations

QPS = 8
ALLOWED = 0.01
MOST_SECONDS = 10.0
PEER_QPS = 32


def fabrics(scale: Scale) -> dict[str, Fabric]:
    """Return the fabrics to plan, by the names that rows give them."""
    sizes: tuple[tuple[int, int, int], ...] = (100, 8, 3), (500, 12, 4), (500, 16, 6)
    if scale.name == "quick":
        sizes = ((40, 6, 3),)
    found = {
        f"jellyfish, {switches} switches of degree {degree}, {nics} NICs each": random_regular(
            switches=switches, degree=degree, nics_per_switch=nics, seed=1
        )
        for switches, degree, nics in sizes
    }
    routers, ports = (4, 2) if scale.name == "quick" else (8, 4)
    name = f"dragonfly, {routers * (routers * ports + 1)} switches, 2 NICs each"
    found[name] = dragonfly(routers=routers, global_links=ports, nics_per_switch=2)
    return found


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return four rows for each fabric: Heddle's and those of three peers."""
    rows: list[Row] = []
    drawn = fabrics(scale)
    with screen.progress("graphs without tiers", len(drawn)) as advance:
        for name, fabric in drawn.items():
            rows += _rows(name, fabric)
            advance(len(rows) // 4)
    return rows


def _rows(name: str, fabric: Fabric) -> list[Row]:
    flows = permutations(fabric, 1, 1, QPS)
    begin = time.process_time()
    plan = solve(fabric, flows)
    seconds = time.process_time() - begin
    worst = _worst(fabric, flows, plan.paths)
    bound = max(tier.lower_bound for tier in plan.certificate.tiers if "nic" not in tier.tier)
    qp = float((flows.gbps / flows.qps).max() / fabric.structure.capacity.min())
    near = worst <= bound * (1 + ALLOWED) + qp
    peers = {
        "ECMP": strategy("ecmp")(fabric, flows.with_qps(1), 1).loads,
        f"E-ECMP, {PEER_QPS} QPs": strategy(f"e-ecmp:{PEER_QPS}")(fabric, flows, 1).loads,
    }
    ours = Row(
        name,
        "Heddle",
        f"{worst:.3f}, bound {bound:.3f}, {seconds:.1f} s of processor",
        f"<= 1 % + a QP ({qp:.3f}), < {MOST_SECONDS:.0f} s",
        near and seconds < MOST_SECONDS,
        f"worst link between switches, {len(flows):,} flows of {QPS} QPs",
        {"worst": worst, "bound": bound, "seconds": seconds, "qp": qp},
    )
    others = {who: _between(fabric, loads) for who, loads in peers.items()}
    others["greedy"] = _worst(fabric, flows, greedy_paths(fabric, flows))
    peer_rows = [
        Row(name, who, f"{reached:.3f}", data={"worst": reached}) for who, reached in others.items()
    ]
    return [ours, *peer_rows]


def _worst(fabric: Fabric, flows: Flows, paths: Paths) -> float:
    return _between(fabric, arc_loads(2 * fabric.link_count, flows, paths))


def _between(fabric: Fabric, loads: Floats) -> float:
    """Return the worst utilisation of links between switches."""
    used = utilization(fabric, loads).reshape(-1, 2)[between_switches(fabric)]
    return float(used.max())
