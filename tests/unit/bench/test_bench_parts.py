"""Workloads, references and file formats that the bench's figures depend on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import concatenate
from heddle_controller.plan.diff import changed_flows
from heddle_controller.solve import Repairer, solve
from heddle_controller.solve.bounds.relaxation import ACCURACY
from heddle_emulator.topology import clos, rail_optimised, random_regular, three_tier
from tests.bench import opensm, opensm_files
from tests.bench.gap_cases import FAMILIES, draw
from tests.bench.gaps import Case, run
from tests.bench.growth import Size, exponent
from tests.bench.hashing import Case as Failures
from tests.bench.hashing import batches
from tests.bench.healthy import least_uplink
from tests.bench.pool import each
from tests.bench.reference import least_over_everything, least_over_paths
from tests.bench.repair import flows_over, moved_flows
from tests.bench.rows import QUICK
from tests.bench.workloads import (
    between_switches,
    permutations,
    published_zones,
    without,
    zone_traffic,
)
from tests.support.needs import missing
from tests.support.waiting import PATIENCE, wait_until
from tests.unit.bench.bench_flows import flows_of


def test_permutations_are_permutations() -> None:
    """In each set every NIC sends once and receives once, never to itself.

    Equal seeds give equal sets.
    """
    fabric = clos(leaves=3, spines=2, nics_per_leaf=3)
    nics = fabric.rows_of_kind(NodeKind.NIC)
    flows = permutations(fabric, 5, sets=2, qps=4)
    assert flows.job_names == ("p0", "p1")
    for job in (0, 1):
        own = flows.take(np.flatnonzero(flows.job == job))
        assert sorted(own.source.tolist()) == sorted(own.destination.tolist()) == nics.tolist()
        assert (own.source != own.destination).all()
    assert (flows.destination == permutations(fabric, 5, 2).destination).all()
    assert (flows.destination != permutations(fabric, 6, 2).destination).any()


@pytest.mark.parametrize("zones", [1, 2, 3, 5])
def test_zone_traffic_crosses_zones_where_it_says(zones: int) -> None:
    """Two permutations stay in their zones. A seventh of the NICs send to another zone."""
    fabric = published_zones(QUICK, zones)
    zone = fabric.structure.nodes.zone
    flows = zone_traffic(fabric, 1)
    same = zone[flows.source] == zone[flows.destination]
    across = flows.job == flows.job_names.index("across")
    assert same[~across].all()
    assert (same[across] == (zones == 1)).all()
    assert across.sum() == zones * (32 // 7)
    assert (flows.source != flows.destination).all()


def test_least_uplink_by_hand() -> None:
    """Three flows leave a leaf with two uplinks, so one uplink carries two in any plan."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=3)
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l1-h0-n1"), ("l0-h0-n2", "l2-h0-n0")]
    flows = flows_of(fabric, *((a, b, 400.0) for a, b in ends), ("l1-h0-n0", "l1-h0-n2", 400.0))
    assert least_uplink(fabric, flows) == 2.0


