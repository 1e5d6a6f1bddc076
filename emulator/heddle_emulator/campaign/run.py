"""Run a campaign from its first trial to its last, and keep a journal of results on disk.

The journal has one line of JSON for each result, so a killed campaign can be resumed. The first
line identifies the campaign. Each line is written at once and flushed. A crash can damage only the
last line, which is cut off when the file is opened again.

The worker of a campaign keeps a warm fabric in its own thread, so that its agents live on between
trials. If a trial fails, its result says why, and the next trial gets a new fabric, because the
state of the old one is unknown.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Self

from heddle.client import HeddleError
from heddle_controller.model.errors import InputError, refuse
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.results import Result, begun, read_result
from heddle_emulator.campaign.trials import Trial
from heddle_emulator.campaign.warm_fabric import WarmFabric
from heddle_emulator.executor import Executor, ExecutorError
from heddle_emulator.fleet import ControllerError

_FAILURES = (HeddleError, ControllerError, TimeoutError, OSError)
MOST_WORDS = 500
"""Characters of an error that a result keeps."""


class CampaignWorker:
    """Plays trials of one campaign; a ``Worker``."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._fabric: WarmFabric | None = None
        self._playing: Future[Result] | None = None
        self._turn = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fabric", daemon=True)
        self._thread.start()

    def run(self, trial: Trial) -> Result:
        """Play one trial. The fabric is set up for the first trial, and after a failed one.

        Raises:
            ExecutorError: the fabric cannot be set up.
        """
        self._playing = asyncio.run_coroutine_threadsafe(self._played(trial), self._loop)
        return self._playing.result()

    def close(self) -> None:
        """Cancel a running trial and shut the fabric down; safe from any thread, and twice."""
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
        async with self._turn:  # a cancelled trial ends first
            await self._leave()

    async def _leave(self) -> None:
        fabric, self._fabric = self._fabric, None
        if fabric is not None:
            await fabric.__aexit__()


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split()) or "no plan was held in time"
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…"


CampaignProgress = Callable[[int, int], None]
"""A function that is called with the number of trials done, and of all trials."""


def run_campaign(
    campaign: Campaign, executor: Executor, journal: Journal, report: CampaignProgress
) -> tuple[Result, ...]:
    """Play all trials that have no result in the journal or only a fault, and return all results.

    The results include those that the journal already had. Each result is in the journal before
    it is reported, so an interruption loses only trials under way.

    Raises:
        ExecutorError: a worker died, or could not be set up.
        InputError: the fabric has too few links to draw from.
    """
    trials = campaign.trials()
    known = {result.number for result in journal.results.values() if not result.fault}
    left = [trial for trial in trials if trial.number not in known]
    done = len(trials) - len(left)
    report(done, len(trials))
    if left:
        make = partial(CampaignWorker, campaign)
        with closing(executor.map(make, left)) as results:  # type: ignore[type-var]
            for result in results:
                journal.add(result)
                done += 1
                report(done, len(trials))
    return tuple(journal.results.values())


NAME = "trials.jsonl"


class Journal:
    """The file of results of a campaign. Use it with ``with``.

    ``results`` has the results of the campaign's trials by number, both old ones and those added.
    The file may have others too, if more trials were played before.
    """

    def __init__(self, folder: Path, campaign: Campaign, *, resume: bool) -> None:
        """Open the journal in a folder, or begin one.

        Raises:
            InputError: there is a journal without ``resume``, or it is another campaign's or
                unreadable; or the journal cannot be written.
        """
        self.path = folder / NAME
        self._trials = campaign.trials()
        self.results: dict[int, Result] = {}
        head = {"campaign": campaign.name, "fingerprint": campaign.fingerprint()}
        try:
            if self.path.exists() and self.path.stat().st_size:
                if not resume:
                    reason = "is there already; resume it, or give --out DIR"
                    raise refuse(str(self.path), "", reason)
                self._read(head)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                self.path.write_text(f"{json.dumps(head)}\n", encoding="utf-8")
            self._file: IO[str] = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._unwritten(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the rest of a result whose writing has failed
            self._file.close()

    def add(self, result: Result) -> None:
        """Write a result. Once this returns, it survives a crash of this process.

        Raises:
            InputError: it cannot be written.
        """
        self.results[result.number] = result
        try:
            self._file.write(f"{json.dumps(result.record())}\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> InputError:
        return refuse(str(self.path), "", f"cannot be written: {error.strerror or error}")

    def _read(self, head: dict[str, str]) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                if number == 1:
                    self._compare(record, head)
                else:
                    self._keep(read_result(record))
            except InputError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                cure = f"is not what a campaign writes ({error}); give another --out"
                raise refuse(str(self.path), f"line {number}", cure) from error
        if not whole:
            self.path.write_text(f"{json.dumps(head)}\n", encoding="utf-8")

    def _keep(self, result: Result) -> None:
        if 0 <= result.number < len(self._trials):
            if result.trial() != self._trials[result.number]:
                raise ValueError(f"events are not those of trial {result.number}")
            self.results[result.number] = result

    def _compare(self, found: dict[str, str], head: dict[str, str]) -> None:
        if found.get("fingerprint") != head["fingerprint"]:
            reason = "is of another fabric, other flows or another drawing; give another --out"
            raise refuse(str(self.path), "line 1", reason)
