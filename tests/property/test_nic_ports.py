"""Plans by source ports on drawn fabrics: what they say is where hashing sends packets."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.files.port_paths_file import parse_port_paths, port_paths_document
from heddle_controller.model.load import arc_loads, utilization
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.plan.ports import verify_ports
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import solve_ports
from heddle_emulator.switches import Switches
from heddle_emulator.walk import Fate, walk
from heddle_emulator.walk.probing import probed
from tests.support.depth import fresh_seeds
from tests.support.drawn import drawn

PROBES = 24


def ways(paths: Paths) -> list[tuple[int, int, tuple[int, ...]]]:
    """Flow, QP and arcs of every QP that has a path."""
    return [
        (int(paths.flow[row]), qp, tuple(paths.of(row).tolist()))
        for row in range(len(paths))
        for qp in range(int(paths.first_qp[row]), int(paths.last_qp[row]) + 1)
    ]


def ports_of(plan: Plan, wanted: str) -> np.ndarray:
    """A port for each QP of each flow: that of its path or backup, 1 where it has none."""
    assert plan.nic_ports is not None
    flows, paths = plan.flows, plan.paths
    begins = np.cumsum(flows.qps) - flows.qps
    rows = [begins[flow] + qp for flow, qp, _ in ways(paths)]
    ports = np.ones(int(flows.qps.sum()), dtype=np.int64)
    ports[rows] = np.maximum(getattr(plan.nic_ports, wanted), 1)
    return ports


@pytest.mark.deep
def test_packets_of_each_port_take_the_path_of_its_plan() -> None:
    """Of any fabric, damaged or not: ports lead over paths and backups, as a walk of packets sees.

    Flows without a path are those of which no port arrived. The worst link is no worse than the
    certificate says, and the file of what is known reads back as it was.
    """
    for seed in fresh_seeds(quick=12, deep=400):
        case = drawn(seed)
        hashes = Switches(case.fabric, seed)
        ports = np.tile(49152 + np.arange(PROBES), (len(case.flows), 1))
        known = probed(case.fabric, case.flows, hashes, ports)
        again = parse_port_paths(port_paths_document(known, case.fabric), case.fabric, "again")
        for name in ("source", "destination", "learned", "first", "arcs", "first_port", "ports"):
            assert np.array_equal(getattr(known, name), getattr(again, name)), (case, name)
        plan = solve_ports(case.fabric, case.flows, again)
        verify_plan(plan)
        verify_ports(plan, known)
        seen = walk(case.fabric, case.flows, hashes, ports_of(plan, "port"))
        planned = ways(plan.paths)
        taken = {
            (int(flow), int(qp)): tuple(arcs[arcs >= 0].tolist())
            for flow, qp, arcs, fate in zip(seen.flow, seen.qp, seen.arcs, seen.fate, strict=True)
            if fate == Fate.DELIVERED
        }
        assert [taken.get((flow, qp)) for flow, qp, _ in planned] == [w for *_, w in planned], case
        kept = np.isin(np.arange(len(case.flows)), plan.paths.flow)
        for flow in np.flatnonzero(~kept).tolist():
            ends = int(case.flows.source[flow]), int(case.flows.destination[flow])
            usable = known.over(case.fabric.plannable)
            assert flow in plan.unrouted, case
            assert len(usable.of(*ends)) == 0, (case, plan.unrouted[flow])
        loads = arc_loads(2 * case.fabric.link_count, case.flows, plan.paths)
        worst = float(utilization(case.fabric, loads).max(initial=0.0))
        assert worst == pytest.approx(plan.certificate.max_utilization), case
        spare = walk(case.fabric, case.flows, hashes, ports_of(plan, "backup"))
        backups = {(flow, qp): way for flow, qp, way in ways(plan.backups) if way}
        for flow, qp, arcs in zip(spare.flow, spare.qp, spare.arcs, strict=True):
            wanted = backups.get((int(flow), int(qp)))
            assert wanted is None or wanted == tuple(arcs[arcs >= 0].tolist()), case
