"""How good a plan is: what it reached, tier by tier, beside what nothing can beat."""

from __future__ import annotations

from dataclasses import replace

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Certificate, TierCertificate, utilization
from heddle_controller.solve.bounds.bound import Bound


def certify(fabric: Fabric, loads: Floats, bound: Bound) -> Certificate:
    """The certificate of loads (Gbit/s by arc) against a proven bound."""
    return certify_worst(fabric, fabric.structure.worst_by_tier(utilization(fabric, loads)), bound)


def certify_worst(fabric: Fabric, worst: Floats, bound: Bound) -> Certificate:
    """The certificate of the worst utilisation of each tier against a proven bound."""
    # Both are sums of the same rates in another order: a bound that is met may
    # come out a rounding error above what meets it.
    tiers = tuple(
        TierCertificate(name, float(reached), float(min(least, reached)))
        for name, reached, least in zip(fabric.structure.tiers, worst, bound.tiers, strict=True)
    )
    reached = float(worst.max(initial=0.0))
    proof = bound.proof if reached > 0 else "none"
    return Certificate(reached, min(bound.overall, reached), proof, tiers)


def scaled(certificate: Certificate, unit: float) -> Certificate:
    """The certificate of the same paths where every demand is ``unit`` times as much."""
    tiers = tuple(
        replace(
            tier, max_utilization=tier.max_utilization * unit, lower_bound=tier.lower_bound * unit
        )
        for tier in certificate.tiers
    )
    worst, least = certificate.max_utilization * unit, certificate.lower_bound * unit
    return replace(certificate, max_utilization=worst, lower_bound=least, tiers=tiers)
