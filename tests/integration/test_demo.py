"""``make demo`` as a person runs it: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.depth import examples

PROGRAMS = Path(sys.executable).parent
SECONDS = 300.0
"""Time limit in seconds, generous for busy machines; not a measure of speed."""


@contextmanager
def _demo(folder: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run the demo with its temporary files in this folder."""
    process = subprocess.Popen(
        [PROGRAMS / "heddle-emulator", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
        env=os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"} | environment,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _until(process: subprocess.Popen[str], words: str) -> str:
    """Return what the demo prints up to and including a line with these words."""
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if words in line:
            return shown
    raise AssertionError(f"ended without {words!r}:\n{shown}")


def _nothing_left(folder: Path) -> None:
    """Check that no controller runs and no temporary file is left."""
    assert _users_of(folder) == []
    assert list(folder.iterdir()) == []


def test_the_demo_holds_and_keep_leaves_it_running_until_ctrl_c(tmp_path: Path) -> None:
    """The demo shows every step in plain lines, and hashing is worse than Heddle.

    With ``--keep`` the command that it prints works. Ctrl-C then ends the demo with exit code 0,
    and nothing is left behind.
    """
    with _demo(tmp_path, "--seed", "7", "--keep") as process:
        shown = _until(process, "job list")
        command = shown.splitlines()[-1].split()
        listed = subprocess.run(
            [PROGRAMS / Path(command[0]).name, *command[1:]],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert listed.returncode == 0, listed.stderr
        assert "llama-65b" in listed.stdout
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, shown + rest
    assert "Traceback" not in shown + rest
    assert "\x1b" not in shown + rest
    for words in (
        "512 NICs",
        "llama-65b",
        "ECMP",
        "Heddle",
        "submit to last FIB ack",
        "slowest flow",
        "certificate of plan",
        "link down to last FIB ack",
        "flows moved",
        "all of it held",
    ):
        assert words in shown + rest
    assert "FAILED" not in shown + rest
    worst = next(line for line in shown.splitlines() if line.startswith("worst leaf-spine link"))
    ecmp, spread, heddle = (float(word) for word in worst.split()[-3:])
    assert ecmp > spread > heddle == 1.0
    certificates = re.findall(r"certificate of plan (\d+)", shown)
    assert int(certificates[1]) > int(certificates[0])
    _nothing_left(tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "controller on"),
        (signal.SIGINT, "jobs submitted"),
        (signal.SIGHUP, "agents connected"),
    ][: examples(1, 3)],
)
def test_every_way_out_ends_everything(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    """A signal at any step ends all that the demo started, with exit code 130."""
    with _demo(tmp_path) as process:
        shown = _until(process, moment)
        process.send_signal(number)
        rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, shown + rest
    assert "Traceback" not in shown + rest
    _nothing_left(tmp_path)


def test_a_controller_that_does_not_start_is_told(tmp_path: Path) -> None:
    """The demo exits with 1 and shows the controller's own error."""
    with _demo(tmp_path, HEDDLE_SOLVE_SECONDS="-1") as process:
        shown, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "the controller ended with exit code 2" in shown
    assert "solve_seconds" in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_a_controller_that_dies_is_told(tmp_path: Path) -> None:
    """If the controller is killed, the demo fails instead of hanging."""
    with _demo(tmp_path, "--keep") as process:
        shown = _until(process, "Still running")
        (controller,) = _users_of(tmp_path)
        os.kill(controller, signal.SIGKILL)
        rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, shown + rest
    assert "the controller ended" in rest
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []


def _users_of(folder: Path) -> list[int]:
    """Return the processes whose command lines name a path below this folder: the controller."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has just ended
                if f"{folder}/".encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found
