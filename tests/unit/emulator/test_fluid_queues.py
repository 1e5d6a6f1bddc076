"""Queues in the fluid simulation: closed forms, and packets on the same paths."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE, Floats, starts
from heddle_controller.model.errors import InputError
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.cli import run_command_line
from heddle_emulator.fluid.queues import (
    APART,
    CONTROLS,
    ControlName,
    Messages,
    QueueSimulation,
    played,
)
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows
from tests.bench.queues import drawn
from tests.support.depth import DEEP, fresh_seeds

SPEED, PACKET, DELAY = 400.0, 4096.0, 6e-7
WIRE = Wire(int(PACKET), hop_seconds=DELAY, store_and_forward=True)
STEP = DELAY + PACKET * 8e-9 / SPEED
SIZE = 8e6 if DEEP else 2e6
ALONE = SIZE * 8e-9 / SPEED
"""Seconds that a message takes on an idle link."""
PROMISED: dict[ControlName, float] = {"pfc": 0.15, "window": 0.15, "rate": 0.35}
"""How far off a makespan may be, as a fraction; see the emulator's README."""


def _messages(ways: list[list[int]], turn: list[int] | None = None) -> Messages:
    rows = np.arange(len(ways), dtype=np.int64)
    none = np.full(len(ways), NONE)
    turns = none if turn is None else np.array(turn, dtype=np.int64)
    follows = none if turn is None else np.where(turns > 0, turns - 1, NONE)
    first = starts(np.array([len(way) for way in ways], dtype=np.int64))
    arcs = np.array([arc for way in ways for arc in way], dtype=np.int64)
    ones = np.ones(len(ways))
    return Messages(first, arcs, ones * SIZE, ones, ones * 0, ones * np.inf, rows, turns, follows)


def _ends(
    ways: list[list[int]], control: ControlName = "pfc", turn: list[int] | None = None
) -> Floats:
    capacity = np.full(1 + max(max(way) for way in ways), SPEED)
    return QueueSimulation(capacity, _messages(ways, turn), WIRE, control).run()


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("hops", [2, 4, 6])
def test_a_message_alone(hops: int, control: ControlName) -> None:
    """A message alone takes its time at line rate and a step for each further hop."""
    assert _ends([[*range(hops)]], control) == pytest.approx([ALONE + (hops - 1) * STEP], abs=STEP)


@pytest.mark.parametrize("senders", [2, 3, 5])
def test_one_queue_is_never_idle(senders: int) -> None:
    """The queue sends the bytes of all messages one after another."""
    found = _ends([[row, senders] for row in range(senders)])
    assert found.max() == pytest.approx(senders * ALONE + STEP, abs=2 * STEP)


def test_a_pause_stops_who_only_passes_by() -> None:
    """A message is slowed down by one that shares a link with it and is itself held up.

    Of two messages on a link, one goes on to a link that three others want. The link of the other
    is idle, and yet it goes at the pace of the first while that one sends.
    """
    ways = [[0, 4, 5], [1, 4, 6], [2, 5], [3, 5]]
    fair = 3 / 2 * ALONE
    assert _ends(ways)[1] > 1.2 * fair


def test_phases_wait_for_their_turn() -> None:
    """The second message begins when the last byte of the first has arrived."""
    found = _ends([[0, 2], [1, 2]], turn=[0, 1])
    assert found == pytest.approx([ALONE + STEP, 2 * (ALONE + STEP)], abs=2 * STEP)


def test_messages_are_played_from_several_starts() -> None:
    """Six messages that meet twice in a row take about as long as if all began at once.

    The result is one of several runs, and it is the same each time.
    """
    ways = [[row, 6 + row % 2, 8, 9 + row] for row in range(6)]
    capacity, messages = np.full(15, SPEED), _messages(ways)
    once = QueueSimulation(capacity, messages, WIRE, "window").run()
    told = played(capacity, messages, WIRE, "window")
    assert told.max() == pytest.approx(once.max(), rel=0.1)
    assert told.max() != once.max()
    assert told.tolist() == played(capacity, messages, WIRE, "window").tolist()
    assert played(capacity, messages, WIRE, "pfc").max() == pytest.approx(
        QueueSimulation(capacity, messages, WIRE, "pfc").run().max(), abs=2 * APART
    )


def test_pauses_in_a_circle_are_told() -> None:
    """Each of three links waits for the next. With lossless queues nothing moves any more."""
    ways = [[3 + row, row, (row + 1) % 3, (row + 2) % 3, 6 + row] for row in range(3)]
    ways += [[9 + row, row, (row + 1) % 3, 12 + row] for row in range(3)]
    with pytest.raises(InputError, match="circle"):
        _ends(ways)


@pytest.mark.deep
@pytest.mark.parametrize("control", CONTROLS)
def test_packets_on_the_same_paths_take_as_long(control: ControlName) -> None:
    """On drawn fabrics, patterns and hashed paths, makespans are as near to packets as promised."""
    for seed in fresh_seeds(1, 100):
        case = replace(drawn(seed)["ecmp"], size=SIZE)
        ratio = case.packets(control) / case.fluid(control)
        assert abs(ratio - 1) <= PROMISED[control], f"seed {seed}: {ratio:.3f}"


