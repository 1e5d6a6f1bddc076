"""Differences between plans and between entries: those that count and those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle_controller.model.plan import Plan
from heddle_controller.plan.diff import changed_flows, difference
from heddle_controller.plan.programs import entries_of
from tests.support.plan_chance import Draft, Way, Wish, clos, wishes

OVER = "n0 leaf0 spine{} leaf1 n2"


def planned(*ways: Way, qps: int = 4, name: str = "a", spines: int = 3) -> Plan:
    """A plan of one flow over the given paths; without any, the flow has no path."""
    fabric = clos(spines=spines)
    flows = wishes(fabric, **{name: Wish("n0", "n2", qps=qps)})
    if not ways:
        return Draft(fabric, flows, {}, unrouted={name: "no path"}).plan()
    return Draft(fabric, flows, {name: ways}).plan()


CHANGES: dict[str, tuple[Plan, Plan, bool]] = {
    "same": (planned((0, 3, OVER.format(0))), planned((0, 3, OVER.format(0))), False),
    "other spine": (planned((0, 3, OVER.format(0))), planned((0, 3, OVER.format(1))), True),
    "one QP of four": (
        planned((0, 3, OVER.format(0))),
        planned((0, 2, OVER.format(0)), (3, 3, OVER.format(1))),
        True,
    ),
    "QPs change places": (
        planned((0, 1, OVER.format(0)), (2, 3, OVER.format(1))),
        planned((0, 1, OVER.format(1)), (2, 3, OVER.format(0))),
        True,
    ),
    "one path told as two": (
        planned((0, 3, OVER.format(0))),
        planned((0, 0, OVER.format(0)), (1, 3, OVER.format(0))),
        False,
    ),
    "more QPs on it": (
        planned((0, 3, OVER.format(0))),
        planned((0, 7, OVER.format(0)), qps=8),
        False,
    ),
    "lost its path": (planned((0, 3, OVER.format(0))), planned(), True),
    "found a path": (planned(), planned((0, 3, OVER.format(0))), False),
    "another flow": (
        planned((0, 3, OVER.format(0))),
        planned((0, 3, OVER.format(1)), name="b"),
        False,
    ),
    "a spine is gone from the fabric": (
        planned((0, 3, OVER.format(2))),
        planned((0, 3, OVER.format(1)), spines=2),
        True,
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_changed_flows(case: str) -> None:
    """A flow that had a path counts as changed if, and only if, a QP takes other links or none."""
    old, new, moved = CHANGES[case]
    assert changed_flows(old, new).tolist() == ([0] if moved else [])


def test_stage_is_no_content() -> None:
    """Entries that differ in their stage alone count as the same."""
    entries = entries_of(planned((0, 3, OVER.format(0))))
    staged = replace(entries, stage=entries.stage + 1)
    assert [rows.tolist() for rows in difference(entries, staged)] == [[], []]


@pytest.mark.parametrize("column", ["backup", "risk_links"])
def test_backup_and_risk_are_content(column: str) -> None:
    """An entry with another backup or risk is set again, even if its next hop is the same."""
    entries = entries_of(planned((0, 3, OVER.format(0))))
    other = replace(entries, **{column: getattr(entries, column) + 1})
    assert [rows.tolist() for rows in difference(entries, other)] == [[0], []]
