"""Explains why a flow takes its paths, or why it has none, in figures and sentences.

Nothing is remembered from planning. Explanations follow from the plan itself, so a plan that was
read from a file or made by a repair can be explained like any other.

An ``ExplainIndex`` is made once for a plan. With it, an explanation looks only at the few links in
question, and at no column of all paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.names import path_name
from heddle_controller.model.arrays import Ints, distinct
from heddle_controller.model.errors import size_words
from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import Underlay, underlay
from heddle_controller.plan.programs import has_held_backup
from heddle_controller.plan.shortest_paths import ArcUsers, Choice, arc_users, choice, cost_of, free


@dataclass(frozen=True, slots=True, eq=False)
class ExplainIndex:
    """Which paths use each arc of a plan, and the shortest ways of its fabric."""

    uses: ArcUsers
    now: Underlay
    """Shortest ways over arcs that take new paths."""
    whole: Underlay
    """Shortest ways over all arcs; the same object as ``now`` if all arcs take new paths."""


def explain_index_of(plan: Plan) -> ExplainIndex:
    """Return the index of a plan."""
    whole = underlay(plan.fabric.structure)
    plannable = plan.fabric.plannable
    now = whole if plannable.all() else underlay(plan.fabric.structure, plannable)
    return ExplainIndex(arc_users(plan), now, whole)


SHARERS_TOLD = 5
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class HopLoad:
    """One directed link on one path of the flow."""

    path: int
    """Number of the path among the flow's paths, from 0."""
    arc: int
    load_gbps: float
    """Planned load; each job counts with its worst phase."""
    capacity_gbps: float
    sharers: tuple[int, ...]
    """Rows of the other flows that share the link, ascending."""

    @property
    def utilization(self) -> float:
        """Load over capacity."""
        return self.load_gbps / self.capacity_gbps


@dataclass(frozen=True, slots=True)
class Explanation:
    """One flow of one plan, explained."""

    flow: int
    paths: tuple[int, ...]
    """Rows in the plan's paths; empty if the flow has no path."""
    hops: tuple[HopLoad, ...]
    reasons: tuple[str, ...]
    """Sentences, most important first."""
    candidate_count: int
    """Number of shortest paths over links that take new paths."""


def explain(plan: Plan, flow_row: int, index: ExplainIndex | None = None) -> Explanation:
    """Explain one flow, given its row in the plan's flows.

    ``index`` is the plan's index. It is made if not given.
    """
    index = index or explain_index_of(plan)
    paths, uses = paths_of(plan, flow_row), index.uses
    hops = [hop for at, path in enumerate(paths) for hop in _hops(plan, at, path, uses)]
    offered = [choice(plan, flow_row, index.now, cost_of(plan, path, uses)) for path in paths]
    now = offered[0] if offered else choice(plan, flow_row, index.now, free)
    healthy = now if index.now is index.whole else choice(plan, flow_row, index.whole, free)
    reasons = [
        *_unrouted(plan, flow_row, len(paths)),
        *_sends(plan, flow_row),
        *(
            text
            for at, path in enumerate(paths)
            for text in _path(plan, at, path, hops, offered[at])
        ),
        *_fabric(now, healthy),
    ]
    return Explanation(flow_row, tuple(paths), tuple(hops), tuple(reasons), now.count)


def paths_of(plan: Plan, flow_row: int) -> range:
    """Return the rows of a flow's paths in the plan's paths."""
    first, last = np.searchsorted(plan.paths.flow, [flow_row, flow_row + 1]).tolist()
    return range(first, last)


def _hops(plan: Plan, at: int, path: int, uses: ArcUsers) -> Iterator[HopLoad]:
    capacity = plan.fabric.structure.capacity
    own = plan.paths.flow[path]
    for arc in plan.paths.of(path).tolist():
        users = distinct(plan.paths.flow[uses.of(np.array([arc]))[1]])
        others = tuple(users[users != own].tolist())
        yield HopLoad(at, arc, float(uses.loads[arc]), float(capacity[arc]), others)


def _unrouted(plan: Plan, flow: int, paths: int) -> Iterator[str]:
    if not paths:
        reason = plan.unrouted.get(flow, "the plan does not say why")
        yield f"{plan.flows.ids[flow]} has no path: {reason}."


def _sends(plan: Plan, flow: int) -> Iterator[str]:
    size = float(plan.flows.bytes[flow])
    if np.isfinite(size):
        asked = f"asks for {plan.flows.gbps[flow]:g} Gbit/s"
        yield f"It sends {size_words(size)} at a time and {asked}."


