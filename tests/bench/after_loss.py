"""The N-1 certificate of the largest plan: what it takes, and how far backups are from their bound.

Time is that of the processor: every single link and every single switch of the fabric lost, one by
one. The fullest link after the worst loss stands beside what no other backups for the same paths
could do. The second row is of a fabric of two tiers without over-subscription, where each flow has
four QPs. The last is of the largest plan after the repair of a lost link, once backups have room
again (``solve.better_backups``).
"""

from __future__ import annotations

import time

import numpy as np

from heddle_controller.model.fabric import State
from heddle_controller.model.plan import AfterLoss, Plan
from heddle_controller.solve import Repairer, after_losses, better_backups, solve
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from tests.bench.planned import planned, size_of
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches

TITLE = "what any single loss does, certified"
MOST_SECONDS = 0.5
LEAST_OF_BEST = 0.9
RUNS = 5
QPS = 4
EQUAL = 1e-9


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """The largest plan, one without over-subscription, and the largest after a repair."""
    leaves, _, nics = scale.zone
    fabric = clos(leaves=leaves * scale.zones // 4, spines=4 * nics, nics_per_leaf=4 * nics)
    flows = flows_between(fabric, "permutation", seed=1, qps=QPS)
    largest = planned(scale)
    plans = [(largest, ""), (solve(fabric, flows), ""), (_mended(largest), ", a link lost")]
    rows = []
    with screen.progress(TITLE, len(plans)) as advance:
        for plan, event in plans:
            rows.append(_row(plan, event))
            advance(len(rows))
    return rows


def _mended(plan: Plan) -> Plan:
    """A plan after the loss of a link that it uses, and some quiet."""
    inner = np.flatnonzero(between_switches(plan.fabric))
    lost = int(inner[np.isin(inner, plan.paths.arcs >> 1)][0])
    repaired = Repairer(plan).repair(plan.fabric.with_links({lost: State.DOWN}), plan.flows)
    return better_backups(repaired) or repaired


def _row(plan: Plan, event: str) -> Row:
    seconds: list[float] = []
    told: tuple[AfterLoss, ...] = ()
    for _ in range(RUNS):
        start = time.process_time()
        told = after_losses(plan)
        seconds.append(time.process_time() - start)
    median = quantile(seconds, 0.5)
    best = min(one.lower_bound / one.worst_utilization for one in told)
    over = plan.certificate.max_utilization > 1 + EQUAL
    words = ", ".join(
        f"{one.kind}: worst link {one.worst_utilization:.2f}, slowest flow {one.slowest_flow:.2f}"
        for one in told
    )
    return Row(
        TITLE,
        f"{size_of(plan.fabric)}, {'over-subscribed' if over else '1:1'}{event}",
        f"{median:.2f} s of processor; {best:.2f} of the best possible",
        f"{MOST_SECONDS} s, {LEAST_OF_BEST} of the best",
        median <= MOST_SECONDS and best >= LEAST_OF_BEST,
        f"{len(plan.paths):,} paths, {plan.fabric.link_count:,} links; {words}",
        {"seconds": seconds, "of_best": best, "slowest": [one.slowest_flow for one in told]},
    )
