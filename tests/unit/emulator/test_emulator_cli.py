"""The command line as users meet it: files, or one line of refusal and exit status 2."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from heddle.text import clean
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.flows_file import load_demands
from heddle_emulator.cli import COMMANDS, run_command_line
from heddle_emulator.cli.output import CleanConsole
from heddle_emulator.topology import PUBLISHED

SHAPES = {
    "clos": "--leaves 4 --spines 2 --nics-per-leaf 4 --parallel 2 --table-size 100",
    "three-tier": "--zones 2 --leaves 2 --spines 2 --nics-per-leaf 2 --cores 2 --taper 2",
    "rail": "--servers 4 --rail-only",
    "random-regular": "--switches 8 --degree 3 --nics-per-switch 2 --seed 5",
    "dragonfly": "--routers 3 --global-links 1 --nics-per-switch 2",
    "rail-256": "",
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_fabrics_and_their_traffic(shape: str, tmp_path: Path) -> None:
    """Each shape gives a file that can be loaded, and a permutation over its NICs."""
    fabric, flows = tmp_path / "fabric.json.gz", tmp_path / "flows.csv"
    assert run_command_line(["topology", shape, *SHAPES[shape].split(), "--out", str(fabric)]) == 0
    nics = len(load_fabric_file(fabric).rows_of_kind(NodeKind.NIC))
    assert (
        run_command_line(["traffic", "permutation", "--fabric", str(fabric), "--out", str(flows)])
        == 0
    )
    assert len(load_demands(flows)) == nics > 1


def test_options_reach_the_builder(tmp_path: Path) -> None:
    """Table size, name and parallel links are those that the options give."""
    out = tmp_path / "f.json"
    line = ["topology", "clos", *SHAPES["clos"].split(), "--name", "lab", "--out", str(out)]
    assert run_command_line(line) == 0
    fabric = load_fabric_file(out)
    assert fabric.name == "lab"
    assert (
        fabric.structure.nodes.table_size[fabric.rows_of_kind(NodeKind.LEAF)].tolist() == [100] * 4
    )
    assert len(fabric.find_links("l0", "s0")) == 2


@pytest.mark.parametrize(
    "line",
    [
        "topology",
        "topology nowhere",
        "topology clos --leaves 4",
        "topology clos --leaves 4 --spines 2 --out {dir}/f.json",
        "topology clos --leaves x --spines 2 --nics-per-leaf 4 --out {dir}/f.json",
        "topology clos --leaves 1_0 --spines 2 --nics-per-leaf 4 --out {dir}/f.json",
        "topology clos --leaves ٣ --spines 2 --nics-per-leaf 4 --out {dir}/f.json",
        "topology clos --leaves 0 --spines 2 --nics-per-leaf 4 --out {dir}/f.json",
        "topology clos --leaves 1 --spines 2 --nics-per-leaf 4 --out {dir}/none/f.json",
        "topology clos --leaves 1 --spines 2 --nics-per-leaf 4 --table-size -1 --out {dir}/f.json",
        "topology clos --leaves 1 --spines 2 --nics-per-leaf 4 --nic-gbps 1e30 --out {dir}/f.json",
        "topology random-regular --switches 3 --degree 3 --nics-per-switch 1 --out {dir}/f.json",
        "traffic permutation --fabric {dir}/none.json --out {dir}/f.csv",
        "traffic permutation --fabric {dir}/garbage.json --out {dir}/f.csv",
        "traffic chaos --fabric {dir}/garbage.json --out {dir}/f.csv",
        "traffic permutation --seed -1 --fabric {dir}/garbage.json --out {dir}/f.csv",
        "demo --seed -1",
        "demo --nothing",
    ],
)
def test_bad_input(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 2, the reason is on standard error, and no file or traceback is left."""
    (tmp_path / "garbage.json").write_text("{]")
    assert run_command_line(line.format(dir=tmp_path).split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err
    assert "Traceback" not in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["garbage.json"]


@pytest.mark.parametrize("line", ["", "topology", "topology clos", "traffic", "demo"])
def test_help(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command describes itself and exits with status 0."""
    assert run_command_line([*line.split(), "--help"]) == 0
    assert "Usage: heddle-emulator" in capsys.readouterr().out


def test_a_campaign_has_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of a fabric and flows are refused beside a campaign file, and the help says so."""
    file = tmp_path / "file"
    file.touch()
    for option in ("--fabric", "--flows"):
        assert run_command_line(["campaign", str(file), option, str(file)]) == 2
        assert "leave --fabric and --flows out" in capsys.readouterr().err
    assert run_command_line(["campaign", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Fabric file, if there is no campaign file." in told
    assert "Flow file, if there is no campaign file." in told


def test_what_no_reader_takes_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates, QPs and sizes that a flow file cannot have are refused by the option's name."""
    fabric, flows = tmp_path / "fabric.json", tmp_path / "flows.csv"
    assert (
        run_command_line(["topology", "clos", *SHAPES["clos"].split(), "--out", str(fabric)]) == 0
    )
    files = "--fabric", str(fabric), "--out", str(flows)
    for option in ("--gbps=1e30", "--gbps=-1", "--qps=99999", "--size=2000TB", "--size="):
        assert run_command_line(["traffic", "shift", *files, option]) == 2
        assert option.partition("=")[0].strip("-") in capsys.readouterr().err
        assert not flows.exists()


def test_links_at_once_are_for_random_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that the campaign would ignore is refused."""
    fabric, flows = tmp_path / "fabric.json", tmp_path / "flows.csv"
    assert (
        run_command_line(["topology", "clos", *SHAPES["clos"].split(), "--out", str(fabric)]) == 0
    )
    files = "--fabric", str(fabric), "--flows", str(flows)
    assert run_command_line(["traffic", "shift", *files[:2], "--out", str(flows)]) == 0
    options = "--draw", "each", "--at-once", "2", "--out", str(tmp_path / "out")
    assert run_command_line(["campaign", *files, *options]) == 2
    assert "--at-once: is for --draw random" in capsys.readouterr().err


def test_published_clusters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """The help lists the published clusters."""
    run_command_line(["topology", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in PUBLISHED)


def test_a_terminal_obeys_nobodys_names() -> None:
    """Control characters in names are escaped, in texts and in tables."""
    odd = "x\x1b[2J\r \u202etxt\x9b\u2028"
    shown = io.StringIO()
    screen = CleanConsole(file=shown, width=200)
    table = Table(title=odd)
    table.add_column(odd)
    table.add_row(odd)
    screen.print(odd)
    screen.print(table)
    assert "\\x1b[2J" in shown.getvalue()
    assert all(clean(line) == line for line in shown.getvalue().split("\n"))


def test_a_narrow_terminal_cuts_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table has every number and every head in full, however few columns there are."""
    fabric, flows = str(tmp_path / "fabric.json"), str(tmp_path / "flows.csv")
    run_command_line(["topology", "clos", *SHAPES["clos"].split(), "--out", fabric])
    run_command_line(["traffic", "permutation", "--fabric", fabric, "--out", flows])
    told = {}
    for columns in ("30", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        capsys.readouterr()
        line = ["compare", "--fabric", fabric, "--flows", flows, "--strategies", "ecmp,ideal"]
        assert run_command_line(line) == 0
        told[columns] = capsys.readouterr().out.split()
    assert "…" not in "".join(told["200"])
    assert told["30"] == told["200"]


def test_a_terminal_that_lacks_a_character_gets_another() -> None:
    """A help text with an ellipsis is printed in Latin-1, which has none."""
    program = Path(sys.executable).parent / "heddle-emulator"
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [program, "iterate", "--help"], capture_output=True, encoding="latin-1", env=env, check=True
    )
    assert "[[?], ?]" in done.stdout


def test_no_command_loads_a_library_of_graphs() -> None:
    """The library is loaded only for random graphs and for flows that are cut off."""
    script = (
        "import sys\n"
        "from heddle_emulator.cli import COMMANDS, run_command_line\n"
        "assert {run_command_line([name, '--help']) for name in COMMANDS} == {0}\n"
        "print(*{'networkx', 'scipy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("Usage:") == len(COMMANDS)
    assert done.stderr.split() == []
