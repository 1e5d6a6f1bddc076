"""The controller that led last, by the logs of all replicas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heddle_emulator.netns import mark
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import lay_out
from heddle_emulator.netns.programs import Programs
from heddle_emulator.topology import clos


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Programs:
    """Three replicas whose logs are in a folder of the test."""
    monkeypatch.setattr(mark, "FOLDER", tmp_path)
    lab = Lab(mark.Claim("paper"), lay_out(clos(leaves=2, spines=2, nics_per_leaf=1)))
    lab.folder.mkdir()
    return Programs(lab, controllers=3)


def _led(programs: Programs, replica: str, *epochs: int) -> None:
    lines = [json.dumps({"event": "leading", "epoch": epoch}) for epoch in epochs]
    programs.log_of(replica).write_text("\n".join(["listening on 169.254.0.1", *lines]))


def test_the_first_is_named_where_nobody_led(programs: Programs) -> None:
    """Without any log, and with logs in which nobody began to lead, the leader is the first."""
    assert programs.leader == "mgmt"
    for replica in programs.replicas:
        _led(programs, replica)
    assert programs.leader == "mgmt"


def test_the_newest_epoch_tells_the_leader(programs: Programs) -> None:
    """The replica with the greatest epoch leads, whatever its name and its number of turns."""
    _led(programs, "mgmt", 1, 3)
    _led(programs, "mgmt#2", 4)
    _led(programs, "mgmt#3", 2)
    assert programs.leader == "mgmt#2"
