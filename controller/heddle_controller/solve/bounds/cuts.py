"""Lower bounds from cuts: traffic that has to leave a set of nodes leaves over the set's arcs.

All traffic from inside a set of nodes to the outside crosses the arcs that leave the set. So one of
these arcs is at least as full as the whole demand over the whole capacity. Demand is counted like
load: the worst phase of each job. Where all crossing QPs have one rate, loads come in whole steps,
and the bound is rounded up to the next step that the arcs can hold together. A QP that is larger
than the fastest of the arcs overfills whichever it takes.

The sets are every NIC, every switch with its NICs, all switches that NICs with several links join
together with these NICs, every zone, and the complements of all these (traffic inwards). The bounds
have a closed form, and are exact for healthy fabrics.

What the NICs of a leaf send to other leaves goes up from that leaf, or over other links that these
NICs have to other leaves. A cut around the leaf and all its NICs proves too little, because it
counts the links of NICs whose flows stay below the leaf. No path leads through a NIC, so the cut
may go around the leaf and only those NICs that send more than their other links carry. The same
holds for traffic that they receive.

A ``Bound`` holds for every assignment of the same flows, whoever proved it. A certificate compares
a plan with it, tier by tier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    distinct,
    distinct_floats,
    ranges,
)
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.graphs import joined_parts
from heddle_controller.model.kept import KeptFlows
from heddle_controller.model.plan import Certificate, TierCertificate, phased_loads, utilization
from heddle_controller.solve.network import Network
from heddle_controller.solve.phases import copied, loads_of_job

EXACT = 1e-9
"""Relative error within which a rate counts as a whole multiple of another."""
DOUBT = 1e-6
"""Part of a step by which rounding errors may have raised a bound, which is a sum of many terms."""
MOST_DIVISIONS = 64
"""Most divisions in the search for a common measure, and largest ratio of the least rate to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A lower bound on the worst utilisation of every assignment of the same flows."""

    tiers: Floats
    """Lower bound on the worst utilisation of each tier, shape (tiers,)."""
    overall: float
    """Lower bound on the worst utilisation of any arc."""
    proof: str
    """Kind of proof, "cut" or "lp"."""
    arcs: Floats | None = None
    """Utilisation that each arc need not go below: the bound of the switches and zones that it
    leaves or enters, shape (arcs + 1,), infinite for the padding. A tier's bound is that of its
    worst place, and a switch with one link left must not excuse collisions at other switches. None
    where not computed."""
    beside: Floats | None = None
    """Least worst utilisation of each tier in plans without an arc above ``overall``, where that is
    more than ``tiers``; None where not computed. It proves nothing of a tier alone, since a plan
    may relieve one tier by filling another beyond ``overall``."""

    @property
    def aims(self) -> Floats:
        """Utilisation that each tier may be brought down to, shape (tiers,)."""
        return self.tiers if self.beside is None else np.maximum(self.tiers, self.beside)


def in_whole_qps(network: Network, flows: Flows, routed: Bools, bound: Bound) -> Bound:
    """Return the bound, raised to the next load that whole QPs can put on an arc.

    If the rates of all QPs are multiples of one rate, so is every load, which is the sum over jobs
    of each job's worst phase. Where arcs have different speeds, the smallest such load that is not
    below the bound counts. ``routed`` marks the flows that count, shape (flows,).
    """
    step = common_measure(flows.gbps[routed] / flows.qps[routed])
    if not step:
        return bound
    structure = network.fabric.structure
    speed, tier = structure.capacity[network.usable], structure.tier_of_arc[network.usable]
    speeds = distinct_floats(speed)
    tiers = bound.tiers.copy()
    for row in np.flatnonzero(tiers > 0).tolist():
        some = speeds if len(speeds) == 1 else distinct_floats(speed[tier == row])
        tiers[row] = _raised(float(tiers[row]), step / some)
    overall = max(_raised(bound.overall, step / speeds), float(tiers.max(initial=0.0)))
    return replace(bound, tiers=tiers, overall=overall)


def _raised(least: float, steps: Floats) -> float:
    """Return the least multiple of any of ``steps`` that is not below ``least``."""
    if not len(steps):
        return least
    return max(least, float((np.ceil(least / steps - DOUBT) * steps).min()))


def common_measure(rates: Floats) -> float:
    """Return the greatest rate that divides all rates evenly (Euclid); 0 if none is found."""
    rates = distinct_floats(rates)
    if not len(rates):
        return 0.0
    measure = float(rates[0])
    for rate in rates.tolist():
        rest, divisor = rate, measure
        for _ in range(MOST_DIVISIONS):
            if divisor <= EXACT * rate * MOST_DIVISIONS:
                break
            rest, divisor = divisor, abs(rest - round(rest / divisor) * divisor)
        measure = rest
        if measure * MOST_DIVISIONS < rates[0]:
            return 0.0
    times = rates / measure
    return measure if (np.abs(times - np.round(times)) <= EXACT * times).all() else 0.0


def certify(fabric: Fabric, loads: Floats, bound: Bound) -> Certificate:
    """Return the certificate of loads (Gbit/s by arc) against a proven bound."""
    return certify_worst(fabric, fabric.structure.worst_by_tier(utilization(fabric, loads)), bound)


def certify_worst(fabric: Fabric, worst: Floats, bound: Bound) -> Certificate:
    """Return the certificate of the worst utilisation of each tier against a proven bound."""
    # Both are sums of the same rates in different order. So a bound that is met may be a rounding
    # error above the value that meets it.
    tiers = tuple(
        TierCertificate(name, float(reached), float(min(least, reached)))
        for name, reached, least in zip(fabric.structure.tiers, worst, bound.tiers, strict=True)
    )
    reached = float(worst.max(initial=0.0))
    proof = bound.proof if reached > 0 else "none"
    return Certificate(reached, min(bound.overall, reached), proof, tiers)


def scaled(certificate: Certificate, unit: float) -> Certificate:
    """Return the certificate of the same paths with every demand multiplied by ``unit``."""
    tiers = tuple(
        replace(
            tier, max_utilization=tier.max_utilization * unit, lower_bound=tier.lower_bound * unit
        )
        for tier in certificate.tiers
    )
    worst, least = certificate.max_utilization * unit, certificate.lower_bound * unit
    return replace(certificate, max_utilization=worst, lower_bound=least, tiers=tiers)


_EQUAL_RATES = 1e-9
"""Relative difference up to which rates count as equal."""


def cut_bound(network: Network, flows: Flows, routed: Bools) -> Bound:
    """Return the bound on each tier and on the whole plan that cuts prove.

    ``routed`` marks the flows that count, shape (flows,).
    """
    cuts = Cuts(network, flows, routed)
    arcs = cuts.of_arcs(np.arange(network.arc_count))
    bound = replace(cuts.bound(), arcs=np.append(arcs, np.inf))  # the padding has no bound
    if not network.several.any():
        return in_whole_qps(network, flows, routed, bound)
    return with_shared_leaves(network, flows, routed, bound)


class Cuts:
    """All cuts of one network and set of flows, kept up to date when links or flows change."""

    def __init__(self, network: Network, flows: Flows, routed: Bools) -> None:
        rows = np.flatnonzero(routed)
        self._tier_count = len(network.fabric.structure.tiers)
        self._families = [
            _Family(network, flows, rows, group, inwards=inwards)
            for group in (_partitions(network) if len(rows) else ())
            for inwards in (False, True)
        ]

    def copy(self) -> Cuts:
        """Return other cuts that prove the same. Each can be changed without the other."""
        return copied(self, _families=[family.copy() for family in self._families])

    def change(self, arcs: Ints, *, usable: bool) -> None:
        """Add or remove the capacity of arcs whose state changed.

        The sets stay as they are, also where a NIC now has one usable link or several.
        """
        if len(arcs):
            for family in self._families:
                family.change(arcs, usable=usable)

    def prepare(self) -> None:
        """Build indexes now, so that the first change is as quick as later ones."""
        for family in self._families:
            family.prepare()

    def recount(self, flows: Flows, routed: Bools, rows: Ints) -> None:
        """Count the flows as they are now: flows were appended, or others count than before.

        ``routed`` marks those that count, shape (flows,). ``rows`` are the flows that were
        appended, or whose mark changed, ascending. Known flows stay in their rows and unchanged.
        """
        for family in self._families:
            family.recount(flows, routed, rows)

    def keep(self, kept: KeptFlows, routed: Bools) -> None:
        """Take on other flows. ``routed`` marks those that count, none of them new."""
        for family in self._families:
            family.keep(kept, routed)

    def bound(self) -> Bound:
        """Return the bound that the cuts prove now."""
        tiers, overall = np.zeros(self._tier_count), 0.0
        for family in self._families:
            worst, by_tier = family.worst()
            overall = max(overall, worst)
            for tier, least in by_tier.items():
                tiers[tier] = max(tiers[tier], least)
        return Bound(tiers, max(overall, float(tiers.max(initial=0.0))), "cut")

    def of_arcs(self, arcs: Ints) -> Floats:
        """Return the greatest bound of the cuts that each arc is part of, shape of ``arcs``."""
        bounds = np.zeros(len(arcs))
        for family in self._families:
            np.maximum(bounds, family.of_arcs(arcs), out=bounds)
        return bounds


def _partitions(network: Network) -> list[Ints]:
    """Return ways to sort nodes into sets: set of each node, or ``NONE`` for nodes in no set."""
    nodes, zones = network.fabric.structure.nodes, network.fabric.structure.zones
    rows = np.arange(network.fabric.node_count, dtype=np.int64)
    is_nic = nodes.kind == NodeKind.NIC
    alone = np.where(is_nic, rows, NONE)
    # A NIC with several usable links is in no switch's set; nor is one that is cut off.
    at_switch = np.where(is_nic, NONE, rows)
    sole = np.flatnonzero(network.usable & is_nic[network.tail])
    sole = sole[network.uplinks[network.tail[sole]] == 1]
    at_switch[network.tail[sole]] = network.head[sole]
    partitions = [alone, at_switch]
    if (network.uplinks > 1).any():
        partitions.append(_joined(network))
    if (zones != NONE).any():
        partitions.append(np.where(is_nic & (at_switch != NONE), zones[at_switch], zones))
    return partitions


def _joined(network: Network) -> Ints:
    """Return the part of each node, where only usable links of NICs join nodes.

    ``NONE`` for NICs without a usable link.
    """
    is_nic, count = network.level == NodeKind.NIC, network.fabric.node_count
    up = np.flatnonzero(network.usable & is_nic[network.tail])
    group = joined_parts(network.tail[up], network.head[up], count)
    joined: Ints = np.where(is_nic & (network.uplinks == 0), NONE, group)
    return joined


class _Family:
    """The cuts around each set of one partition, in one direction. Arrays are by set."""

    def __init__(
        self, network: Network, flows: Flows, rows: Ints, group: Ints, *, inwards: bool
    ) -> None:
        self._group, self._inwards = group, inwards
        ends = (network.tail, network.head)
        inside, outside = reversed(ends) if inwards else ends
        self._count = int(group.max(initial=0)) + 1
        own = group[inside]
        leaves = (own != NONE) & (own != group[outside])
        self._arc_set = np.where(leaves, own, NONE)
        self._speed = network.fabric.structure.capacity
        arcs = np.flatnonzero(network.usable & leaves)
        around, speed = self._arc_set[arcs], self._speed[arcs]
        self._even: Floats = _common(speed, around, self._count)
        """Speed of the arcs around each set where all have the same speed; else 0."""
        of_sets = (np.bincount(around, w, self._count) for w in (speed, np.ones(len(around))))
        self._capacity, self._width = (total.astype(np.float64) for total in of_sets)
        self._widest = _greatest(speed, around, self._count)
        """Speed of the fastest arc around each set; 0 where there is none."""
        self._demand, self._qps = np.zeros(self._count), np.zeros(self._count)
        self._rate: Floats = np.zeros(self._count)
        """Rate of the QPs that leave each set where all have the same rate; else 0."""
        self._largest: Floats = np.zeros(self._count)
        """Rate of the largest QP that leaves each set."""
        self._flow_set = self._sets_of(flows)
        """The set that each flow leaves (or enters, inwards); ``NONE`` if it crosses no border."""
        self._open = network.usable & leaves
        self._tier_of_arc = network.fabric.structure.tier_of_arc
        self._tier = self._common_tier(arcs)
        self.sets_of_tier = _by_value(self._tier)
        """The sets whose arcs all belong to one tier, by tier."""
        self.bounds: Floats = np.zeros(self._count)
        """Lower bound on the worst arc around each set, by all that crosses; 0 where unproven."""
        self._least: Floats = np.zeros(self._count)
        """The same, or what the largest QP that crosses proves by itself, if that is more."""
        self._worst: tuple[float, dict[int, float]] | None = None
        every = np.arange(self._count)
        self._account(flows, rows, every)
        self._renew(every)

    def copy(self) -> _Family:
        """Return another family of the same cuts. Each can be changed without the other."""
        arcs = ("_capacity", "_width", "_even", "_widest", "_tier", "_open")
        return copied(self, *arcs, "_demand", "_qps", "_rate", "_largest", "_least", "bounds")

    def _sets_of(self, flows: Flows, known: int = 0) -> Ints:
        """Return the set in which each flow from row ``known`` on is counted."""
        ends = (flows.source[known:], flows.destination[known:])
        inner, outer = reversed(ends) if self._inwards else ends
        first, second = self._group[inner], self._group[outer]
        return np.where(first != second, first, NONE)

    def recount(self, flows: Flows, routed: Bools, rows: Ints) -> None:
        """Count the flows as they are now; see ``Cuts.recount``."""
        known = len(self._flow_set)
        if len(flows) > known:
            self._flow_set = np.append(self._flow_set, self._sets_of(flows, known))
            if _is_job_behind(flows, known, rows):
                self._add(flows, rows[routed[rows]])
                return
        self._recount(flows, routed, self._flow_set[rows])

    def keep(self, kept: KeptFlows, routed: Bools) -> None:
        """Take on other flows; see ``Cuts.keep``."""
        left = self._flow_set[kept.gone]
        self._flow_set = self._sets_of(kept.after)
        self._recount(kept.after, routed, np.append(left, self._flow_set[kept.altered]))

    def _recount(self, flows: Flows, routed: Bools, sets: Ints) -> None:
        """Sum up anew what leaves some sets, which may occur more than once."""
        touched = np.zeros(self._count + 1, dtype=np.bool_)
        touched[sets] = True
        touched[NONE] = False  # the last place is that of flows in no set
        sets = np.flatnonzero(touched)
        if len(sets):
            self._account(flows, np.flatnonzero(routed & touched[self._flow_set]), sets)
            self._renew(sets)

    def _add(self, flows: Flows, rows: Ints) -> None:
        """Count the flows of a job that had none before, on top of what is counted."""
        rows = rows[self._flow_set[rows] != NONE]
        flow_set, phase, count = self._flow_set[rows], flows.phase[rows], self._count
        sets = np.flatnonzero(np.bincount(flow_set, minlength=count))
        gbps, qps = flows.gbps[rows], flows.qps[rows].astype(np.float64)
        alone, known = self._demand[sets] <= 0, self._rate[sets]
        rate = _common(gbps / qps, flow_set, count)[sets]
        alike = np.abs(known - rate) <= _EQUAL_RATES * rate
        self._rate[sets] = np.where(alone, rate, np.where(alike, known, 0.0))
        np.maximum.at(self._largest, flow_set, gbps / qps)
        self._demand += loads_of_job(count, flow_set, gbps, phase)
        self._qps += loads_of_job(count, flow_set, qps, phase)
        self._renew(sets)

    def _account(self, flows: Flows, rows: Ints, sets: Ints) -> None:
        """Sum up anew what leaves some sets. ``rows`` are all the flows that do."""
        rows = rows[self._flow_set[rows] != NONE]
        flow_set = self._flow_set[rows]
        together = (flow_set, flows.job[rows], flows.phase[rows])
        self._demand[sets] = self._summed(flows.gbps[rows], *together)[sets]
        qps = self._summed(flows.qps[rows].astype(np.float64), *together)
        self._qps[sets] = np.round(qps[sets])
        rates = flows.gbps[rows] / flows.qps[rows]
        self._rate[sets] = _common(rates, flow_set, self._count)[sets]
        self._largest[sets] = _greatest(rates, flow_set, self._count)[sets]

    def _summed(self, amount: Floats, flow_set: Ints, job: Ints, phase: Ints) -> Floats:
        """Return the sum of an amount of each flow by set, with the worst phase of each job."""
        return phased_loads(self._count, flow_set, amount, job, phase)

    def _common_tier(self, arcs: Ints) -> Ints:
        """Return the tier of each set's arcs, ``NONE`` where they are of several tiers."""
        tier = np.full(self._count, NONE, dtype=np.int64)
        around, own = self._arc_set[arcs], self._tier_of_arc[arcs]
        tier[around] = own
        tier[around[tier[around] != own]] = NONE
        return tier

    def change(self, arcs: Ints, *, usable: bool) -> None:
        """Add or remove the capacity of arcs."""
        arcs = arcs[self._arc_set[arcs] != NONE]
        if not len(arcs):
            return
        sets, place = np.unique(self._arc_set[arcs], return_inverse=True)
        speed, sign = self._speed[arcs], 1.0 if usable else -1.0
        self._capacity[sets] += sign * np.bincount(place, weights=speed)
        self._width[sets] += sign * np.bincount(place)
        self._open[arcs] = usable
        whole = self._width[sets] * self._even[sets]
        alike = np.abs(self._capacity[sets] - whole) <= 1e-9 * whole
        of_others = np.bincount(place, self._tier_of_arc[arcs] != self._tier[self._arc_set[arcs]])
        unsure = sets[~alike | (self._even[sets] == 0) | (of_others > 0)]
        if len(unsure):
            self._look_again(unsure)
        self._renew(sets)

    def _look_again(self, sets: Ints) -> None:
        """Determine anew whether the arcs around some sets have one speed and one tier."""
        first, by_set = self._arcs_by_set
        known = self._tier[sets]
        for one in sets.tolist():
            arcs = by_set[first[one] : first[one + 1]]
            arcs = arcs[self._open[arcs]]
            speed, tier = self._speed[arcs], self._tier_of_arc[arcs]
            even = len(arcs) > 0 and speed.max() <= speed.min() * (1 + 1e-9)
            self._even[one] = speed.min() if even else 0.0
            self._widest[one] = speed.max(initial=0.0)
            self._tier[one] = tier[0] if len(arcs) and (tier == tier[0]).all() else NONE
        if not np.array_equal(known, self._tier[sets]):
            self.sets_of_tier = _by_value(self._tier)

    @cached_property
    def _arcs_by_set(self) -> tuple[list[int], Ints]:
        """Where the arcs around each set begin, and these arcs, set by set."""
        arcs = np.flatnonzero(self._arc_set != NONE)
        around = self._arc_set[arcs]
        counts = np.bincount(around, minlength=self._count)
        return [0, *np.cumsum(counts).tolist()], arcs[np.argsort(around, kind="stable")]

    def prepare(self) -> None:
        """Sort the arcs by set now."""
        _ = self._arcs_by_set

    def _renew(self, sets: Ints) -> None:
        self.bounds[sets] = self._bounds(sets)
        self._least[sets] = np.maximum(self.bounds[sets], self._alone(sets))
        self._worst = None

    def worst(self) -> tuple[float, dict[int, float]]:
        """Return the greatest bound, and the greatest bound of the sets of each tier."""
        if self._worst is None:
            tiers = {t: float(self._least[rows].max()) for t, rows in self.sets_of_tier.items()}
            self._worst = float(self._least.max(initial=0.0)), tiers
        return self._worst

    def of_arcs(self, arcs: Ints) -> Floats:
        """Return the bound of the set that each arc leaves (or enters, inwards); 0 for no set.

        A QP that overfills any arc by itself does not count here: it is no reason to fill the other
        arcs around the set as much.
        """
        return np.append(self.bounds, 0.0)[self._arc_set[arcs]]

    def _bounds(self, sets: Ints) -> Floats:
        open_ = (self._demand[sets] > 0) & (self._width[sets] > 0)
        capacity = np.where(open_, self._capacity[sets], 1.0)
        width = np.where(open_, self._width[sets], 1.0)
        even = self._even[sets]
        step = self._rate[sets] * (even > 0) / np.where(even > 0, even, 1.0)
        stepped = np.ceil(self._qps[sets] / width) * step
        bounds: Floats = np.where(open_, np.maximum(self._demand[sets] / capacity, stepped), 0.0)
        return bounds

    def _alone(self, sets: Ints) -> Floats:
        """Return how full the largest QP that leaves each set makes the fastest arc by itself.

        0 where that arc has room for it.
        """
        open_ = (self._demand[sets] > 0) & (self._width[sets] > 0)
        widest = np.where(open_, self._widest[sets], 1.0)
        alone = np.where(open_, self._largest[sets] / widest, 0.0)
        return np.where(alone > 1 + EXACT, alone, 0.0)


