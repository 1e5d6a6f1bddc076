"""A few drills of the library, one of each sort, played as `make drills` plays all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_emulator.drill.fluid.world import FluidWorld
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.runner import DrillRunner

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
def runner() -> Iterator[DrillRunner]:
    """Controllers that are lent from one drill to the next."""
    with DrillRunner({"fluid": FluidWorld()}) as shared:
        yield shared


@pytest.mark.parametrize("name", SAMPLE)
def test_a_drill_holds(runner: DrillRunner, name: str) -> None:
    """Every expectation of it holds in a single run."""
    scenario = load_scenario(FLUID / f"{name}.yaml")
    verdict = runner.play(scenario, "fluid", 1)
    assert not verdict.fault
    assert verdict.findings
    assert not [str(finding) for finding in verdict.findings if not finding.held]
