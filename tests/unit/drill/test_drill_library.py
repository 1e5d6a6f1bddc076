"""The library of drills as a whole: its size, its kinds of faults, and its page."""

from __future__ import annotations

import pytest

from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.scenario import Point, Scenario, StepKind
from tests.drills.table import PAGE, page, paths

UNROLLED = {StepKind.FLAP}
"""Kinds that become cuts and mends when a file is read."""


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    """Return all drills of the library."""
    return [load_scenario(path) for path in paths()]


def test_the_page_tells_of_every_drill() -> None:
    """README.md follows from the files.

    If it is out of date, tests/drills/table.py writes it anew.
    """
    assert PAGE.read_text(encoding="utf-8") == page()


def test_there_are_enough_drills_with_names_of_their_own(scenarios: list[Scenario]) -> None:
    """There are at least 40 drills, and at least 25 of them can run in virtual time."""
    names = [one.name for one in scenarios]
    assert len(set(names)) == len(names) >= 40
    assert sum("fluid" in one.worlds for one in scenarios) >= 25


def test_every_kind_of_fault_is_drilled(scenarios: list[Scenario]) -> None:
    """Each kind of step occurs, and the controller dies at each of its named points."""
    steps = [step for one in scenarios for step in (*one.setup, *one.timeline)]
    kinds = {step.kind for step in steps}
    text = "".join(path.read_text() for path in paths())
    kinds |= {kind for kind in UNROLLED if f"{kind.value}:" in text}
    assert set(StepKind) - kinds == set()
    assert {step.point for step in steps} >= set(Point)


def test_one_two_four_and_eight_links_are_lost_at_once(scenarios: list[Scenario]) -> None:
    """A drill cuts as many links at the same moment as its name says."""
    found = {
        one.name: sum(len(step.targets) for step in one.timeline if step.kind is StepKind.CUT)
        for one in scenarios
        if one.name.startswith("lost-")
    }
    assert found == {"lost-1": 1, "lost-2": 2, "lost-4": 4, "lost-8": 8}
