"""A better bound for an existing plan, by the linear relaxation.

Plans are made and repaired in little time, so their certificates may rest on cuts only: large plans
skip the relaxation, and repairs always do. Here the relaxation is solved for the flows that the
plan carries, without haste, and its prices are compared with every path. Only the certificate of
the plan changes, and its bounds can only rise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.solve.attempt import PlanningProblem, relaxed
from heddle_controller.solve.bounds.cuts import Bound
from heddle_controller.solve.bounds.prices import can_search_all_paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options

GAP = 1e-6
"""Relative distance from the bound that counts as none."""


def proven_bound(plan: Plan, options: Options | None = None) -> Certificate:
    """Return the plan's certificate with the best bound that can be proven now.

    It covers the flows that the plan carries and whose NICs have a usable link: a bound for fewer
    flows also holds for more. The time limit of ``options`` may cut it short. Prices then prove
    less, but never too much. The certificate stays as it is where there are too many paths to look
    at.
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
    """Return the certificate, raised to a bound but never above what the plan reached."""
    tiers = tuple(
        replace(tier, lower_bound=max(tier.lower_bound, min(float(least), tier.max_utilization)))
        for tier, least in zip(certificate.tiers, bound.tiers, strict=True)
    )
    least = min(bound.overall, certificate.max_utilization)
    if least <= certificate.lower_bound:
        return replace(certificate, tiers=tiers)
    return replace(certificate, lower_bound=least, proof=bound.proof, tiers=tiers)
