"""`heddle plan --port-paths`: plans by source ports from files, and which files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle_controller.cli.main import main
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.plan import arc_loads, utilization
from heddle_emulator.cli import run_command_line
from heddle_emulator.switches import Switches
from heddle_emulator.topology import clos, hashing
from heddle_emulator.traffic import flows_between, save_flows
from heddle_emulator.walk import walk

FABRIC = hashing(clos(leaves=4, spines=4, nics_per_leaf=4))
FLOWS = flows_between(FABRIC, "permutation", seed=3, qps=4)
SEED = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a fabric, flows and probed ports as files."""
    save_fabric_file(FABRIC, tmp_path / "fabric.json")
    save_flows(FABRIC, FLOWS, tmp_path / "flows.csv")
    words = [f"--{name}={tmp_path / file}" for name, file in FILES.items()]
    assert (
        run_command_line(["ports", *words, f"--seed={SEED}", f"--out={tmp_path / 'ports.json'}"])
        == 0
    )
    return tmp_path


FILES = {"fabric": "fabric.json", "flows": "flows.csv"}


def planned(folder: Path, *words: str) -> int:
    """Return the exit status of a plan by ports."""
    files = [f"--{name}={folder / file}" for name, file in FILES.items()]
    with pytest.raises(SystemExit) as ended:
        main(["plan", *files, f"--port-paths={folder / 'ports.json'}", *words])
    return int(ended.value.code or 0)


def test_packets_from_the_ports_of_the_plan_fill_each_link_once(folder: Path) -> None:
    """Hashed packets from these ports fill the worst link to 1.0. Default ports give more."""
    assert planned(folder, f"--out={folder / 'plan.json'}") == 0
    document = json.loads((folder / "plan.json").read_text())
    assert document["certificate"]["max_utilization"] == 1.0
    ports = np.zeros((len(FLOWS), 4), dtype=np.int64)
    for route in document["routes"]:
        row = FLOWS.ids.index(route["flow"])
        for path in route["paths"]:
            ports[row, path["qps"][0] : path["qps"][1] + 1] = path["ports"]
        spare = [one["ports"] for one in route["backups"] if one["nodes"]]
        assert all(port > 0 for one in spare for port in one)
    hashes, arcs = Switches(FABRIC, SEED), 2 * FABRIC.link_count
    worst = [
        utilization(FABRIC, arc_loads(arcs, FLOWS, walk(FABRIC, FLOWS, hashes, one).paths())).max()
        for one in (ports.ravel(), None)
    ]
    assert worst[0] == 1.0 < worst[1]


def test_a_flow_of_unknown_ports_has_no_path(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 3, and the reason names the two NICs."""
    document = json.loads((folder / "ports.json").read_text())
    gone = document["pairs"].pop(0)
    (folder / "ports.json").write_text(json.dumps(document))
    assert planned(folder) == 3
    ends = f"no port from {gone['source']} to {gone['destination']} is known by its path"
    assert ends in capsys.readouterr().out


def _path(document: Any) -> Any:
    return document["pairs"][0]["paths"][0]


FAULTS: dict[str, Callable[[Any], Any]] = {
    "missing; give a list of pairs": lambda d: d.pop("pairs"),
    "is not a NIC of the fabric": lambda d: d["pairs"][0].update(source="l0"),
    "is not in the fabric": lambda d: _path(d)["nodes"].__setitem__(1, "x"),
    "has not all links of the path": lambda d: _path(d).update(keys=["7"] * 4),
    "meet no node twice": lambda d: _path(d)["nodes"].pop(),
    "give some from 1 to 65535": lambda d: _path(d).update(ports=[0]),
    "a port is there twice": lambda d: _path(d).update(ports=[50000, 50000]),
    "give one of probed, modelled": lambda d: _path(d).update(learned="guessed"),
    "give a list of objects": lambda d: _path(d).update(nodes="l0"),
    "one fewer than nodes": lambda d: _path(d).update(keys=[0]),
}


def test_ports_of_two_records_of_one_pair_are_told_apart(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of the same two NICs add up. Their ports must differ."""
    document = json.loads((folder / "ports.json").read_text())
    pair = next(pair for pair in document["pairs"] if len(pair["paths"]) > 1)
    second = pair | {"paths": pair["paths"][1:]}
    pair["paths"] = pair["paths"][:1]
    document["pairs"].append(second)
    (folder / "ports.json").write_text(json.dumps(document))
    assert planned(folder) == 0
    second["paths"][0]["ports"] = pair["paths"][0]["ports"]
    (folder / "ports.json").write_text(json.dumps(document))
    assert planned(folder) == 2
    assert "a port is there twice" in capsys.readouterr().err


def test_ports_of_programmed_switches_are_not_probed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan by ports would refuse the fabric. The error names a switch and the cure."""
    save_fabric_file(clos(leaves=4, spines=4, nics_per_leaf=4), folder / "fabric.json")
    words = [f"--{name}={folder / file}" for name, file in FILES.items()]
    assert run_command_line(["ports", *words, f"--out={folder / 'other.json'}"]) == 2
    assert "switch 'l0': does not hash: give each switch" in capsys.readouterr().err
    assert not (folder / "other.json").exists()


@pytest.mark.parametrize("reason", FAULTS)
def test_a_faulty_file_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    """The exit status is 2, and one line names the file and says what to give."""
    document = json.loads((folder / "ports.json").read_text())
    FAULTS[reason](document)
    (folder / "ports.json").write_text(json.dumps(document))
    assert planned(folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert "ports.json" in line
