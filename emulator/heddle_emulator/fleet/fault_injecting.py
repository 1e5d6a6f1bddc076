"""A controller that can be killed at a point of its work, and started again on its store."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from heddle_emulator.fleet.controller import Controller
from heddle_emulator.fleet.orders import Orders

ORDERS = "orders"


class FaultInjectingController:
    """Use as ``async with``: entered when the first controller is ready, left when none runs."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self.orders = Orders(folder / ORDERS)
        """What shall go wrong in it."""
        self._controller: Controller | None = None
        self._hangs = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._controller is not None:
            self.resume()
            await self._controller.__aexit__(kind, error, traceback)

    @property
    def alive(self) -> bool:
        """Whether it runs, even if it hangs."""
        return self._controller is not None and self._controller.running

    @property
    def serves(self) -> bool:
        """Whether it does anything."""
        return self.alive and not self._hangs

    @property
    def sound(self) -> bool:
        """Whether it serves, and nothing will happen to it of what was ordered."""
        return self.serves and self.orders.none

    @property
    def api(self) -> str:
        """Where its API is, host:port."""
        assert self._controller is not None
        return self._controller.api

    async def start(self) -> None:
        """Start it, again if need be, on the store that there is; returns when it is ready.

        Raises:
            ControllerError: it is not ready in time, or ended.
        """
        program = (sys.executable, "-m", "heddle_emulator.fleet.mortal", str(self.orders.folder))
        self._controller = Controller(self._folder, *self._options, program=program)
        await self._controller.__aenter__()

    async def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self._hangs = False
        if self._controller is not None and self._controller.running:
            await self._controller.kill()

    def hang(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self._hangs = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self._hangs = False

    def _signal(self, number: signal.Signals) -> None:
        if self._controller is not None and self._controller.running:
            os.kill(self._controller.pid, number)


class ControllerPool:
    """Controllers on stores of their own, lent one after the other until ``close``.

    One that nothing was done to is lent again: to start one takes seconds.
    """

    def __init__(self, *options: str) -> None:
        self._options = options
        self._idle: list[FaultInjectingController] = []
        self._folders: dict[FaultInjectingController, TemporaryDirectory[str]] = {}
        self._lent = 0

    async def close(self) -> None:
        """End all of them."""
        for controller in list(self._folders):
            await self._end(controller)

    async def lend(self) -> tuple[FaultInjectingController, str]:
        """A controller that serves, and the name of a fabric that it does not know yet."""
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
        """It is needed no longer."""
        self._idle.append(controller)

    async def _end(self, controller: FaultInjectingController) -> None:
        folder = self._folders.pop(controller)
        try:
            await controller.__aexit__(None, None, None)
        finally:
            folder.cleanup()