def _is_job_behind(flows: Flows, known: int, rows: Ints) -> bool:
    """Return whether all flows from row ``known`` on, and all of ``rows``, are of one new job.

    ``rows`` are ascending.
    """
    job = flows.job[known:]
    one = job.min() == job.max() and job[0] > flows.job[:known].max(initial=NONE)
    return bool(one and len(rows) and rows[0] >= known)


def _common(values: Floats, group: Ints, count: int) -> Floats:
    """Return the value of each group whose values are all equal, 0 for all other groups."""
    some = np.zeros(count)
    some[group] = values
    unlike = np.abs(values - some[group]) > _EQUAL_RATES * np.abs(values)
    some[group[unlike]] = 0.0
    return some


def _greatest(values: Floats, group: Ints, count: int) -> Floats:
    """Return the greatest value of each group, 0 for groups without any."""
    most = np.zeros(count)
    np.maximum.at(most, group, values)
    return most


def _by_value(column: Ints) -> dict[int, Ints]:
    """Return the rows of each value except ``NONE``."""
    values = distinct(column).tolist()
    return {value: np.flatnonzero(column == value) for value in values if value != NONE}


_ROUNDS = 8
"""Most rounds that leave out NICs whose other links are wide enough (Dinkelbach). Few are
needed."""
_CLOSE = 1e-9


