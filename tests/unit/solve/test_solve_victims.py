"""Plans keep flows of other jobs off links that an incast holds up, if that costs nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.limits import exposed_flows
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import planner, solve
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.topology import clos, three_tier
from heddle_emulator.traffic import flows_between
from tests.support.depth import fresh_seeds


def flows_of(fabric: Fabric, ends: list[tuple[int, int, int]], gbps: float, qps: int = 1) -> Flows:
    """Flows given as source NIC, destination NIC and job, each by number."""
    nics = fabric.rows_of_kind(NodeKind.NIC)
    some = flows_between(fabric, "permutation", seed=1, gbps=gbps, qps=qps)
    some = some.take(np.zeros(len(ends), dtype=np.int64))
    source, destination, job = (np.array(column) for column in zip(*ends, strict=True))
    return replace(
        some,
        ids=tuple(f"flow{row}" for row in range(len(ends))),
        source=nics[source],
        destination=nics[destination],
        job=job,
        job_names=tuple(f"job{row}" for row in range(int(job.max()) + 1)),
    )


def unaware(fabric: Fabric, flows: Flows) -> Plan:
    """The plan made as if all flows were of one job, so that none holds up another job."""
    alike = replace(flows, job=np.zeros_like(flows.job), job_names=("all",))
    return replace(solve(fabric, alike), flows=flows)


def test_alike_flows_change_places() -> None:
    """One spine carries the four flows of the incast, and the other those that would pass by."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=8, uplink_gbps=1600.0)
    ends = [(row, 8 + row * (row % 2), row % 2) for row in (0, 1, 3, 2, 4, 5, 7, 6)]
    flows = flows_of(fabric, ends, gbps=400.0)
    assert len(exposed_flows(unaware(fabric, flows)))
    plan = solve(fabric, flows)
    verify_plan(plan)
    assert not len(exposed_flows(plan))
    assert plan.certificate.max_utilization == pytest.approx(4.0)  # the incast's NIC


def drawn(seed: int) -> tuple[Fabric, Flows]:
    """Draw an incast of one job beside rings of two others over the rest of the NICs."""
    random = Random(seed)
    if random.random() < 2 / 3:
        shape = random.choice([3, 4, 8]), random.choice([2, 4, 8])
        fabric = clos(leaves=shape[0], spines=shape[1], nics_per_leaf=8)
    else:
        fabric = three_tier(zones=2, leaves=2, spines=4, nics_per_leaf=8, cores=4)
    order = [*range(len(fabric.rows_of_kind(NodeKind.NIC)))]
    random.shuffle(order)
    senders = random.randint(3, 8)
    rest = order[senders + 1 :]
    ends = [(one, order[0], 0) for one in order[1 : senders + 1]]
    ends += [(one, rest[row - 1], 1 + row % 2) for row, one in enumerate(rest)]
    return fabric, flows_of(
        fabric, ends, random.choice([100.0, 200.0, 400.0]), random.choice([1, 2, 4])
    )


@pytest.mark.deep
def test_nobody_pays_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are fewer victims than without the step, no fuller tiers and no slower flows."""
    before = after = 0
    for seed in fresh_seeds(12):
        fabric, flows = drawn(seed)
        new = solve(fabric, flows)
        with monkeypatch.context() as patch:
            patch.setattr(planner, "FINISHING", planner.FINISHING[:-1])
            old = solve(fabric, flows)
        verify_plan(new)
        for tier, other in zip(new.certificate.tiers, old.certificate.tiers, strict=True):
            assert tier.max_utilization <= other.max_utilization + 1e-9, f"seed {seed}"
        capacity = fabric.structure.capacity
        rates, rates_before = (flow_ratios(capacity, flows, plan.paths) for plan in (new, old))
        assert (rates >= rates_before - 1e-6).all(), f"seed {seed}"
        victims, victims_before = len(exposed_flows(new)), len(exposed_flows(old))
        assert victims <= victims_before, f"seed {seed}"
        before, after = before + victims_before, after + victims
    assert after < before * 0.9


def test_who_shares_its_own_nic_with_an_incast_stays() -> None:
    """A flow whose own NIC also sends to an incast stays exposed, since no other path helps."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=4)
    flows = flows_of(fabric, [(0, 4, 0), (1, 4, 0), (2, 4, 0), (0, 3, 1)], gbps=150.0)
    assert exposed_flows(solve(fabric, flows)).tolist() == [3]


def test_nobody_has_a_choice_beneath_one_leaf() -> None:
    """If an incast and its victim are on one leaf there is no choice, and the victim is named."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=5)
    flows = flows_of(fabric, [(0, 4, 0), (1, 4, 0), (2, 4, 0), (0, 3, 1)], gbps=150.0)
    assert exposed_flows(solve(fabric, flows)).tolist() == [3]
