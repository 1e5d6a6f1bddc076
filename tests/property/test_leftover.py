"""Unannounced flows get only the capacity that announced flows leave."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import UNANNOUNCED_JOB, Flows, concatenate, flow_id
from heddle_controller.model.plan import Plan, utilization
from heddle_controller.plan.verify import verify_plan
from heddle_controller.planner.planning import without_announced
from heddle_controller.solve import plan_anew, repairer_of
from heddle_emulator.topology import clos
from tests.property.test_solve_repairs import other_states
from tests.support.depth import examples
from tests.support.solve_checks import check_backups, check_paths
from tests.support.solve_fabrics import EACH, KINDS, damaged
from tests.support.solve_flows import crowded_flows, flows_of, nic_ids

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def found_flows(rng: Random, fabric: Fabric, most: int = 6) -> Flows:
    """Draw unannounced flows, one for each of up to ``most`` pairs of NICs."""
    nics = nic_ids(fabric)
    pairs = dict.fromkeys(tuple(rng.sample(nics, 2)) for _ in range(rng.randint(1, most)))
    rates = [rng.choice([40.0, 200.0, 390.0]) for _ in pairs]
    rows = [(a, b, rate, 1, UNANNOUNCED_JOB, "") for (a, b), rate in zip(pairs, rates, strict=True)]
    return flows_of(fabric, *rows, names=tuple(flow_id(a, b) for a, b in pairs))


def both(told: Flows, found: Flows, *, odd: bool = False) -> Flows:
    """Announced and found flows together, as an intent has them.

    Found flows of announced pairs are dropped. If ``odd``, the found flows come first.
    """
    return without_announced(concatenate([found, told] if odd else [told, found]))


def paths_of(plan: Plan, count: int) -> list[tuple[int, ...]]:
    """Flow, first and last QP, path and backup of each path of the first ``count`` flows."""
    paths, backups = plan.paths, plan.backups
    return [
        (
            int(paths.flow[row]),
            int(paths.first_qp[row]),
            int(paths.last_qp[row]),
            *paths.of(row).tolist(),
            -1,
            *backups.of(row).tolist(),
        )
        for row in np.flatnonzero(paths.flow < count).tolist()
    ]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(1, EACH))
@given(SEEDS)
def test_what_was_announced_is_planned_as_if_nothing_else_were_there(kind: str, seed: int) -> None:
    """Announced flows get the same paths and backups as without unannounced ones.

    This holds for a new plan and after each of several events, and every plan is valid.
    """
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), 0.05)
    told = crowded_flows(rng, fabric, 10)
    if not len(told):
        return
    flows = both(told, found_flows(rng, fabric), odd=rng.random() < 0.3)
    alone, beside = plan_anew(fabric, told), plan_anew(fabric, flows)
    repairers = repairer_of(alone), repairer_of(beside)
    for step in range(4):
        verify_plan(beside)
        check_paths(beside)
        check_backups(beside)
        assert paths_of(alone, len(told)) == paths_of(beside, len(told)), (seed, step)
        assert {row for row in beside.unrouted if row < len(told)} == set(alone.unrouted), seed
        if rng.random() < 0.6:
            fabric = other_states(rng, fabric)
        else:
            flows = both(told, found_flows(rng, fabric), odd=rng.random() < 0.3)
        alone, beside = (
            one.repair(fabric, f) for one, f in zip(repairers, (told, flows), strict=True)
        )


def test_a_job_gives_up_nothing_for_an_elephant() -> None:
    """Two flows of a job keep a spine each, although sharing one would lower the worst link.

    If they shared a spine, the unannounced flow would have the other, and both would be slower.
    """
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3, nics_per_host=1)
    nics = nic_ids(fabric)
    near, far = nics[:3], nics[3:]
    told = flows_of(fabric, *((near[row], far[row], 300.0, 1, "j", "") for row in range(2)))
    found = flows_of(
        fabric, (near[2], far[2], 390.0, 1, UNANNOUNCED_JOB, ""), names=(flow_id(near[2], far[2]),)
    )
    plan = plan_anew(fabric, both(told, found))
    spines = [plan.paths.of(row)[1] for row in range(2)]
    assert spines[0] != spines[1]
    assert plan.certificate.max_utilization == pytest.approx(690 / 400)
    alone = {tier.tier: tier for tier in plan_anew(fabric, told).certificate.tiers}["leaf-spine"]
    bounds = {tier.tier: tier.lower_bound for tier in plan.certificate.tiers}
    assert bounds == {
        "nic-leaf": pytest.approx(390 / 400),
        "leaf-spine": pytest.approx(alone.lower_bound),
    }


def test_what_a_nic_gets_over_its_only_link_is_proven() -> None:
    """The bound has what a NIC with one link gets of a job and of an elephant together."""
    fabric = clos(leaves=2, spines=4, nics_per_leaf=4, nics_per_host=1)
    here, there, target = (nic_ids(fabric)[row] for row in (0, 1, -1))
    told = flows_of(fabric, (here, target, 400.0, 1, "j", ""))
    found = flows_of(
        fabric, (there, target, 120.0, 1, UNANNOUNCED_JOB, ""), names=(flow_id(there, target),)
    )
    certificate = plan_anew(fabric, both(told, found)).certificate
    tier = {tier.tier: tier for tier in certificate.tiers}["nic-leaf"]
    worst = certificate.lower_bound, tier.lower_bound, tier.max_utilization
    assert worst == pytest.approx((520 / 400, 520 / 400, 520 / 400))


def test_an_elephant_takes_the_emptiest_way_and_stays_there() -> None:
    """An unannounced flow takes the emptiest path and stays while no other is clearly better."""
    fabric = clos(leaves=2, spines=4, nics_per_leaf=4, nics_per_host=1)
    nics = nic_ids(fabric)
    near, far = nics[:4], nics[4:]
    told = flows_of(fabric, *((near[row], far[row], 390.0, 1, "j", "") for row in range(3)))
    found = flows_of(
        fabric, (near[3], far[3], 100.0, 1, UNANNOUNCED_JOB, ""), names=(flow_id(near[3], far[3]),)
    )
    plan = plan_anew(fabric, both(told, found))
    assert utilization(fabric, plan.loads).max() == pytest.approx(390 / 400)
    repairer = repairer_of(plan)
    more = flows_of(
        fabric, (near[3], far[3], 130.0, 1, UNANNOUNCED_JOB, ""), names=(flow_id(near[3], far[3]),)
    )
    again = repairer.repair(fabric, both(told, more))
    assert again.paths.of(3).tolist() == plan.paths.of(3).tolist()
    fewer = flows_of(fabric, *((near[row], far[row], 390.0, 1, "j", "") for row in range(1)))
    again = repairer.repair(fabric, both(fewer, more))
    assert again.paths.of(1).tolist() == plan.paths.of(3).tolist()
