"""Repair after one lost link of a fabric of 24,576 NICs, again and again.

A link of the whole fabric fails, and comes back before the next one does. Repairs follow one
another on one plan, as in operation.

Two more rows are for a fabric without over-subscription and several QPs per flow. In the second of
them, all switches have tables of known size. They also tell what the plan and its entries cost from
there on: to verify the plan, and to write and count the entries that change.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.plan import Plan
from heddle_controller.plan.diff import changed_flows
from heddle_controller.plan.programs import entries_after
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_emulator.traffic import flows_between
from tests.bench import opensm
from tests.bench.planned import even_fabric, fabric_of, planned, size_of
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches, without

MOST_P50, MOST_P99 = 0.005, 0.020
"""Limits in seconds."""
MOST_MOVED = 0.05
"""Share of flows that a repair may move beyond those affected."""
ROUNDING = 1e-9
QPS = 4
TABLE = 20_000
"""Entries of a switch with a table of known size."""
SPLIT_LINKS = 100
"""Most links that flows of several QPs lose."""


@dataclass(slots=True)
class Trials:
    """Results of all links, one after another."""

    lost: list[float] = field(default_factory=list)
    """Seconds until the plan was repaired."""
    work: list[float] = field(default_factory=list)
    """Processor seconds of the same calls, which other work on the machine does not affect."""
    back: list[float] = field(default_factory=list)
    """Seconds of the call in which the link was back."""
    affected: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    fuller: int = 0
    """Repairs after which a tier was fuller than before, and fuller than necessary."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Lose one link between switches after the other."""
    plan = planned(scale)
    title = f"repair after one link, {size_of(plan.fabric)}"
    repairer = Repairer(plan)
    rows = np.flatnonzero(between_switches(plan.fabric))
    links = np.random.default_rng(1).permutation(rows)[: scale.repair_links]
    trials = Trials()
    with screen.progress(title, len(links)) as advance:
        for done, link in enumerate(links.tolist(), 1):
            _lose(plan.fabric, link, repairer, trials)
            advance(done)
    even = even_fabric(scale)
    split = [
        _split(title, fabric, min(scale.repair_links, SPLIT_LINKS), screen)
        for fabric in (even, with_tables(even))
    ]
    return [*_rows(title, trials), *split, *_peers(title, scale, screen)]


def with_tables(fabric: Fabric) -> Fabric:
    """Return the fabric with tables of a known size in all switches."""
    nodes = fabric.structure.nodes
    size = np.where(nodes.kind == NodeKind.NIC, NONE, TABLE)
    structure = replace(fabric.structure, nodes=replace(nodes, table_size=size))
    return Fabric(structure, fabric.link_state, fabric.node_state)


def _split(title: str, fabric: Fabric, count: int, screen: Screen) -> Row:
    """Return the row of a fabric whose flows have several QPs, after ``count`` lost links."""
    plan = solve(fabric, flows_between(fabric, "permutation", seed=1, qps=QPS))
    entries, repairer = entries_after(plan), Repairer(plan)
    links = np.random.default_rng(1).permutation(np.flatnonzero(between_switches(fabric)))[:count]
    sized = bool((fabric.structure.nodes.table_size != NONE).any())
    who = f"  1:1, {QPS} QPs a flow" + (f", tables of {TABLE:,}" if sized else "")
    repairs, rest = [], []
    with screen.progress(f"{title},{who[1:]}", count) as advance:
        for done, link in enumerate(links.tolist(), 1):
            for state in (State.DOWN, State.UP):
                start = time.process_time()
                after = repairer.repair(fabric.with_links({link: state}), plan.flows)
                ready = time.process_time()
                verify_plan(after, (plan, entries))
                plan, entries = after, entries_after(after, (plan, entries))
                if state == State.DOWN:
                    repairs.append(ready - start)
                    rest.append(time.process_time() - ready)
            advance(done)
    work, told = spread(repairs), spread(rest)
    return Row(
        title,
        who,
        f"processor p50 {work['median'] * 1e3:.1f} ms, p99 {work['p99'] * 1e3:.1f} ms",
        note=f"{len(plan.paths):,} paths, {count:,} links; to verify the plan and write entries"
        f" p50 {told['median'] * 1e3:.1f} ms, p99 {told['p99'] * 1e3:.1f} ms",
        data={"processor_seconds": work, "verify_and_write_seconds": told},
    )


