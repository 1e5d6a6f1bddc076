"""A few drills of the library, one of each sort, played as `make drills` plays all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_emulator.drill.fluid.world import House
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.verdict import judge

FLUID = Path(__file__).parents[1] / "drills" / "fluid"
SAMPLE = (
    "agent-empty",
    "controller-dies-at-push",
    "drain-spine",
    "flap",
    "lost-1",
    "lost-8",
    "zone-uplinks",
)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """Controllers that are lent from one drill to the next."""
    with House() as shared:
        yield shared


@pytest.mark.parametrize("name", SAMPLE)
def test_a_drill_holds(house: House, name: str) -> None:
    """Every expectation of it holds in a single run."""
    scenario = load_scenario(FLUID / f"{name}.yaml")
    found = judge(scenario, house.play(scenario, 1, lambda _: None))
    assert found
    assert not [str(finding) for finding in found if not finding.held]
