"""`heddle plan --protect`: backups for the losses asked for, and what the worst loss does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.v1.plan_pb2 import Plan
from heddle_controller.cli.main import main
from heddle_controller.cli.routes import after_loss_row, certificate_text, echo_plan
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.files.plan_file import load_plan, save_plan
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import AfterLoss, Certificate
from heddle_controller.model.program import Program, no_entries
from heddle_controller.serve.codec.common import certificate_to_pb
from heddle_controller.serve.codec.plan import plan_to_pb
from heddle_controller.solve import after_losses, prove, solve
from heddle_controller.state.codec.plans import certificate_from_meta, plan_meta
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between, save_flows
from tests.support.solve_flows import flows_of

FABRIC = clos(leaves=4, spines=4, nics_per_leaf=4)
FLOWS = flows_between(FABRIC, "permutation", seed=3, qps=4)
STRANDED = ("7", "flows", "without", "a", "way")


def _planned(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str, flows: Flows = FLOWS
) -> dict[str, Any]:
    save_fabric_file(FABRIC, folder / "fabric.json")
    save_flows(FABRIC, flows, folder / "flows.csv")
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
    """The plan has the worst loss of a link and of a switch: how full, how slow, and which.

    All links are full before a loss, so the worst link is twice as full afterwards.
    """
    told = _planned(tmp_path, capsys, "--protect", kind)["certificate"]["after_loss"]
    assert told.keys() == {"link", "switch"}
    for one in told.values():
        assert (one["worst_utilization"], one["slowest_flow"]) == (2.0, 0.5)
        assert one["lower_bound"] == 2.0
    low, high = told["link"]["of"].split(",")
    assert FABRIC.find_links(low, high)
    assert told["switch"]["of"] in FABRIC.structure.index


def test_no_protection_is_no_backups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Routes have no backups, and the certificate says nothing about losses."""
    document = _planned(tmp_path, capsys, "--protect", "none")
    assert not any(route["backups"] for route in document["routes"])
    assert "after_loss" not in document["certificate"]


@pytest.mark.parametrize(
    ("spines", "kind", "named"),
    [(1, "link", True), (1, "none", False), (2, "link", False)],
    ids=["a bridge", "not asked for", "another way"],
)
def test_flows_that_nothing_protects_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, spines: int, kind: str, named: bool
) -> None:
    """A flow over a leaf's only uplink is named. A flow within the leaf is not."""
    fabric = clos(leaves=2, spines=spines, nics_per_leaf=2)
    save_fabric_file(fabric, tmp_path / "fabric.json")
    rows = [
        ("l0-h0-n0", "l1-h0-n0", 400.0, 1, "j", ""),
        ("l0-h0-n1", "l0-h0-n0", 400.0, 1, "j", ""),
    ]
    flows = flows_of(fabric, *rows)
    save_flows(fabric, flows, tmp_path / "flows.csv")
    files = ["--fabric", str(tmp_path / "fabric.json"), "--flows", str(tmp_path / "flows.csv")]
    shown = []
    for form in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["plan", *files, "--protect", kind, *form])
        assert not ended.value.code
        shown.append(capsys.readouterr().out)
    expected = [flows.ids[0]] if named else []
    assert json.loads(shown[1])["unprotected"] == expected
    lines = [line for line in shown[0].splitlines() if "no switch has a backup" in line]
    assert [line.rpartition(": ")[2] for line in lines] == expected


