"""Shows what a change would do: compares two plans, and finds who a drain would affect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.plan.diff import changed_flows


@dataclass(frozen=True, slots=True)
class TierChange:
    """Worst utilisation of one tier, before and after."""

    tier: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What happens to flows from one plan to another. Rows are those of the later plan's flows."""

    before: Certificate
    after: Certificate
    moved: Ints
    """Rows of flows that have a path in both plans, but not the same."""
    lost: Ints
    """Rows of flows that have a path only in the earlier plan."""
    regained: Ints
    """Rows of flows that have a path only in the later plan."""
    tiers: tuple[TierChange, ...]


def compare_plans(before: Plan, after: Plan) -> Comparison:
    """Compare two plans. Flows are matched by id; flows that only one plan has are ignored."""
    had = _routed(before)
    has = _routed(after)
    rows = {flow: row for row, flow in enumerate(after.flows.ids)}
    shared = {row: rows[flow] for row, flow in enumerate(before.flows.ids) if flow in rows}
    lost = [now for row, now in shared.items() if had[row] and not has[now]]
    regained = [now for row, now in shared.items() if has[now] and not had[row]]
    return Comparison(
        before=before.certificate,
        after=after.certificate,
        moved=np.setdiff1d(changed_flows(before, after), lost),
        lost=np.array(sorted(lost), dtype=np.int64),
        regained=np.array(sorted(regained), dtype=np.int64),
        tiers=tuple(_tiers(before.certificate, after.certificate)),
    )


def _routed(plan: Plan) -> list[bool]:
    routed = np.zeros(len(plan.flows), dtype=np.bool_)
    routed[plan.paths.flow] = True
    found: list[bool] = routed.tolist()
    return found


def _tiers(before: Certificate, after: Certificate) -> Iterator[TierChange]:
    was = {tier.tier: tier.max_utilization for tier in before.tiers}
    now = {tier.tier: tier.max_utilization for tier in after.tiers}
    for tier in {**was, **now}:
        yield TierChange(tier, was.get(tier, 0.0), now.get(tier, 0.0))


def flows_over(plan: Plan, links: Ints, *, backups: bool) -> Ints:
    """Return the rows of flows, ascending, with a path over some links, given as rows.

    With ``backups``, flows with only a backup over them count, too.
    """
    arcs = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
    arcs[2 * links] = arcs[2 * links + 1] = True
    over = np.zeros(len(plan.flows), dtype=np.bool_)
    over[plan.paths.flow[plan.paths.crosses(arcs)]] = True
    if backups:
        over[plan.backups.flow[plan.backups.crosses(arcs)]] = True
    return np.flatnonzero(over)


def links_of(fabric: Fabric, switches: Ints) -> Ints:
    """Return the rows of all links of some nodes, ascending."""
    links = fabric.structure.links
    return np.flatnonzero(np.isin(links.a, switches) | np.isin(links.b, switches))


def cut_off(before: Fabric, after: Fabric) -> Ints:
    """Return the node rows of NICs that a change of states cuts off from new paths.

    NICs that were joined before may fall into several parts. All but the largest part are cut off,
    and so are NICs that are left alone. A NIC with several links joins what these lead to. Both
    fabrics must have the same structure.
    """
    nics = np.flatnonzero(before.structure.nodes.kind == NodeKind.NIC)
    was, now = _parts(before, before.plannable), _parts(after, after.plannable)
    pairs, part = np.unique(np.stack([was[nics], now[nics]]), axis=1, return_inverse=True)
    sizes = np.bincount(part.ravel(), minlength=pairs.shape[1])
    order = np.lexsort((sizes, pairs[0]))  # the largest part of each former group comes last
    last = order[np.flatnonzero(np.diff(pairs[0][order], append=-1))]
    stays = np.zeros(len(sizes), dtype=np.bool_)
    stays[last] = True
    stays &= (sizes > 1) | (np.bincount(pairs[0], sizes)[pairs[0]] == 1)
    return nics[~stays[part.ravel()]]


def _parts(fabric: Fabric, usable: Bools) -> Ints:
    """Return for each node the smallest node row in its part, as joined by usable arcs."""
    tail, head = fabric.structure.tail[usable], fabric.structure.head[usable]
    part: Ints = np.arange(fabric.node_count)
    while True:
        least = part.copy()
        np.minimum.at(least, tail, part[head])
        least = least[least]  # jump ahead, so that long chains take few rounds
        if np.array_equal(least, part):
            return part
        part = least