def _path(
    plan: Plan, at: int, path: int, hops: Sequence[HopLoad], offered: Choice
) -> Iterator[str]:
    """Yield sentences on one path: its links, how full, the alternatives, and its backup."""
    worst = max((hop for hop in hops if hop.path == at), key=lambda hop: hop.utilization)
    qps = plan.paths.last_qp[path] - plan.paths.first_qp[path] + 1
    which = "all QPs" if qps == plan.flows.qps[plan.paths.flow[path]] else _qps(plan, path)
    yield (
        f"{which[0].upper()}{which[1:]} take {_way(plan, plan.paths.of(path))}; the fullest link "
        f"is {_label(plan, worst.arc)}, {worst.load_gbps:g} of {worst.capacity_gbps:g} Gbit/s, "
        f"{_shared(plan, worst)}."
    )
    yield _compared(len(plan.paths.of(path)), worst.utilization, offered)
    yield _drained(plan, path) or _backup(plan, path)


def _qps(plan: Plan, path: int) -> str:
    return f"QPs {plan.paths.first_qp[path]} to {plan.paths.last_qp[path]}"


def _way(plan: Plan, arcs: Ints) -> str:
    structure = plan.fabric.structure
    nodes = [structure.tail[arcs[0]], *structure.head[arcs].tolist()]
    keys = [structure.links.key[link] for link in (arcs >> 1).tolist()]
    return path_name([structure.nodes.ids[node] for node in nodes], keys)


def _label(plan: Plan, arc: int) -> str:
    return plan.fabric.link_name(arc >> 1)


def _shared(plan: Plan, hop: HopLoad) -> str:
    if not hop.sharers:
        return "which no other flow uses"
    named = [plan.flows.ids[row] for row in hop.sharers[:SHARERS_TOLD]]
    more = len(hop.sharers) - len(named)
    return f"shared with {', '.join(named)}" + (f" and {more} more" if more else "")


def _compared(length: int, worst: float, offered: Choice) -> str:
    """Return a sentence that compares a path with the shortest paths.

    ``length`` is its number of links, and ``worst`` the utilisation of the fullest one.
    """
    if not offered.count:
        return "No path avoids links that are down or drained; it stays until there is one."
    if length > offered.hops:
        return (
            f"It is {length - offered.hops} links longer than the shortest, of which there are "
            f"{offered.count}; the best of those would have its worst link at {offered.best:.3f}."
        )
    if offered.count == 1:
        return "It is the only shortest path there is."
    if worst <= offered.best + _EQUAL:
        return (
            f"It is the best of {offered.count} shortest paths: on none would the worst link "
            f"be below {offered.best:.3f}."
        )
    return (
        f"By itself it would do better on another of {offered.count} shortest paths, worst link "
        f"{offered.best:.3f} instead of {worst:.3f}; the plan weighs all flows together, and a "
        "repair moves no flow that it need not."
    )


def _drained(plan: Plan, path: int) -> str:
    links = plan.paths.of(path) >> 1
    drained = links[plan.fabric.effective[links] == State.DRAINED].tolist()
    if not drained:
        return ""
    return f"It stays on {plan.fabric.link_name(drained[0])}, which is drained, as its only way."


def _backup(plan: Plan, path: int) -> str:
    arcs, spare = plan.paths.of(path), plan.backups.of(path)
    if not len(spare):
        return "It has no backup of its own: should it break, the underlay takes the packets."
    if not has_held_backup(plan, path):
        return "No switch holds its backup: should the path break, the underlay takes the packets."
    shared = np.intersect1d(arcs[1:-1] >> 1, spare[1:-1] >> 1).tolist()
    if not shared:
        return f"Should it break, packets turn to {_way(plan, spare)} at once."
    label = plan.fabric.link_name(shared[0])
    return (
        f"Should it break off {label}, packets turn to {_way(plan, spare)} at once; the loss of "
        f"{label} itself is for the underlay."
    )


def _fabric(now: Choice, healthy: Choice) -> Iterator[str]:
    """Yield a sentence on the shortest paths that failures and maintenance have taken."""
    if now.count == healthy.count and now.hops == healthy.hops:
        return
    if not now.count:
        yield f"With every link up there would be {healthy.count} shortest paths."
    elif now.hops > healthy.hops:
        yield (
            f"Every path of {healthy.hops} links is cut by links that are down or drained; "
            f"the shortest now has {now.hops}."
        )
    else:
        yield f"Links that are down or drained leave {now.count} of {healthy.count} shortest paths."