def test_references_by_hand() -> None:
    """In a square, using both two-hop ways halves the load that one way would carry."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    structure, index = fabric.structure, fabric.structure.index
    arc = {
        (structure.nodes.ids[tail], structure.nodes.ids[head]): number
        for number, (tail, head) in enumerate(
            zip(structure.tail.tolist(), structure.head.tolist(), strict=True)
        )
    }
    pair = (index["l0"], index["l1"])
    ways = [[arc[hop] for hop in pairwise(("l0", spine, "l1"))] for spine in ("s0", "s1")]
    demand = {pair: 400.0}
    assert least_over_paths(structure.capacity, demand, {pair: ways}) == pytest.approx(0.5)
    assert least_over_paths(structure.capacity, demand, {pair: ways[:1]}) == pytest.approx(1.0)
    assert least_over_everything(fabric, fabric.carries, demand) == pytest.approx(0.5)
    damaged = without(fabric, np.array(fabric.find_links("l0", "s0")))
    assert least_over_everything(damaged, damaged.carries, demand) == pytest.approx(1.0)


def test_all_paths_are_never_worse_than_some() -> None:
    """On a random graph, candidate paths do no better than all paths.

    The optimum over candidates is only as exact as the planner asks for.
    """
    for seed in (0, 3):
        found = run(Case("random regular", 4, seed))
        assert found.everything is not None
        assert found.candidates >= found.everything * (1 - ACCURACY) - 1e-6
        assert found.reached >= found.limit - 1e-4
        assert found.priced <= (found.exact or found.limit) + 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_cases_are_drawn_by_their_seed_alone(family: str) -> None:
    """Equal seeds give equal fabrics and flows. Other seeds give other flows."""
    (fabric, flows), (again, same), (_, other) = (draw(family, 4, seed) for seed in (1, 1, 2))
    assert (fabric.link_state == again.link_state).all()
    assert (fabric.structure.links.gbps == again.structure.links.gbps).all()
    assert (flows.destination == same.destination).all()
    assert (flows.qps == 4).all()
    unequal = len(flows) != len(other) or (flows.destination != other.destination).any()
    assert unequal


def test_moved_flows_are_counted_as_the_planner_counts_them() -> None:
    """After losses and an arrival, the fast count equals the number of changed flows."""
    fabric = three_tier(zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=2.0)
    plan = solve(fabric, permutations(fabric, 0, qps=4))
    repairer = Repairer(plan)
    for link in np.flatnonzero(between_switches(fabric))[:12].tolist():
        before = repairer.plan
        after = repairer.repair(without(fabric, np.array([link])), plan.flows)
        assert moved_flows(before, after) == len(changed_flows(before, after))
        crossing = {
            int(before.paths.flow[path])
            for path in range(len(before.paths))
            if link in (before.paths.of(path) >> 1)
        }
        assert flows_over(before, link) == len(crossing)
        repairer.repair(fabric, plan.flows)
    arriving = replace(permutations(fabric, 1, qps=4), job_names=("new",))
    more = concatenate([plan.flows, arriving])
    after = solve(fabric, replace(more, ids=tuple(f"f{row}" for row in range(len(more)))))
    assert moved_flows(plan, after) == len(changed_flows(plan, after))


def test_growth_is_the_slope_of_logarithms() -> None:
    """If doubling the NICs doubles the time, the power is 1.

    If it quadruples it, the power is 2.
    """
    for power in (1.0, 2.0):
        sizes = [Size(n, n, 1e-5 * n**power, 1.0, 1.0) for n in (1000, 2000, 4000, 8000)]
        assert exponent(sizes) == pytest.approx(power)


def test_batches_hold_every_case_once() -> None:
    """Batches keep the order and leave out no case. The last one is shorter."""
    cases = [Failures("anywhere", 0, seed) for seed in range(60)]
    assert [len(batch) for batch in batches(cases)] == [25, 25, 10]
    assert [case for batch in batches(cases) for case in batch] == cases


def test_work_is_done_once_over_processes() -> None:
    """Each item's answer comes once, whatever the number of processes."""
    for workers in (1, 2):
        assert sorted(each(abs, [-3, 1, -2], workers)) == [1, 2, 3]


def test_workers_do_not_outlive_the_bench() -> None:
    """When the bench is killed without warning, it leaves no process behind."""
    script = "import time; from tests.bench.pool import each; [*each(time.sleep, [60, 60], 2)]"
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root) as bench:
        try:
            parent = psutil.Process(bench.pid)  # children are two workers and a resource tracker
            wait_until(lambda: len(parent.children()) == 3, "three children")
            workers = parent.children()
        finally:
            bench.kill()
    gone, alive = psutil.wait_procs(workers, timeout=PATIENCE)
    assert len(gone) == 3
    assert not alive


LOG = """\
Jan 31 23:59:59 100000 [AA] 0x80 -> Entering DISCOVERING state

Jan 31 23:59:59 900000 [AB] 0x04 -> ucast_mgr_route: building routing with 'ftree' routing...
Feb 01 00:00:01 150000 [AB] 0x04 -> do_routing: FatTree routing is done
Feb 01 00:00:02 600000 [AB] 0x02 -> SUBNET UP
"""


