"""What limits the flows of a plan: the fullest link of each flow, who shares it, and which rails.

Rates are max-min fair among QPs: a link is shared equally by the QPs over it, but none gets more
than it asks for or than another link leaves it. The link that *limits* a QP is full, and no other
QP over it is faster (Bertsekas and Gallager, Data Networks, 6.5). A flow without a path gets
nothing.

Flows may also be *exposed*: PFC may hold them up although every link of theirs has room. In a
lossless fabric, a switch with too much traffic for an overloaded link pauses the links by which
that traffic came, and so everyone who shares those. An incast or an over-subscribed core thus slows
flows that never come near it. A plan cannot always separate them, so these flows are named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, distinct
from heddle_controller.model.fabric import Fabric, NodeKind, Structure
from heddle_controller.model.fair_rates import planned_rates
from heddle_controller.model.plan import IDLE, Plan, exposed_paths, phased_loads, utilization

_TOLERANCE = 1e-9
_ABOVE = 0.01
"""Part of its bound by which an arc may exceed it and still count as meeting it."""
_NEARLY = 1e-6
"""Relative tolerance of rates that many steps have added up."""


@dataclass(frozen=True, slots=True)
class JobShare:
    """The flows of one job over an arc."""

    job: int
    """Row in the flows' job names."""
    flow_count: int
    gbps: float
    """Load in the worst phase of the job."""


@dataclass(frozen=True, slots=True)
class ArcLoad:
    """What a plan puts on an arc."""

    arc: int
    flow_count: int
    shares: tuple[JobShare, ...]
    """The jobs that use the arc, greatest load first."""


def hottest_arcs(plan: Plan) -> Ints:
    """Return the arcs that carry something, the fullest first, equal ones by row."""
    used = utilization(plan.fabric, plan.loads)
    order = np.argsort(-used, kind="stable")
    return order[: int(np.count_nonzero(used > 0))]


