"""``heddle-emulator drill`` as a person runs it, on small labs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from heddle_emulator.cli import run_command_line
from heddle_emulator.netns import mark
from tests.integration.labbing import require_lab
from tests.support.needs import missing
from tests.support.waiting import PATIENCE, wait_until

DRILLS = Path(__file__).parents[1] / "drills" / "netns"

DRILL = """
drill: smallest
proves: Packets of a cut flow are counted
worlds: [netns]
fabric:
  clos: {leaves: 2, spines: 2, nics_per_leaf: 1, nics_per_host: 1}
lab: {programs: false}
probes:
  - {probe: one, from: l0-h0-n0, to: l1-h0-n0, rate: 500}
timeline:
  - {at: 100ms, cut: hop 3 of one}
settle: 2s
expect:
  - {stranded: one, most: 0}
  - {lost: one, most: 0}
"""


def _labs(process: int) -> set[str]:
    """Return the labs of drills that this process plays; other processes may play some, too."""
    return {lab for lab in mark.labs() if lab.startswith(f"drill-{process}-")}


def test_a_drill_is_played_judged_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FRR alone loses packets and recovers: one expectation holds, one fails, exit code 1."""
    require_lab()
    path, report = tmp_path / "smallest.yaml", tmp_path / "report"
    path.write_text(DRILL)
    assert run_command_line(["drill", str(path), "--world", "netns", "--report", str(report)]) == 1
    told = capsys.readouterr().out
    assert "0 of 1 drills held" in told
    document = json.loads((report / "smallest.json").read_text())
    held = {found["measure"]: found["held"] for found in document["expectations"]}
    assert held == {"stranded": True, "lost": False}
    assert document["held"] is False
    (lost,) = [row for row in document["measured"] if row["measure"] == "lost"]
    assert lost["median"] > 0
    (story,) = document["stories"]
    assert story["events"][0]["text"].startswith("cut l")
    assert {event["mark"] for event in story["events"]} == {"fault", "recovered"}
    values = story["charts"][0]["lines"][0]["values"]  # None where no packet was sent
    assert min(value for value in values if value is not None) < 1
    assert "Packets of a cut flow are counted" in (report / "smallest.html").read_text()
    suite = ET.parse(report / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert not _labs(os.getpid())


AGAIN = """
drill: again
proves: The set-up holds in every run, and what was parted is joined in any order
worlds: [netns]
fabric:
  clos: {leaves: 2, spines: 1, nics_per_leaf: 1, nics_per_host: 1}
probes:
  - {probe: one, from: l0-h0-n0, to: l1-h0-n0, rate: 1000}
setup:
  - {silence: l0 to s0, share: 0.3}
timeline:
  - {at: 50ms, part: [l0, l1]}
  - {at: 100ms, join: [l1, l0]}
runs: 2
expect:
  - {lost: one, least: 30}
  - {stranded: one, least: 1}
"""


def test_every_run_begins_with_the_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cable that the set-up makes lossy loses packets in each run."""
    require_lab()
    path = tmp_path / "again.yaml"
    path.write_text(AGAIN)
    status = run_command_line(["drill", str(path)])
    assert status == 0, capsys.readouterr().out


def test_a_faulty_file_is_refused_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A faulty file gives exit code 2 and one line with file, line and fault; no lab is built."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(DRILL)
    bad.write_text(DRILL.replace("hop 3 of one", "hop 3 of two"))
    assert run_command_line(["drill", str(good), str(bad)]) == 2
    error = capsys.readouterr().err
    assert f"{bad}: timeline (line 11): there is no probe two" in error
    assert not _labs(os.getpid())


def test_hosts_that_choose_ports_leave_a_lost_path(tmp_path: Path) -> None:
    """Where switches only hash, QPs on a lost far link lose packets, and none does in the end.

    No switch has an agent, and no controller runs. Time limits are relaxed: drills judge times.
    """
    require_lab()
    text = (DRILLS / "nic-link-cut.yaml").read_text()
    drill = tmp_path / "nic.yaml"
    drill.write_text(text.replace("most: 50ms", "most: 60s") + "settle: 2s\n")
    status = run_command_line(["drill", str(drill), "--runs", "2", "--report", str(tmp_path)])
    document = json.loads((tmp_path / "nic-link-cut.json").read_text())
    assert status == 0, document["fault"] or document["expectations"]
    (lost,) = [row for row in document["measured"] if row["measure"] == "lost"]
    assert lost["min"] > 0


def test_an_interrupted_drill_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while packets flow ends the command and its lab; the report says so."""
    require_lab()
    path = tmp_path / "smallest.yaml"
    path.write_text(DRILL.replace("settle: 2s", "settle: 60s"))
    program = str(Path(sys.executable).with_name("heddle-emulator"))
    playing = subprocess.Popen(
        [program, "drill", str(path), "--report", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    def probing() -> bool:
        assert playing.poll() is None, playing.communicate()[0].decode()
        return any((mark.FOLDER / lab / "probe.log").exists() for lab in _labs(playing.pid))

    wait_until(probing, "packets")
    playing.send_signal(signal.SIGINT)
    said, _ = playing.communicate(timeout=PATIENCE)
    assert playing.returncode == 130, said.decode()
    assert not _labs(playing.pid)
    document = json.loads((tmp_path / "smallest.json").read_text())
    assert (document["held"], document["fault"]) == (False, "it was interrupted")


def test_a_leader_dies_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """One of two controllers on a Redis dies after it commits a plan, and the other one leads.

    The drill requires that no flow is stranded or loops, that no acknowledged change is lost, and
    that all switches hold the answer in the end. Time limits are relaxed: drills judge times.
    """
    require_lab()
    if shutil.which("redis-server") is None:
        missing("redis-server: apt-get install redis-server")
    text = (DRILLS / "leader-dies-at-commit.yaml").read_text()
    drill = tmp_path / "leader.yaml"
    drill.write_text(text.replace("most: 50ms", "most: 60s").replace("most: 5s", "most: 60s"))
    status = run_command_line(["drill", str(drill), "--runs", "1", "--report", str(tmp_path)])
    document = json.loads((tmp_path / "leader-dies-at-commit.json").read_text())
    assert status == 0, document["fault"] or document["expectations"]
    (story,) = document["stories"]
    told = [event["text"] for event in story["events"]]
    assert any(text.endswith(" leads") for text in told)
    assert any("in every FIB" in text for text in told)
    assert [moment["title"] for moment in story["maps"][0]["moments"]] == [
        "before",
        "during",
        "after",
    ]