def test_times_of_a_log() -> None:
    """Routing lasts from its first line to its last, and the total until SUBNET UP.

    The log passes midnight.
    """
    found = opensm_files.times(LOG)
    assert found.route == pytest.approx(1.25)
    assert found.total == pytest.approx(3.5)


def test_times_of_a_change() -> None:
    """The time of a change runs from its notice until the subnet is up for the second time."""
    again = """\
Feb 01 00:00:09 000000 [AC] 0x04 -> trap_rcv_process_request: Forcing heavy sweep. Received trap:128
Feb 01 00:00:09 250000 [AB] 0x04 -> ucast_mgr_route: building routing with 'ftree' routing...
Feb 01 00:00:09 300000 [AB] 0x04 -> do_routing: FatTree routing is done
Feb 01 00:00:10 000000 [AB] 0x02 -> SUBNET UP
"""
    assert opensm_files.sweeps(LOG + again) == 2
    found = opensm_files.times_again(LOG + again)
    assert found.route == pytest.approx(0.05)
    assert found.total == pytest.approx(1.0)


def test_a_log_without_routing_is_refused() -> None:
    """If OpenSM fell back to another engine, its time is not reported as that of ftree."""
    with pytest.raises(ValueError, match="FatTree routing is done"):
        opensm_files.times(LOG.replace("FatTree routing is done", "minhop"))


def test_network_and_tables_fit_together() -> None:
    """The network file and a dump use the same port for the same link."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    text = opensm_files.network(fabric)
    assert 'Switch 3 "l0"\n' in text
    assert 'Hca 1 "l0-h0-n0"\n' in text
    port = next(line for line in text.split('Switch 3 "l0"\n')[1].splitlines() if '"s1"' in line)
    dump = [
        "Unicast lids [0-6] of switch Lid 2 guid 0x0000000000200000 ('l0'):",
        f"0x0005 {int(port[1]):03d} # Channel Adapter portguid 0x0000000000100003: 'l1-h0-n0'",
        "0x0006 002 # Switch portguid 0x0000000000200001: 'l1'",
    ]
    arc = opensm_files.forwarding(fabric, dump)
    structure, index = fabric.structure, fabric.structure.index
    taken = int(arc[index["l0"], index["l1-h0-n0"]])
    assert (structure.tail[taken], structure.head[taken]) == (index["l0"], index["s1"])
    assert (arc >= 0).sum() == 1
    assert opensm_files.roots(fabric).split() == ["0x200002", "0x200003"]


@pytest.mark.parametrize(
    "fabric",
    [clos(leaves=4, spines=4, nics_per_leaf=4), rail_optimised(servers=8, spines=4)],
    ids=["clos", "rails"],
)
def test_opensm_routes_what_it_is_given(fabric: Fabric) -> None:
    """All packets arrive by shortest paths, spread over all spines by destination."""
    if reason := opensm.missing():
        missing(reason)
    tables = opensm.tables(fabric)
    assert 0 < tables.times.route < tables.times.total
    found = tables.measure(permutations(fabric, 1))
    assert len(found.walk.lost) == 0
    assert (found.walk.arcs >= 0).sum(axis=1).max() == 4
    used = fabric.structure.head[found.paths.arcs]
    spines = fabric.rows_of_kind(NodeKind.SPINE)
    assert set(spines.tolist()) <= set(used.tolist())


def test_opensm_routes_again_when_a_link_is_gone() -> None:
    """OpenSM notices the loss by itself and is up again with new tables."""
    if reason := opensm.missing():
        missing(reason)
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4)
    (link,) = fabric.find_links("l0", "s0")
    found = opensm.rerouted(fabric, link)
    assert 0 < found.route < found.total


def test_only_small_two_tier_fabrics_are_walked() -> None:
    """Fabrics of three tiers, without tiers or of more than 4,096 NICs are only timed."""
    assert opensm.walkable(clos(leaves=2, spines=2, nics_per_leaf=2))
    assert not opensm.walkable(three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=1, cores=2))
    assert not opensm.walkable(random_regular(switches=6, degree=3, nics_per_switch=1))
    assert not opensm.walkable(clos(leaves=300, spines=1, nics_per_leaf=16))
