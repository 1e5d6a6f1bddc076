"""Which parts of an earlier plan are still valid for the current fabric and flows."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.solve.network import Network


def carried(previous: Plan, network: Network, flows: Flows) -> Paths:
    """Return the earlier paths of all flows that still exist unchanged, with current numbers.

    Paths over links that are down are included. Flow rows and arcs are the current ones. An arc
    that no longer exists gets the number one past the last arc. A flow is unchanged if its ID, its
    ends and its number of QPs are.
    """
    paths = previous.paths
    flow = rows_now(previous, network.fabric, flows)[paths.flow]
    arcs = _arcs_now(previous.fabric, network.fabric)[paths.arcs]
    every = Paths(flow, paths.first_qp, paths.last_qp, paths.first, arcs)
    return every if (flow != NONE).all() else every.take(np.flatnonzero(flow != NONE))


def carry_over(
    every: Paths, network: Network, flows: Flows
) -> tuple[Paths, tuple[Ints, Ints, Ints]]:
    """Return the paths that still work, between terminals, and the ranges of QPs without one.

    ``every`` is the result of ``carried``. A path works if every arc of it is usable. The ranges
    are three columns: flow row, first and last QP.
    """
    unusable = ~np.append(network.usable, False)
    kept = every.take(np.flatnonzero(~every.crosses(unusable)))
    return inner_paths(network, kept), _without_path(flows, kept)


def inner_paths(network: Network, paths: Paths) -> Paths:
    """Return paths without the arcs of single-homed NICs, as an assignment keeps them."""
    inner = ~of_sole_links(network)[paths.arcs]
    first = np.append(0, np.cumsum(inner))[paths.first]
    return Paths(paths.flow, paths.first_qp, paths.last_qp, first, paths.arcs[inner])


def of_sole_links(network: Network) -> Bools:
    """Mark both arcs of the usable link of each single-homed NIC, which ``with_nics`` puts back.

    The result has shape (arcs,).
    """
    sole = network.nic_arc[network.nic_arc != NONE]
    marked = np.zeros(network.arc_count, dtype=np.bool_)
    marked[sole] = True
    marked[sole ^ 1] = True
    return marked


def rows_now(previous: Plan, fabric: Fabric, flows: Flows) -> Ints:
    """Return the current row of each earlier flow.

    ``NONE`` stands for a flow that is gone, or whose ends or number of QPs changed.
    """
    before = previous.flows
    if before is flows:
        return np.arange(len(flows), dtype=np.int64)
    if flows.ids[: len(before)] == before.ids:  # new flows come last
        rows = np.arange(len(before), dtype=np.int64)
    else:
        row = {flow: number for number, flow in enumerate(flows.ids)}
        rows = np.array([row.get(flow, NONE) for flow in before.ids], dtype=np.int64)
    node_now = np.arange(fabric.node_count, dtype=np.int64)
    if previous.fabric.structure is not fabric.structure:
        index = fabric.structure.index
        ids = previous.fabric.structure.nodes.ids
        node_now = np.array([index.get(node, NONE) for node in ids], dtype=np.int64)
    found = np.flatnonzero(rows != NONE)
    now = rows[found]
    same = (
        (before.qps[found] == flows.qps[now])
        & (node_now[before.source[found]] == flows.source[now])
        & (node_now[before.destination[found]] == flows.destination[now])
    )
    rows[found[~same]] = NONE
    return rows


def _arcs_now(before: Fabric, now: Fabric) -> Ints:
    """Return the current number of each earlier arc; one past the last arc where it is gone."""
    if before.structure is now.structure:
        return np.arange(2 * now.link_count, dtype=np.int64)
    row = {ends: number for number, ends in enumerate(_link_names(now))}
    arcs = np.full(2 * before.link_count, 2 * now.link_count, dtype=np.int64)
    for number, (a, b, key) in enumerate(_link_names(before)):
        if (a, b, key) in row:
            arcs[2 * number : 2 * number + 2] = 2 * row[a, b, key] + np.arange(2)
        elif (b, a, key) in row:
            arcs[2 * number : 2 * number + 2] = 2 * row[b, a, key] + 1 - np.arange(2)
    return arcs


def _link_names(fabric: Fabric) -> list[tuple[str, str, str]]:
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    ends = zip(links.a.tolist(), links.b.tolist(), links.key, strict=True)
    return [(ids[a], ids[b], str(key)) for a, b, key in ends]


def _without_path(flows: Flows, kept: Paths) -> tuple[Ints, Ints, Ints]:
    """Return the ranges of QPs without a path as columns: flow row, first and last QP."""
    held = np.bincount(kept.flow, weights=kept.qp_count, minlength=len(flows))
    bare = np.flatnonzero(held == 0)
    missing = [np.stack([bare, np.zeros_like(bare), flows.qps[bare] - 1])]
    for row in np.flatnonzero((held > 0) & (held < flows.qps)).tolist():
        ranges = np.flatnonzero(kept.flow == row)
        ranges = ranges[np.argsort(kept.first_qp[ranges])]
        begin = np.append(0, kept.last_qp[ranges] + 1)
        end = np.append(kept.first_qp[ranges], flows.qps[row]) - 1
        gaps = end >= begin
        missing.append(np.stack([np.full(int(gaps.sum()), row), begin[gaps], end[gaps]]))
    flow, first_qp, last_qp = np.concatenate(missing, axis=1)
    return flow, first_qp, last_qp
