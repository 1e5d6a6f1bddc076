"""A small part of ``make fuzz`` in every run of the tests, and checks that it finds faults."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from heddle.v1.plan_pb2 import WatchJobPortsRequest, WatchPlanRequest
from heddle_controller.state.audit import parse_mark
from tests.fuzz.guide import Guide
from tests.fuzz.run import inputs, opened, run_target
from tests.fuzz.tally import Tally, strike
from tests.fuzz.target import ROOT, Target, check
from tests.support.needs import missing

PART = 60
UNPLANNED = "fabrics/f2/plan"
WATCHED_PORTS = "PlanService/WatchJobPorts"


@pytest.fixture(scope="module")
def targets() -> Iterator[list[Target]]:
    """All targets, made once."""
    with opened() as everything:
        yield everything


def test_a_part_of_it(
    targets: list[Target], pytestconfig: pytest.Config, caplog: pytest.LogCaptureFixture
) -> None:
    """Every target accepts or refuses each input, and nothing fails beside it.

    The seed is that of hypothesis.
    """
    seed = int(pytestconfig.option.hypothesis_seed)
    print(f"seed {seed}")  # noqa: T201 - to run it again
    tallies = [run_target(target, seed, range(PART)) for target in targets]
    assert [(one.name, one.faults) for one in tallies if one.faults] == []
    assert all(one.inputs == PART for one in tallies)
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


def test_streams_may_wait_for_a_plan(targets: list[Target]) -> None:
    """A watch of plans that are still to come does not count as one that hangs."""
    watches = [one for one in targets if one.name in {"PlanService/WatchPlan", WATCHED_PORTS}]
    requests = [WatchPlanRequest(name=UNPLANNED), WatchJobPortsRequest(plan=UNPLANNED)]
    for target, request in zip(watches, requests, strict=True):
        tally = Tally(target.name)
        strike(target, request.SerializeToString(), tally, seconds=60)
        assert (tally.taken, tally.faults) == (1, [])


def test_good_inputs_are_taken(targets: list[Target]) -> None:
    """The inputs to be spoilt are good; otherwise refusals would prove nothing."""
    never = {"datagram to a peer"}  # it was heard already, so it is a replay
    for target in targets:
        if target.make is None and target.name not in never:
            assert target.run(target.corpus[0]), target.name


def test_faults_are_seen() -> None:
    """A crash, a wrong accept and a hang are each counted as such."""

    def crash(_: bytes) -> bool:
        raise KeyError("x")

    def wrong(_: bytes) -> bool:
        check(holds=False, what="it is wrong")
        return True

    def hang(_: bytes) -> bool:
        while True:
            time.sleep(0.01)

    for run, kind, seconds in ((crash, "crash", 240), (wrong, "wrong", 240), (hang, "hang", 0.2)):
        tally = Tally("x")
        strike(Target("x", run, [b"x"]), b"x", tally, seconds=seconds)
        ((text, content),) = tally.faults
        assert text.startswith(kind)
        assert content == b"x"


def test_the_same_seed_makes_the_same_inputs() -> None:
    """A fault can be repeated from its seed and number."""
    target = Target("t", lambda _: True, [b"abc 123", b"[1, 2]"])
    first = list(inputs(target, 7, range(50)))
    assert list(inputs(target, 7, range(50))) == first
    assert list(inputs(target, 7, [41])) == [first[41]]
    assert list(inputs(target, 8, range(50))) != first
    assert len(set(first)) > 30


def test_inputs_that_reach_further_are_kept() -> None:
    """An input that reaches a new line of our code is recognised."""
    guide = Guide()

    def refused() -> None:
        with pytest.raises(ValueError, match="is not a mark"):
            parse_mark("x")

    assert guide.traced(refused)
    assert not guide.traced(refused)
    assert guide.traced(lambda: parse_mark(f"1:{'0' * 64}"))


@pytest.mark.parametrize("word", ["fabric", "push", "Job", "token", "trace", "drill", "notice"])
def test_what_strangers_write_has_its_target(targets: list[Target], word: str) -> None:
    """Files, calls, notices and messages all have targets."""
    assert any(word in target.name for target in targets)


def test_inputs_are_found_by_what_they_reach() -> None:
    """The guided half keeps inputs for the code they reach.

    It accepts or refuses every one of them.
    """
    if find_spec("atheris") is None:
        missing("atheris, which is not built for this Python or machine")
    work = "from tests.fuzz.guided import share; print(share((600, 1, 0, 1, 'peer file')))"
    told = subprocess.run(
        [sys.executable, "-c", work],
        cwd=ROOT,
        env={**os.environ, "HEDDLE_FUZZ_GUIDED_BY": "heddle_agent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    (tally,) = eval(told.stdout, {"Tally": Tally})
    assert (tally.name, tally.inputs, tally.faults) == ("peer file", 600, [])
    assert tally.taken
    assert tally.kept
