"""A controller that can be killed at a point of its work, and started again on its store."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from heddle_emulator.fleet.controller import Controller

ORDERS = "orders"


class DoomedController:
    """Use as ``async with``: entered when the first controller is ready, left when none runs."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._orders = folder / ORDERS
        self._controller: Controller | None = None
        self._hangs = False

    async def __aenter__(self) -> Self:
        self._orders.mkdir()
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
    def api(self) -> str:
        """Where its API is, host:port."""
        assert self._controller is not None
        return self._controller.api

    async def start(self) -> None:
        """Start it, again if need be, on the store that there is; returns when it is ready.

        Raises:
            ControllerError: it is not ready in time, or ended.
        """
        program = (sys.executable, "-m", "heddle_emulator.fleet.mortal", str(self._orders))
        self._controller = Controller(self._folder, *self._options, program=program)
        await self._controller.__aenter__()

    async def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self._hangs = False
        if self._controller is not None and self._controller.running:
            await self._controller.kill()

    def die_at(self, point: str) -> None:
        """Have it die as soon as it comes to a point of its work: see ``mortal``."""
        (self._orders / "die").write_text(point)

    def store_down(self, *, down: bool) -> None:
        """Have its store fail, or serve again."""
        path = self._orders / "store-down"
        path.touch() if down else path.unlink(missing_ok=True)

    def skew(self, seconds: float) -> None:
        """Put its clock ahead."""
        (self._orders / "skew").write_text(f"{seconds}")

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
