"""A flow stays on a drained link if it must, but a link that is down carries nothing."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_emulator.topology import clos
from tests.support.solve_checks import check_backups, check_certificate, check_paths, ways_of
from tests.support.solve_flows import Row, flows_of

ACROSS: Row = ("l0-h0-n0", "l1-h0-n0", 400.0, 4, "j", "")
LATER: Row = ("l0-h0-n1", "l1-h0-n1", 400.0, 4, "k", "")


def states(fabric: Fabric, *changes: tuple[str, str, State]) -> Fabric:
    """The fabric with all links between the given pairs of nodes in other states."""
    rows = {row: state for a, b, state in changes for row in fabric.find_links(a, b)}
    return fabric.with_links(rows)


def check(plan: Plan) -> Plan:
    """Assert that a plan passes all checks, and return it."""
    check_paths(plan)
    check_backups(plan)
    check_certificate(plan)
    verify_plan(plan)
    return plan


def links_of(plan: Plan, row: int) -> set[str]:
    """The names of the links between switches that a flow is on."""
    arcs = [arc for *_, way in ways_of(plan, row) for arc in way[1:-1]]
    return {plan.fabric.link_name(arc >> 1) for arc in arcs}


def test_the_only_way_is_kept_while_it_is_drained() -> None:
    """A flow stays on its only path while that is drained, and loses it when it is down."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2)
    flows = flows_of(fabric, ACROSS)
    repairer = Repairer(solve(fabric, flows))
    before = ways_of(repairer.plan, 0)
    drained = states(fabric, ("l0", "s0", State.DRAINED))
    for _ in range(2):
        assert ways_of(check(repairer.repair(drained, flows)), 0) == before
    down = check(repairer.repair(states(fabric, ("l0", "s0", State.DOWN)), flows))
    assert [*down.unrouted] == [0]
    assert ways_of(check(repairer.repair(fabric, flows)), 0) == before


def test_what_is_new_gets_no_drained_link() -> None:
    """A flow that arrives after the drain has no path, by a repair and by a new plan."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2)
    drained = states(fabric, ("l0", "s0", State.DRAINED))
    old, both = flows_of(fabric, ACROSS), flows_of(fabric, ACROSS, LATER)
    repaired = check(Repairer(solve(fabric, old)).repair(drained, both))
    assert [*repaired.unrouted] == [1]
    fresh = check(solve(drained, both))
    assert [*fresh.unrouted] == [0, 1]
    assert fresh.unrouted[1] == repaired.unrouted[1]
    assert "l0,s0,0 is drained" in fresh.unrouted[1]


def test_another_way_is_taken_at_once() -> None:
    """A flow kept on a drained link leaves it when another path comes back."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    flows = flows_of(fabric, ACROSS)
    one = states(fabric, ("l0", "s1", State.DOWN))
    repairer = Repairer(solve(one, flows))
    held = states(one, ("l0", "s0", State.DRAINED))
    assert links_of(check(repairer.repair(held, flows)), 0) == {"l0,s0,0", "l1,s0,0"}
    back = states(held, ("l0", "s1", State.UP))
    assert links_of(check(repairer.repair(back, flows)), 0) == {"l0,s1,0", "l1,s1,0"}


def test_qps_of_a_dead_path_join_those_that_stay() -> None:
    """If one spine of a split flow dies and the other is drained, all QPs use the drained one."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    rows = [ACROSS, LATER, ("l0-h0-n0", "l1-h0-n1", 400.0, 4, "m", "")]
    flows = flows_of(fabric, *rows)
    plan = solve(fabric, flows)
    split = [row for row in range(3) if len(ways_of(plan, row)) > 1]
    assert split
    hurt = states(fabric, ("l0", "s0", State.DOWN), ("l0", "s1", State.DRAINED))
    after = check(Repairer(plan).repair(hurt, flows))
    for row in split:
        assert row not in after.unrouted
        assert links_of(after, row) == {"l0,s1,0", "l1,s1,0"}


def test_a_drained_uplink_of_a_nic_lets_its_flow_move_behind_it() -> None:
    """A flow on its NIC's drained link still moves to another spine when its own dies."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    flows = flows_of(fabric, ACROSS)
    drained = states(fabric, ("l0-h0-n0", "l0", State.DRAINED))
    repairer = Repairer(solve(fabric, flows))
    spine = {label.split(",")[1] for label in links_of(repairer.plan, 0)}.pop()
    assert not check(repairer.repair(drained, flows)).unrouted
    dead = drained.with_nodes({fabric.structure.index[spine]: State.DOWN})
    after = check(repairer.repair(dead, flows))
    other = {"s0": "s1", "s1": "s0"}[spine]
    assert links_of(after, 0) == {f"l0,{other},0", f"l1,{other},0"}


def test_bounds_are_not_about_flows_that_must_stay() -> None:
    """A flow held on a drained link loads it, but the bound counts only the other flows."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=2)
    rows: list[Row] = [
        ("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", ""),
        ("l0-h0-n1", "l2-h0-n0", 400.0, 1, "k", ""),
    ]
    flows = flows_of(fabric, *rows)
    only = states(fabric, ("l1", "s1", State.DOWN), ("l2", "s0", State.DOWN))
    repairer = Repairer(solve(only, flows))
    after = check(repairer.repair(states(only, ("l0", "s0", State.DRAINED)), flows))
    assert not after.unrouted
    assert links_of(after, 0) == {"l0,s0,0", "l1,s0,0"}
    assert np.isclose(after.certificate.lower_bound, 1.0)
    assert after.certificate.max_utilization == 1.0
