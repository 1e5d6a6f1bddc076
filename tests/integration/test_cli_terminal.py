"""``heddle`` on a terminal, in a pipe, and when it is interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.planner.port import WhatIf
from heddle_controller.state.records import JobState
from tests.integration.test_cli_job import jobs_file, tell
from tests.support.direct_planner import DirectPlanner
from tests.support.operating import operating
from tests.support.waiting import PATIENCE

HEDDLE = Path(sys.executable).parent / "heddle"
TERM = "xterm-256color"


def on_a_terminal(*words: str | Path, columns: int = 120, term: str = TERM) -> tuple[int, str]:
    """Run the installed command with a terminal as its output; return exit code and text."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": str(columns)}
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
    """A terminal gets the words that a pipe gets, in colours, each in one piece.

    A narrow one gets them, too, and a dumb one gets no codes of colours or styles.
    """
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.does("job", "submit", jobs_file(tmp_path))
        server = f"127.0.0.1:{o.s.api.port}"
        code, text = await asyncio.to_thread(on_a_terminal, "--server", server, "job", "list")
        piped = await o.does("job", "list")
        narrow = [
            await asyncio.to_thread(
                on_a_terminal, "--server", server, "job", "list", columns=columns
            )
            for columns in (40, 80, 100)
        ]
        for words in (("job", "list"), ("fabric", "show")):
            _, plain = await asyncio.to_thread(
                on_a_terminal, "--server", server, *words, term="dumb"
            )
            assert "\x1b" not in plain
    assert code == 0
    assert "\x1b[33mACCEPTED" in text
    for word in piped.out.split():
        assert word in text
        assert all(word in told for _, told in narrow), word
    assert "\x1b" not in piped.out


async def test_a_pipe_that_is_closed_ends_the_command_quietly(tmp_path: Path) -> None:
    """A command whose reader has gone, as in ``heddle show routes | head -1``, prints no error.

    Neither does one whose output was closed from the start.
    """
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        server = f"127.0.0.1:{o.s.api.port}"
        command = f"{HEDDLE} --server {server} fabric export | head -c 1"
        done = await asyncio.to_thread(
            subprocess.run, command, shell=True, capture_output=True, text=True, check=False
        )
        closed = await asyncio.to_thread(
            subprocess.run,
            f"{HEDDLE} --server {server} fabric show >&-; {HEDDLE} --server {server} job list >&-",
            shell=True, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.stdout, done.stderr) == ("{", "")
    assert (closed.returncode, closed.stderr) == (0, "")


async def test_an_interrupt_ends_a_watch_quietly(tmp_path: Path) -> None:
    """An interrupted watch prints nothing more and exits with 130."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        words = ("--server", f"127.0.0.1:{o.s.api.port}", "fabric", "watch")
        process = await asyncio.create_subprocess_exec(
            HEDDLE, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"fabric f1\n"
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
    assert (process.returncode, stderr) == (130, b"")


class Terminal:
    """A command whose output is a terminal, and the text that it has shown so far.

    Its standard output may be a file instead.
    """

    def __init__(self, *words: str, out: Path | None = None) -> None:
        leader, follower = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "10"}
        with ExitStack() as stack:
            stdout = follower if out is None else stack.enter_context(out.open("w"))
            self.process = subprocess.Popen(
                [HEDDLE, *words], stdout=stdout, stderr=follower, stdin=follower, env=environment
            )
        os.close(follower)
        self._leader, self.text = leader, ""

    def until(self, word: str) -> None:
        """Read until a word has been shown."""
        while word not in self.text:
            ready, _, _ = select.select([self._leader], [], [], PATIENCE)
            assert ready, self.text
            self.text += os.read(self._leader, 4096).decode(errors="replace")

    def interrupted(self) -> str:
        """Send Ctrl-C and wait for the end; return what the command shows meanwhile."""
        self.process.send_signal(signal.SIGINT)
        return self.ended(130)

    def ended(self, code: int) -> str:
        """Wait for the end with this exit status; return what the command shows meanwhile."""
        before = len(self.text)
        with suppress(OSError):  # the end of a terminal is an error to read
            while part := os.read(self._leader, 4096):
                self.text += part.decode(errors="replace")
        os.close(self._leader)
        assert self.process.wait() == code
        return self.text[before:]


async def test_a_watched_view_is_drawn_in_its_place(tmp_path: Path) -> None:
    """A change is drawn over the old view; Ctrl-C makes the cursor visible again."""
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        await o.does("job", "submit", jobs_file(tmp_path), "--only", "red")
        words = ("--server", f"127.0.0.1:{o.s.api.port}", "job", "list", "--watch")
        terminal = await asyncio.to_thread(Terminal, *words)
        await asyncio.to_thread(terminal.until, "ACCEPTED")
        await tell(o, JobState.PROGRAMMED, "red")
        await asyncio.to_thread(terminal.until, "PROGRAMMED")
        drawn = terminal.text.partition("ACCEPTED")[2]
        assert "\x1b[1A" in drawn.partition("PROGRAMMED")[0], drawn
        left = await asyncio.to_thread(terminal.interrupted)
        assert "\x1b[?25h" in left
        assert "Traceback" not in left


async def test_a_long_call_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal shows it until the answer comes. The answer alone goes to a file."""
    may_answer, what_if = asyncio.Event(), DirectPlanner.what_if

    async def later(*given: Any) -> WhatIf:
        await may_answer.wait()
        return await what_if(*given)

    monkeypatch.setattr(DirectPlanner, "what_if", later)
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        words = ("--server", f"127.0.0.1:{o.s.api.port}", "drain", "s0", "--dry-run", "--json")
        impatient, patient = [
            await asyncio.to_thread(partial(Terminal, *words, out=tmp_path / name))
            for name in ("none", "answer")
        ]
        for terminal in (impatient, patient):
            await asyncio.to_thread(terminal.until, "predicting the plan without s0")
        left = await asyncio.to_thread(impatient.interrupted)
        may_answer.set()
        await asyncio.to_thread(patient.ended, 0)
    assert "\x1b[?25h" in left
    assert "Traceback" not in left
    assert json.loads((tmp_path / "answer").read_text())["harms"] == []
