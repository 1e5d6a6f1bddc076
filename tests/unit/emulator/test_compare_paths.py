"""`heddle-emulator compare` with given paths and sizes, and what it saves."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle_controller.model.fabric import State
from heddle_controller.model.files.fabric_file import load_fabric_file, save_fabric_file
from heddle_emulator.cli import run_command_line
from heddle_emulator.fluid.wire import NO_COST
from heddle_emulator.play.nccl import NcclRun, nccl_script
from heddle_emulator.play.play import least_seconds
from heddle_emulator.strategy.compare import compare
from heddle_emulator.strategy.makespan import Sending
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows

SIZE = 1 << 20


def _files(folder: Path) -> list[str]:
    fabric = clos(leaves=4, spines=2, nics_per_leaf=4)
    save_fabric_file(fabric, folder / "fabric.json")
    save_flows(fabric, flows_between(fabric, "permutation", seed=3, qps=4), folder / "flows.csv")
    return ["--fabric", str(folder / "fabric.json"), "--flows", str(folder / "flows.csv")]


def _compared(words: list[str], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run_command_line(["compare", *words, "--json"]) == 0
    strategies: dict[str, Any] = json.loads(capfd.readouterr().out)["strategies"]
    return strategies


def test_saved_paths_give_the_same_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Paths chosen by hashing and read back as a plan give the same results."""
    files = _files(tmp_path)
    saved = _compared([*files, "--strategies", "ecmp,spray", "--save", str(tmp_path / "o")], capfd)
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "ecmp.csv",
        "ecmp.json",
        "spray.csv",
    }
    name = f"plan:{tmp_path / 'o' / 'ecmp.json'}"
    again = _compared([*files, "--strategies", name], capfd)
    assert again[name] == saved["ecmp"]


def test_progress_is_told_while_flows_end() -> None:
    """Flows of different sizes end one after another, and the part that is done only grows."""
    fabric = clos(leaves=4, spines=2, nics_per_leaf=16)
    flows = flows_between(fabric, "permutation", seed=3)
    told: list[str] = []
    sending = Sending(np.arange(1, len(flows) + 1, dtype=np.float64) * SIZE)
    found = compare(fabric, flows, ["ecmp"], 0, told.append, sending=sending)
    assert told == ["ecmp"]
    found.record()
    parts = [
        float(text.removeprefix("ecmp: ").removesuffix(" % of the flows and phases are done"))
        for text in told[1:]
    ]
    assert parts
    assert parts == sorted(set(parts))
    assert 0 <= parts[0] < parts[-1] <= 100


def test_an_ignored_column_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If bytes are in a column with another name, standard error says that it is not read."""
    files = _files(tmp_path)
    flows = tmp_path / "flows.csv"
    header, *rows = flows.read_text().splitlines()
    flows.write_text("\n".join([f"{header},size", *(f"{row},64" for row in rows), ""]))
    assert run_command_line(["compare", *files, "--strategies", "ecmp"]) == 0
    assert f"note: {flows}: line 1: ignored: 'size'; " in capfd.readouterr().err


def test_so_many_bytes_cost_headers_and_latency(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a crossbar: 4 QPs of 64 packets with headers, a start-up, two links, one more packet."""
    words = [*_files(tmp_path), "--strategies", "ideal", "--size", "1M", "--save", str(tmp_path)]
    found = _compared(words, capfd)["ideal"]["makespan_seconds"]
    sent = (SIZE + SIZE // 4096 * 82) * 8 / 400e9
    assert found == pytest.approx(sent + 4e-6 + 2 * 6e-7 + (4096 + 82) * 8 / 400e9)
    with (tmp_path / "ideal.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 16
    assert {float(row["gbps"]) for row in rows} == {400.0}
    assert max(float(row["seconds"]) for row in rows) == found


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--strategies", "plan:{dir}/flows.csv"], "flows.csv"),
        (["--strategies", "plan:{dir}/none.json"], "none.json"),
        (["--strategies", "plan:"], "plan:FILE"),
        (["--strategies", "ideal", "--size", "-1"], "size"),
        (["--strategies", "ideal", "--payload", "0"], "payload"),
        (["--strategies", "ideal", "--size", "1Mbit"], "64MB"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], word: str
) -> None:
    """The exit status is 2, and one line names what is wrong."""
    told = [text.format(dir=tmp_path) for text in words]
    assert run_command_line(["compare", *_files(tmp_path), *told]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert word in line


HEAD = "flow,src,dst,gbps,job,phase,qps,bytes,start_s\n"
GIGABYTE = 10**9
"""20 ms on a line of 400 Gbit/s."""


def _told(folder: Path, *lines: str) -> list[str]:
    """Write two leaves of two NICs over two spines, and these flows. Return the options."""
    save_fabric_file(clos(leaves=2, spines=2, nics_per_leaf=2), folder / "fabric.json")
    (folder / "flows.csv").write_text(HEAD + "".join(f"{line}\n" for line in lines))
    free = ["--header", "0", "--startup-us", "0", "--hop-us", "0", "--cut-through"]
    return [
        "--fabric",
        str(folder / "fabric.json"),
        "--flows",
        str(folder / "flows.csv"),
        "--strategies",
        "ideal",
        *free,
        "--save",
        str(folder),
    ]


def _ends(folder: Path) -> list[float]:
    with (folder / "ideal.csv").open(encoding="utf-8") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file)]