def with_shared_leaves(network: Network, flows: Flows, routed: Bools, bound: Bound) -> Bound:
    """Return the bound in whole QPs, raised to what shared leaves prove.

    ``routed`` marks the flows that count, shape (flows,). ``arcs`` and ``beside`` of the result
    also include what the links of leaves to other switches must carry.
    """
    ways = [_SharedLeaves.of(network, flows, routed, inwards=inwards) for inwards in (False, True)]
    least = max(float(way.least().max(initial=0.0)) for way in ways)
    bound = replace(bound, overall=max(bound.overall, least))
    bound = in_whole_qps(network, flows, routed, bound)
    step = common_measure(flows.gbps[routed] / flows.qps[routed])
    if step:
        bound = replace(bound, overall=_next_possible(network, ways, bound.overall, step))
    inner = network.inner[network.usable[network.inner]]
    upwards = np.zeros(len(inner))
    for way, leaf in zip(ways, (network.tail, network.head), strict=True):
        over = way.least_upwards(max(bound.overall, 1.0), step)
        np.maximum(upwards, over[leaf[inner]], out=upwards)
    if step:
        per_step = step * network.per_gbps[inner]
        upwards = np.ceil(upwards / per_step - DOUBT) * per_step
    arcs, beside = np.zeros(network.arc_count + 1), bound.tiers.copy()
    arcs[inner] = upwards
    np.maximum.at(beside, network.tier[inner], upwards)
    return replace(
        bound, beside=beside, arcs=arcs if bound.arcs is None else np.maximum(arcs, bound.arcs)
    )


