"""One repairer over many changes: what it keeps between repairs stays right."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from heddle_controller.model.arrays import Ints, starts
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_controller.solve.bounds.cuts import Cuts, cut_bound
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.network import Network
from heddle_controller.solve.repair.spare_paths import with_flows_replaced
from heddle_emulator.topology import clos, three_tier
from tests.support.depth import examples
from tests.support.solve_checks import (
    check_backups,
    check_certificate,
    check_paths,
    ways_of,
)
from tests.support.solve_fabrics import EACH, KINDS, SEEDS, inner_links
from tests.support.solve_flows import any_flows, flows_of, nic_ids, permutations


def check(plan: Plan) -> None:
    """Assert that a plan is valid, with the bounds of cuts counted from nothing.

    They may be raised to loads that whole QPs can make. If flows stay on drained links, bounds are
    not compared, because they leave those flows out.
    """
    check_paths(plan)
    check_backups(plan)
    check_certificate(plan)
    verify_plan(plan)
    if not plan.fabric.plannable[plan.paths.arcs].all():
        return
    routed = np.bincount(plan.paths.flow, minlength=len(plan.flows)) > 0
    network = Network(plan.fabric)
    proven = Cuts(network, plan.flows, routed).bound().tiers
    raised = cut_bound(network, plan.flows, routed).tiers
    for tier, least, most in zip(plan.certificate.tiers, proven, raised, strict=True):
        assert min(least, tier.max_utilization) - 1e-9 <= tier.lower_bound <= most + 1e-9


def first_of(flows: Flows, count: int) -> Flows:
    """The first ``count`` flows, under the same names."""
    return flows.take(np.arange(count, dtype=np.int64))


def link_of(fabric: Fabric, nic: int) -> int:
    """The only link of a NIC."""
    links = fabric.structure.links
    return int(np.flatnonzero((links.a == nic) | (links.b == nic))[0])


def test_a_nic_is_cut_off_and_comes_back() -> None:
    """When a NIC is cut off, only its flows lose their paths, and get new ones when it is back.

    Each has a reason that names the NIC. No other flow moves.
    """
    fabric = three_tier(zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=2.0)
    flows = permutations(fabric, Random(3), 2, 4)
    repairer = Repairer(solve(fabric, flows))
    for nic in fabric.rows_of_kind(NodeKind.NIC).tolist()[::5]:
        before = repairer.plan
        lost = repairer.repair(fabric.with_links({link_of(fabric, nic): State.DOWN}), flows)
        check(lost)
        own = {*np.flatnonzero((flows.source == nic) | (flows.destination == nic)).tolist()}
        assert {*lost.unrouted} == own
        assert all(fabric.structure.nodes.ids[nic] in why for why in lost.unrouted.values())
        others = [row for row in range(len(flows)) if row not in own]
        assert [ways_of(lost, row) for row in others] == [ways_of(before, row) for row in others]
        back = repairer.repair(fabric, flows)
        check(back)
        assert not back.unrouted
        assert [ways_of(back, row) for row in others] == [ways_of(before, row) for row in others]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_links_switches_and_flows_come_and_go(kind: str, seed: int) -> None:
    """One repairer gives valid plans while any links change state and more flows arrive."""
    rng = Random(seed)
    fabric = KINDS[kind](rng)
    flows = any_flows(rng, fabric, examples(8, 16))
    count = len(flows) // 3
    repairer = Repairer(solve(fabric, first_of(flows, count)))
    for _ in range(6):
        if rng.random() < 0.5:
            count = min(len(flows), count + rng.randint(0, 6))
        state = rng.choice([State.UP, State.UP, State.DOWN, State.DRAINED])
        fabric = fabric.with_links({rng.randrange(fabric.link_count): state})
        check(repairer.repair(fabric, first_of(flows, count)))


def test_a_spine_is_lost_and_comes_back() -> None:
    """The flows of a lost spine find room on the others, with no link above 2.0."""
    fabric = clos(leaves=8, spines=8, nics_per_leaf=8)
    flows = permutations(fabric, Random(1), 1)
    repairer = Repairer(solve(fabric, flows))
    lost = repairer.repair(fabric.with_nodes({fabric.structure.index["s0"]: State.DOWN}), flows)
    check(lost)
    assert lost.certificate.max_utilization <= 2.0
    check(repairer.repair(fabric, flows))


def test_few_others_move_where_every_link_is_full() -> None:
    """In a full 1:1 zone, a lost link moves its own flows and at most one in twenty more."""
    fabric = clos(leaves=8, spines=8, nics_per_leaf=8)
    flows = permutations(fabric, Random(1), 2, 4)
    plan = solve(fabric, flows)
    affected = moved = 0
    for link in np.flatnonzero(inner_links(fabric)).tolist()[::4]:
        after = Repairer(plan).repair(fabric.with_links({link: State.DOWN}), flows)
        check(after)
        arcs = np.zeros(2 * fabric.link_count, dtype=np.bool_)
        arcs[[2 * link, 2 * link + 1]] = True
        own = {*plan.paths.flow[plan.paths.crosses(arcs)].tolist()}
        affected += len(own)
        moved += sum(ways_of(plan, row) != ways_of(after, row) for row in range(len(flows)))
        # Sixteen flows of four QPs on seven links, or on eight with one QP too many.
        assert after.certificate.max_utilization <= 2.5
    assert moved <= 1.05 * affected


def test_many_flows_arrive_where_links_are_lost() -> None:
    """When a job of all NICs comes on top of another, few old flows move, even after losses."""
    fabric = clos(leaves=8, spines=8, nics_per_leaf=8)
    both = permutations(fabric, Random(2), 2)
    old = first_of(both, len(both) // 2)
    rng = Random(4)
    repairer = Repairer(solve(fabric, old))
    links = np.flatnonzero(inner_links(fabric)).tolist()
    damaged = fabric.with_links(dict.fromkeys(rng.sample(links, 3), State.DOWN))
    before = repairer.repair(damaged, old)
    after = repairer.repair(damaged, both)
    check(after)
    moved = [row for row in range(len(old)) if ways_of(before, row) != ways_of(after, row)]
    assert len(moved) <= 0.05 * len(old)
    assert after.certificate.max_utilization <= 3.0


@pytest.mark.parametrize("returns", [False, True])
def test_flows_that_arrive_without_a_path_raise_no_bound(returns: bool) -> None:  # noqa: FBT001 - a case
    """By hand: five or six flows have a path, so two spines carry three at most.

    One spine was lost, so the other one carries four old flows, and keeps them when the first one
    returns. At the same time, a job of three flows arrives, two of them from NICs without a link. A
    fifth old flow, whose NIC had no link, gets its path back or not.
    """
    fabric = clos(leaves=2, spines=2, nics_per_leaf=8)
    ids, spine = nic_ids(fabric), fabric.structure.index["s1"]
    jobs = ["j0"] * 5 + ["j1"] * 3
    flows = flows_of(
        fabric, *((ids[row], ids[row + 8], 400.0, 1, job, "") for row, job in enumerate(jobs))
    )
    away, *others = (link_of(fabric, fabric.structure.index[ids[row]]) for row in (0, 6, 7))
    cut_off = fabric.with_links(dict.fromkeys([away, *others], State.DOWN))
    repairer = Repairer(solve(fabric, first_of(flows, 5)))
    repairer.repair(cut_off.with_nodes({spine: State.DOWN}), first_of(flows, 5))
    after = repairer.repair(cut_off.with_links({away: State.UP}) if returns else cut_off, flows)
    check(after)
    assert {*after.unrouted} == ({6, 7} if returns else {0, 6, 7})
    assert after.certificate.max_utilization == 4.0
    assert after.certificate.lower_bound == 3.0


def test_phases_of_a_job_that_arrives_take_turns() -> None:
    """By hand: two phases of one newcomer share a link, and do not add up."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=3)
    rows = [
        ("l0-h0-n0", "l1-h0-n0", 100.0, 1, "old", ""),
        ("l0-h0-n1", "l1-h0-n1", 400.0, 1, "new", "p"),
        ("l0-h0-n2", "l1-h0-n2", 400.0, 1, "new", "q"),
    ]
    flows = flows_of(fabric, *rows)
    few = flows_of(fabric, rows[0])
    after = Repairer(solve(fabric, few)).repair(fabric, flows)
    check(after)
    assert after.certificate.max_utilization == pytest.approx(500 / 400)


