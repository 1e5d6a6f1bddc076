"""`heddle-emulator compare` on paths that are given, for so many bytes, and what it saves."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.cli import run
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows

SIZE = 1 << 20


def _files(folder: Path) -> list[str]:
    fabric = clos(leaves=4, spines=2, nics_per_leaf=4)
    save_fabric_file(fabric, folder / "fabric.json")
    save_flows(fabric, flows_between(fabric, "permutation", seed=3, qps=4), folder / "flows.csv")
    return ["--fabric", str(folder / "fabric.json"), "--flows", str(folder / "flows.csv")]


def _compared(words: list[str], capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["compare", *words, "--json"]) == 0
    strategies: dict[str, Any] = json.loads(capfd.readouterr().out)["strategies"]
    return strategies


def test_saved_paths_give_the_same_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What hashing chose, read back as a plan, is as full, as fair and as fast."""
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


def test_so_many_bytes_cost_headers_and_latency(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a crossbar: 4 QPs of 64 packets and their headers, a start, two links, a packet again."""
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
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], word: str
) -> None:
    """Exit 2 and one line that names it."""
    told = [text.format(dir=tmp_path) for text in words]
    assert run(["compare", *_files(tmp_path), *told]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert word in line
