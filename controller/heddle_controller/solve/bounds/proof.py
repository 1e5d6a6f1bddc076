"""A better bound for a plan that stands, by the linear relaxation.

What a plan is made or repaired with has to be quick, so its certificate may know of
cuts only: large plans skip the relaxation, repairs always do. Here it is solved for
the flows that the plan carries, without a hurry, and its prices are held against
every path there is. Nothing of the plan changes but its certificate, and that only
upwards.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.solve.attempt import PlanningProblem, relaxed
from heddle_controller.solve.bounds.bound import Bound
from heddle_controller.solve.bounds.prices import can_search_all_paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options

GAP = 1e-6
"""Relative distance from the bound that is none."""


def proven_bound(plan: Plan, options: Options | None = None) -> Certificate:
    """The plan's certificate with the best bound that can be proven now.

    Over flows that the plan carries and that links in service could carry: fewer flows
    are a lower bound for more. Within the time limit of ``options``; cut short, prices
    prove less, never too much. As it was where all paths are too many to look at.
    """
    if plan.certificate.gap <= GAP:
        return plan.certificate
    options = options or Options()
    network = Network(plan.fabric)
    if not can_search_all_paths(network, network.terminal[plan.flows.destination]):
        return plan.certificate
    candidates = Candidates(network, options.candidate_limit)
    carried = np.bincount(plan.paths.flow, minlength=len(plan.flows)) > 0
    routed = attached(network, plan.flows) & carried
    tiers = np.array([tier.lower_bound for tier in plan.certificate.tiers])
    bound = Bound(tiers, plan.certificate.lower_bound, plan.certificate.proof)
    deadline = options.deadline()
    problem = PlanningProblem(network, candidates, None, plan.flows, routed, bound, deadline)
    relaxed(problem)
    return _raised(plan.certificate, problem.bound)


def _raised(certificate: Certificate, bound: Bound) -> Certificate:
    """The certificate, raised to a bound; what was reached is never below either."""
    tiers = tuple(
        replace(tier, lower_bound=max(tier.lower_bound, min(float(least), tier.max_utilization)))
        for tier, least in zip(certificate.tiers, bound.tiers, strict=True)
    )
    least = min(bound.overall, certificate.max_utilization)
    if least <= certificate.lower_bound:
        return replace(certificate, tiers=tiers)
    return replace(certificate, lower_bound=least, proof=bound.proof, tiers=tiers)
