"""The worker of a campaign: a warm fabric in a thread of its own, so that its agents live on.

What goes wrong in a trial is told in its result, and the next trial gets a new fabric: the state
of the old one is not known.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace

from heddle.client import HeddleError
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.results import Result, begun
from heddle_emulator.campaign.trials import Trial
from heddle_emulator.campaign.warm_fabric import WarmFabric
from heddle_emulator.executor import ExecutorError
from heddle_emulator.fleet import ControllerError

_FAILURES = (HeddleError, ControllerError, TimeoutError, OSError)
MOST_WORDS = 500
"""Characters, of what went wrong."""


class CampaignWorker:
    """See ``Worker``: plays trials of one campaign."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._fabric: WarmFabric | None = None
        self._playing: Future[Result] | None = None
        self._turn = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fabric", daemon=True)
        self._thread.start()

    def run(self, trial: Trial) -> Result:
        """Play one trial; set up the fabric for the first one, and after one that failed.

        Raises:
            ExecutorError: the fabric cannot be set up.
        """
        self._playing = asyncio.run_coroutine_threadsafe(self._played(trial), self._loop)
        return self._playing.result()

    def close(self) -> None:
        """End the fabric in order, whatever is under way; safe from any thread, and twice."""
        if self._loop.is_closed():
            return
        if self._playing is not None:
            self._playing.cancel()
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _played(self, trial: Trial) -> Result:
        async with self._turn:
            if self._fabric is None:
                self._fabric = await self._opened()
            try:
                return await self._fabric.run(trial)
            except _FAILURES as error:
                await self._leave()
                return replace(begun(trial, self._campaign.fabric), fault=_line(error))

    async def _opened(self) -> WarmFabric:
        try:
            return await WarmFabric(self._campaign).__aenter__()
        except _FAILURES as error:
            raise ExecutorError(f"no fabric could be brought up: {_line(error)}") from error

    async def _ended(self) -> None:
        async with self._turn:  # what was under way has been cancelled, and comes to its end first
            await self._leave()

    async def _leave(self) -> None:
        fabric, self._fabric = self._fabric, None
        if fabric is not None:
            await fabric.__aexit__()


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split()) or "no plan was held in time"
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…"
