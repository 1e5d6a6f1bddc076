"""A controller in a process of its own, as an operator would start it.

It is the installed program, on ports of its own choice, with a store in a folder
that the caller gives. Its log goes to a file there; what it says when it is ready is
read from its output. It is asked to stop first and killed only if it does not.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

READY = re.compile(r"listening on (?P<api>\S+:\d+), metrics on (?P<metrics>\S+)")
START_SECONDS = 60.0
STOP_SECONDS = 10.0
LAST_LINES = 12


class ControllerError(RuntimeError):
    """The controller did not start, or ended by itself; the message has its last words."""


class Controller:
    """Use as ``async with``: entered when it is ready, left when the process has ended."""

    def __init__(self, folder: Path, *options: str, program: Sequence[str] = ()) -> None:
        """``options`` are those of ``serve``; ``program`` is another than the installed one."""
        self.api = ""
        """Where the API is, host:port."""
        self.metrics = ""
        """Where the metrics are, a URL."""
        self.log = folder / "controller.log"
        self._said = 0
        self._command = [
            *(program or [str(Path(sys.executable).with_name("heddle-controller"))]),
            "serve",
            "--listen=127.0.0.1:0",
            "--metrics-port=0",
            f"--store=sqlite:///{folder / 'heddle.sqlite3'}",
            *options,
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._said = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us: we then stop it in order
            )
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._ready()
        except BaseException as error:
            await self._stop()
            if isinstance(error, TimeoutError):
                raise self._failed(f"was not ready after {START_SECONDS:g} s") from error
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Raise ControllerError if it is gone."""
        assert self._process is not None
        if self._process.returncode is not None:
            raise self._failed(f"ended with exit code {self._process.returncode}")

    async def kill(self) -> None:
        """SIGKILL: it has no chance to do anything any more."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def _ready(self) -> None:
        while not (found := READY.search(self._words())):
            self.check()
            await asyncio.sleep(0.02)
        self.api, self.metrics = found["api"], found["metrics"]

    def _words(self) -> str:
        """What it has written since it was started; others may have used the file before."""
        return self.log.read_bytes()[self._said :].decode(errors="replace")

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _failed(self, what: str) -> ControllerError:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return ControllerError("\n".join([f"the controller {what}; its last words:", *lines]))
