"""Time limits scale with the pace that the machine had during the runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from heddle_emulator.drill.lab.pace import Pace
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.verdict import Finding, judge

HELD_UP = 0.3
DRILLS = Path(__file__).resolve().parents[2] / "drills" / "netns"


def finding(values: dict[tuple[str, str, str], list[float]], measure: str) -> Finding:
    """Return the finding on a measure of the drill of one lost link."""
    scenario = load_scenario(DRILLS / "failures-1.yaml")
    return next(one for one in judge(scenario, values) if one.expectation.measure == measure)


def test_a_program_that_is_held_up_is_told_of() -> None:
    """A program that is stopped for a while is late by most of that time, or stretched."""
    with Pace() as pace:
        os.kill(pace._process.pid, signal.SIGSTOP)
        time.sleep(HELD_UP)
        os.kill(pace._process.pid, signal.SIGCONT)
        told = pace.told()
    assert told["late", ""] > HELD_UP / 2 or told["stretch", ""] > 1.5
    assert told["stretch", ""] >= 1


def test_on_a_machine_of_its_own_the_limit_is_that_of_the_file() -> None:
    """On a quiet machine, a limit of 10 ms is 10 ms."""
    quiet = {("", "late", ""): [0.0] * 3, ("", "stretch", ""): [1.0] * 3}
    for seconds, held in ((0.0099, True), (0.0101, False)):
        values = quiet | {("", "recovered", "eight"): [0.002, seconds, 0.004]}
        assert finding(values, "recovered").held is held
    assert "not measured" in str(finding(quiet, "recovered"))


def test_on_a_busy_one_each_turn_and_all_work_count() -> None:
    """10 ms of work that lasts 1.5 times as long and four waits of 2 ms are 23 ms."""
    busy = {("", "late", ""): [0.001, 0.002, 0.0], ("", "stretch", ""): [1.5, 1.1, 1.2]}
    for seconds, held in ((0.018, True), (0.0229, True), (0.0231, False), (float("inf"), False)):
        told = finding(busy | {("", "recovered", "eight"): [0.002, seconds, 0.004]}, "recovered")
        assert told.held is held
        assert "p99 at most 10.0 ms, 23.0 ms at the pace of this machine" in str(told)


def test_no_pace_excuses_a_flow_on_a_dead_path() -> None:
    """Only time limits scale with the pace."""
    values = {
        ("", "late", ""): [10.0],
        ("", "stretch", ""): [100.0],
        ("", "stranded", "eight"): [1.0],
    }
    told = finding(values, "stranded")
    assert not told.held
    assert "pace" not in str(told)


def test_a_run_that_was_not_measured_holds_nothing() -> None:
    """Two results of three runs prove nothing about the third."""
    values = {("", "lost", "eight"): [0.0, 0.0, 0.0], ("", "stranded", "eight"): [0.0, 0.0]}
    told = finding(values, "stranded")
    assert (told.held, told.found) == (False, None)
