"""An all-to-all by a user's matrix: the command line, and times calculated by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.files.flows_file import load_demands
from heddle_emulator.cli import run_command_line
from heddle_emulator.topology import clos
from heddle_emulator.traffic.matrix import load_matrix

ASKED = [[7e6, 1e6, 0.0], [0.0, 0.0, 3e6], [2e6, 3e6, 0.0]]
"""Bytes from rank (row) to rank (column). The third rank is the busiest: it sends others 5 MB."""
FREE = ["--header", "0", "--startup-us", "0", "--hop-us", "0", "--cut-through"]
PLAIN = [*FREE, "--strategies", "ideal", "--json"]


def _files(folder: Path) -> tuple[str, str]:
    """Write a fabric of four NICs, and the matrix as CSV. Return both names."""
    save_fabric_file(
        clos(leaves=4, spines=1, nics_per_leaf=1, nics_per_host=1), folder / "fabric.json"
    )
    (folder / "m.csv").write_text("\n".join(",".join(map(str, row)) for row in ASKED))
    return str(folder / "fabric.json"), str(folder / "m.csv")


def test_either_form_is_read(tmp_path: Path) -> None:
    """CSV and packed JSON give the same numbers."""
    _, name = _files(tmp_path)
    packed = tmp_path / "m.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"bytes": ASKED}).encode()))
    assert load_matrix(Path(name)).tolist() == load_matrix(packed).tolist() == ASKED


def test_the_busiest_rank_sets_the_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """5 MB leave one NIC of 50 GB/s. The size is what the first rank has, with its own 7 MB."""
    fabric, name = _files(tmp_path)
    words = ["nccl", "--op", "alltoall", "--matrix", name, "--gpus", "1", "--fabric", fabric]
    assert run_command_line([*words, *PLAIN]) == 0
    told = json.loads(capfd.readouterr().out)
    (line,) = told["strategies"]["ideal"]
    assert told["algorithm"] == "matrix"
    assert line["size"] == 8e6
    assert line["seconds"] == pytest.approx(5e6 / 50e9)
    assert line["busbw"] == pytest.approx(50.0)
    assert run_command_line([*words, *PLAIN, "--sizes", "16000000"]) == 0
    (line,) = json.loads(capfd.readouterr().out)["strategies"]["ideal"]
    assert line["seconds"] == pytest.approx(10e6 / 50e9)


def test_iterations_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The exchange follows the computing. With --overlap all but its last quarter is hidden."""
    fabric, name = _files(tmp_path)
    words = ["iterate", "--matrix", name, "--gpus", "1", "--fabric", fabric, "--seconds", "0.001"]
    for more, seconds in ([], 0.001 + 1e-4), (["--overlap"], 0.001 + 1e-4 / 4):
        assert run_command_line([*words, *more, *PLAIN]) == 0
        (job,) = json.loads(capfd.readouterr().out)["strategies"]["ideal"]
        assert job["seconds"] == pytest.approx(seconds)


def test_flows_of_it_are_done_together(tmp_path: Path) -> None:
    """Each pair that sends has a flow. The busiest NIC sends at line rate, others in proportion."""
    fabric, name = _files(tmp_path)
    out = tmp_path / "flows.csv"
    words = ["traffic", "matrix", "--fabric", fabric, "--matrix", name, "--out", str(out)]
    assert run_command_line(words) == 0
    assert np.asarray(load_demands(out).gbps).tolist() == [80.0, 240.0, 160.0, 240.0]


def test_flows_of_tiny_shares_can_be_read(tmp_path: Path) -> None:
    """A pair with almost none of the bytes has the least rate that a flow may have."""
    fabric, _ = _files(tmp_path)
    (tmp_path / "m.csv").write_text("0,1e15\n1,0\n")
    out = tmp_path / "flows.csv"
    words = ["traffic", "matrix", "--fabric", fabric, "--matrix", str(tmp_path / "m.csv")]
    assert run_command_line([*words, "--out", str(out)]) == 0
    assert np.asarray(load_demands(out).gbps).tolist() == [400.0, 1e-6]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1,2\n3", "row 2: has 1 numbers"),
        ("1,2\n3,x", "row 2, column 2"),
        ("1,-2\n3,4", "row 1, column 2"),
        ("1,nan\n3,4", "row 1, column 2"),
        ("1,2\n2e15,4", "row 2, column 1"),
        ("1", "1 rows"),
        ("1,0\n0,1", "nobody sends"),
        ("\n", "0 rows"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path: Path, text: str, word: str) -> None:
    """The error names the file and the place."""
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=word) as refused:
        load_matrix(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ("nccl --matrix {m} --gpus 1", "--op alltoall"),
        ("nccl --op alltoall --algorithm rounds --matrix {m} --gpus 1", "no --algorithm"),
        ("nccl --op alltoall --matrix {m} --gpus 1 --hosts 4", "3 ranks"),
        ("iterate --matrix {m} --gpus 1 --job matrix:6", "3 ranks"),
        ("traffic matrix --fabric {f} --out {f}.csv", "--matrix FILE"),
        ("traffic uniform --matrix {m} --fabric {f} --out {f}.csv", "--matrix FILE"),
        ("traffic matrix --matrix {m} --nics 3 --fabric {f} --out {f}.csv", "--nics"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: str, word: str
) -> None:
    """The exit status is 2, and one line says what to do."""
    fabric, name = _files(tmp_path)
    assert run_command_line(words.format(m=name, f=fabric).split()) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert word in line
