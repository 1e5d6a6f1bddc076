"""What a report is given about a verdict, and about a run in the lab."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle.v1 import common_pb2, fabric_pb2, plan_pb2
from heddle_emulator.client import ControllerView
from heddle_emulator.drill.lab.control import Sighting
from heddle_emulator.drill.lab.fabric import DoneStep
from heddle_emulator.drill.lab.story import LabRecord, lab_story
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.report import drill_evidence
from heddle_emulator.drill.scenario import Step, StepKind
from heddle_emulator.drill.verdict import Values, Verdict, judge
from heddle_emulator.netns.probe.handle import Notes
from heddle_emulator.netns.probe.spec import ProbeFlow
from heddle_emulator.report.evidence import Evidence, Mark
from heddle_emulator.report.page import page
from heddle_emulator.topology import clos

FABRIC = clos(leaves=2, spines=2, nics_per_leaf=1)
FILE = """
drill: example
proves: Nothing is lost
worlds: [netns]
fabric:
  clos: {leaves: 2, spines: 2, nics_per_leaf: 1, nics_per_host: 1}
demands:
  - {from: l0, to: l1, gbps: 100}
probes:
  - {probe: one, from: l0-h0-n0, to: l1-h0-n0, rate: 100}
timeline:
  - {at: 100ms, cut: hop 2 of one}
runs: 2
expect:
  - {recovered: one, p99: {most: 10ms}}
  - {lost: one, most: 3}
"""
NANO, MILLI = 1_000_000_000, 1_000_000
TOLD: Values = {
    ("", "recovered", "one"): [0.004, float("inf")],
    ("", "lost", "one"): [1.0, 2.0],
    ("", "detected", ""): [0.001, 0.002],
    ("", "notified", ""): [0.003, 0.002],
    ("", "solved", ""): [0.050, 0.060],
    ("", "acked", ""): [0.090, 0.110],
}


def _evidence(folder: Path, values: Values, **change: object) -> Evidence:
    path = folder / "example.yaml"
    path.write_text(FILE)
    scenario = load_scenario(path)
    verdict = Verdict(scenario, "netns", values, judge(scenario, values), seconds=2.5)
    return drill_evidence(replace(verdict, **change))  # type: ignore[arg-type]


def test_a_verdict_is_told_with_all_that_it_rests_on(tmp_path: Path) -> None:
    """Evidence has each expectation, every run of each measure, and a command to repeat it."""
    told = _evidence(tmp_path, TOLD)
    assert (told.drill, told.held, told.seed) == ("example", False, 0)
    late, lost = told.expectations
    assert (late.what, late.wanted, late.got) == (
        "recovered of one",
        "p99 at most 10.0 ms",
        "never",
    )
    assert (late.held, lost.held) == (False, True)
    assert late.line == 15
    recovered = told.measured[0]
    assert recovered.runs == (0.004, float("inf"))
    assert told.command == (f"heddle-emulator drill {told.file} --world netns --report report")
    assert told.scenario == FILE
    assert "never" in page(told)


def test_stages_of_a_convergence_add_up_to_when_it_stood(tmp_path: Path) -> None:
    """Each stage is the time after the stage before. Clocks that differ make none negative."""
    convergence = _evidence(tmp_path, TOLD).convergence
    assert convergence is not None
    first, second = convergence.runs
    assert sum(first.seconds) == pytest.approx(0.090)
    assert min(second.seconds) >= 0
    assert len(first.seconds) == len(convergence.stages)
    less = {key: value for key, value in TOLD.items() if key[1] not in {"solved", "acked"}}
    assert _evidence(tmp_path, less).convergence is None


def test_fewer_runs_than_the_file_asks_for_are_part_of_the_command(tmp_path: Path) -> None:
    """The command has --runs if fewer runs were made than the file asks for."""
    one = {key: values[:1] for key, values in TOLD.items()}
    assert "--runs 1" in _evidence(tmp_path, one).command


def test_a_drill_that_could_not_be_played_is_evidence_too(tmp_path: Path) -> None:
    """The evidence has the reason and nothing else."""
    told = _evidence(tmp_path, {}, fault="no lab to be had", findings=())
    assert (told.held, told.fault, told.measured) == (False, "no lab to be had", ())
    assert "no lab to be had" in page(told)


def _run() -> LabRecord:
    """Return a run of 100 packets, one a millisecond from 0. Those sent at 10 to 14 ms are lost."""
    flow = ProbeFlow("one", "a", "b", "10.0.0.1", "10.0.0.2", 1, 2, 1000.0)
    sent = np.arange(100, dtype=np.int64) * MILLI
    came = np.where((sent >= 10 * MILLI) & (sent < 15 * MILLI), 0, sent + 1)
    notes = Notes(flow, sent, came, came, np.empty((0, 2), dtype=np.int64))
    view = ControllerView()
    link = fabric_pb2.Link(source="l0", target="s0", oper_state=common_pb2.STATE_DOWN)
    link.state_time.FromNanoseconds(13 * MILLI)
    plan = plan_pb2.Plan(generation=2, changed_count=7)
    plan.commit_time.FromNanoseconds(60 * MILLI)
    view.links, view.plans = [(0, link)], [(0, plan), (0, plan)]
    cut = Step(0.01, StepKind.CUT, ())
    done = DoneStep(10 * MILLI, cut, Mark.FAULT, "cut l0-s0", "l0-s0")
    return LabRecord(0, 100 * MILLI, (done,), {"one": [notes]}, {},
                  {"one": 0.005}, 10 * MILLI, [Sighting(11 * MILLI, "s0", "l0-s0"),
                  Sighting(5 * NANO, "s0", "later")], [], view, FABRIC, ())  # fmt: skip


def test_a_run_is_told_in_the_order_of_its_events() -> None:
    """Events of agents, controller and packets come once each, without those of other runs."""
    told = lab_story(_run(), "a run")
    assert [(round(event.at, 3), event.mark) for event in told.events] == [
        (0.01, Mark.FAULT),
        (0.011, Mark.DETECTED),
        (0.013, Mark.NOTICE),
        (0.015, Mark.RECOVERED),
        (0.06, Mark.PLAN),
    ]
    assert told.events[0].text == "cut l0-s0"
    assert "7 flows move" in told.events[-1].text


def test_packets_that_never_came_are_a_dip_of_the_line() -> None:
    """A point stands for four packets. Of those from 8 ms two are lost, of the next four three."""
    (chart,) = lab_story(_run(), "a run").charts
    (line,) = chart.lines
    assert len(line.times) == len(line.values) == 26
    below = {time: value for time, value in zip(line.times, line.values, strict=True) if value != 1}
    assert below == {0.008: 0.5, 0.012: 0.25}


def test_the_run_in_which_packets_fared_worst_is_worse() -> None:
    """The longest time without packets counts first, then the number lost."""
    run = _run()
    longer = replace(run, recovered={"one": 0.5})
    whole = replace(run, recovered={"one": 0.005}, probes={})
    assert longer.badness > run.badness > whole.badness
