"""The N-1 certificate of the largest plan: its cost, and how far backups are from their bound.

Times are processor time for the loss of every single link and every single switch of the fabric,
one by one. The fullest link after the worst loss is compared with the best that any other backups
for the same paths could reach. The first row is for the largest plan. The second is for a fabric of
two tiers without over-subscription, with four QPs a flow. The third is for the largest plan after
the repair of a lost link, once backups have room again (``solve.better_backups``). The other two
are for a fabric half full with jobs whose phases take turns, with one QP a flow and with four.

The last rows are for the first, second and fourth plan right after a link or a spine was lost, and
after it came back, when the certificate of the plan before is known. The result must equal the one
computed for the new plan alone.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.model.flows import concatenate
from heddle_controller.model.plan import AfterLoss, Plan, edit_of, edited_paths, in_parallel
from heddle_controller.plan.diff import changed_flows
from heddle_controller.solve import (
    LossScreen,
    Repairer,
    after_losses,
    better_backups,
    solve,
    with_losses,
)
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.traffic import flows_between
from tests.bench.planned import even_fabric, planned, size_of
from tests.bench.recommend import STATES, half_full, tapered_zones
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches

TITLE = "what any single loss does, certified"
MOST_SECONDS = 0.5
MOST_MS = 5.0
"""Milliseconds of processor time after an event."""
LEAST_OF_BEST = 0.9
RUNS = 5
QPS = 4
EQUAL = 1e-9
_EVENTFUL = 0, 1, 3
"""The plans that are looked at after events."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return rows for each plan, and for some of them after events."""
    fabric = even_fabric(scale)
    flows = flows_between(fabric, "permutation", seed=1, qps=QPS)
    largest = planned(scale)
    even = solve(fabric, flows)
    zones = tapered_zones(scale)
    jobs, _ = half_full(zones, STATES[0])
    phased = concatenate([flows_of_job(job, zones) for job in jobs])
    plans = [
        (largest, ""),
        (even, ""),
        (_mended(largest), ", a link lost and backups moved"),
        (solve(zones, phased), ", jobs with phases"),
        (solve(zones, phased.with_qps(QPS)), f", jobs with phases, {QPS} QPs a flow"),
    ]
    rows = []
    with screen.progress(TITLE, len(plans) + len(_EVENTFUL)) as advance:
        for plan, event in plans:
            rows.append(_row(plan, event))
            advance(len(rows))
        for at in _EVENTFUL:
            rows += _after_events(*plans[at])
            advance(len(rows))
    return rows


def _mended(plan: Plan) -> Plan:
    """Return the plan after the loss of a link that it uses, with backups moved if that helps."""
    inner = np.flatnonzero(between_switches(plan.fabric))
    lost = int(inner[np.isin(inner, plan.paths.arcs >> 1)][0])
    repaired = Repairer(plan).repair(plan.fabric.with_links({lost: State.DOWN}), plan.flows)
    return better_backups(repaired) or repaired


def _after_events(plan: Plan, which: str) -> list[Row]:
    """Lose a link that flows use and bring it back, then do the same with a spine."""
    structure = plan.fabric.structure
    used = np.zeros(plan.fabric.link_count, dtype=np.bool_)
    used[plan.paths.arcs >> 1] = True
    link = int(np.flatnonzero(used & between_switches(plan.fabric))[0])
    spine = int(plan.fabric.rows_of_kind(NodeKind.SPINE)[0])
    beside = np.flatnonzero((structure.links.a == spine) | (structure.links.b == spine))
    rows = []
    for what, links in (("a link", [link]), ("a spine", beside.tolist())):
        repairer = Repairer(plan)
        lost = repairer.repair(plan.fabric.with_links(dict.fromkeys(links, State.DOWN)), plan.flows)
        back = repairer.repair(plan.fabric, plan.flows)
        over = "over-subscribed" if plan.certificate.max_utilization > 1 + EQUAL else "1:1"
        rows.append(_event_row(plan, lost, f"{over}{which}, {what} lost"))
        rows.append(_event_row(lost, back, f"{over}{which}, {what} back"))
    return rows


def _event_row(before: Plan, plan: Plan, event: str) -> Row:
    """Time the certificate of a plan when the certificate of the plan before is known."""
    known, spent, told = LossScreen(before), [], plan.certificate
    for _ in range(RUNS):
        with_losses(before, known, thorough=False)
        fresh = _received(plan, before)
        start = time.process_time()
        told = with_losses(fresh, known, thorough=False)
        spent.append(1000 * (time.process_time() - start))
    same = told == with_losses(plan, thorough=False)
    median = quantile(spent, 0.5)
    return Row(
        TITLE,
        f"{size_of(plan.fabric)}, {event}",
        f"{median:.1f} ms of processor, {'as' if same else 'NOT as'} of the plan alone",
        f"{MOST_MS:.0f} ms",
        same and median <= MOST_MS,
        f"{len(changed_flows(before, plan)):,} flows moved",
        {"ms": spent},
    )


def _received(plan: Plan, before: Plan) -> Plan:
    """Return a plan as the process that certifies it receives it from another one.

    Loads are known then, and where paths differ from those before.
    """
    paths, backups = (
        edited_paths(old, edit := edit_of(old, new), new.take(edit.came))
        for old, new in ((before.paths, plan.paths), (before.backups, plan.backups))
    )
    return replace(plan, paths=paths, backups=in_parallel(backups, paths)).with_loads(plan.loads)


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