def _lose(whole: Fabric, link: int, repairer: Repairer, trials: Trials) -> None:
    """Take one link away and bring it back."""
    before = repairer.plan
    damaged = without(whole, np.array([link]))
    begin, work = time.perf_counter(), time.process_time()
    after = repairer.repair(damaged, before.flows)
    trials.lost.append(time.perf_counter() - begin)
    trials.work.append(time.process_time() - work)
    trials.affected.append(flows_over(before, link))
    trials.moved.append(moved_flows(before, after))
    trials.fuller += is_fuller(before, after)
    begin = time.perf_counter()
    repairer.repair(whole, before.flows)
    trials.back.append(time.perf_counter() - begin)


def is_fuller(before: Plan, after: Plan) -> bool:
    """Whether any tier is fuller than before, and fuller than its proven lower bound."""
    pairs = zip(before.certificate.tiers, after.certificate.tiers, strict=True)
    return any(
        new.max_utilization > max(old.max_utilization, new.lower_bound) + ROUNDING
        for old, new in pairs
    )


def _rows(title: str, trials: Trials) -> list[Row]:
    p50, p99, worst = (quantile(trials.lost, part) for part in (0.5, 0.99, 1.0))
    affected, moved = sum(trials.affected), sum(trials.moved)
    beyond = moved / max(affected, 1) - 1
    work, back = spread(trials.work), spread(trials.back)
    return [
        Row(
            title,
            "Heddle",
            f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, worst {worst * 1e3:.0f} ms",
            f"p50 < {MOST_P50 * 1e3:.0f} ms, p99 < {MOST_P99 * 1e3:.0f} ms",
            p50 < MOST_P50 and p99 < MOST_P99,
            f"{len(trials.lost):,} links, a tier needlessly fuller after {trials.fuller};"
            f" processor p50 {work['median'] * 1e3:.1f} ms, p99 {work['p99'] * 1e3:.1f} ms",
            {
                "seconds": spread(trials.lost),
                "processor_seconds": work,
                "links": len(trials.lost),
                "fuller": trials.fuller,
            },
        ),
        Row(
            title,
            "  flows moved",
            f"{moved:,} where {affected:,} were affected ({beyond:+.1%})",
            f"<= affected + {MOST_MOVED:.0%}",
            beyond <= MOST_MOVED,
            f"most beyond in one repair: {int(np.subtract(trials.moved, trials.affected).max())}",
            {"moved": moved, "affected": affected},
        ),
        Row(
            title,
            "  link back",
            f"p50 {back['median'] * 1e3:.1f} ms, p99 {back['p99'] * 1e3:.1f} ms",
            data={"seconds": back},
        ),
    ]


def _peers(title: str, scale: Scale, screen: Screen) -> list[Row]:
    """Return rows for OpenSM after one lost link, at the sizes at which it is run."""
    if reason := opensm.missing():
        return [Row(title, "OpenSM ftree", "not run", note=reason)]
    rows: list[Row] = []
    with screen.progress("OpenSM ftree, re-routing", len(scale.peer_hosts)) as advance:
        for done, hosts in enumerate(scale.peer_hosts, 1):
            fabric = fabric_of(scale, hosts)
            link = int(np.flatnonzero(between_switches(fabric))[0])
            times = opensm.rerouted(fabric, link)
            up, route = times.total * 1e3, times.route * 1e3
            rows.append(
                Row(
                    title,
                    f"OpenSM ftree, {size_of(fabric)}",
                    f"{up:,.0f} ms to subnet up, {route:,.0f} ms of it routing",
                    note="from the notice that a link is down; every table worked out anew",
                    data={"route_seconds": times.route, "total_seconds": times.total},
                )
            )
            advance(done)
    return rows


def flows_over(plan: Plan, link: int) -> int:
    """Return how many flows have a path over a link, in either direction."""
    arcs = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
    arcs[[2 * link, 2 * link + 1]] = True
    return len(np.unique(plan.paths.flow[plan.paths.crosses(arcs)]))


def moved_flows(before: Plan, after: Plan) -> int:
    """Return how many flows have another path.

    It is fast if the paths of both plans are in the same rows.
    """
    old, new = before.paths, after.paths
    columns = ("flow", "first_qp", "last_qp", "first")
    if all(np.array_equal(getattr(old, name), getattr(new, name)) for name in columns):
        places = np.flatnonzero(old.arcs != new.arcs)
        return len(np.unique(old.flow[np.searchsorted(old.first, places, side="right") - 1]))
    return len(changed_flows(before, after))
