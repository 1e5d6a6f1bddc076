"""The conformance cases on each of our FIB backends, and the command that runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from heddle_agent.conformance import CASES, Case, OpenBench, Verdict, find_opener, run_case
from heddle_agent.fib import Capability
from tests.support.fib_bench import BACKENDS

AGENT = str(Path(sys.executable).with_name("heddle-agent"))
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "agents" / "examples"
BROKEN = """
from plain_switch import PlainBench, PlainFib

class Bench(PlainBench):
    def __init__(self, table_size):
        super().__init__(table_size)
        apply = self.plain.apply
        {fault}
"""
FAULTS = {
    "a_delete_falls_back_to_the_underlay": "self.plain.apply = lambda b: apply(type(b)(b.sets))",
    "a_full_table_refuses_what_is_new": "self.plain.table_size = 0",
    "steering_moves_every_entry_of_a_group": "self.plain.steer = lambda steering: None",
    "an_unknown_next_hop_fails_alone": "self.plain.ports = ()",
    "a_withdrawn_overlay_leaves_all_to_the_underlay": (
        "self.plain.set_overlay = lambda withdrawn: ''"
    ),
    "read_back_says_what_is_programmed": "self.plain.read_back = dict",
    "a_port_entry_takes_its_port_only": (
        "self.plain.apply = lambda b: apply(type(b)({(s, d, 0, 0): g for (s, d, *_), g"
        " in b.sets.items()}, b.deletes))"
    ),
}
"""A fault of a backend, by the case that must report it."""


def conformance(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``heddle-agent conformance`` in a folder."""
    return subprocess.run(
        [AGENT, "conformance", *words], cwd=folder, capture_output=True, text=True, check=False
    )


OF_RULES = {Capability.ATOMIC_BATCH, Capability.COUNTERS, Capability.UNMATCHED}
NOT_CLAIMED = {"sonic": OF_RULES, "sonic-ipv6": OF_RULES}
"""What some of our backends cannot do; all others can do everything."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_fib(backend: str, case: Case) -> None:
    """Each case holds on every backend of ours that has the capabilities it needs."""
    result = run_case(BACKENDS[backend], case)
    lacks = case.needs & NOT_CLAIMED.get(backend, set())
    wanted = Verdict.NOT_ASKED if lacks else Verdict.HELD
    assert result.verdict is wanted, result.why


def test_the_example_holds_all_that_it_claims() -> None:
    """The example passes every case but two of counters, which it does not claim.

    The command prints a line for each case and ends with exit status 0.
    """
    done = conformance(EXAMPLES, "--backend", "plain_switch:PlainBench")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    passed_over = [line for line in lines if line.startswith("not asked")]
    assert len(lines) == len(CASES) + 1
    assert [line.split()[2] for line in passed_over] == [
        "counters_count_their_entry:",
        "what_no_entry_matches_is_counted_by_pair:",
    ]
    assert lines[-1] == f"{len(CASES) - 2} held, 0 broken, 2 not asked"


@pytest.mark.parametrize(("case", "fault"), FAULTS.items(), ids=FAULTS)
def test_a_broken_backend_is_told_by_case(case: str, fault: str, tmp_path: Path) -> None:
    """For a broken backend the exit status is 1, and the broken case says what it found."""
    (tmp_path / "plain_switch.py").write_text((EXAMPLES / "plain_switch.py").read_text())
    (tmp_path / "mine.py").write_text(BROKEN.format(fault=fault))
    done = conformance(tmp_path, "--backend", "mine:Bench", "--json")
    assert done.returncode == 1, done.stderr
    told = {row["case"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert told[case]["verdict"] == "broken", told[case]
    assert told[case]["why"]
    assert told["an_empty_table_leaves_all_to_the_underlay"]["verdict"] == "held"


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    """What cannot be run ends in exit status 2 and a line that says why.

    One case can be chosen by name, and an unknown name is refused.
    """
    for words, said in (
        (["--backend", "plain_switch"], "is not MODULE:NAME"),
        (["--backend", "nobody.knows:Bench"], "cannot be imported"),
        (["--backend", "heddle_agent:Nothing"], "has no class or function"),
        ([], "--backend"),
    ):
        done = conformance(tmp_path, *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    one = ("--backend", "plain_switch:PlainBench", "--case")
    assert conformance(EXAMPLES, *one, CASES[0].name).stdout.startswith(f"held  {CASES[0].name}")
    done = conformance(EXAMPLES, *one, "no_such_case")
    assert (done.returncode, "no_such_case" in done.stderr) == (2, True)


def test_what_a_backend_raises_is_a_broken_case() -> None:
    """An error that a backend raises ends only its case, and is reported."""

    def opens(_table_size: int) -> None:
        raise OSError("the device is away")

    opener: OpenBench = opens  # type: ignore[assignment] # that it opens nothing is the test
    result = run_case(opener, CASES[0])
    assert (result.verdict, result.why) == (Verdict.BROKEN, "OSError: the device is away")
    assert find_opener("tests.support.fib_bench:memory") is BACKENDS["memory"]
