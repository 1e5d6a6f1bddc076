"""Exposed flows: they only pass by an overfull link, but PFC may hold them up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.cli.main import main
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.flows import Flows
from heddle_controller.plan.limits import exposed_flows
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows

FABRIC = clos(leaves=2, spines=1, nics_per_leaf=4, uplink_gbps=1600.0)
NICS = FABRIC.rows_of_kind(NodeKind.NIC)


def _flows(ends: list[tuple[int, int]], jobs: list[int], gbps: float) -> Flows:
    """Flows from NIC to NIC by number, 0 to 3 at one leaf and 4 to 7 at the other."""
    some = flows_between(FABRIC, "permutation", seed=1, gbps=gbps)
    some = some.take(np.arange(len(ends), dtype=np.int64))
    names = tuple(f"job{job}" for job in range(max(jobs) + 1))
    source, destination = (NICS[list(side)] for side in zip(*ends, strict=True))
    return replace(
        some, source=source, destination=destination, job=np.array(jobs), job_names=names
    )


def _exposed(flows: Flows) -> list[int]:
    found: list[int] = exposed_flows(solve(FABRIC, flows)).tolist()
    return found


def test_who_shares_a_link_with_an_incast_of_another_job_is_exposed() -> None:
    """Three flows of job 0 overfill NIC 4; job 1 shares their spine, on its way to NIC 5."""
    ends, jobs = [(0, 4), (1, 4), (2, 4), (3, 5)], [0, 0, 0, 1]
    assert _exposed(_flows(ends, jobs, gbps=200.0)) == [3]
    assert _exposed(_flows(ends, jobs, gbps=100.0)) == []  # 300 of 400: nothing is over-full


def test_links_behind_the_full_one_hold_up_nobody() -> None:
    """Flows that leave the incast's leaf the other way share no link with it."""
    ends = [(0, 4), (1, 4), (2, 4), (4, 0), (5, 1)]
    assert _exposed(_flows(ends, [0, 0, 0, 1, 1], gbps=200.0)) == []


def test_own_flows_and_those_over_the_full_link_are_not() -> None:
    """Flows of the incast's own job, and flows over the overfull link itself, do not count."""
    ends = [(0, 4), (1, 4), (2, 4)]
    assert _exposed(_flows([*ends, (3, 5)], [0, 0, 0, 0], gbps=200.0)) == []
    assert _exposed(_flows([*ends, (3, 4)], [0, 0, 0, 1], gbps=200.0)) == []


def test_heddle_plan_tells_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``heddle plan --json`` names the exposed flows."""
    flows = _flows([(0, 4), (1, 4), (2, 4), (3, 5)], [0, 0, 0, 1], gbps=200.0)
    save_fabric_file(FABRIC, tmp_path / "fabric.json")
    save_flows(FABRIC, flows, tmp_path / "flows.csv")
    files = ["--fabric", str(tmp_path / "fabric.json"), "--flows", str(tmp_path / "flows.csv")]
    with pytest.raises(SystemExit):
        main(["plan", *files, "--json"])
    assert json.loads(capsys.readouterr().out)["exposed"] == [flows.ids[3]]
