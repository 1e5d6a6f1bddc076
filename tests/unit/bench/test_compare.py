"""`heddle-emulator compare`: every strategy by name, on files, and Heddle through its API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import State
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.cli import run_command_line
from heddle_emulator.strategy import compare, names_of
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows
from tests.unit.bench.bench_flows import without

ALL = ("ecmp", "e-ecmp:8", "static", "dmodk", "greedy", "te", "spray", "ideal")


def _files(folder: Path) -> list[str]:
    """Write a fabric of 36 NICs that has lost a link, and a permutation. Return their options."""
    fabric = without(clos(leaves=6, spines=6, nics_per_leaf=6), ("l0", "s0"))
    save_fabric_file(fabric, folder / "fabric.json")
    save_flows(fabric, flows_between(fabric, "permutation", seed=2, qps=8), folder / "flows.csv")
    return ["--fabric", str(folder / "fabric.json"), "--flows", str(folder / "flows.csv")]


def test_all_strategies_side_by_side(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line of JSON: Heddle reaches its bound, no rival beats it, and ideal is 1."""
    words = ["compare", *_files(tmp_path), "--strategies", ",".join(ALL), "--seed", "4", "--json"]
    assert run_command_line(words) == 0
    (line,) = capfd.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    strategies = found["strategies"]
    assert [*strategies] == [*ALL]
    assert found["seed"] == 4
    te = strategies["te"]
    assert te["max_utilization"] <= found["lower_bound"] * 1.01 + 1 / 8
    for name in ("ecmp", "e-ecmp:8", "static", "dmodk", "greedy"):
        rival = strategies[name]
        assert rival["max_utilization"] >= found["lower_bound"] - 1e-9
        assert te["slowest_flow"] >= rival["slowest_flow"] - 1e-9
        assert te["makespan_seconds"] <= rival["makespan_seconds"] * 1.01
    assert strategies["ideal"]["slowest_flow"] == 1.0
    assert all(one["lost_flows"] == 0 for one in strategies.values())


def test_a_controller_keeps_to_links_that_are_up() -> None:
    """The controller knows which links are down and drained, and no path uses them.

    Its bound is then higher than that of strategies that use drained links, so it is not told.
    """
    fabric = clos(leaves=3, spines=3, nics_per_leaf=2)
    drained = [fabric.find_links("l1", spine)[0] for spine in ("s1", "s2")]
    fabric = without(fabric, ("l0", "s0")).with_links(dict.fromkeys(drained, State.DRAINED))
    found = compare(fabric, flows_between(fabric, "shift", qps=2), ["te"], 0)
    assert found.outcomes["te"].lost_flows == 0
    arcs = [arc for link in drained for arc in (2 * link, 2 * link + 1)]
    assert found.outcomes["te"].loads[arcs].tolist() == [0.0] * 4
    assert (found.outcomes["te"].max_utilization, found.lower_bound) == (2.0, 1.0)


def test_flows_that_get_nowhere_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The flows of a NIC that is cut off are lost, and the makespan is null."""
    fabric = without(clos(leaves=2, spines=2, nics_per_leaf=2), ("l0-h0-n0", "l0"))
    save_fabric_file(fabric, tmp_path / "fabric.json")
    save_flows(fabric, flows_between(fabric, "shift"), tmp_path / "flows.csv")
    files = ["--fabric", str(tmp_path / "fabric.json"), "--flows", str(tmp_path / "flows.csv")]
    assert run_command_line(["compare", *files, "--strategies", "ecmp,ideal", "--json"]) == 0
    strategies = json.loads(capfd.readouterr().out)["strategies"]
    for one in strategies.values():
        assert one["lost_flows"] == 2
        assert one["slowest_flow"] == 0.0
        assert one["makespan_seconds"] is None


def test_a_table_for_people(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without --json there is a row for each strategy, then a line with the bound and the seed."""
    assert run_command_line(["compare", *_files(tmp_path), "--strategies", "dmodk,spray"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["dmodk", "spray"]
    assert lines[-1].endswith("seed 0")


@pytest.mark.parametrize("text", ["", " , ", "te,foo", "e-ecmp:x", "TE"])
def test_unknown_strategies_are_refused_first(text: str) -> None:
    """The error lists the names that are known."""
    with pytest.raises(InputError, match="give some of ecmp, "):
        names_of(text)


def test_names_come_once_and_in_order() -> None:
    """A name that is given twice is one strategy."""
    assert names_of("te, ecmp,te,e-ecmp:4") == ("te", "ecmp", "e-ecmp:4")


def test_refusals_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A malformed flow file gives exit status 2 and one line that names the file."""
    files = _files(tmp_path)
    (tmp_path / "flows.csv").write_text("nonsense\n")
    assert run_command_line(["compare", *files, "--strategies", "ecmp"]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert "flows.csv" in told.err
