"""The commands for two replicas in REPLICAS.md, run exactly as written except for ports."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.needs import missing
from tests.support.ports import free_port

PAGE = Path(__file__).parents[2] / "controller" / "REPLICAS.md"
PORTS = ("6400", "7400", "7401", "7500", "7501")
SECONDS = 600.0
"""Not a measure of speed, but a limit that suits busy machines."""


def commands() -> str:
    """Return the page's script, with free ports in place of its own."""
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert set(re.findall(r"\d{4,5}", script)) == set(PORTS)
    ports = {port: str(free_port()) for port in PORTS}
    # Replace all at once: a new port that contains the digits of the next would be replaced again.
    return re.sub(r"\d{4,5}", lambda found: ports[found[0]], str(script))


def told(folder: Path) -> str:
    """Return the output of the script and of everything that it started."""
    return "\n".join(
        f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("*.log"))
    )


def test_the_quick_start_does_what_it_says(tmp_path: Path) -> None:
    """The script ends without error, under a new leader with a higher epoch."""
    if shutil.which("redis-server") is None:
        missing("redis-server: apt-get install redis-server")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (tmp_path / "script.log").open("wb") as said:
        # All that it leaves running is in its process group, which is killed at the end.
        shell = subprocess.Popen(
            ["bash", "-e", "-c", commands()],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            shell.wait(SECONDS)
        status = shell.poll()
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    assert status == 0, f"exit status {status} after {SECONDS} s at the most\n{told(tmp_path)}"
    told_of = re.findall(r"^epoch\s+(\d+)", (tmp_path / "script.log").read_text(), re.MULTILINE)
    epochs = [int(epoch) for epoch in told_of]
    assert epochs == sorted(epochs), told(tmp_path)
    assert epochs[-1] > epochs[0], told(tmp_path)
