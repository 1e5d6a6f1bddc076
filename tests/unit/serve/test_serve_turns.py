from __future__ import annotations

import asyncio
import threading

import pytest

from heddle_controller.serve.turns import Turns
from tests.support.waiting import PATIENCE


class Work:
    """Something that takes until it is let go, and counts how many do it at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began = threading.Semaphore(0)
        self.now = 0
        self.most = 0

    def do(self, answer: int) -> int:
        """Runs in a thread."""
        self.now += 1
        self.most = max(self.most, self.now)
        self.began.release()
        assert self.go.wait(PATIENCE)
        self.now -= 1
        return answer


async def test_questions_are_answered_one_after_another() -> None:
    """Each gets its own answer; no two run at once."""
    turns, work = Turns(), Work()
    work.go.set()
    answers = await asyncio.gather(*(turns.run(work.do, i) for i in range(5)))
    assert answers == list(range(5))
    assert work.most == 1


async def test_a_turn_ends_with_the_thread_not_with_the_caller() -> None:
    """Who hangs up does not let the next begin beside what still runs."""
    turns, work = Turns(), Work()
    gone = asyncio.create_task(turns.run(work.do, 1))
    assert await asyncio.to_thread(work.began.acquire, timeout=PATIENCE)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    following = asyncio.create_task(turns.run(work.do, 2))
    assert not await asyncio.to_thread(work.began.acquire, timeout=0.1)
    work.go.set()
    assert await following == 2
    assert work.most == 1


async def test_who_gives_up_waiting_is_forgotten() -> None:
    """Its question is never run."""
    turns, work = Turns(), Work()
    first = asyncio.create_task(turns.run(work.do, 1))
    assert await asyncio.to_thread(work.began.acquire, timeout=PATIENCE)
    waiting = asyncio.create_task(turns.run(work.do, 2))
    await asyncio.sleep(0)
    waiting.cancel()
    work.go.set()
    assert await first == 1
    assert not await asyncio.to_thread(work.began.acquire, timeout=0.1)


async def test_a_question_that_fails_frees_the_turn() -> None:
    """The failure is the asker's; the next is answered."""
    turns = Turns()
    with pytest.raises(ZeroDivisionError):
        await turns.run(lambda: 1 / 0)
    assert await turns.run(lambda: 3) == 3
