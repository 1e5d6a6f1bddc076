"""The real ``heddle`` command, for tests of what operators see.

It runs against an API in this process, or against a real ``heddle-controller serve`` process.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from click.testing import CliRunner
from grpc import aio

from heddle_controller.cli.main import main
from heddle_emulator.fleet import Fleet
from tests.support.serving import OPTIONS, Serving, serving
from tests.support.waiting import PATIENCE


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit status."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        """Its standard output as words, line by line."""
        return [line.split() for line in self.out.splitlines()]


def heddle(*words: str | Path) -> Outcome:
    """Run the command in this process."""
    result = CliRunner(catch_exceptions=False).invoke(main, [str(word) for word in words])
    return Outcome(result.exit_code, result.stdout, result.stderr)


def printed() -> str:
    """Return what the command in another thread of this process has printed so far."""
    kept: Any = getattr(sys.stdout, "buffer", None)
    return str(kept.getvalue().decode()) if isinstance(kept, io.BytesIO) else ""


@dataclass(frozen=True)
class Operator:
    """An operator at a terminal, and the server that commands go to."""

    s: Serving

    async def does(self, *words: str | Path) -> Outcome:
        """Run a command against the server, in another thread."""
        server = f"127.0.0.1:{self.s.api.port}"
        return await asyncio.to_thread(
            heddle, "--server", server, "--timeout", f"{PATIENCE:g}", *words
        )


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep log lines of this process, also of agents, out of what commands print."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        yield
    finally:
        structlog.configure(**before)


@asynccontextmanager
async def operating(path: Path) -> AsyncIterator[Operator]:
    """Run a server, and an operator whose commands' output contains no log lines."""
    with unlogged():
        async with serving(path) as s:
            yield Operator(s)


PROGRAM = Path(sys.executable).parent / "heddle-controller"
START_SECONDS = 240.0
"""Not a measure of speed: a limit for busy machines."""
READY = re.compile(
    r"listening on (\S+):(\d+), metrics on http://(\S+):(\d+)/metrics(?:, page on (\S+)/)?\n"
)


@dataclass
class Controller:
    """One running controller."""

    process: Process
    port: int
    metrics_port: int
    log: Path
    page: str = ""
    """Address of the web page, without a slash at its end; empty if there is none."""

    @property
    def address(self) -> str:
        """Address of its API."""
        return f"127.0.0.1:{self.port}"

    def channel(self) -> aio.Channel:
        """Return a new channel to the controller."""
        return aio.insecure_channel(self.address, OPTIONS)

    async def does(self, *words: str | Path) -> Outcome:
        """Run ``heddle`` against the controller."""
        given = ("--server", self.address, "--timeout", f"{PATIENCE:g}")
        return await asyncio.to_thread(heddle, *given, *words)

    async def ends(
        self, how: signal.Signals = signal.SIGTERM, seconds: float = START_SECONDS
    ) -> int:
        """Send a signal and wait for the end; return the exit status."""
        self.process.send_signal(how)
        async with asyncio.timeout(seconds):
            return await self.process.wait()


async def start(
    path: Path, *options: str, program: Sequence[str | Path] = (PROGRAM,)
) -> tuple[Process, Path]:
    """Start a controller with a store below ``path``; return it and the path of its log."""
    log = path / "controller.log"
    store = f"sqlite:///{path / 'heddle.sqlite3'}"
    words = ("--listen", "127.0.0.1:0", "--metrics-port", "0", "--store", store, *options)
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            *program, "serve", *words, stdin=DEVNULL, stdout=PIPE, stderr=stderr
        )
    return process, log


@asynccontextmanager
async def controlling(
    path: Path, *options: str, program: Sequence[str | Path] = (PROGRAM,)
) -> AsyncIterator[Controller]:
    """Run a controller that is ready; kill it at the end if it still runs."""
    process, log = await start(path, *options, program=program)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            line = (await process.stdout.readline()).decode()
        found = READY.fullmatch(line)
        assert found, f"{line!r}; its log: {log.read_text()}"
        with unlogged():
            yield Controller(process, int(found[2]), int(found[4]), log, found[5] or "")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def holds_a_plan(fleet: Fleet, switches: Iterable[int]) -> bool:
    """Return whether switches, given by row, fully hold a plan."""
    held = [fleet.agents[row].held for row in switches]
    return all(one.generation > 0 and not one.dirty for one in held)
