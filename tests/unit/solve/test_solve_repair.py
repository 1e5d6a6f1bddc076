"""Repairs keep the paths of unaffected flows, move the others, and give valid plans."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_emulator.topology import clos, three_tier
from tests.support.depth import examples
from tests.support.solve_checks import check_certificate, check_paths, ways_of
from tests.support.solve_fabrics import inner_links
from tests.support.solve_flows import Row, flows_of, permutations


def check(plan: Plan) -> None:
    """Assert that a plan passes all checks."""
    check_paths(plan)
    check_certificate(plan)
    verify_plan(plan)


def changed(before: Plan, after: Plan) -> list[int]:
    """The rows of flows whose paths differ between two plans."""
    return [r for r in range(len(before.flows)) if ways_of(before, r) != ways_of(after, r)]


def over(plan: Plan, link: int) -> list[int]:
    """The rows of the flows with QPs on a link."""
    arcs = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
    arcs[[2 * link, 2 * link + 1]] = True
    return sorted({*plan.paths.flow[plan.paths.crosses(arcs)].tolist()})


def zone() -> Fabric:
    """A 1:1 zone of 64 NICs."""
    return clos(leaves=8, spines=8, nics_per_leaf=8)


@pytest.mark.deep
@pytest.mark.parametrize("qps", [1, 4])
@pytest.mark.parametrize("state", [State.DOWN, State.DRAINED])
def test_after_one_link_few_others_move(qps: int, state: State) -> None:
    """After one lost link all its flows move, and on average at most one in twenty others."""
    fabric = zone()
    flows = permutations(fabric, Random(qps), 2, qps)
    plan = solve(fabric, flows)
    links = np.flatnonzero(inner_links(fabric)).tolist()[:: examples(5, 1)]
    others = 0
    for link in links:
        after = Repairer(plan).repair(fabric.with_links({link: state}), flows)
        check(after)
        assert not after.unrouted
        moved, lost = changed(plan, after), over(plan, link)
        assert {*lost} <= {*moved}
        others += len(moved) - len(lost)
        # A leaf's sixteen flows use the seven links that it has left.
        limit = 16 / 7 if qps > 1 else 3.0
        assert after.certificate.max_utilization <= limit + 1 / qps + 1e-9
    assert others <= 0.05 * len(flows) * len(links)


def test_a_change_elsewhere_moves_nobody() -> None:
    """The loss of a link that carries nothing moves no flow."""
    fabric = zone()
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", ""))
    plan = solve(fabric, flows)
    unused = [k for k in range(fabric.link_count) if inner_links(fabric)[k] and not over(plan, k)]
    for link in unused[:6]:
        after = Repairer(plan).repair(fabric.with_links({link: State.DOWN}), flows)
        check(after)
        assert changed(plan, after) == []


def test_nothing_new_changes_nothing() -> None:
    """A repair for the same fabric and equal flows changes no path."""
    fabric = zone()
    flows = permutations(fabric, Random(3), 2, 2)
    plan = solve(fabric, flows)
    for same in (flows, permutations(fabric, Random(3), 2, 2)):
        assert changed(plan, Repairer(plan).repair(fabric, same)) == []


def test_a_lost_link_moves_to_spare_room_alone() -> None:
    """By hand: of three spines one is free, and the flow of a lost link takes that one."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=2)
    rows: list[Row] = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 1, "j", "") for i in range(2)]
    flows = flows_of(fabric, *rows)
    plan = solve(fabric, flows)
    lost = int(plan.paths.of(0)[1]) >> 1
    after = Repairer(plan).repair(fabric.with_links({lost: State.DOWN}), flows)
    assert changed(plan, after) == [0]
    assert after.certificate.max_utilization == 1.0


def test_a_restored_link_is_used_again_for_what_has_no_path() -> None:
    """By hand: the only uplink fails and returns; the flow has no path, then its old one."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1)
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", ""))
    repairer = Repairer(solve(fabric, flows))
    first = repairer.plan
    link = fabric.find_links("l0", "s0")[0]
    lost = repairer.repair(fabric.with_links({link: State.DOWN}), flows)
    assert [*lost.unrouted] == [0]
    check(lost)
    back = repairer.repair(fabric, flows)
    check(back)
    assert changed(first, back) == []


def test_the_reason_of_a_flow_without_a_path_follows_the_links() -> None:
    """When a flow's one NIC is back and its other NIC is lost, the reason names the other."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2)
    rows = ("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l1-h0-n1")
    flows = flows_of(fabric, *((*ends, 100.0, 1, "j", "") for ends in rows))
    repairer = Repairer(solve(fabric, flows))
    for nic, leaf in (("l0-h0-n0", "l0"), ("l1-h0-n0", "l1")):
        link = fabric.find_links(nic, leaf)[0]
        plan = repairer.repair(fabric.with_links({link: State.DOWN}), flows)
        assert plan.unrouted == {0: f"{nic} has no usable uplink: {nic},{leaf},0 is down"}


