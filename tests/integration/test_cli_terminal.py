from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.integration.test_cli_job import jobs_file
from tests.support.operating import operating

HEDDLE = Path(sys.executable).parent / "heddle"


def on_a_terminal(*words: str | Path) -> tuple[int, str]:
    """Run the installed command with a terminal as its output; exit status and text."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen(
        [HEDDLE, *words], stdout=follower, stderr=follower, stdin=follower, env=environment
    )
    os.close(follower)
    text = b""
    with suppress(OSError):  # the end of a terminal is an error to read
        while part := os.read(leader, 4096):
            text += part
    os.close(leader)
    return process.wait(), text.decode()


async def test_tables_are_coloured_on_a_terminal(tmp_path: Path) -> None:
    """The same words as in a pipe, in colours."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.does("job", "submit", jobs_file(tmp_path))
        server = f"127.0.0.1:{o.s.api.port}"
        code, text = await asyncio.to_thread(on_a_terminal, "--server", server, "job", "list")
        piped = await o.does("job", "list")
    assert code == 0
    assert "\x1b[33mACCEPTED" in text
    for word in piped.out.split():
        assert word in text
    assert "\x1b" not in piped.out


async def test_a_pipe_that_is_closed_ends_the_command_quietly(tmp_path: Path) -> None:
    """As ``heddle show routes | head -1`` does."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        server = f"127.0.0.1:{o.s.api.port}"
        command = f"{HEDDLE} --server {server} fabric export | head -c 1"
        done = await asyncio.to_thread(
            subprocess.run, command, shell=True, capture_output=True, text=True, check=False
        )
    assert (done.stdout, done.stderr) == ("{", "")


async def test_an_interrupt_ends_a_watch_quietly(tmp_path: Path) -> None:
    """No traceback; exit 1."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        words = ("--server", f"127.0.0.1:{o.s.api.port}", "fabric", "watch")
        process = await asyncio.create_subprocess_exec(
            HEDDLE, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"fabric f1 put\n"
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
    assert process.returncode == 1
    assert "Traceback" not in stderr.decode()