def loads_of(plan: Plan, arcs: Ints) -> list[ArcLoad]:
    """Return the load and the users of some arcs, in the given order. No arc may repeat."""
    flows, paths = plan.flows, plan.paths
    place = np.full(2 * plan.fabric.link_count, NONE, dtype=np.int64)
    place[arcs] = np.arange(len(arcs))
    uses = np.flatnonzero(place[paths.arcs] != NONE)
    path = paths.owner()[uses]
    jobs = len(flows.job_names)
    flow = paths.flow[path]
    codes, code = np.unique(place[paths.arcs[uses]] * jobs + flows.job[flow], return_inverse=True)
    gbps = phased_loads(
        len(codes), code, paths.gbps(flows, path), flows.job[flow], flows.phase[flow]
    )
    counted = distinct(code * len(flows) + flow) // max(len(flows), 1)
    counts = np.bincount(counted, minlength=len(codes))
    found: list[list[JobShare]] = [[] for _ in arcs]
    told = zip(codes.tolist(), counts.tolist(), gbps.tolist(), strict=True)
    for number, count, load in told:
        found[number // jobs].append(JobShare(number % jobs, count, load))
    return [
        ArcLoad(
            arc,
            sum(share.flow_count for share in shares),
            tuple(sorted(shares, key=lambda share: -share.gbps)),
        )
        for arc, shares in zip(arcs.tolist(), found, strict=True)
    ]


def sharers_of(plan: Plan, arc: int, first: int) -> list[JobShare]:
    """Return the jobs with flows over an arc, greatest load first, but the job ``first`` leads.

    ``first`` is the job's row in ``job_names``.
    """
    marked = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
    marked[arc] = True
    rows = np.flatnonzero(plan.paths.crosses(marked))
    flow = plan.paths.flow[rows]
    jobs, place = np.unique(plan.flows.job[flow], return_inverse=True)
    # Treat each job as an arc of its own, so that its phases count as they do everywhere.
    gbps = phased_loads(
        len(jobs),
        place,
        plan.paths.gbps(plan.flows, rows),
        plan.flows.job[flow],
        plan.flows.phase[flow],
    )
    counts = [len(distinct(flow[place == at])) for at in range(len(jobs))]
    shares = [JobShare(*each) for each in zip(jobs.tolist(), counts, gbps.tolist(), strict=True)]
    return sorted(shares, key=lambda one: (one.job != first, -one.gbps))


def unsplit_flows(plan: Plan) -> Ints:
    """Return flows with a single QP over an arc above line rate that is so for this reason, by row.

    Either the arc is above its tier's bound, which the plan may not reach because such flows cannot
    be split, or one of them asks for more than the arc carries and other links could take a part.
    A NIC's only link has no such others.
    """
    structure = plan.fabric.structure
    bound = {tier.tier: tier.lower_bound for tier in plan.certificate.tiers}
    least = np.array([bound.get(tier, np.inf) for tier in structure.tiers])
    most = np.maximum(least, IDLE)[structure.tier_of_arc] * (1 + _ABOVE)
    over = whole_flows(plan, utilization(plan.fabric, plan.loads) > most)
    flow = plan.paths.flow[plan.paths.owner()]
    large = plan.flows.gbps[flow] > structure.capacity[plan.paths.arcs] * (1 + _ABOVE)
    large &= ~_only_links(plan.fabric)[plan.paths.arcs]
    return np.union1d(over, flow[large & (plan.flows.qps[flow] == 1)])


def _only_links(fabric: Fabric) -> Bools:
    """Return which arcs lead over the only link of a NIC that plans may use, shape (arcs,)."""
    structure = fabric.structure
    links = np.bincount(structure.tail[fabric.plannable], minlength=fabric.node_count)
    single = (structure.nodes.kind == NodeKind.NIC) & (links == 1)
    result: Bools = single[structure.tail] | single[structure.head]
    return result


def whole_flows(plan: Plan, arcs: Bools) -> Ints:
    """Return flows with a single QP over any of the marked arcs, shape (arcs,), by row."""
    flow = distinct(plan.paths.flow[plan.paths.crosses(arcs)])
    whole: Ints = flow[plan.flows.qps[flow] == 1]
    return whole


def arcs_of(plan: Plan, flow: int) -> Ints:
    """Return all arcs of a flow's paths, each once, ascending. ``flow`` is a row."""
    first, last = np.searchsorted(plan.paths.flow, [flow, flow + 1]).tolist()
    return distinct(plan.paths.arcs[plan.paths.first[first] : plan.paths.first[last]])


def switches_of(plan: Plan, flow: int) -> list[str]:
    """Return the ids of the switches on a flow's paths, in order of their rows."""
    structure = plan.fabric.structure
    heads = distinct(structure.head[arcs_of(plan, flow)])
    kinds = structure.nodes.kind[heads]
    return [structure.nodes.ids[node] for node in heads[kinds != NodeKind.NIC].tolist()]


def rails_of(structure: Structure, source: int, destination: int) -> tuple[int, int] | None:
    """Return the rails of two NICs, or None if one of them has no rail."""
    rails = int(structure.rails[source]), int(structure.rails[destination])
    return None if NONE in rails else rails


def shortest_links(structure: Structure, source: int, destination: int) -> Ints:
    """Return the rows of links on the shortest ways between two NICs, whatever their state."""
    ends = structure.nodes.kind != NodeKind.NIC
    ends[[source, destination]] = True
    tail, head = structure.tail, structure.head
    passes = np.flatnonzero(ends[tail] & ends[head])
    tail, head = tail[passes], head[passes]
    there, back = _hops_from(source, tail, head, ends), _hops_from(destination, head, tail, ends)
    if there[destination] == NONE:
        return np.empty(0, dtype=np.int64)
    known = (there[tail] != NONE) & (back[head] != NONE)
    on = known & (there[tail] + 1 + back[head] == there[destination])
    return distinct(passes[on] >> 1)


def _hops_from(start: int, tail: Ints, head: Ints, nodes: Bools) -> Ints:
    """Return the number of links from a node to each other node; ``NONE`` if unreachable."""
    hops = np.full(len(nodes), NONE, dtype=np.int64)
    hops[start], at = 0, 0
    while True:
        reached = head[(hops[tail] == at) & (hops[head] == NONE)]
        if not len(reached):
            return hops
        at += 1
        hops[reached] = at


@dataclass(frozen=True, slots=True, eq=False)
class Fares:
    """What the flows and jobs of one plan get."""

    plan: Plan
    utilization: Floats
    """Load over capacity of each arc, shape (arcs,)."""
    fullest: Ints
    """Fullest arc on the paths of each flow, shape (flows,); ``NONE`` for a flow without a path."""
    share: Floats
    """Part of its demand that each flow gets, 0 to 1, shape (flows,)."""
    qp_gbps: Floats
    """Rate of a QP of each path, shape (paths,)."""
    full: Floats
    """Gbit/s over capacity of each overloaded arc at these rates, 0 for others, shape (arcs,)."""
    fastest: Floats
    """Rate of the fastest QP over each overloaded arc, 0 for others, shape (arcs,)."""

    def limit_of(self, row: int) -> int:
        """Return the arc that limits a flow: that of its slowest QP, else the fullest on its paths.

        ``NONE`` stands for a flow without a path.
        """
        if self.fullest[row] == NONE or self.share[row] >= 1.0:
            return int(self.fullest[row])
        paths = self.plan.paths
        first, last = np.searchsorted(paths.flow, [row, row + 1]).tolist()
        slowest = first + int(np.argmin(self.qp_gbps[first:last]))
        arcs = paths.of(slowest)
        full = self.full[arcs] >= 1 - _NEARLY
        rank = np.round(self.qp_gbps[slowest] / np.where(full, self.fastest[arcs], np.inf), 6)
        return int(arcs[np.lexsort((-self.utilization[arcs], -rank))[0]])

    def slowest_of_jobs(self) -> dict[str, int]:
        """Return the row of the slowest flow of each job, by job name.

        Among equally slow flows it is the one with the fullest arc, then the first.
        """
        flows = self.plan.flows
        rows = np.lexsort((np.arange(len(flows)), -self._fullness(), self.share, flows.job))
        first = rows[np.flatnonzero(np.diff(flows.job[rows], prepend=NONE))]
        return {flows.job_names[int(flows.job[row])]: row for row in first.tolist()}

    def worst_of_jobs(self) -> dict[str, int]:
        """Return the fullest arc that flows of each job use, without jobs that have no path."""
        flows = self.plan.flows
        rows = np.flatnonzero(self.fullest != NONE)
        rows = rows[np.lexsort((rows, -self.utilization[self.fullest[rows]], flows.job[rows]))]
        first = rows[np.flatnonzero(np.diff(flows.job[rows], prepend=NONE))]
        jobs = flows.job[first].tolist()
        arcs = self.fullest[first].tolist()
        return {flows.job_names[job]: arc for job, arc in zip(jobs, arcs, strict=True)}

    def unrouted_of_jobs(self) -> dict[str, int]:
        """Return how many flows of each job have no path."""
        flows = self.plan.flows
        rows = np.fromiter(self.plan.unrouted, dtype=np.int64, count=len(self.plan.unrouted))
        counts = np.bincount(flows.job[rows], minlength=len(flows.job_names)).tolist()
        return dict(zip(flows.job_names, counts, strict=True))

    def _fullness(self) -> Floats:
        return np.where(self.fullest == NONE, np.inf, self.utilization[self.fullest])


def fares_of(plan: Plan, offered: Floats | None = None) -> Fares:
    """Return what flows and jobs of a plan get.

    Args:
        plan: The plan.
        offered: Part of its speed that each arc can offer, above 0, shape (arcs,). None means all.
    """
    capacity = plan.fabric.structure.capacity
    if offered is not None:
        capacity = capacity * offered
    used = plan.loads / capacity
    flows, paths = plan.flows, plan.paths
    gbps = planned_rates(plan, used, capacity)
    got = np.bincount(paths.flow, gbps, len(flows)) / flows.gbps
    share = np.where(got >= 1 - _TOLERANCE, 1.0, got)
    qp_gbps = gbps / paths.qp_count
    owner = paths.owner()
    uses = np.flatnonzero((used > 1 + _TOLERANCE)[paths.arcs])
    arcs, path = paths.arcs[uses], owner[uses]
    flow = paths.flow[path]
    full = phased_loads(len(used), arcs, gbps[path], flows.job[flow], flows.phase[flow]) / capacity
    fastest = np.zeros(len(used))
    np.maximum.at(fastest, arcs, qp_gbps[path])
    return Fares(plan, used, fullest_arcs(plan, used), share, qp_gbps, full, fastest)


def fullest_arcs(plan: Plan, used: Floats) -> Ints:
    """Return the fullest arc of each flow, the first of equally full ones, shape (flows,).

    ``used`` is the utilisation of each arc. ``NONE`` stands for a flow without a path.
    """
    fullest = np.full(len(plan.flows), NONE, dtype=np.int64)
    paths = plan.paths
    lengths = np.diff(paths.first)
    whole = lengths > 0
    if not whole.any():
        return fullest
    flow = np.repeat(paths.flow, lengths)  # flow of each arc, ascending
    load = used[paths.arcs]
    starts = np.flatnonzero(np.diff(flow, prepend=NONE))
    most = np.maximum.reduceat(load, starts)
    counts = np.diff(np.append(starts, len(flow)))
    hits = np.flatnonzero(load == np.repeat(most, counts))
    first = hits[np.flatnonzero(np.diff(flow[hits], prepend=NONE))]
    fullest[flow[first]] = paths.arcs[first]
    return fullest


def exposed_flows(plan: Plan) -> Ints:
    """Return the rows, ascending, of flows that congestion elsewhere may hold up.

    Such a flow has a path that crosses no overloaded link, but shares a link with a flow of another
    job on its way to an overloaded link.
    """
    full = utilization(plan.fabric, plan.loads) > 1 + _TOLERANCE
    exposed = exposed_paths(plan.flows.job, plan.paths, full)
    return distinct(plan.paths.flow[exposed])
