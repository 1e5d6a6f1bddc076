"""What a machine lacks for a lab is reported at once, with what would help."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from heddle_emulator.cli import run_command_line
from heddle_emulator.netns import LabError, tools


def test_no_root_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line goes to standard error, the exit status is 1, and nothing is tried."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run_command_line(["lab", "up"]) == 1
    error = capsys.readouterr().err
    assert "it needs root" in error
    assert "sudo" in error
    assert len(error.splitlines()) == 1


def test_missing_programs_are_named_by_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names all that is missing, in the command that installs it."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tools, "FRR", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda tool, path: None if tool == "nft" else path)
    with pytest.raises(LabError, match="apt-get install frr nftables"):
        tools.check_needs()


def test_programs_are_found_beside_the_path_of_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program of administrators is found, and runs, where PATH has no sbin, as Debian's."""
    lacking = tools.missing()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.missing() == lacking
    sysctl = tools.run_program(["sysctl", "-n", "kernel.ostype"])
    assert sysctl == "Linux\n"


@pytest.mark.parametrize("name", ["a.b", "", "a/b", "x" * 41])
def test_names_that_no_lab_can_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The error comes before anything is looked for and says which names are allowed."""
    monkeypatch.setattr(tools, "check_needs", lambda: None)
    assert run_command_line(["lab", "status", "--name", name]) == 2
    assert "up to 40 letters" in capsys.readouterr().err
