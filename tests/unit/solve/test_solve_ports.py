"""QPs that share a source port share a path: a switch cannot tell them apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from heddle_controller.model.fabric import State
from heddle_controller.model.flows import SOURCE_PORT_COUNT
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_emulator.topology import clos
from tests.support.solve_flows import flows_of

FABRIC = clos(leaves=2, spines=4, nics_per_leaf=2)
ENDS = ("l0-h0-n0", "l1-h0-n0")


def plan_of(counts: list[int]) -> Plan:
    """A plan of flows of these QP counts between one pair of NICs, and of one flow beside them."""
    rows = [(*ENDS, 400.0 / len(counts), qps, f"j{i % 3}", "") for i, qps in enumerate(counts)]
    return solve(FABRIC, flows_of(FABRIC, *rows, ("l0-h0-n1", "l1-h0-n1", 100.0, 4, "k", "")))


def ways_by_port(plan: Plan) -> dict[int, set[tuple[int, ...]]]:
    """The paths that packets of each source port of the pair should take."""
    ports = plan.flows.source_ports()
    found: dict[int, set[tuple[int, ...]]] = {}
    for path in np.flatnonzero(plan.paths.flow < len(plan.flows) - 1).tolist():
        base = int(ports[plan.paths.flow[path]])
        first, last = int(plan.paths.first_qp[path]), int(plan.paths.last_qp[path])
        way = tuple(plan.paths.of(path).tolist())
        for qp in range(first, last + 1):
            found.setdefault((base + qp) % SOURCE_PORT_COUNT, set()).add(way)
    return found


@pytest.mark.parametrize("counts", [[10_000, 10_000], [1] * 20_000], ids=["two", "many"])
def test_a_port_has_one_path(counts: list[int]) -> None:
    """A port has one path even if several QPs share it, also after a repair; a note says so."""
    plan = plan_of(counts)
    lost = FABRIC.find_links("l0", "s1")[0]
    repaired = Repairer(plan).repair(FABRIC.with_links({lost: State.DOWN}), plan.flows)
    for one in (plan, repaired):
        verify_plan(one)
        assert not one.unrouted
        assert {len(ways) for ways in ways_by_port(one).values()} == {1}
        assert f"{len(counts)} flows share UDP source ports" in one.notes[0]


def test_flows_of_one_qp_still_spread_by_port() -> None:
    """20,000 flows of one QP use all four spines, as 16,384 ports can be told apart."""
    plan = plan_of([1] * 20_000)
    assert len({way for ways in ways_by_port(plan).values() for way in ways}) == 4


def test_up_to_all_ports_flows_part_as_they_like() -> None:
    """16,384 QPs of one pair are told apart, and spread over all spines."""
    plan = plan_of([8_192, 8_192])
    assert not plan.notes
    ways = [plan.paths.of(path).tolist() for path in np.flatnonzero(plan.paths.flow < 2).tolist()]
    assert len({way[1] for way in ways}) > 1
    assert all(one != other for one, other in pairwise(ways))
