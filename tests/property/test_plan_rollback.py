"""Plans that begin from an earlier one, with the flows that came since then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import UNANNOUNCED_JOB, flow_id
from heddle_controller.model.plan import Plan
from heddle_controller.plan.rollback import with_newer_flows
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import plan_anew, repairer_of
from heddle_emulator.switches import Switches
from heddle_emulator.topology import hashing
from heddle_emulator.walk import probed
from tests.support.depth import fresh_seeds
from tests.support.drawn import drawn
from tests.support.plan_chance import Wish, clos, wishes


def told(plan: Plan) -> dict[str, object]:
    """Return why each flow has no path, or the path, backup and ports of each of its QPs."""
    found: dict[str, object] = {plan.flows.ids[row]: why for row, why in plan.unrouted.items()}
    ports, at = plan.nic_ports, 0
    for row, flow in enumerate(plan.paths.flow.tolist()):
        for qp in range(int(plan.paths.first_qp[row]), int(plan.paths.last_qp[row]) + 1):
            mine = found.setdefault(plan.flows.ids[flow], {})
            assert isinstance(mine, dict)
            chosen = None if ports is None else (ports.port[at], ports.backup[at])
            probes = None if ports is None else ports.probes[flow]
            ways = tuple(tuple(one.of(row).tolist()) for one in (plan.paths, plan.backups))
            mine[qp] = (*ways, chosen, probes)
            at += 1
    return found


@pytest.mark.deep
@pytest.mark.parametrize("kind", [lambda fabric: fabric, hashing], ids=["entries", "ports"])
def test_flows_that_came_are_as_they_are_now_and_all_others_as_they_were(
    kind: Callable[[Fabric], Fabric],
) -> None:
    """So are their backups, ports and reasons; a repair can begin from the result."""
    for seed in fresh_seeds(quick=8, deep=400):
        case = drawn(seed)
        fabric, flows, some = kind(case.fabric), case.flows, Random(seed)
        ports = np.tile(49152 + np.arange(16), (len(flows), 1))
        fabric = replace(fabric, port_paths=probed(fabric, flows, Switches(fabric, seed), ports))
        rows = np.array([row for row in range(len(flows)) if some.random() < 0.5], dtype=np.int64)
        earlier, newest = plan_anew(fabric, flows.take(rows)), plan_anew(fabric, flows)
        merged = with_newer_flows(earlier, newest)
        assert told(merged) == told(newest) | told(earlier), case
        assert sorted(merged.flows.ids) == sorted(flows.ids), case
        verify_plan(repairer_of(merged).repair(fabric, flows))
        assert with_newer_flows(newest, earlier) is newest, case


def test_flows_that_nobody_announced_are_not_taken_over_and_reasons_are() -> None:
    """Of the flows that came, only announced ones are added, each with its own reason or path."""
    fabric = clos(leaves=2, nics=3)
    (link,) = fabric.find_links("n1", "leaf0")
    fabric = fabric.with_links({link: State.DOWN})
    was = {"kept": Wish("n0", "n3"), "gone": Wish("n2", "n5")}
    found = {flow_id("n0", "n4"): Wish("n0", "n4", job=UNANNOUNCED_JOB)}
    came = {"cut off": Wish("n1", "n4"), "new": Wish("n2", "n4")}
    earlier = plan_anew(fabric, wishes(fabric, **was))
    newest = plan_anew(fabric, wishes(fabric, kept=was["kept"], **found, **came))
    merged = with_newer_flows(earlier, newest)
    assert merged.flows.ids == ("kept", "gone", "cut off", "new")
    expected = told(newest) | told(earlier)
    del expected[flow_id("n0", "n4")]
    assert told(merged) == expected
    assert isinstance(expected["cut off"], str)
