"""What a switch gets that installs the agent and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_ON_A_SWITCH = ("ortools", "redis", "networkx", "heddle_controller", "heddle_emulator")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; if it fails, the error shows its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, f"{command} gave {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def constraints(folder: Path) -> Path:
    """Write the lock's versions without their hashes: the local folders have none."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^[\w.-]+==[^\\\n]+", lock, flags=re.MULTILINE)
    path = folder / "constraints.txt"
    path.write_text("\n".join(pins), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a fresh environment with heddle-proto and heddle-agent; return its bin folder."""
    folder = tmp_path_factory.mktemp("switch")
    venv.create(folder / "venv")
    binaries = folder / "venv" / "bin"
    run(
        *(sys.executable, ROOT / "deploy" / "uv.py", "pip", "install", "--quiet"),
        *("--python", binaries / "python", "--constraint", constraints(folder)),
        *(ROOT / "proto", ROOT / "agents"),
    )
    return binaries


def test_a_switch_gets_no_solver_and_no_database_client(switch: Path) -> None:
    """The agent can be imported; the controller, the emulator and their libraries cannot."""
    script = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
    found = run(switch / "python", "-c", script, "heddle_agent", "heddle", *NOT_ON_A_SWITCH)
    assert found.stdout.split() == ["heddle_agent", "heddle"]
    here = run(sys.executable, "-c", script, *NOT_ON_A_SWITCH)
    assert here.stdout.split() == list(NOT_ON_A_SWITCH), "the check itself must be able to see them"


def test_the_agent_command_starts_with_what_it_declares(switch: Path) -> None:
    """``heddle-agent --help`` works, so every package that it imports is a declared dependency."""
    helped = run(switch / "heddle-agent", "--help")
    assert "Usage: heddle-agent" in helped.stdout
