"""drill.yaml: what it may contain, and how errors in it are reported, with line and cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle_controller.model.errors import InputError
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.scenario import Bound, CableName, Hop, Statistic, StepKind
from heddle_emulator.drill.verdict import MeasureKey, judge, statistic

LIBRARY = sorted((Path(__file__).parents[2] / "drills").glob("*/*.yaml"))
GOOD = """
drill: example
proves: something
worlds: [netns]
fabric:
  clos: {leaves: 2, spines: 2, nics_per_leaf: 2, nics_per_host: 1}
demands:
  - {from: l0, to: l1, gbps: 100}
probes:
  - {probe: one, from: l0-h0-n0, to: l1-h0-n0, rate: 100}
timeline:
  - {at: 100ms, cut: hop 2 of one}
  - {at: 105ms, cut: [l0 to s1, l1 to s1]}
expect:
  - {recovered: one, p99: {most: 10ms}}
  - {lost: one, most: 3}
"""
JOB = """jobs:
  - {job: j, hosts: [l0-h0, l1-h0], gpus_per_host: 1, parallelism: {dp: 2}, iterations: 3001}
"""


def _load(folder: Path, text: str) -> InputError | None:
    path = folder / "drill.yaml"
    path.write_text(text)
    try:
        load_scenario(path)
    except InputError as error:
        return error
    return None


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_the_library_can_be_read_and_names_itself(path: Path) -> None:
    """Every drill of the library is valid, and has the name of its file."""
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert path.parent.name in scenario.worlds
    assert scenario.expectations


def test_a_file_means_what_it_says(tmp_path: Path) -> None:
    """Times, hops, cables and bounds arrive as they are written."""
    assert _load(tmp_path, GOOD) is None
    scenario = load_scenario(tmp_path / "drill.yaml")
    (variant,) = scenario.variants
    assert len(variant.flows) == 4
    first, second = scenario.timeline
    assert (first.at, first.kind, first.targets) == (0.1, StepKind.CUT, (Hop("one", 2),))
    assert second.targets == (CableName("l0", "s1"), CableName("l1", "s1"))
    recovered, lost = scenario.expectations
    assert (recovered.statistic, recovered.bound) == (Statistic.P99, Bound.MOST)
    assert recovered.value == pytest.approx(0.01)
    assert (lost.statistic, lost.value) == (Statistic.MAX, 3)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("drill: example", "dril: example", "did you mean drill"),
        ("leaves: 2", "leafs: 2", "did you mean leaves"),
        ("leaves: 2, ", "", "fabric clos (line 6): has no leaves; give a whole number"),
        ("leaves: 2", "leaves: two", "fabric clos (line 6): leaves is 'two'; give a whole number"),
        ("leaves: 2", "leaves: 2, nic_gbps: fast", "nic_gbps is 'fast'; give a number"),
        ("probes:", f"{JOB}probes:", "iterations is 3,001; give at most 3,000"),
        ("leaves: 2", "leaves: 0", "give 1 or more"),
        ("clos:", "closs:", "give a file's name"),
        ("from: l0,", "from: l9,", "no node l9"),
        ("from: l0,", "from: s0,", "s0 has no NICs"),
        ("gbps: 100", "gbps: much", "give a number"),
        ("to: l1-h0-n0", "to: s1", "s1 is not a NIC"),
        ("rate: 100", "rate: 100, mbit: 5", "either rate"),
        ("at: 100ms", "at: 100", "number and its unit"),
        ("cut: hop 2 of one", "cut: hop 2 of two", "no probe two"),
        ("l0 to s1,", "l0 to l1,", "no cable l0 to l1"),
        ("cut: hop 2 of one", "cut: hop 2 of one, mend: all", "does 2 things"),
        ("{at: 105ms, cut:", "{at: 105ms, kill: nobody}\n  - {at: 105ms, cut:", "no switch nobody"),
        ("recovered: one", "recoverd: one", "did you mean recovered"),
        ("lost: one", "lost: other", "no probe other"),
        ("most: 3", "p99: 3", "as {most: 10ms}"),
        ("p99: {most: 10ms}", "p99: {most: 10}", "number and its unit"),
        ("most: 3", "most: 3, over: x", "no variant x"),
        ("worlds: [netns]", "worlds: [moon]", "there are fluid, netns"),
        ("probes:", "lab: {controllers: 0}\nprobes:", "lab (line 9): controllers is 0"),
        ("probes:", "lab: {controllers: 50}\nprobes:", "lab (line 9): controllers is 50; give at"),
        ("probes:", "lab: {controllers: 2, programs: false}\nprobes:", "no programs; leave one"),
        ("probes:", "lab: {programs: maybe}\nprobes:", "lab (line 9): programs is 'maybe'"),
    ],
)
def test_faults_are_told_with_a_cure(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Every error is found before anything runs, and the message says what to do."""
    assert old in GOOD
    error = _load(tmp_path, GOOD.replace(old, new, 1))
    assert error is not None
    assert any(said in str(problem) for problem in error.problems), error.problems


def test_faults_of_records_name_their_line(tmp_path: Path) -> None:
    """The line is that of the record, counted from 1 as editors do."""
    error = _load(tmp_path, GOOD.replace("rate: 100", "rate: -1"))
    line = GOOD.splitlines().index(next(x for x in GOOD.splitlines() if "rate" in x)) + 1
    assert f"(line {line})" in str(error)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    """A file with three errors gives at least three messages."""
    text = GOOD.replace("at: 100ms", "at: soon").replace("lost: one", "loss: one")
    error = _load(tmp_path, text.replace("proves: something", "prove: something"))
    assert error is not None
    assert len(error.problems) >= 3


def test_a_drill_that_expects_nothing_is_refused(tmp_path: Path) -> None:
    """It would always hold, whatever breaks."""
    for tail in ("", "expect: []\n"):
        assert "expects nothing" in str(_load(tmp_path, GOOD.partition("expect:")[0] + tail))


def test_contradictions_are_refused(tmp_path: Path) -> None:
    """One cable cannot be cut and mended at the same moment."""
    text = GOOD.replace("expect:", "  - {at: 105ms, mend: l0 to s1}\nexpect:")
    assert "at the same time" in str(_load(tmp_path, text))


def test_verdicts_follow_from_the_runs(tmp_path: Path) -> None:
    """The p99 of few runs is their worst. A measure without values does not hold."""
    assert _load(tmp_path, GOOD) is None
    scenario = load_scenario(tmp_path / "drill.yaml")
    values: dict[MeasureKey, list[float]] = {("", "recovered", "one"): [0.001] * 29 + [0.011]}
    recovered, lost = judge(scenario, values)
    assert not recovered.held
    assert recovered.found == pytest.approx(0.011)
    assert not lost.held
    assert lost.found is None
    assert "not measured" in str(lost)


def test_statistics() -> None:
    """Of 200 values, p99 leaves out two. The median of an even count is between its middle two."""
    series = [float(value) for value in range(200, 0, -1)]
    assert statistic(series, Statistic.P99) == 198
    assert statistic(series, Statistic.MEDIAN) == 100.5
    assert statistic(series, Statistic.MAX) == 200
    assert statistic(series, Statistic.MIN) == 1
