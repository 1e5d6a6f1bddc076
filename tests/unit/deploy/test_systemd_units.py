from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heddle_agent.settings import HostSettings
from heddle_agent.settings import Settings as AgentSettings
from heddle_controller.settings import Settings as ControllerSettings
from tests.support.needs import missing

SYSTEMD = Path(__file__).resolve().parents[3] / "deploy" / "systemd"
PROGRAMS = Path(sys.executable).parent
UNITS = ["heddle-agent", "heddle-controller", "heddle-host"]
EXPOSURE = 1.3  # of 10, as systemd calculates it; an ordinary service has 9.6


@pytest.fixture
def analyze() -> str:
    """Return systemd-analyze.

    It may be missing except in CI, where `.ci/setup test` installs it.
    """
    program = shutil.which("systemd-analyze")
    if program is None:
        assert os.environ.get("CI") != "true", "systemd is missing: see .ci/setup"
        missing("systemd-analyze is not installed: apt-get install systemd")
    return program


def text(unit: str) -> str:
    """Return a unit as it is committed."""
    return (SYSTEMD / f"{unit}.service").read_text(encoding="utf-8")


def values(unit: str, key: str) -> list[str]:
    """Return every value of a key."""
    return re.findall(rf"^{key}=(.*)$", text(unit), flags=re.MULTILINE)


def placed(unit: str, folder: Path) -> Path:
    """Write a unit that starts the programs of this environment, and return its path."""
    path = folder / f"{unit}.service"
    path.write_text(text(unit).replace("/opt/heddle/bin/", f"{PROGRAMS}/"), encoding="utf-8")
    return path


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_understands_every_line(unit: str, analyze: str, tmp_path: Path) -> None:
    """`systemd-analyze verify` prints nothing, while it does for an unknown key."""
    path = placed(unit, tmp_path)
    done = run(analyze, "verify", "--man=no", path)
    assert (done.returncode, done.stderr) == (0, "")
    path.write_text(path.read_text("utf-8") + "\n[Service]\nProtectSistem=yes\n", encoding="utf-8")
    assert "ProtectSistem" in run(analyze, "verify", "--man=no", path).stderr


@pytest.mark.parametrize("unit", UNITS)
def test_a_service_is_hardly_exposed(unit: str, analyze: str, tmp_path: Path) -> None:
    """By systemd's own figure, the service may do next to nothing."""
    path = placed(unit, tmp_path)
    limit = f"--threshold={EXPOSURE * 10:.0f}"
    done = run(analyze, "security", "--offline=true", "--no-pager", limit, path)
    assert done.returncode == 0, done.stdout
    assert run(analyze, "security", "--offline=true", "--threshold=5", path).returncode != 0


@pytest.mark.parametrize("unit", UNITS)
def test_the_installed_program_is_started(unit: str) -> None:
    """ExecStart is a program of the distribution, where deploy/install puts it."""
    (command,) = values(unit, "ExecStart")
    program, subcommand = command.split()
    name = {"heddle-host": "heddle-agent"}.get(unit, unit)
    assert program == f"/opt/heddle/bin/{name}"
    assert subcommand in run(PROGRAMS / name, "--help").stdout


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_written_is_a_folder_of_the_service(unit: str) -> None:
    """A service writes only into the folder that systemd creates and keeps for it."""
    kind, sign = {"heddle-host": ("RuntimeDirectory", "%t")}.get(unit, ("StateDirectory", "%S"))
    (folder,) = values(unit, kind)
    (variable,) = values(unit, "Environment")
    assert f"{sign}/{folder}/" in variable
    assert kind == "StateDirectory" or values(unit, "RuntimeDirectoryPreserve") == ["yes"]
    assert values(unit, "ProtectSystem") == ["strict"]


def test_a_stop_leaves_time_to_drain() -> None:
    """The time to stop is at least twice the controller's time to drain."""
    (stop,) = values("heddle-controller", "TimeoutStopSec")
    assert (
        int(stop.removesuffix("s")) >= 2 * ControllerSettings.model_fields["drain_seconds"].default
    )


@pytest.mark.parametrize(
    ("unit", "settings"),
    [
        ("heddle-agent", AgentSettings),
        ("heddle-controller", ControllerSettings),
        ("heddle-host", HostSettings),
    ],
)
def test_tls_comes_by_credentials_that_are_loaded(
    unit: str, settings: type[AgentSettings | ControllerSettings | HostSettings]
) -> None:
    """Each file that a variable names is loaded, and each variable is a setting."""
    lines = (SYSTEMD / f"{unit}-tls.conf").read_text(encoding="utf-8")
    loaded = dict(re.findall(r"^LoadCredential=([^:]+):(\S+)$", lines, flags=re.MULTILINE))
    named = dict(re.findall(r"^Environment=(\w+)=%d/(\S+)$", lines, flags=re.MULTILINE))
    assert set(named.values()) == loaded.keys()
    assert all(path == f"/etc/heddle/tls/{name}" for name, path in loaded.items())
    prefix = settings.model_config["env_prefix"]
    fields = {name.removeprefix(prefix).lower() for name in named}
    assert fields == {name for name in settings.model_fields if name.startswith("tls_")}


@pytest.mark.parametrize(
    ("unit", "drop_in"), [("heddle-agent", "linux"), ("heddle-host", "probes")]
)
def test_a_drop_in_gives_the_capabilities_that_it_names(
    unit: str, drop_in: str, analyze: str, tmp_path: Path
) -> None:
    """Each line replaces one of the unit's, systemd understands it, and exposure stays small."""
    lines = (SYSTEMD / f"{unit}-{drop_in}.conf").read_text(encoding="utf-8")
    told = dict(re.findall(r"^(\w+)=(.*)$", lines, flags=re.MULTILINE))
    assert told.keys() <= set(re.findall(r"^(\w+)=", text(unit), flags=re.MULTILINE))
    assert told["AmbientCapabilities"] == told["CapabilityBoundingSet"]
    path = placed(unit, tmp_path)
    for name, value in told.items():
        whole = re.sub(
            rf"^{name}=.*$", f"{name}={value}", path.read_text("utf-8"), flags=re.MULTILINE
        )
        path.write_text(whole, encoding="utf-8")
    done = run(analyze, "verify", "--man=no", path)
    assert (done.returncode, done.stderr) == (0, "")
    limit = "--threshold=25"
    done = run(analyze, "security", "--offline=true", "--no-pager", limit, path)
    assert done.returncode == 0, done.stdout
