"""Who waits for a job to be programmed, with one watch of all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import cast

import grpc
import pytest

from heddle.client import AsyncClient, HeddleError, NotFound
from heddle.v1.placement_pb2 import JOB_STATE_PLANNED, JOB_STATE_PROGRAMMED, Job, JobEvent, JobState
from heddle_kubernetes.progress import Progress
from tests.support.waiting import PATIENCE, until

AWAY = HeddleError("nobody answers", code=grpc.StatusCode.UNAVAILABLE)


def job(number: int, state: JobState.ValueType = JOB_STATE_PLANNED, etag: str = "new") -> Job:
    """Return a job."""
    return Job(name=f"fabrics/f1/jobs/j{number}", etag=etag, state=state)


class Controller:
    """A controller whose watches say what a test puts into ``events``."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[JobEvent | HeddleError] = asyncio.Queue()
        self.begun = self.open = 0

    async def watch_jobs(self) -> AsyncGenerator[JobEvent]:
        """Yield events; raise an error that comes."""
        self.begun += 1
        self.open += 1
        try:
            while True:
                event = await self.events.get()
                if isinstance(event, HeddleError):
                    raise event
                yield event
        finally:
            self.open -= 1

    def tell(self, *jobs: Job) -> None:
        """Tell the state of jobs."""
        for one in jobs:
            self.events.put_nowait(JobEvent(job=one))


@pytest.fixture
def controller() -> Iterator[Controller]:
    """A controller; at the end nobody watches it."""
    controller = Controller()
    yield controller
    assert controller.open == 0


def progress_at(controller: Controller) -> Progress:
    """Return what tells of a controller's jobs."""
    return Progress(cast("AsyncClient", controller))


async def test_all_who_wait_share_a_watch(controller: Controller) -> None:
    """Each is told of its own job. Who comes later is told what the watch said before."""
    progress = progress_at(controller)
    waiting = [asyncio.create_task(progress.programmed(job(n), PATIENCE)) for n in range(3)]
    controller.tell(*(job(n) for n in range(4)), *(job(n, JOB_STATE_PROGRAMMED) for n in (3, 0, 1)))
    assert [await waiting[n] for n in (0, 1)] == ["", ""]
    assert not waiting[2].done()
    assert await progress.programmed(job(3), PATIENCE) == ""
    controller.tell(job(2, JOB_STATE_PROGRAMMED))
    assert await waiting[2] == ""
    assert controller.begun == 1
    await until(lambda: controller.open == 0, "the watch to end")
    again = asyncio.create_task(progress.programmed(job(3), PATIENCE))
    controller.tell(job(3, JOB_STATE_PROGRAMMED))
    assert await again == ""
    assert controller.begun == 2
    await until(lambda: controller.open == 0, "the second watch to end")


async def test_another_specification_is_not_waited_for(controller: Controller) -> None:
    """When the time is up, the answer says what is missing."""
    progress = progress_at(controller)
    controller.tell(job(0, JOB_STATE_PROGRAMMED, "old"))
    missing = await progress.programmed(job(0), 0.1)
    assert missing.startswith("jobs are not there yet: j0 "), missing
    await until(lambda: controller.open == 0, "the watch to end")


async def test_who_waits_in_vain_is_told(controller: Controller) -> None:
    """The deletion of a job is told to who waits for it, the end of the watch to all."""
    progress = progress_at(controller)
    waiting = [asyncio.create_task(progress.programmed(job(n), PATIENCE)) for n in range(3)]
    controller.events.put_nowait(JobEvent(deleted=job(1).name))
    with pytest.raises(NotFound):
        await waiting[1]
    controller.events.put_nowait(AWAY)
    for n in (0, 2):
        with pytest.raises(HeddleError, match="nobody answers"):
            await waiting[n]
    await until(lambda: controller.open == 0, "the watch to end")