def test_a_repair_that_fails_leaves_nothing_behind() -> None:
    """After flows that no plan can hold, the next repair is that of a new repairer."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    rows: list[Row] = [("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", "")]
    rows += [("l0-h0-n1", "l1-h0-n1", 400.0, 1, "new", "")]
    known, more = flows_of(fabric, rows[0]), flows_of(fabric, *rows)
    plan = solve(fabric, known)
    repairer = Repairer(plan)
    with pytest.raises(IndexError):
        repairer.repair(fabric, replace(more, destination=more.destination + np.array([0, 1000])))
    lost = fabric.with_links({int(plan.paths.arcs[1]) >> 1: State.DOWN})
    after = repairer.repair(lost, known)
    check(after)
    assert changed(Repairer(plan).repair(lost, known), after) == []


@pytest.mark.parametrize("qps", [1, 8])
def test_restored_links_move_nobody_who_is_well_off(qps: int) -> None:
    """A link that comes back takes flows only from arcs that are fuller than necessary."""
    fabric = zone()
    flows = permutations(fabric, Random(5), 1, qps)
    hurt = fabric.with_links({fabric.find_links("l0", "s0")[0]: State.DOWN})
    plan = solve(hurt, flows)
    after = Repairer(plan).repair(fabric, flows)
    check(after)
    assert after.certificate.max_utilization <= plan.certificate.max_utilization
    assert len(changed(plan, after)) <= 8


@pytest.mark.parametrize("qps", [1, 4])
def test_jobs_arrive_and_leave(qps: int) -> None:
    """New flows get paths, ended flows leave none, and at most a third of the others move."""
    fabric = three_tier(zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=2.0)
    old, new = (permutations(fabric, Random(seed), 1, qps) for seed in (1, 2))
    rows = [row for flows, job in ((old, "old"), (new, "new")) for row in told(fabric, flows, job)]
    few, all_ = flows_of(fabric, *rows[: len(old)]), flows_of(fabric, *rows)
    plan = solve(fabric, few)
    arrived = Repairer(plan).repair(fabric, all_)
    check(arrived)
    assert not arrived.unrouted
    assert len(changed(plan, arrived)) <= len(few) // 3
    names = tuple(f"f{row}" for row in range(len(old), len(rows)))
    left = Repairer(arrived).repair(fabric, flows_of(fabric, *rows[len(old) :], names=names))
    check(left)
    assert left.flows.ids == names
    stayed = [ways_of(arrived, len(old) + row) == ways_of(left, row) for row in range(len(names))]
    assert all(stayed)


def told(fabric: Fabric, flows: Flows, job: str) -> list[Row]:
    """Flows as rows of ``flows_of`` under another job name."""
    ids = fabric.structure.nodes.ids
    columns = (flows.source.tolist(), flows.destination.tolist(), flows.qps.tolist())
    return [(ids[a], ids[b], 400.0, q, job, "") for a, b, q in zip(*columns, strict=True)]


def test_a_flow_that_is_another_is_planned_anew() -> None:
    """A known flow id with other ends, QPs or rate gives a valid plan."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=2)
    plan = solve(fabric, flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0, 4, "j", "")))
    others: list[Row] = [
        ("l0-h0-n0", "l2-h0-n0", 400.0, 4, "j", ""),
        ("l2-h0-n1", "l1-h0-n0", 400.0, 4, "j", ""),
        ("l0-h0-n0", "l0-h0-n1", 400.0, 4, "j", ""),
        ("l0-h0-n0", "l1-h0-n0", 400.0, 2, "j", ""),
        ("l0-h0-n0", "l1-h0-n0", 400.0, 32, "j", ""),
        ("l0-h0-n0", "l1-h0-n0", 700.0, 4, "j", ""),
    ]
    for other in others:
        check(Repairer(plan).repair(fabric, flows_of(fabric, other)))


def test_a_fabric_that_is_another_keeps_what_holds_by_name() -> None:
    """In a fabric with more leaves, and so other rows, flows stay on links of the same names."""
    small, large = (clos(leaves=n, spines=4, nics_per_leaf=4) for n in (4, 6))
    rows = [
        (f"l{a}-h0-n{b}", f"l{3 - a}-h0-n{b}", 400.0, 1, "j", "")
        for a in range(4)
        for b in range(4)
    ]
    plan = solve(small, flows_of(small, *rows))
    after = Repairer(plan).repair(large, flows_of(large, *rows))
    check(after)
    ids = [fabric.structure.nodes.ids for fabric in (small, large)]
    for row in range(len(rows)):
        names = [
            [names[fabric.structure.head[a]] for *_, way in ways_of(one, row) for a in way]
            for names, fabric, one in zip(ids, (small, large), (plan, after), strict=True)
        ]
        assert names[0] == names[1]


@pytest.mark.parametrize("node", ["s0", "l0"])
def test_a_lost_switch_is_many_lost_links(node: str) -> None:
    """Flows over a lost spine move, and flows over a lost leaf have no path."""
    fabric = zone()
    flows = permutations(fabric, Random(9), 1)
    plan = solve(fabric, flows)
    row = fabric.structure.index[node]
    after = Repairer(plan).repair(fabric.with_nodes({row: State.DOWN}), flows)
    check(after)
    through = {
        r
        for r in range(len(flows))
        for *_, w in ways_of(plan, r)
        if row in fabric.structure.head[w]
    }
    assert through
    if node == "l0":
        assert {*after.unrouted} == through
    else:
        assert not after.unrouted
        assert through <= {*changed(plan, after)}


@pytest.mark.parametrize("kind", ["link", "nic"])
def test_failures_may_follow_one_another(kind: str) -> None:
    """One repairer gives valid plans over many failures, and routes all when all is back."""
    fabric = zone()
    flows = permutations(fabric, Random(11), 2)
    repairer, rng = Repairer(solve(fabric, flows)), Random(12)
    inner = inner_links(fabric)
    links = [k for k in range(fabric.link_count) if inner[k] == (kind == "link")]
    now = fabric
    for _ in range(12):
        link = rng.choice(links)
        state = State.UP if now.link_state[link] != State.UP else State.DOWN
        now = now.with_links({link: state})
        check(repairer.repair(now, flows))
    assert not repairer.repair(fabric, flows).unrouted
