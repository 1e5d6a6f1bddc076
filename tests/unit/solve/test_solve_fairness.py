"""Fairness among plans of equal loads: which flow goes where, by rate and by priority."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.job import Collective, Group, Job, Operation
from heddle_controller.model.plan import Plan, arc_loads, phased_loads, utilization
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_controller.solve.assignment import Assignment, inner_paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.fairness.balance import even
from heddle_controller.solve.fairness.regroup import ClippedLoads
from heddle_controller.solve.fairness.sharing import Shares
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Options
from heddle_controller.solve.search.search import LoadTarget
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos
from tests.bench.workloads import between_switches, permutations
from tests.support.depth import examples
from tests.support.solve_checks import check_certificate, check_paths
from tests.support.solve_fabrics import EACH, KINDS, SEEDS, frayed
from tests.support.solve_flows import any_flows, flows_of, nic_ids

HURT = 3
"""Uplinks that the damaged leaf has lost."""


def assigned(plan: Plan) -> Assignment:
    """The paths of a plan as the planner's ``Assignment``."""
    network = Network(plan.fabric)
    assignment = Assignment(network, plan.flows)
    assignment.load_chunks(inner_paths(network, plan.paths))
    return assignment


def ratios(plan: Plan) -> Floats:
    """The fair rate over the demand of each flow, by the emulator, shape (flows,)."""
    return flow_ratios(plan.fabric.structure.capacity, plan.flows, plan.paths)


def used(plan: Plan) -> Floats:
    """The utilisation of each arc, shape (arcs,)."""
    loads = arc_loads(2 * plan.fabric.link_count, plan.flows, plan.paths)
    return utilization(plan.fabric, loads)


def hurt(fabric: Fabric, leaf: str, count: int) -> Fabric:
    """The fabric with ``count`` uplinks of a leaf down."""
    row = fabric.structure.index[leaf]
    links = np.flatnonzero(between_switches(fabric) & (fabric.structure.links.a == row))
    return fabric.with_links(dict.fromkeys(links[:count].tolist(), State.DOWN))


def two_jobs(fabric: Fabric, qps: int, priority: tuple[float, float]) -> Flows:
    """Two jobs of eight flows each, from the first leaf to others; priorities of j0 and j1."""
    nics = nic_ids(fabric)
    rows = [
        (nics[nic], nics[16 * (1 + nic % 3) + nic], 400.0, qps, f"j{nic % 2}", "")
        for nic in range(16)
    ]
    flows = flows_of(fabric, *rows)
    weight = np.array([priority[flows.job_names[job] == "j1"] for job in flows.job.tolist()])
    return replace(flows, weight=weight)


def damaged_leaf(lost: int = HURT) -> Fabric:
    """Four leaves of 16 NICs and 16 spines; the first leaf has lost ``lost`` uplinks."""
    return hurt(clos(leaves=4, spines=16, nics_per_leaf=16), "l0", lost)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_exchanges_leave_whole_plans_that_are_no_fuller(kind: str, seed: int) -> None:
    """Plans of any fabric are valid, and their certificates are true.

    The planner's own fair rates equal those of the emulator, flow by flow.
    """
    rng = Random(seed)
    fabric = frayed(rng, KINDS[kind](rng))
    flows = any_flows(rng, fabric, examples(6, 16))
    flows.weight[:] = [rng.choice([1.0, 1.0, 5.0]) for _ in range(len(flows))]
    if rng.random() < 0.5:
        flows = replace(flows, phase=np.full(len(flows), ANY_PHASE))
    plan = solve(fabric, flows)
    check_paths(plan)
    check_certificate(plan)
    verify_plan(plan)
    routed = np.isin(np.arange(len(flows)), plan.paths.flow)
    found = Shares(assigned(plan)).ratio
    assert np.allclose(found[routed], ratios(plan)[routed], rtol=1e-9, atol=0)


def test_a_flow_does_not_pay_alone_for_a_link_too_few() -> None:
    """16 flows of 32 QPs on 13 links: every flow has a part of the links with one QP less."""
    fabric = damaged_leaf()
    plan = solve(fabric, two_jobs(fabric, 32, (1.0, 1.0)))
    per_cable = 16 * 32 / (16 - HURT)
    assert plan.certificate.max_utilization == pytest.approx(np.ceil(per_cable) / 32)
    slowest = float(ratios(plan).min())
    assert slowest > 32 / np.ceil(per_cable)
    assert slowest >= 32 / per_cable * (1 - 0.005)