def _files(folder: Path) -> list[str]:
    fabric = clos(leaves=4, spines=2, nics_per_leaf=4)
    save_fabric_file(fabric, folder / "fabric.json")
    save_flows(fabric, flows_between(fabric, "permutation", seed=3, qps=4), folder / "flows.csv")
    return ["--fabric", str(folder / "fabric.json"), "--flows", str(folder / "flows.csv")]


def test_a_rate_rises_again_on_a_slow_link() -> None:
    """Sixteen NICs of 1 Gbit/s that a core of 400 Gbit/s brings together end in time.

    A QP that was cut to its least sends less than a byte in each step of the fast link.
    """
    count, speed, size = 16, 1.0, 5e4
    ways = [[sender, count, count + 1] for sender in range(count)]
    capacity = np.full(count + 2, speed)
    capacity[count] = SPEED
    messages = replace(_messages(ways), size=np.full(count, size))
    ends = QueueSimulation(capacity, messages, WIRE, "rate").run()
    assert ends.max() == pytest.approx(count * size * 8e-9 / speed, rel=PROMISED["rate"])


def test_compare_plays_queues(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Hashing takes longer with queues, by a different time for each control. Spray does not."""
    words = [*_files(tmp_path), "--strategies", "ecmp,spray", "--size", "4MB", "--json"]
    found = {}
    for control in (None, *CONTROLS):
        asked = [] if control is None else ["--queues", control]
        assert run_command_line(["compare", *words, *asked]) == 0
        strategies = json.loads(capfd.readouterr().out)["strategies"]
        found[control] = {name: told["makespan_seconds"] for name, told in strategies.items()}
    assert all(found[control]["ecmp"] > found[None]["ecmp"] for control in CONTROLS)
    assert len({times["spray"] for times in found.values()}) == 1
    assert all(found[a]["ecmp"] != found[b]["ecmp"] for a, b in combinations(CONTROLS, 2))


def _told(folder: Path, *lines: str) -> list[str]:
    """Write two leaves under one spine, and these flows. Return the options."""
    save_fabric_file(clos(leaves=2, spines=1, nics_per_leaf=3), folder / "fabric.json")
    head = "flow,src,dst,gbps,job,phase,qps,bytes,start_s\n"
    (folder / "flows.csv").write_text(head + "".join(f"{line}\n" for line in lines))
    return ["--fabric", str(folder / "fabric.json"), "--flows", str(folder / "flows.csv")]


def _makespans(words: list[str], capfd: pytest.CaptureFixture[str]) -> dict[str, float]:
    assert run_command_line(["compare", *words, "--json"]) == 0
    strategies = json.loads(capfd.readouterr().out)["strategies"]
    return {name: told["makespan_seconds"] for name, told in strategies.items()}


def test_limits_keep_fair_rates_where_there_is_one_path(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spraying over one path is that path, and queues change neither it nor a crossbar."""
    words = _told(
        tmp_path,
        "a,l0-h0-n0,l1-h0-n0,400,j,,1,8000000,",
        "b,l0-h0-n1,l1-h0-n0,400,j,,1,8000000,",
        "c,l0-h0-n2,l1-h0-n1,400,j,,1,8000000,",
        "d,l1-h0-n2,l0-h0-n1,400,j,,1,20000,",
    )
    words += ["--strategies", "ecmp,spray,ideal"]
    fair = _makespans(words, capfd)
    assert fair["spray"] == pytest.approx(fair["ecmp"])
    for control in CONTROLS:
        found = _makespans([*words, "--queues", control], capfd)
        assert (found["spray"], found["ideal"]) == (fair["spray"], fair["ideal"])
        assert found["ecmp"] != fair["ecmp"]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("cells", ["0.005,j,,1,2000", "0.1,j,,32,40000"])
def test_a_slow_flow_sends_at_its_pace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], control: ControlName, cells: str
) -> None:
    """A paced flow that may send less than a byte in a step takes as long as with fair rates."""
    words = _told(tmp_path, f"a,l0-h0-n0,l1-h0-n0,{cells},")
    words += ["--strategies", "ecmp", "--paced"]
    found = _makespans([*words, "--queues", control], capfd)
    assert found["ecmp"] == pytest.approx(_makespans(words, capfd)["ecmp"], rel=0.01)


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("0.1,j,,1,80000000,", "at its pace"),
        ("400,j,,1,800000,30", "start_s"),
        ("400,j,,1,400000000000,", "their bytes (file or --size)"),
    ],
)
def test_what_takes_too_long_is_refused_with_its_cause(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, cure: str
) -> None:
    """The cure fits the cause: a pace, a late start, or many bytes."""
    words = _told(tmp_path, f"a,l0-h0-n0,l1-h0-n0,{line}")
    words += ["--strategies", "ecmp", "--paced", "--queues", "pfc"]
    assert run_command_line(["compare", *words]) == 2
    (said,) = capfd.readouterr().err.splitlines()
    assert cure in said


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ([], "give --size"),
        (["--size", "400GB"], "th of their bytes"),
        (["--size", "4MB", "--hop-us", "50"], "a hop"),
    ],
)
def test_what_cannot_be_played_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], cure: str
) -> None:
    """The exit status is 2, and one line says what to give."""
    asked = [*_files(tmp_path), "--strategies", "ecmp", "--queues", "pfc", *words]
    assert run_command_line(["compare", *asked]) == 2
    told = capfd.readouterr().err
    assert cure in told
    assert len(told.splitlines()) == 1