def _next_possible(network: Network, ways: list[_SharedLeaves], least: float, step: float) -> float:
    """Return the least worst utilisation, from ``least`` on, at which whole QPs leave every leaf.

    The search stops after some steps, so the result may be too low, but never too high.
    """
    steps = step * distinct_floats(network.per_gbps[:-1][network.usable])
    for _ in range(_ROUNDS):
        if all((way.least_upwards(least, step) <= least + _CLOSE).all() for way in ways):
            break
        least = float(((np.floor(least / steps + DOUBT) + 1) * steps).min())
    return least


@dataclass(frozen=True, slots=True, eq=False)
class _SharedLeaves:
    """The leaves of NICs, and what these NICs send beyond them, or receive (inwards)."""

    leaf: Ints
    """Leaf of each pair of a leaf and one of its NICs."""
    wide: Floats
    """Gbit/s of the NIC's links to other leaves, shape (pairs,)."""
    up: Floats
    """Gbit/s of each node's links to other switches, shape (nodes,)."""
    mixed: Bools
    """Whether these links are of several tiers, shape (nodes,)."""
    pair: Ints
    """Pairs that flows go beyond: one element for each leaf of a flow's NIC that it must leave."""
    flow: Ints
    """Flow row of each element of ``pair``."""
    flows: Flows

    @classmethod
    def of(cls, network: Network, flows: Flows, routed: Bools, *, inwards: bool) -> _SharedLeaves:
        """Return the leaves of one fabric. ``routed`` marks the flows that count."""
        capacity, count = network.fabric.structure.capacity, network.fabric.node_count
        is_nic = network.level == NodeKind.NIC
        out = np.flatnonzero(network.usable & is_nic[network.tail])
        code = network.tail[out] * count + network.head[out]
        pairs, place = np.unique(code, return_inverse=True)
        nic, leaf = pairs // count, pairs % count
        speed = capacity[out ^ 1] if inwards else capacity[out]
        own = np.bincount(place, speed, len(pairs))
        wide = np.bincount(nic, own, count)[nic] - own
        rising = np.flatnonzero(network.usable & ~is_nic[network.tail] & ~is_nic[network.head])
        below = network.head[rising] if inwards else network.tail[rising]
        tier, mixed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
        tier[below] = network.tier[rising]
        mixed[below[tier[below] != network.tier[rising]]] = True
        rows = np.flatnonzero(routed)
        ends = flows.source[rows], flows.destination[rows]
        here, there = reversed(ends) if inwards else ends
        first = np.searchsorted(nic, np.arange(count + 1))
        flow = np.repeat(np.arange(len(rows)), np.diff(first)[here])
        pair = ranges(first[here], first[here + 1])
        beyond = ~np.isin(there[flow] * count + leaf[pair], pairs)
        up = np.bincount(below, capacity[rising], count).astype(np.float64)
        return cls(leaf, wide, up, mixed, pair[beyond], rows[flow[beyond]], flows)

    def least(self) -> Floats:
        """Return the lower bound on the worst of the links around each leaf, shape (nodes,)."""
        sent, count = self._sent(), len(self.up)
        least = np.zeros(count)
        for _ in range(_ROUNDS):
            some = sent > self.wide * least[self.leaf]
            width = self.up + np.bincount(self.leaf[some], self.wide[some], count)
            demand = self._demand(some)
            now = np.divide(demand, width, out=np.zeros(count), where=width > 0)
            if (now <= least * (1 + _CLOSE)).all():
                break
            np.maximum(least, now, out=least)
        return least

    def least_upwards(self, most: float, step: float) -> Floats:
        """Return the least that each leaf's links to switches carry, if no link exceeds ``most``.

        It is a utilisation, shape (nodes,), and 0 where these links are of several tiers. ``step``
        is the common measure of the rates of all QPs; 0 for none.
        """
        wide = self.wide * most
        if step:
            wide = np.floor(wide / step + DOUBT) * step
        some, count = self._sent() > wide, len(self.up)
        over = self._demand(some) - np.bincount(self.leaf[some], wide[some], count)
        counted = (self.up > 0) & (over > 0) & ~self.mixed
        return np.divide(over, self.up, out=np.zeros(count), where=counted)

    def _sent(self) -> Floats:
        """Return what each NIC sends beyond each of its leaves, shape (pairs,)."""
        return self._summed(self.pair, self.flow, len(self.leaf))

    def _demand(self, some: Bools) -> Floats:
        """Return what the marked NICs together send beyond each leaf, shape (nodes,)."""
        counted = some[self.pair]
        return self._summed(self.leaf[self.pair[counted]], self.flow[counted], len(self.up))

    def _summed(self, sets: Ints, rows: Ints, count: int) -> Floats:
        flows = self.flows
        return phased_loads(count, sets, flows.gbps[rows], flows.job[rows], flows.phase[rows])