@settings(max_examples=examples(20, 2000))
@given(SEEDS)
def test_clipped_loads_tell_what_an_arc_could_give(seed: int) -> None:
    """Stretches of a link's QPs are those found by bisection, also after QPs went and came.

    With phases they may be greater, but not smaller.
    """
    rng = Random(seed)
    fabric = clos(leaves=2, spines=1, nics_per_leaf=32)
    nics, sizes = nic_ids(fabric), rng.sample(range(10, 400), rng.randint(1, 6))
    phases = rng.choice(["a", "ab"])
    rows = [
        (nics[nic], nics[32 + nic], float(rng.choice(sizes)), 1, f"j{nic % 9}", rng.choice(phases))
        for nic in range(32)
    ]
    flows = flows_of(fabric, *rows)
    assignment = assigned(solve(fabric, flows))
    loads, arc = ClippedLoads(assignment), int(assignment.path[0][0])
    gone = rng.randrange(32)
    loads.add(gone, -1, assignment.path[gone])
    more = loads.with_more(gone, 1, np.array([arc]))
    few = flows.take(np.delete(np.arange(32), gone))
    for some, load in ((few, loads.load[:, [arc]]), (flows, more)):
        low, high = 0.0, 400.0
        for _ in range(60):
            rate = (low + high) / 2
            gbps, arcs = np.minimum(some.gbps, rate), np.zeros(len(some), dtype=np.int64)
            full = (
                phased_loads(1, arcs, gbps, some.job, some.phase)[0]
                > fabric.structure.capacity[arc]
            )
            low, high = (low, rate) if full else (rate, high)
        _, stretch = loads.stretches(load, np.array([arc]))
        want = np.where(loads.rates[1:] > low * (1 + 1e-9), loads.rates[1:] / low, 0.0)
        assert (stretch[:, 0] >= want * (1 - 1e-6)).all(), f"seed {seed}"
        if len(phases) == 1:
            assert stretch[:, 0] == pytest.approx(want, rel=1e-6), f"seed {seed}"


@pytest.mark.parametrize("phases", [("", ""), ("dp", "pp")])
def test_large_flows_share_links_with_few_others(phases: tuple[str, str]) -> None:
    """4 large and 64 small flows over 4 links: each gets what the utilisation of 2 says, a half.

    If each link had one large flow, its 16 small ones would leave it a seventeenth of the link. The
    same holds where each pair of jobs takes turns. Rounding of rates does not matter.
    """
    fabric = clos(leaves=2, spines=4, nics_per_leaf=136, nics_per_host=8)
    nics, rows = nic_ids(fabric), []
    for turn, phase in enumerate(phases if phases[0] else phases[:1]):
        for row in range(68):
            gbps, nic = 400.0 if row < 4 else 25.0 * (1 + row * 1e-13), row + turn * 68
            rows.append((nics[nic], nics[136 + nic], gbps, 1, f"j{row}", phase))
    plan = solve(fabric, flows_of(fabric, *rows))
    verify_plan(plan)
    assert plan.certificate.max_utilization == pytest.approx(2)
    assert ratios(plan).min() == pytest.approx(0.5)


@pytest.mark.parametrize(("qps", "lost"), [(1, 3), (2, 3), (4, 6), (32, 3)])
def test_priority_decides_who_shares(qps: int, lost: int) -> None:
    """The important job's slowest flow gains by priority and is no slower than the other job's.

    No link is fuller for it.
    """
    fabric = damaged_leaf(lost)
    equal = solve(fabric, two_jobs(fabric, qps, (1.0, 1.0)))
    ranked = solve(fabric, two_jobs(fabric, qps, (10.0, 1.0)))
    important = ranked.flows.weight == ranked.flows.weight.max()
    served = ratios(ranked)
    assert served[important].min() >= served[~important].min()
    assert served[important].min() > ratios(equal)[important].min()
    assert used(ranked).max() == pytest.approx(used(equal).max())
    assert ranked.certificate.tiers == equal.certificate.tiers


