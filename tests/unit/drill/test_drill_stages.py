"""The stages from an event to a new plan, computed from moments."""

from __future__ import annotations

from pathlib import Path

from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.report import drill_evidence, measure_table
from heddle_emulator.drill.verdict import MeasureKey, Verdict

LIBRARY = Path(__file__).parents[2] / "drills" / "netns"


def verdict(**series: list[float]) -> Verdict:
    """Return a verdict of the convergence drill with these moments, in seconds, one a run."""
    scenario = load_scenario(LIBRARY / "convergence.yaml")
    values: dict[MeasureKey, list[float]] = {("", name, ""): told for name, told in series.items()}
    return Verdict(scenario, "netns", values, ())


def stages(one: Verdict) -> dict[str, tuple[str, ...]]:
    """Return the number of runs and the median of each stage in the table."""
    rows = [row for row in measure_table(one) if row[0].startswith("stage: ")]
    return {row[0].removeprefix("stage: "): row[3:5] for row in rows}


def test_stages_are_what_lies_between_moments() -> None:
    """There are five stages, which add up to the whole."""
    told = verdict(
        detected=[0.001, 0.002],
        notified=[0.003, 0.004],
        solved=[0.030, 0.032],
        programmed=[0.034, 0.037],
        acked=[0.060, 0.070],
    )
    shown = stages(told)
    assert list(shown) == ["detect", "notify", "solve", "program", "ack"]
    assert shown["detect"][0] == "2"
    convergence = drill_evidence(told).convergence
    assert convergence is not None
    assert [round(sum(run.seconds), 6) for run in convergence.runs] == [0.060, 0.070]
    assert [round(one, 6) for one in convergence.runs[1].seconds] == [
        0.002,
        0.002,
        0.028,
        0.005,
        0.033,
    ]


def test_what_was_not_told_in_every_run_is_no_stage_of_its_own() -> None:
    """A stage without a moment in every run is merged with the next, whose name has both."""
    told = verdict(detected=[0.001], solved=[0.030, 0.032], acked=[0.060, 0.070])
    assert list(stages(told)) == ["detect, notify, solve", "program, ack"]


def test_without_a_plan_there_is_nothing_to_take_apart() -> None:
    """Without a plan, as when no controller is alive, there are no stages."""
    assert not stages(verdict(lost=[1.0, 2.0]))
    assert drill_evidence(verdict(lost=[1.0])).convergence is None