def test_bytes_are_held_by_nics_and_not_by_rates(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A gigabyte of a flow of 100 Gbit/s takes 20 ms at line rate, or 80 ms with --paced."""
    ends = "l0-h0-n0", "l1-h0-n0"
    files = _told(tmp_path, f"a,{ends[0]},{ends[1]},100,j,,2,{GIGABYTE},")
    assert _compared(files, capfd)["ideal"]["makespan_seconds"] == pytest.approx(0.02)
    paced = _compared([*files, "--paced"], capfd)["ideal"]
    assert paced["makespan_seconds"] == pytest.approx(0.08)
    assert paced["slowest_flow"] == 1.0


def test_flows_begin_when_they_say_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A flow that starts later shares its line. --size is for flows without bytes.

    The first flow sends alone for 10 ms and then at half its speed, until it is done after 30 ms.
    The second, of the default size, starts after 10 ms and then has what is left. The third starts
    when both are done.
    """
    nic, other = "l0-h0-n0", "l1-h0-n0"
    files = _told(
        tmp_path,
        f"a,{nic},{other},400,j,,1,{GIGABYTE},",
        f"b,{nic},{other},1,j,,1,,0.01",
        f"c,{nic},{other},1,j,,1,{GIGABYTE},7",
    )
    _compared([*files, "--size", "1GB"], capfd)
    assert _ends(tmp_path) == pytest.approx([0.03, 0.04, 7.02])


def test_phases_wait_for_their_turn_and_for_their_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A phase starts at the end of the phase before, or at its start in the file if later."""
    nic, other = "l0-h0-n0", "l1-h0-n0"
    files = _told(
        tmp_path,
        f"a,{nic},{other},400,j,one,1,{GIGABYTE},",
        f"b,{nic},{other},400,j,two,1,{GIGABYTE},0.01",
        f"c,{nic},{other},400,j,three,1,{GIGABYTE},0.1",
    )
    _compared(files, capfd)
    assert _ends(tmp_path) == pytest.approx([0.02, 0.04, 0.12])


def test_each_job_follows_its_own_order_of_phases(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A job's first phase is the one its own first row names, wherever other jobs' rows are."""
    one = (
        f"a,l0-h0-n0,l1-h0-n0,400,one,fwd,1,{GIGABYTE},",
        f"b,l0-h0-n0,l1-h0-n0,400,one,bwd,1,{GIGABYTE},",
    )
    two = (
        f"c,l0-h0-n1,l1-h0-n1,400,two,bwd,1,{GIGABYTE},",
        f"d,l0-h0-n1,l1-h0-n1,400,two,fwd,1,{GIGABYTE},",
    )
    for lines in ((*one, *two), (*two, *one)):
        _compared(_told(tmp_path, *lines), capfd)
        assert _ends(tmp_path) == pytest.approx([0.02, 0.04, 0.02, 0.04])


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ("400,j,,1,0,", "bytes"),
        ("400,j,,1,-5,", "bytes"),
        ("400,j,,1,many,", "bytes"),
        ("400,j,,1,inf,", "bytes"),
        ("400,j,,1,nan,", "bytes"),
        (",j,,1,1000,", "gbps"),
        ("400,j,,1,1000,-1", "start_s"),
        ("400,j,,1,1000,inf", "start_s"),
        ("400,j,,1,1000,1e9", "start_s"),
        ("400,j,,1,,soon", "start_s"),
    ],
)
def test_bad_bytes_and_starts_are_refused_by_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cells: str, word: str
) -> None:
    """The exit status is 2, and one line names file, line and column."""
    files = _told(tmp_path, f"a,l0-h0-n0,l1-h0-n0,{cells}")
    assert run_command_line(["compare", *files]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "flows.csv" in line
    assert "line 2" in line
    assert word in line


def test_a_plan_of_other_flows_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A plan without a route for a flow, or for other QPs, gives exit status 2 and one line.

    So does a plan that has routes of more flows.
    """
    files, few = _files(tmp_path), tmp_path / "few.csv"
    few.write_text("".join((tmp_path / "flows.csv").read_text().splitlines(keepends=True)[:-2]))
    fewer = [*files[:3], str(few)]
    _compared([*files, "--strategies", "e-ecmp:8", "--save", str(tmp_path / "o")], capfd)
    _compared([*fewer, "--strategies", "ecmp", "--save", str(tmp_path / "o")], capfd)
    given = ["--strategies", f"plan:{tmp_path / 'o' / 'e-ecmp-8.json'}"]
    less = ["--strategies", f"plan:{tmp_path / 'o' / 'ecmp.json'}"]
    others = "'f14': the flow is not among these flows, nor are 1 more"
    for words, said in (
        (["compare", *files, *given], "QPs"),
        (["compare", *files, *less], "no route"),
        (["compare", *fewer, *given], others),
        (["nccl", "--fabric", files[1], "--gpus", "8", "--sizes", "1M", *given], "not among"),
    ):
        assert run_command_line(words) == 2
        told = capfd.readouterr()
        (line,) = told.err.splitlines()
        assert told.out == ""
        assert said in line
        assert words[-1].removeprefix("plan:") in line


def test_a_plan_over_a_dead_link_carries_nothing_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Flows whose paths cross a link that is down are lost."""
    files = _files(tmp_path)
    _compared([*files, "--strategies", "ecmp", "--save", str(tmp_path / "o")], capfd)
    fabric = load_fabric_file(tmp_path / "fabric.json")
    (row,) = fabric.find_links("l0", "s0")
    save_fabric_file(fabric.with_links({row: State.DOWN}), tmp_path / "fabric.json")
    name = f"plan:{tmp_path / 'o' / 'ecmp.json'}"
    found = _compared([*files, "--strategies", name], capfd)[name]
    assert found["lost_flows"] > 0
    assert found["makespan_seconds"] is None


def test_saved_strategies_have_files_of_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two names that differ only in a sign are written to two files."""
    files = _files(tmp_path)
    _compared([*files, "--strategies", "ecmp,static", "--save", str(tmp_path)], capfd)
    (tmp_path / "ecmp.json").rename(tmp_path / "p_1.json")
    (tmp_path / "static.json").rename(tmp_path / "p-1.json")
    names = [f"plan:{tmp_path / name}" for name in ("p_1.json", "p-1.json")]
    _compared([*files, "--strategies", ",".join(names), "--save", str(tmp_path / "o")], capfd)
    assert len([*(tmp_path / "o").glob("*.json")]) == len([*(tmp_path / "o").glob("*.csv")]) == 2


def _never(found: str) -> dict[str, Any]:
    def refused(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    told: dict[str, Any] = json.loads(found, parse_constant=refused)
    return told


@pytest.mark.parametrize("words", [["nccl", "--sizes", "1M"], ["iterate", "--job", "matrix"]])
def test_what_never_ends_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A host without links: JSON has null, and a table says why."""
    (tmp_path / "m.csv").write_text("0,1000000\n1000000,0\n")
    save_fabric_file(clos(leaves=2, spines=1, nics_per_leaf=1, nics_per_host=1), tmp_path / "f")
    if words[0] == "iterate":
        words = [*words, "--matrix", str(tmp_path / "m.csv")]
    words = [*words, "--fabric", str(tmp_path / "f"), "--gpus", "1", "--down", "l0,s0"]
    words += ["--strategies", "ecmp"]
    assert run_command_line([*words, "--json"]) == 0
    (line, *_) = _never(capfd.readouterr().out)["strategies"]["ecmp"]
    assert line["seconds"] is None
    assert run_command_line(words) == 0
    assert "never: a flow has no path" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["compare", "--fabric", "{f}", "--flows", "{f}", "--strategies", "e-ecmp:2000"], "1024"),
        (["iterate", "--job", "matrix"], "give --matrix FILE"),
        (["iterate", "--job", "llama3-8k:16", "--matrix", "{f}"], "--job matrix"),
        (["iterate", "--jobs", "{f}", "--qps", "8"], "qps"),
        (["iterate", "--jobs", "{f}", "--packed"], "packed"),
        (["nccl", "--gpus", "100000", "--hosts", "2"], "--gpus"),
        (["nccl", "--gpus", "0"], "--gpus"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], cure: str
) -> None:
    """The exit status is 2, and the text names the option and the cure."""
    (tmp_path / "f").write_text("0,1\n1,0\n")
    assert run_command_line([word.format(f=tmp_path / "f") for word in words]) == 2
    assert cure in capfd.readouterr().err


def test_the_busiest_nic_bounds_an_uneven_matrix() -> None:
    """A NIC that receives two messages takes as long as both, though each alone takes half."""
    fabric = clos(leaves=3, spines=3, nics_per_leaf=1, nics_per_host=1)
    matrix = np.array([[0, 1, 1000], [1, 0, 1000], [1, 1, 0]], dtype=np.float64)
    hosts = tuple(fabric.structure.nics_of_host)
    for told in (matrix, matrix.T):
        script = nccl_script(fabric, NcclRun("alltoall", (hosts,), 1, matrix=told))
        least = least_seconds(fabric, script.scaled(10**9), 1.0, NO_COST)
        most = max(told.sum(axis=0).max(), told.sum(axis=1).max()) / told.sum(axis=1).max()
        assert least == pytest.approx(most * 8 / 400)
