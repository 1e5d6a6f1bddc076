"""A controller in its own process, as an operator would start it, and one that can be made to fail.

It is the installed program. It chooses its own ports and keeps its store and its log in a folder
that the caller gives. The ports are read from what it logs when it is ready. To end it, it is asked
to stop, and killed only if it does not.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from heddle_emulator.fleet.orders import Orders

_READY = re.compile(
    r"listening on (?P<api>\S+:\d+), metrics on (?P<metrics>[^\s,]+)(, page on (?P<page>\S+))?\s"
)
_START_SECONDS = 120.0
"""Ends what hangs, and nothing that a busy machine only slows down."""
STOP_SECONDS = 10.0
LAST_LINES = 12


class ControllerError(RuntimeError):
    """The controller did not start, or ended by itself. The message has its last log lines."""


class Controller:
    """A controller process. Use it with ``async with``.

    The context is entered when the controller is ready, and left when the process has ended.
    """

    def __init__(self, folder: Path, *options: str, program: Sequence[str] = ()) -> None:
        """Take options of ``serve``, and a ``program`` to run instead of the installed one."""
        self.api = ""
        """Address of the API, host:port."""
        self.metrics = ""
        """URL of the metrics."""
        self.page = ""
        """URL of the web page; "" if there is none."""
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
                start_new_session=True,  # Ctrl-C is for us: we then stop the controller
            )
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._ready()
        except BaseException as error:
            await self._stop()
            if isinstance(error, TimeoutError):
                raise self._failed(f"was not ready after {_START_SECONDS:g} s") from error
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Raise ControllerError if the process has ended."""
        assert self._process is not None
        if self._process.returncode is not None:
            raise self._failed(f"ended with exit code {self._process.returncode}")

    async def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def _ready(self) -> None:
        while not (found := _READY.search(self._words())):
            self.check()
            await asyncio.sleep(0.02)
        self.api, self.metrics = found["api"], found["metrics"]
        self.page = found["page"] or ""

    def _words(self) -> str:
        """Return what this process has logged. Earlier ones may have written to the same file."""
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


ORDERS = "orders"


class FaultInjectingController:
    """A controller that can be killed, hung, restarted and made to fail. Use ``async with``.

    The context is entered when the first process is ready, and left when none runs.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self.orders = Orders(folder / ORDERS)
        """The faults that are ordered for it."""
        self._controller: Controller | None = None
        self._hangs = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._controller is not None:
            self.resume()
            await self._controller.__aexit__()

    @property
    def alive(self) -> bool:
        """Whether its process runs, even if it hangs."""
        return self._controller is not None and self._controller.running

    @property
    def serves(self) -> bool:
        """Whether it runs and does not hang."""
        return self.alive and not self._hangs

    @property
    def sound(self) -> bool:
        """Whether it serves and no fault was ever ordered: it might still die of one."""
        return self.serves and not self.orders.given

    @property
    def api(self) -> str:
        """Address of its API, host:port."""
        assert self._controller is not None
        return self._controller.api

    async def start(self) -> None:
        """Start a process on the existing store, and wait until it is ready.

        A process that still runs, or is about to end, is killed before.

        Raises:
            ControllerError: the process ended, or was not ready in time.
        """
        await self.kill()
        self._controller = Controller(self._folder, *self._options, program=self.orders.program)
        await self._controller.__aenter__()

    async def kill(self) -> None:
        """Kill the process with SIGKILL, if it still runs."""
        self._hangs = False
        if self._controller is not None and self._controller.running:
            await self._controller.kill()

    def hang(self) -> None:
        """Stop the process with SIGSTOP, so that it hangs."""
        self._signal(signal.SIGSTOP)
        self._hangs = True

    def resume(self) -> None:
        """Let the process continue with SIGCONT."""
        self._signal(signal.SIGCONT)
        self._hangs = False

    def _signal(self, number: signal.Signals) -> None:
        if self._controller is not None and self._controller.running:
            os.kill(self._controller.pid, number)


class ControllerPool:
    """Controllers, each with its own store, that are lent out one at a time until ``close``.

    A controller that is still sound is lent again, because starting one takes seconds.
    """

    def __init__(self, *options: str) -> None:
        self._options = options
        self._idle: list[FaultInjectingController] = []
        self._folders: dict[FaultInjectingController, TemporaryDirectory[str]] = {}
        self._lent = 0

    async def close(self) -> None:
        """End all controllers."""
        for controller in list(self._folders):
            await self._end(controller)

    async def lend(self) -> tuple[FaultInjectingController, str]:
        """Return a controller that serves, and a fabric name that it does not know yet."""
        self._lent += 1
        while self._idle:
            controller = self._idle.pop()
            if controller.sound:
                return controller, f"fabrics/drill-{self._lent}"
            await self._end(controller)
        folder = TemporaryDirectory(prefix="heddle-drill-")
        controller = FaultInjectingController(Path(folder.name), *self._options)
        self._folders[controller] = folder
        await controller.__aenter__()
        return controller, f"fabrics/drill-{self._lent}"

    def give_back(self, controller: FaultInjectingController) -> None:
        """Take back a controller that is no longer needed."""
        self._idle.append(controller)

    async def _end(self, controller: FaultInjectingController) -> None:
        folder = self._folders.pop(controller)
        try:
            await controller.__aexit__()
        finally:
            folder.cleanup()
