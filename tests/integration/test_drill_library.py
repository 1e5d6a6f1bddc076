"""A few drills of the library, played as ``make drills`` plays all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from heddle_emulator.drill.fluid import world
from heddle_emulator.drill.fluid.harness import OPTIONS
from heddle_emulator.drill.fluid.world import FluidWorld
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.runner import DrillRunner
from heddle_emulator.drill.scenario import Scenario
from tests.support.depth import fresh_seeds
from tests.support.drills import turned

FLUID = Path(__file__).parents[1] / "drills" / "fluid"
SAMPLE = (
    "agent-empty",
    "controller-dies-at-push",
    "drain-loss",
    "drain-spine",
    "flap",
    "lost-1",
    "lost-8",
    "zone-uplinks",
)
TURNED = (
    ("controller-hangs", 0),  # a backup is lost a moment before BGP tells of its path
    ("agent-crash", 1),  # a spine's hash sends back what the leaf without an agent sends
)

TWO_LOST = """
drill: two-lost
proves: A run lasts until the plan for all that was lost
worlds: [fluid]
fabric:
  clos: {leaves: 4, spines: 4, nics_per_leaf: 4, nics_per_host: 4}
demands:
  - {pattern: shift, gbps: 200}
timeline:
  - {at: 100ms, cut: l0 to s1}
  - {at: 100ms, cut: l2 to s2}
settle: 300ms
expect:
  - {slowest: all, when: after, least: 1.0}
"""
"""A drill that holds only with a new plan: local repair alone puts three flows on one link."""


@pytest.fixture(scope="module")
def runner() -> Iterator[DrillRunner]:
    """A runner whose controllers pass from one drill to the next."""
    with DrillRunner({"fluid": FluidWorld()}) as shared:
        yield shared


def failed(runner: DrillRunner, scenario: Scenario) -> list[str]:
    """Play a drill once; return the expectations that do not hold."""
    verdict = runner.play(scenario, "fluid", 1)
    assert not verdict.fault
    assert verdict.findings
    return [str(finding) for finding in verdict.findings if not finding.held]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_drill_holds(runner: DrillRunner, name: str) -> None:
    """Every expectation of a drill holds in a single run."""
    assert not failed(runner, load_scenario(FLUID / f"{name}.yaml"))


@pytest.mark.parametrize(("name", "seed"), TURNED)
def test_a_drill_holds_on_other_switches(
    runner: DrillRunner, tmp_path: Path, name: str, seed: int
) -> None:
    """A drill also holds if its faults happen to other, equal switches."""
    assert not failed(runner, turned(FLUID / f"{name}.yaml", Random(seed), tmp_path))


@pytest.mark.deep
def test_drills_hold_whatever_switches_faults_befall(runner: DrillRunner, tmp_path: Path) -> None:
    """Any drill of the library holds if its faults happen to other, equal switches."""
    every = sorted(FLUID.glob("*.yaml"))
    for seed in fresh_seeds(1, 100):
        path = Random(seed).choice(every)
        assert not failed(runner, turned(path, Random(seed), tmp_path)), (path.stem, seed)


def test_a_run_waits_for_the_plan_of_a_slow_controller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A plan takes effect at its moment in virtual time, however long the controller takes."""
    monkeypatch.setattr(world, "OPTIONS", (*OPTIONS, "--debounce-seconds=2.5"))
    path = tmp_path / "two-lost.yaml"
    path.write_text(TWO_LOST)
    with DrillRunner({"fluid": FluidWorld()}) as slow:
        assert not failed(slow, load_scenario(path))
