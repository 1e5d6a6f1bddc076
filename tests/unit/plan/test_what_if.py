"""Comparing two plans: what a change would do to flows and figures."""

from __future__ import annotations

from heddle_controller.model.plan import Plan
from heddle_controller.plan.what_if import TierChange, compare_plans
from tests.support.plan_chance import Draft, Wish, clos, wishes

ACROSS = "n{} leaf0 spine{} leaf1 n{}"


def planned(*spines: int | None, gbps: float = 50.0, first: int = 0) -> Plan:
    """Flows f0, f1, … from leaf0 to leaf1, each over a spine or without a path."""
    fabric = clos(nics=4)
    rows = range(first, first + len(spines))
    flows = wishes(fabric, **{f"f{i}": Wish(f"n{i}", f"n{i + 4}", gbps) for i in rows})
    ways = {
        f"f{i}": [(0, 0, ACROSS.format(i, spine, i + 4))]
        for i, spine in zip(rows, spines, strict=True)
        if spine is not None
    }
    missing = [f"f{i}" for i, spine in zip(rows, spines, strict=True) if spine is None]
    return Draft(fabric, flows, ways, unrouted=dict.fromkeys(missing, "no path")).plan()


def test_moved_lost_and_regained() -> None:
    """Each flow of both plans is in one group at most, by its row in the later plan."""
    told = compare_plans(planned(0, 0, 1, None), planned(0, 1, None, 1))
    assert told.moved.tolist() == [1]
    assert told.lost.tolist() == [2]
    assert told.regained.tolist() == [3]


def test_flows_of_one_plan_only_are_no_change() -> None:
    """Flows of one plan only are no change, and other row numbers move no flow."""
    told = compare_plans(planned(0, 1, 0), planned(1, 0, 1, first=1))
    assert (told.moved.tolist(), told.lost.tolist(), told.regained.tolist()) == ([], [], [])


def test_tiers_before_and_after() -> None:
    """The worst utilisation of each tier is told before and after, also above 1."""
    before = planned(0, 1)
    full, over = (
        compare_plans(before, planned(0, 0)),
        compare_plans(planned(0, 1, 1), planned(0, 0, 0)),
    )
    assert full.tiers[1] == TierChange("leaf-spine", 0.5, 1.0)
    assert over.tiers[1] == TierChange("leaf-spine", 1.0, 1.5)


def test_flows_move_and_figures_stay() -> None:
    """Even if every flow takes another path, the certificates may be equal."""
    before = planned(0, 0, 0)
    told = compare_plans(before, planned(1, 1, 1))
    assert told.moved.tolist() == [0, 1, 2]
    assert (told.before, told.after) == (before.certificate, before.certificate)