def test_a_plan_read_back_knows_its_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has the losses that follow from the plan, and keeps them when it is saved again.

    It names a link without its key where no other link joins its ends.
    """
    _planned(tmp_path, capsys)
    plan = load_plan(tmp_path / "plan.json", FABRIC, FLOWS)
    assert plan.certificate.after_loss == after_losses(plan)
    twin = clos(leaves=2, spines=2, nics_per_leaf=4, parallel=2)
    twins = solve(twin, flows_between(twin, "permutation", seed=3, qps=4))
    for one, parts in ((plan, 2), (replace(twins, certificate=prove(twins)), 3)):
        save_plan(one, tmp_path / "again.json")
        again = load_plan(tmp_path / "again.json", one.fabric, one.flows)
        assert again.certificate.after_loss == one.certificate.after_loss
        told = json.loads((tmp_path / "again.json").read_text())["certificate"]["after_loss"]
        assert len(told["link"]["of"].split(",")) == parts


def test_show_plan_names_the_worst_losses(capsys: pytest.CaptureFixture[str]) -> None:
    """Links and switches have a line each: which, how slow, how full, how many stranded."""
    lost = (
        AfterLoss("link", 2.5, 0.4, "l0,s3,0", 2.0, 0),
        AfterLoss("switch", 1.5, 0.0, "s1", 1.5, 7),
    )
    certificate = Certificate(1.0, 1.0, "cut", after_loss=lost)
    echo_plan(Plan(name="fabrics/f/plan", certificate=certificate_to_pb(certificate)))
    shown = capsys.readouterr().out
    assert "note: " not in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["link", "l0,s3,0", "0.400", "2.500", "2.000"] in lines
    assert [
        "switch",
        "s1",
        "0.000",
        "1.500",
        "1.500",
        *["7", "flows", "without", "a", "way"],
    ] in lines


@pytest.mark.parametrize(
    ("stranded", "told"), [(0, ""), (1, "1 flow without a way"), (2, "2 flows without a way")]
)
def test_stranded_flows_are_counted_in_words(stranded: int, told: str) -> None:
    """One flow is not called flows."""
    assert after_loss_row(AfterLoss("link", 1.0, 0.0, "l0,s0,0", 1.0, stranded))[-1] == told


def test_show_plan_names_flows_without_backups(capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the plan's notes, and the first flows without a backup in any switch."""
    few = Certificate(1.0, 1.0, "cut", unprotected=2, unprotected_flows=("a", "b"))
    for certificate, names in ((few, "a, b"), (replace(few, unprotected=3), "a, b …")):
        plan = replace(solve(FABRIC, FLOWS), certificate=certificate, notes=("no room",))
        echo_plan(plan_to_pb("f", plan))
        lines = capsys.readouterr().out.splitlines()
        assert "note: no room" in lines
        told = f"one loss may stop {certificate.unprotected} flows"
        assert f"note: {told}, as no switch has a backup for them: {names}" in lines


@pytest.mark.parametrize("spines", [1, 4])
def test_a_stored_certificate_keeps_what_losses_do(spines: int) -> None:
    """The store returns the certificate that was stored. A lone spine leaves flows unprotected."""
    fabric = clos(leaves=4, spines=spines, nics_per_leaf=4)
    plan = solve(fabric, flows_between(fabric, "permutation", seed=3, qps=4))
    plan = replace(plan, certificate=prove(plan))
    assert (plan.certificate.unprotected > 0) == (spines == 1)
    assert len(plan.certificate.unprotected_flows) == min(plan.certificate.unprotected, 20)
    program = Program(1, 1, 1, no_entries())
    assert certificate_from_meta(plan_meta(plan, program)) == plan.certificate


def test_economy_writes_no_more_routes_than_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the NICs send 3/4 of a link each. Headroom splits their flows, economy does not."""
    half = FLOWS.take(np.arange(0, len(FLOWS), 2, dtype=np.int64))
    few = replace(half, gbps=half.gbps * 3 / 4)
    routes = {
        objective: _planned(tmp_path, capsys, "--objective", objective, flows=few)["routes"]
        for objective in ("headroom", "economy")
    }
    assert len(routes["economy"]) == len(few)
    assert max(len(route["paths"]) for route in routes["headroom"]) > 1


def test_a_load_without_a_bound_is_not_called_proven() -> None:
    """Where all flows stay on drained links, no bound is known, and the text says so."""
    text = certificate_text(Certificate(0.5, 0.0, "cut"))
    assert text.startswith("0.500; nothing is proven")
