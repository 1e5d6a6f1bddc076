"""The runner of drills over a world that only counts: runs, the worst of them, and the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.runner import INTERRUPTED, DrillRunner, PlayedRun, Report, RunValues
from heddle_emulator.drill.scenario import Scenario, Variant
from heddle_emulator.netns import LabError
from heddle_emulator.report.evidence import Story

FILE = """
drill: counted
proves: Runs are counted
worlds: [fluid]
fabric: {clos: {leaves: 2, spines: 2, nics_per_leaf: 1, nics_per_host: 1}}
variants:
  - name: a
    demands: [{from: l0-h0-n0, to: l1-h0-n0, gbps: 100}]
  - name: b
    demands: [{from: l1-h0-n0, to: l0-h0-n0, gbps: 100}]
expect: [{stranded: all, most: 0}]
"""


class CountingWorld:
    """A world that loses the given number of packets in each run of each variant."""

    worst = "the one that lost most"

    def __init__(self, lost: list[float], error: BaseException | None = None) -> None:
        """Use these losses, one a run. A run after the last raises ``error``."""
        self._lost, self._error = lost, error
        self.closed = self.opened = False

    def assumptions(self, scenario: Scenario) -> tuple[str, ...]:
        """Implement ``World.assumptions``."""
        return (scenario.name,)

    @contextmanager
    def open(self, scenario: Scenario, report: Report) -> Iterator[CountingWorld]:  # noqa: ARG002
        """Implement ``World.open``."""
        self.opened = True
        try:
            yield self
        finally:
            self.opened = False

    async def close(self) -> None:
        """Implement ``World.close``."""
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the session."""

    async def prepare(self, variant: Variant) -> RunValues:
        """Implement ``Session.prepare``."""
        return {("entries", ""): len(variant.flows)}

    async def run(self, variant: Variant, number: int) -> PlayedRun:
        """Implement ``Session.run``."""
        if number >= len(self._lost) and self._error is not None:
            raise self._error
        lost = self._lost[number]
        values = {("stranded", "all"): lost}
        return PlayedRun(values, (lost,), partial(Story, clock=variant.name))


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """Return a scenario of two variants and one expectation."""
    path = tmp_path / "counted.yaml"
    path.write_text(FILE)
    return load_scenario(path)


def test_every_run_counts_and_the_worst_is_told(scenario: Scenario) -> None:
    """Among equally bad runs the story of the first is kept, for each variant."""
    world, said = CountingWorld([0.0, 3.0, 1.0, 3.0]), list[str]()
    with DrillRunner({"fluid": world}) as runner:
        verdict = runner.play(scenario, "fluid", 4, said.append)
        assert not world.opened
    assert world.closed
    assert runner.verdicts == [verdict]
    assert verdict.values["a", "stranded", "all"] == [0.0, 3.0, 1.0, 3.0]
    assert verdict.values["b", "entries", ""] == [1]
    assert [(story.variant, story.title) for story in verdict.stories] == [
        (name, f"{name}: run 2 of 4, the one that lost most") for name in ("a", "b")
    ]
    assert (verdict.held, verdict.fault, verdict.assumptions) == (False, "", ("counted",))
    assert "b: run 4 of 4" in said


def test_a_drill_that_cannot_go_on_says_why_and_tells_what_it_has(scenario: Scenario) -> None:
    """Nothing holds then, and the stories of the runs before are kept."""
    with DrillRunner({"fluid": CountingWorld([2.0], LabError("no lab"))}) as runner:
        failed = runner.play(scenario, "fluid", 2)
    assert (failed.fault, failed.held, failed.findings) == ("no lab", False, ())
    assert [story.title for story in failed.stories] == ["a: run 1 of 2, the one that lost most"]


def test_ctrl_c_leaves_a_verdict(scenario: Scenario) -> None:
    """The drill that was running counts as interrupted, and the world is closed."""
    world = CountingWorld([0.0], KeyboardInterrupt())
    runner = DrillRunner({"fluid": world})
    with pytest.raises(KeyboardInterrupt), runner:
        runner.play(scenario, "fluid", 2)
    assert [verdict.fault for verdict in runner.verdicts] == [INTERRUPTED]
    assert world.closed
    assert not world.opened
