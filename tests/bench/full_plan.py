"""A plan from nothing at 24,576 NICs, and OpenSM's routing at the sizes it is run at.

Only the call is timed: fabric and flows are already in memory, as in a controller.
"""

from __future__ import annotations

import time

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.solve import solve
from tests.bench import opensm
from tests.bench.planned import fabric_of, size_of
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones, zone_traffic

MOST_SECONDS = 1.0
PEER_ROUNDS = 3


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for Heddle, and two for each size that OpenSM is run at."""
    fabric = published_zones(scale)
    title = f"full plan, {size_of(fabric)}"
    seconds: list[float] = []
    plans: list[Plan] = []
    with screen.progress(title, scale.plan_runs) as advance:
        for seed in range(scale.plan_runs):
            took, plan = timed(fabric, zone_traffic(fabric, seed))
            seconds.append(took)
            plans.append(plan)
            advance(len(seconds))
    median = quantile(seconds, 0.5)
    row = Row(
        title,
        "Heddle",
        f"{median:.2f} s median of {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f} s",
        f"< {MOST_SECONDS:.1f} s",
        median < MOST_SECONDS,
        f"{len(plans[0].flows):,} flows; {_gaps(plans)}",
        {"seconds": seconds, "median": median, "flows": len(plans[0].flows)},
    )
    return [row, *_peers(title, scale, screen)]


def timed(fabric: Fabric, flows: Flows) -> tuple[float, Plan]:
    """Return the seconds of a plan from nothing, and the plan."""
    begin = time.perf_counter()
    plan = solve(fabric, flows)
    return time.perf_counter() - begin, plan


def _gaps(plans: list[Plan]) -> str:
    worst = max(plan.certificate.gap for plan in plans)
    tiers = max(
        tier.max_utilization / tier.lower_bound - 1
        for plan in plans
        for tier in plan.certificate.tiers
        if tier.lower_bound > 0
    )
    return f"gap {worst:.1%} overall, {tiers:.1%} in the worst tier"


def _peers(title: str, scale: Scale, screen: Screen) -> list[Row]:
    reason = opensm.missing()
    if reason:
        return [Row(title, "OpenSM ftree", "not run", note=reason)]
    rows: list[Row] = []
    with screen.progress("OpenSM ftree, routing", len(scale.peer_hosts)) as advance:
        for done, hosts in enumerate(scale.peer_hosts, 1):
            rows += _beside(title, scale, hosts)
            advance(done)
    return rows


def _beside(title: str, scale: Scale, hosts: int) -> list[Row]:
    """Time OpenSM and Heddle on a fabric of at least so many hosts."""
    fabric = fabric_of(scale, hosts)
    flows = zone_traffic(fabric, 0)
    seconds = [timed(fabric, flows)[0] for _ in range(PEER_ROUNDS)]
    times = opensm.timed(fabric)
    size = size_of(fabric)
    return [
        Row(
            title,
            f"OpenSM ftree, {size}",
            f"{times.route:.2f} s routing, {times.total:.2f} s to subnet up",
            note="one path for each destination, whoever sends",
            data={"route_seconds": times.route, "total_seconds": times.total},
        ),
        Row(
            title,
            f"Heddle, {size}",
            f"{quantile(seconds, 0.5):.2f} s for {len(flows):,} flows",
            data={"seconds": seconds},
        ),
    ]
