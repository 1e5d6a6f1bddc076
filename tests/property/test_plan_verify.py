"""Verifying a plan beside a known sound one finds the same as verifying it alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import PlanInvalid, verify_plan
from heddle_controller.solve import Repairer, solve
from tests.property.test_solve_repairs import other_states
from tests.support.depth import fresh_seeds
from tests.support.solve_fabrics import KINDS, damaged
from tests.support.solve_flows import any_flows


@pytest.mark.deep
def test_what_is_wrong_is_told_beside_a_sound_plan_too() -> None:
    """The same problems are found with and without a known sound plan.

    Repaired plans are spoilt in paths, backups, columns, figures, reasons or states. The known plan
    is the one before or the plan itself, or it lacks the last flows.
    """
    for seed in fresh_seeds(4):
        _check(seed)


def _check(seed: int) -> None:
    rng = Random(seed)
    fabric = damaged(rng, KINDS[rng.choice(sorted(KINDS))](rng), rng.choice([0.0, 0.2]))
    flows = any_flows(rng, fabric)
    repairer = Repairer(solve(fabric, flows))
    known = repairer.plan
    fewer = solve(fabric, flows.take(np.arange(rng.randint(0, len(flows)))))
    for sound in (known, fewer):
        verify_plan(sound)
    for _ in range(3):
        fabric = other_states(rng, fabric)
        plan = repairer.repair(fabric, flows)
        assert _told(plan, known) == _told(plan, None) == (), seed
        for spoil in (_paths, _backups, _bounds, _figures, _reasons, _states):
            spoilt = spoil(rng, plan)
            assert _told(spoilt, known) == _told(spoilt, None), (seed, spoil.__name__)
            assert _told(spoilt, plan) == _told(spoilt, None), (seed, spoil.__name__)
            assert _told(spoilt, fewer) == _told(spoilt, None), (seed, spoil.__name__)
        known = plan


def _told(plan: Plan, known: Plan | None) -> tuple[str, ...]:
    """The problems found in a copy of the plan, which has no cached values."""
    try:
        verify_plan(replace(plan), None if known is None else (known, entries_of(known)))
    except PlanInvalid as invalid:
        return invalid.problems
    return ()


def _spoilt(rng: Random, paths: Paths, arcs: int) -> Paths:
    """The paths with a few arcs replaced by random or nonexistent ones."""
    changed = paths.arcs.copy()
    for place in rng.sample(range(len(changed)), min(len(changed), rng.randint(1, 3))):
        changed[place] = rng.choice([rng.randrange(arcs), rng.randrange(arcs), -1, arcs])
    return replace(paths, arcs=changed)


def _paths(rng: Random, plan: Plan) -> Plan:
    return replace(plan, paths=_spoilt(rng, plan.paths, 2 * plan.fabric.link_count))


def _backups(rng: Random, plan: Plan) -> Plan:
    if rng.random() < 0.3:  # each path as its own backup
        return replace(plan, backups=plan.paths)
    return replace(plan, backups=_spoilt(rng, plan.backups, 2 * plan.fabric.link_count))


def _bounds(rng: Random, plan: Plan) -> Plan:
    name = rng.choice(["flow", "first_qp", "last_qp", "first"])
    column = getattr(plan.paths, name).copy()
    if len(column):
        column[rng.randrange(len(column))] += rng.choice([-1, 1])
    return replace(plan, paths=replace(plan.paths, **{name: column}))


def _figures(rng: Random, plan: Plan) -> Plan:
    worst = plan.certificate.max_utilization * rng.choice([0.5, 1.5]) + 0.1
    return replace(plan, certificate=replace(plan.certificate, max_utilization=worst))


def _reasons(rng: Random, plan: Plan) -> Plan:
    row = rng.randrange(len(plan.flows) + 1)
    return replace(plan, unrouted={**plan.unrouted, row: rng.choice(["", "no path"])})


def _states(rng: Random, plan: Plan) -> Plan:
    states = other_states(rng, plan.fabric)
    fabric = Fabric(plan.fabric.structure, states.link_state, states.node_state)
    return replace(plan, fabric=fabric, paths=replace(plan.paths, arcs=np.copy(plan.paths.arcs)))
