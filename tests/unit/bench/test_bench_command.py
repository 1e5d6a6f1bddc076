"""The bench command: its table and its file show all that it measures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.command import main
from tests.bench.rows import Row, quantile, spread
from tests.bench.screen import Screen

ROWS = [
    Row("first", "Heddle", "0.1 s", "< 1 s", True, "quick"),
    Row("first", "peer", "9 s"),
    Row("second", "Heddle", "7 losses", "0 losses", False),
]


def test_quick_healthy_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table and file have a row for Heddle and for each peer, and the target is reached."""
    out = tmp_path / "bench.json"
    assert main(out, ["--quick", "--only", "healthy"]) == 0
    document = json.loads(out.read_text())
    rows = {row["who"]: row for row in document["rows"]}
    peers = {"ECMP", "E-ECMP, 32 QPs", "static by destination", "d-mod-k", "greedy by intensity"}
    assert rows.keys() >= peers | {"Heddle", "OpenSM ftree"}
    assert document["scale"] == "quick"
    heddle = rows["Heddle"]
    assert heddle["reached"] is True
    assert heddle["data"]["met"] == heddle["data"]["cases"] == 10
    for name in peers:
        assert rows[name]["target"] == ""
        assert 1.0 <= rows[name]["data"]["median"] <= rows[name]["data"]["worst"]
    told = capsys.readouterr().out
    assert all(name in told for name in rows)
    assert told.splitlines()[-1] == "1 of 1 targets reached"


def test_only_known_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name is refused with the list of known names, and nothing is written."""
    with pytest.raises(SystemExit) as ended:
        main(tmp_path / "bench.json", ["--only", "nothing"])
    assert ended.value.code == 2
    assert "healthy" in capsys.readouterr().err
    assert not (tmp_path / "bench.json").exists()


def _shown(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
    screen = Screen(console, console)
    screen.table(ROWS)
    screen.verdict(ROWS)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_says_what_is_not_reached(terminal: bool) -> None:  # noqa: FBT001 - a parameter
    """Judged rows say yes or NO and peers say neither. The last line counts reached targets."""
    lines = _shown(terminal=terminal).splitlines()
    (reached,) = [line for line in lines if "0.1 s" in line]
    (peer,) = [line for line in lines if "9 s" in line]
    (missed,) = [line for line in lines if "7 losses" in line]
    assert " yes " in reached
    assert "yes" not in peer
    assert "NO" not in peer
    assert missed.rstrip().endswith("NO")
    assert lines[-1] == "1 of 2 targets reached"


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_told(terminal: bool) -> None:  # noqa: FBT001 - a parameter
    """Progress is a bar on a terminal, and elsewhere a line at either end, with name and count."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
    with Screen(console, console).progress("sowing", 3) as advance:
        for done in (1, 2, 3):
            advance(done)
    told = out.getvalue()
    assert "sowing" in told
    assert ("3/3" if terminal else "3 of 3 done") in told


def test_quantiles_are_values_that_were_measured() -> None:
    """Of 100 values, the 99 % quantile is the second largest. No value is interpolated."""
    values = [float(value) for value in range(1, 101)]
    assert quantile(values, 0.99) == 99.0
    assert quantile(values, 0.5) == 50.0
    expected = {"least": 1.0, "median": 50.0, "p90": 90.0, "p99": 99.0, "most": 100.0}
    assert spread(values) == expected
    assert quantile([3.0], 0.01) == 3.0
