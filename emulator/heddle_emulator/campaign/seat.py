"""One worker: a site in a thread of its own, so that agents live on between two trials.

What goes wrong in a trial is told in its result, and the next one gets a new site: how the
old one stands is not known. Seats know nothing of who hands them trials: a process of this
machine, or an actor of a cluster.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self

from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.events import Trial
from heddle_emulator.campaign.result import Result, begun
from heddle_emulator.campaign.site import Site
from heddle_emulator.client import ClientError
from heddle_emulator.fleet import ControllerError

FAILURES = (ClientError, ControllerError, TimeoutError, OSError)
MOST_WORDS = 500
"""Characters, of what went wrong."""


class CampaignError(RuntimeError):
    """A campaign that cannot go on, in one line."""


class Seat:
    """Use as ``with``, or end it by ``close``."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._site: Site | None = None
        self._playing: Future[Result] | None = None
        self._turn = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="site", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, trial: Trial) -> Result:
        """Play one trial; on the first one, or after one that failed, make the site first.

        Raises:
            CampaignError: it cannot be made.
        """
        self._playing = asyncio.run_coroutine_threadsafe(self._played(trial), self._loop)
        return self._playing.result()

    def close(self) -> None:
        """End the site in order, whatever is under way; safe from any thread, and twice."""
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
            if self._site is None:
                self._site = await self._opened()
            try:
                return await self._site.run(trial)
            except FAILURES as error:
                await self._leave()
                return replace(begun(trial, self._campaign.fabric), fault=_line(error))

    async def _opened(self) -> Site:
        try:
            return await Site(self._campaign).__aenter__()
        except FAILURES as error:
            raise CampaignError(f"no fabric could be brought up: {_line(error)}") from error

    async def _ended(self) -> None:
        async with self._turn:  # what was under way has been cancelled, and comes to its end first
            await self._leave()

    async def _leave(self) -> None:
        site, self._site = self._site, None
        if site is not None:
            await site.__aexit__(None, None, None)


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split()) or "no plan was held in time"
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…"
