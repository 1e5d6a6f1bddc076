"""`heddle plan --protect`: backups for the losses asked for, and what the worst of them does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.cli.main import main
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.files.plan_file import load_plan, save_plan
from heddle_controller.solve import after_losses
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows

FABRIC = clos(leaves=4, spines=4, nics_per_leaf=4)
FLOWS = flows_between(FABRIC, "permutation", seed=3, qps=4)


def _planned(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    save_fabric_file(FABRIC, folder / "fabric.json")
    save_flows(FABRIC, FLOWS, folder / "flows.csv")
    files = ["--fabric", str(folder / "fabric.json"), "--flows", str(folder / "flows.csv")]
    out = folder / "plan.json"
    with pytest.raises(SystemExit) as ended:
        main(["plan", *files, "--out", str(out), *words])
    assert not ended.value.code
    capsys.readouterr()
    document: dict[str, Any] = json.loads(out.read_text())
    return document


@pytest.mark.parametrize("kind", ["link", "switch"])
def test_the_worst_loss_is_in_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Of links and of switches: how full, how slow, and which; all is full, so twice as full."""
    told = _planned(tmp_path, capsys, "--protect", kind)["certificate"]["after_loss"]
    assert told.keys() == {"link", "switch"}
    for one in told.values():
        assert (one["worst_utilization"], one["slowest_flow"]) == (2.0, 0.5)
        assert one["lower_bound"] == 2.0
    low, high = told["link"]["of"].split(",")
    assert FABRIC.find_links(low, high)
    assert told["switch"]["of"] in FABRIC.structure.index


def test_no_protection_is_no_backups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Routes without backups, and nothing said of losses."""
    document = _planned(tmp_path, capsys, "--protect", "none")
    assert not any(route["backups"] for route in document["routes"])
    assert "after_loss" not in document["certificate"]


def test_a_plan_read_back_knows_its_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file tells what the plan itself comes to, and keeps it when it is written again."""
    _planned(tmp_path, capsys)
    plan = load_plan(tmp_path / "plan.json", FABRIC, FLOWS)
    assert plan.certificate.after_loss == after_losses(plan)
    save_plan(plan, tmp_path / "again.json")
    assert load_plan(tmp_path / "again.json", FABRIC, FLOWS).certificate == plan.certificate