def test_where_all_can_have_all_priority_moves_nothing() -> None:
    """Where all flows get what they ask for, priority changes no path."""
    fabric = clos(leaves=4, spines=16, nics_per_leaf=16)
    equal, ranked = (
        solve(fabric, two_jobs(fabric, 4, priority)) for priority in ((1.0, 1.0), (10.0, 1.0))
    )
    assert (ratios(ranked) > 1 - 1e-9).all()
    assert np.array_equal(equal.paths.arcs, ranked.paths.arcs)


def test_single_qps_of_equal_priority_are_left_alone() -> None:
    """Single QPs of equal priority are not exchanged, since that would change nothing."""
    fabric = damaged_leaf()
    plan = solve(fabric, two_jobs(fabric, 1, (1.0, 1.0)))
    network = Network(fabric)
    target = LoadTarget(np.zeros(len(fabric.structure.tiers)), 0.0)
    assert even(assigned(plan), Candidates(network, 128), target, Options().deadline()) is None


@pytest.mark.parametrize("size", [20, 100])
def test_fairness_never_costs_a_table(size: int) -> None:
    """If tables have no room for more splits, no flow is given up for fairness."""
    fabric = damaged_leaf()
    nodes = fabric.structure.nodes
    tables = np.where(nodes.kind == NodeKind.LEAF, size, nodes.table_size)
    structure = replace(fabric.structure, nodes=replace(nodes, table_size=tables))
    plan = solve(replace(fabric, structure=structure), two_jobs(fabric, 8, (1.0, 1.0)))
    verify_plan(plan)
    assert not plan.unrouted


@pytest.mark.deep
@pytest.mark.parametrize("qps", [8, 32, 64])
@pytest.mark.parametrize("seed", range(examples(2, 12)))
def test_no_hash_serves_its_slowest_flow_better(qps: int, seed: int) -> None:
    """Hashing as many QPs serves no slowest flow better, however many uplinks are down."""
    rng = Random(seed)
    width = rng.randint(3, 9)
    whole = clos(leaves=rng.randint(3, 6), spines=width, nics_per_leaf=width)
    fabric = hurt(whole, "l0", rng.randint(1, width - 1))
    flows = permutations(fabric, seed, 1 + seed % 2, qps)
    plan = solve(fabric, flows)
    hashed = strategy("ecmp")(fabric, flows, seed).slowest
    assert ratios(plan).min() >= hashed * (1 - 1e-9)


def test_a_repair_serves_the_important_first() -> None:
    """After uplinks fail, the important job's slowest flow is no worse off than the other's."""
    whole = clos(leaves=4, spines=16, nics_per_leaf=16)
    for qps in (1, 4):
        flows = two_jobs(whole, qps, (10.0, 1.0))
        repairer = Repairer(solve(whole, flows))
        plan = repairer.repair(hurt(whole, "l0", HURT), flows)
        served, important = ratios(plan), flows.weight == flows.weight.max()
        assert served[important].min() >= served[~important].min()


def test_of_equals_who_sends_most_is_served_best() -> None:
    """Of five flows on two uplinks, the one with most bytes shares with one other, not with two."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=8)
    for most in range(5):
        rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 1, f"j{i}", "") for i in range(5)]
        flows = flows_of(fabric, *rows)
        size = np.array([float(1 << 40) if row == most else float(1 << 30) for row in range(5)])
        plan = solve(fabric, replace(flows, bytes=size))
        loads = arc_loads(2 * fabric.link_count, flows, plan.paths)
        own = plan.paths.take(np.flatnonzero(plan.paths.flow == most))
        assert plan.certificate.max_utilization == pytest.approx(3.0)
        assert loads[own.arcs].max() == pytest.approx(800.0), most


def test_very_many_flows_that_have_few_ways_in_all() -> None:
    """More than 64 flows over a single spine, in two phases, give a valid plan."""
    fabric = clos(leaves=3, spines=1, nics_per_leaf=8, nics_per_host=2, uplink_gbps=400.0)
    hosts = tuple(fabric.structure.nics_of_host)[2:9]
    rounds = [
        Collective(operation, Group.WORLD, 10**8)
        for operation in (Operation.ALL_REDUCE, Operation.ALL_TO_ALL)
    ]
    flows = flows_of_job(Job("j", hosts, 2, collectives=tuple(rounds)), fabric)
    assert len(flows) > 64
    plan = solve(fabric, flows)
    verify_plan(plan)
    check_paths(plan)
    check_certificate(plan)
