"""A proven lower bound, and certificates that compare a plan with it, tier by tier."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, distinct_floats
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Certificate, TierCertificate, utilization
from heddle_controller.solve.network import Network

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