def test_planes_after_a_change_are_those_made_anew() -> None:
    """Planes updated after changes of links have the same cables as planes made anew."""
    rng = Random(7)
    fabric = three_tier(zones=2, leaves=4, spines=4, nics_per_leaf=8, cores=4, taper=2.0)
    planes = Planes(Network(fabric))
    links = np.flatnonzero(inner_links(fabric)).tolist()
    for _ in range(20):
        state = rng.choice([State.UP, State.DOWN])
        fabric = fabric.with_links(dict.fromkeys(rng.sample(links, 5), state))
        planes = planes.with_states(planes.network.with_states(fabric))
        anew = Planes(Network(fabric))
        for kind, layer, other in (
            (NodeKind.LEAF, planes.spines, anew.spines),
            (NodeKind.SPINE, planes.cores, anew.cores),
        ):
            nodes = fabric.rows_of_kind(kind)
            for slot in range(int(layer.width.max())):
                for turn in range(3):
                    columns = nodes, np.full_like(nodes, slot), np.full_like(nodes, turn)
                    assert np.array_equal(layer.cables(*columns), other.cables(*columns))


def any_paths(rng: Random, flows: Ints) -> tuple[Paths, Paths]:
    """Draw up to three paths of each flow and their backups, of any arcs."""
    rows = [(flow, qp) for flow in flows.tolist() for qp in range(rng.randrange(4))]
    flow, qp = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    both = []
    for _ in range(2):
        lengths = np.array([rng.randrange(4) for _ in rows], dtype=np.int64)
        arcs = np.array([rng.randrange(99) for _ in range(int(lengths.sum()))], dtype=np.int64)
        both.append(Paths(flow, qp, qp, starts(lengths), arcs))
    return both[0], both[1]


def told(paths: Paths) -> list[tuple[int, int, list[int]]]:
    """Flow, QP and arcs of each path."""
    ends = zip(paths.flow.tolist(), paths.first_qp.tolist(), strict=True)
    return [(*end, paths.of(row).tolist()) for row, end in enumerate(ends)]


@pytest.mark.parametrize("seed", range(40))
def test_paths_of_some_flows_are_replaced(seed: int) -> None:
    """Replacing the paths of some flows keeps the others and the order; backups stay parallel."""
    rng = Random(seed)
    every = np.arange(rng.randrange(12), dtype=np.int64)
    before = any_paths(rng, every)
    flows = np.array([row for row in range(len(every) + 4) if rng.random() < 0.4], dtype=np.int64)
    fresh = any_paths(rng, flows)
    after = with_flows_replaced(*before, flows, fresh)
    for old, new, result in zip(before, fresh, after, strict=True):
        stays = [one for one in told(old) if one[0] not in flows]
        assert told(result) == sorted([*stays, *told(new)], key=lambda one: one[:2])
