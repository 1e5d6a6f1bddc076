"""When jobs are programmed: one watch for all who wait, because each watch is told of all jobs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from heddle.client import PROGRAMMED, AsyncClient
from heddle.client.operations import Waiting
from heddle.v1 import placement_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """Somebody who waits for a job."""

    waiting: Waiting
    outcome: asyncio.Future[None]


class Progress:
    """Tells when jobs are programmed. It watches jobs while anybody waits."""

    def __init__(self, heddle: AsyncClient) -> None:
        self._heddle = heddle
        self._waiters: dict[str, _Waiter] = {}  # by the job's full name
        self._events: dict[str, pb.JobEvent] = {}  # the last one of each job
        self._watch: asyncio.Task[None] | None = None

    async def programmed(self, job: pb.Job, seconds: float) -> str:
        """Wait until a job has its routes as it was submitted.

        Args:
            job: The answer to its submission. Only one task waits for a job at a time.
            seconds: How long to wait.

        Returns:
            What is missing if the time is up, in words; empty if the job is programmed.

        Raises:
            HeddleError: The job was deleted, or the controller does not answer.
        """
        waiter = _Waiter(Waiting(PROGRAMMED, [job]), asyncio.get_running_loop().create_future())
        self._waiters[job.name] = waiter
        if self._watch is None:
            self._watch = asyncio.create_task(self._follow())
        elif (known := self._events.get(job.name)) is not None:
            self._tell(waiter, known)
        try:
            async with asyncio.timeout(seconds):
                await waiter.outcome
        except TimeoutError:
            return waiter.waiting.why_not()
        finally:
            if self._waiters.get(job.name) is waiter:
                del self._waiters[job.name]
            if not self._waiters and self._watch is not None:
                self._watch.cancel()
                self._forget()
        return ""

    async def _follow(self) -> None:
        """Tell those who wait what happens to their jobs, and what keeps this from knowing it."""
        try:
            async with aclosing(self._heddle.watch_jobs()) as events:
                async for event in events:
                    name = event.job.name or event.deleted
                    if event.HasField("job"):
                        self._events[name] = event
                    else:
                        self._events.pop(name, None)
                    if (waiter := self._waiters.get(name)) is not None:
                        self._tell(waiter, event)
        except Exception as error:  # noqa: BLE001 - each who waits raises it
            self._forget()
            for waiter in self._waiters.values():
                if not waiter.outcome.done():
                    waiter.outcome.set_exception(error)

    def _forget(self) -> None:
        self._watch = None
        self._events.clear()

    @staticmethod
    def _tell(waiter: _Waiter, event: pb.JobEvent) -> None:
        if waiter.outcome.done():
            return
        try:
            waiter.waiting.take(event, degraded_ok=True)
        except Exception as error:  # noqa: BLE001 - the one who waits raises it
            waiter.outcome.set_exception(error)
        else:
            if waiter.waiting.done:
                waiter.outcome.set_result(None)
