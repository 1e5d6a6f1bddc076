from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
LOCK = ROOT / "requirements.lock"
NOT_ON_A_SWITCH = {"networkx", "ortools", "pandas", "redis", "scipy"}


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script of deploy/ to its end."""
    command = [sys.executable, DEPLOY / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def listed(name: str) -> set[str]:
    """Return the package names in a list."""
    lines = (DEPLOY / "packages" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}


def pins(lock: str) -> dict[str, set[str]]:
    """Return versions by name. A name may have several, for several versions of Python."""
    found: dict[str, set[str]] = {}
    for name, pinned in re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, flags=re.MULTILINE):
        found.setdefault(name, set()).add(pinned)
    return found


def test_the_lists_are_what_the_distributions_pull_in() -> None:
    """Every committed list equals what follows from the installed packages."""
    done = run("packages.py", "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_installed_here_is_what_the_lock_names() -> None:
    """The lists follow from packages in the versions of the lock."""
    locked = pins(LOCK.read_text(encoding="utf-8"))
    seen = 0
    for name in listed("emulator") | listed("build"):
        try:
            here = version(name)
        except PackageNotFoundError:  # only another Python needs it
            continue
        assert here in locked[name]
        seen += 1
    assert seen > 20


def test_a_switch_is_sent_no_solver_and_no_database_client() -> None:
    """The lists of agent and kubernetes have nothing of NOT_ON_A_SWITCH. The controller's has all.

    SONiC's databases are a Redis on the switch, so the agent there gets the Redis client and no
    other.
    """
    assert not (listed("agent") | listed("kubernetes")) & NOT_ON_A_SWITCH
    assert listed("agent") < listed("controller")
    assert listed("sonic") & NOT_ON_A_SWITCH == {"redis"}
    assert listed("agent") < listed("sonic")
    assert listed("controller") >= NOT_ON_A_SWITCH


@pytest.mark.parametrize(
    "name", ["agent", "build", "controller", "emulator", "kubernetes", "sonic"]
)
def test_the_part_of_the_lock_is_whole_and_hashed(name: str) -> None:
    """The part has exactly the listed packages, with the lock's versions and hashes."""
    done = run("subset.py", LOCK, DEPLOY / "packages" / f"{name}.txt")
    assert (done.returncode, done.stderr) == (0, "")
    part, whole = pins(done.stdout), LOCK.read_text(encoding="utf-8")
    assert part.keys() == listed(name)
    assert part == {key: value for key, value in pins(whole).items() if key in part}
    records = re.split(r"^(?=\S)", done.stdout, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in record and record in whole for record in records)


def test_a_package_that_the_lock_does_not_have_is_named(tmp_path: Path) -> None:
    """The exit status is 2, and one line names list, package and what to do."""
    names = tmp_path / "names.txt"
    names.write_text("click\nNo_Such.Package  # a comment\n", encoding="utf-8")
    done = run("subset.py", LOCK, names)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"subset.py: {names}: no-such-package not in {LOCK}: run make lock\n"


def test_a_missing_list_is_one_line(tmp_path: Path) -> None:
    """A missing file gives one line and no traceback."""
    done = run("subset.py", LOCK, tmp_path / "none.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"subset.py: {tmp_path}/none.txt: No such file or directory\n"
