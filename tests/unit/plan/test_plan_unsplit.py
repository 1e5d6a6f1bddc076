"""Flows with one QP that may keep a plan above its bound, because they cannot be split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.plan.limits import unsplit_flows
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between


def plan_of(bound: float, *qps: int, gbps: float = 400.0, uplink_gbps: float = 400.0) -> Plan:
    """Return a plan of flows over a leaf's only uplink, with ``bound`` as its lower bound."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=4, uplink_gbps=uplink_gbps)
    nics = fabric.rows_of_kind(NodeKind.NIC)
    some = flows_between(fabric, "permutation", seed=1, gbps=gbps).take(np.arange(len(qps)))
    source, destination = nics[: len(qps)], nics[4 : 4 + len(qps)]
    flows = replace(some, source=source, destination=destination, qps=np.array(qps))
    plan = solve(fabric, flows)
    tiers = tuple(replace(tier, lower_bound=bound) for tier in plan.certificate.tiers)
    return replace(plan, certificate=replace(plan.certificate, lower_bound=bound, tiers=tiers))


def test_flows_with_one_qp_over_a_link_above_its_bound() -> None:
    """They are named, and flows with more QPs are not."""
    assert unsplit_flows(plan_of(1.0, 1, 4, 1)).tolist() == [0, 2]
    assert unsplit_flows(plan_of(1.0, 2, 2)).tolist() == []


def test_links_at_their_bound_or_below_line_rate() -> None:
    """Splitting flows over a link at its bound gains nothing, nor where no flow is slow."""
    assert unsplit_flows(plan_of(2.0, 1, 1)).tolist() == []
    assert unsplit_flows(plan_of(0.5, 1)).tolist() == []


def test_a_qp_that_asks_for_more_than_a_link_carries() -> None:
    """It is named although the link is at its bound, which counts whole QPs.

    It is not if just its NIC has too slow a link: no other link could take a part of it.
    """
    assert unsplit_flows(plan_of(2.0, 1, 2, gbps=800.0)).tolist() == [0]
    assert unsplit_flows(plan_of(2.0, 1, gbps=800.0, uplink_gbps=1600.0)).tolist() == []
