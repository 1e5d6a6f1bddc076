"""Planning processes, and the controller's ends of the pipes to them.

A process has one question under way at a time, and others wait for their turn. The caller awaits
the answer without blocking the event loop. A process that ends or hangs is replaced. The mirrors of
the new one begin empty, so that it is sent everything again. A plan is then requested once more. A
question is not, because it may be what ended the process.

A process that owes an answer *hangs* in two cases. It has neither used nor wanted the processor for
``silence`` seconds, as it was stopped or waits for something that never comes. Or it has not
answered after ``patience`` seconds, and as long again for every ``FLOWS`` flows. So a slow machine
is waited for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import structlog

from heddle_controller.model.job import Iteration, Job
from heddle_controller.model.plan import Certificate, Objective, Plan, Turn
from heddle_controller.place.ask import Choices, PlacementAsk
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import (
    PlanAnswer,
    PlannerLost,
    PlanningFailed,
    Trial,
    WhatIf,
)
from heddle_controller.planner.protocol import (
    FabricMirror,
    Failed,
    Question,
    Unpacker,
    ask,
    packed,
    received,
    restored,
)
from heddle_controller.state.records import Intent

log = structlog.stdlib.get_logger(__name__)

FLOWS = 25_000
"""Number of flows for each of which multiples an answer may take another ``patience``."""
_LOOKS = 4
"""How often within ``silence`` the process is checked for work.

These checks are counted, not the seconds, because a machine may halt this process for longer.
"""
_TRIES = 2
"""How many processes, one after another, are asked for one plan."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Time limits of a planning process, in seconds."""

    solve: float = 30.0
    """Limit of one run of the solver."""
    silence: float = 5.0
    """How long a process that owes an answer may neither use nor want the processor."""
    patience: float = 60.0
    """How long an answer about few flows may take."""


@dataclass(slots=True)
class _Running:
    """One process, our end of its pipe, and the mirrors of what it knows, by fabric."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    unpacker: Unpacker = field(default_factory=Unpacker)
    mirrors: dict[str, FabricMirror] = field(default_factory=dict)


class PlanningProcess:
    """A ``Planner`` that has its answers computed by another process."""

    def __init__(
        self, name: str, limits: ProcessLimits | None = None, objective: Objective = "headroom"
    ) -> None:
        """``name`` identifies the process in logs; ``objective`` is the objective of plans."""
        self._name, self._objective = name, objective
        self._limits = limits or ProcessLimits()
        self._running: _Running | None = None
        self._turn = asyncio.Lock()
        self._exchange: asyncio.Task[Any] | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """Id of the current process; 0 if there is none."""
        return self._running.process.pid if self._running is not None else 0

    @property
    def idle(self) -> bool:
        """Whether a question would be asked at once; false while another is under way."""
        return not self._turn.locked()

    def start(self) -> None:
        """Start the process, so that the first question does not wait for that."""
        if self._running is None:
            self._running = self._begun()

    async def plan(
        self, intent: Intent, standing: Plan | None, newest: Plan | None = None
    ) -> PlanAnswer:
        """Implement ``Planner.plan``."""
        given = {"standing": standing, "intent": intent, "newest": newest}
        found: PlanAnswer = await self._ask("plan", intent.name, **given)
        return found

    async def prepare(self, fabric: str, standing: Plan) -> None:
        """Implement ``Planner.prepare``."""
        await self._ask("prepare", fabric, fabric=fabric, standing=standing)

    async def certify(self, fabric: str, standing: Plan) -> Certificate:
        """Implement ``Planner.certify``."""
        found: Certificate = await self._ask("certify", fabric, fabric=fabric, standing=standing)
        return found

    async def reoptimise(
        self, fabric: str, standing: Plan, worth_moving: float
    ) -> Planned | Certificate | None:
        """Implement ``Planner.reoptimise``."""
        given = {"fabric": fabric, "standing": standing, "worth_moving": worth_moving}
        found: Planned | Certificate | None = await self._ask("reoptimise", fabric, **given)
        return found

    async def turns(
        self, fabric: str, standing: Plan, iterations: Sequence[Iteration]
    ) -> tuple[Turn, ...]:
        """Implement ``Planner.turns``."""
        given = {"standing": standing, "iterations": tuple(iterations)}
        found: tuple[Turn, ...] = await self._ask("turns", fabric, **given)
        return found

    async def what_if(self, intent: Intent, supposed: Intent, standing: Plan | None) -> WhatIf:
        """Implement ``Planner.what_if``."""
        given = {"standing": standing, "intent": intent, "supposed": supposed}
        found: WhatIf = await self._ask("what_if", intent.name, **given)
        return found

    async def choose(self, intent: Intent, ask: PlacementAsk, standing: Plan | None) -> Choices:
        """Implement ``Planner.choose``."""
        given = {"standing": standing, "intent": intent, "ask": ask}
        found: Choices = await self._ask("choose", intent.name, **given)
        return found

    async def try_job(
        self,
        intent: Intent,
        job: Job,
        standing: Plan | None,
        *,
        settled: bool = False,
        hasty: bool = False,
    ) -> Trial:
        """Implement ``Planner.try_job``."""
        how = {"settled": settled, "hasty": hasty}
        given = {"standing": standing, "intent": intent, "job": job, **how}
        found: Trial = await self._ask("try_job", intent.name, **given)
        return found

    async def close(self) -> None:
        """End the process. Callers that wait for an answer get ``PlannerLost``."""
        self._closed = True
        exchange, running = self._exchange, self._running
        if exchange is not None and running is not None:
            running.process.kill()  # this closes the other end of the pipe, so the exchange ends
            await asyncio.wait([exchange])
        await self._end("was ended")

    async def _ask(self, method: str, about: str, **given: object) -> Any:  # noqa: ANN401 - as the core
        """Wait for the turn, call a method of the core with ``given``, and return its answer.

        ``about`` is the fabric. ``standing`` comes first in ``given``, because what follows is
        mostly like it, and the mirror sends only differences. A cancelled caller returns at once,
        but an exchange that has begun goes on to its end.
        """
        await self._turn.acquire()
        standing = given["standing"]
        flows = len(standing.flows) if isinstance(standing, Plan) else 0
        patience = self._limits.patience * (1 + flows / FLOWS)
        tries = _TRIES if method in {"plan", "prepare"} else 1
        exchange = asyncio.create_task(self._exchanged(method, about, given, patience, tries))
        self._exchange = exchange
        exchange.add_done_callback(self._over)
        return await asyncio.shield(exchange)

    def _over(self, exchange: asyncio.Task[Any]) -> None:
        self._exchange = None
        self._turn.release()
        if not exchange.cancelled():
            exchange.exception()  # retrieved here, because the caller may be gone

    async def _exchanged(
        self, method: str, about: str, given: Mapping[str, object], patience: float, tries: int
    ) -> Any:  # noqa: ANN401 - as the core
        for left in range(tries - 1, -1, -1):
            running = await self._ready()
            mirror = running.mirrors.setdefault(about, FabricMirror())
            try:
                asked = ask(mirror, method, about, given)
                answer = await self._unless_hung(self._answer_to(asked), patience)
                if not isinstance(answer, Failed):
                    return restored(mirror, answer)
            except TimeoutError as error:
                await self._end(str(error))
                if not left:
                    raise PlannerLost(str(error)) from error
            except OSError as error:
                await self._end(f"ended: {error}")
                if not left:
                    raise PlannerLost("has ended") from error
            except BaseException:
                await self._end("was left in the middle of an answer")
                raise
            else:
                raise PlanningFailed(answer.reason)
        raise AssertionError("the last try returns or raises")

    async def _ready(self) -> _Running:
        """Return a process to ask. One that has ended since the last answer is replaced.

        Raises:
            PlannerLost: it was closed.
        """
        if self._running is not None and self._running.process.poll() is not None:
            await self._end("had ended")
        if self._closed:
            raise PlannerLost("was ended")
        self.start()
        assert self._running is not None  # just started
        return self._running

    async def _send(self, question: Question) -> None:
        assert self._running is not None  # started by the caller
        end, loop = self._running.end, asyncio.get_running_loop()
        data, file = packed(tuple(question))
        try:
            sent = socket.send_fds(end, [data], [] if file is None else [file])
        finally:
            if file is not None:
                os.close(file)
        if sent < len(data):
            await loop.sock_sendall(end, memoryview(data)[sent:])

    async def _answer_to(self, question: Question) -> Any:  # noqa: ANN401 - packed
        """Send a question and return the packed answer.

        Raises:
            ConnectionError: the process has closed the pipe.
        """
        await self._send(question)
        running = self._running
        assert running is not None  # started by the caller
        while (found := running.unpacker.message()) is None:
            await _readable(running.end)
            if not received(running.end, running.unpacker):
                raise ConnectionError("the pipe is closed")
        return found[0]

    async def _unless_hung(self, work: Coroutine[Any, Any, _Answer], patience: float) -> _Answer:
        """Wait for a whole exchange, since a process that hangs may not even take the question.

        Raises:
            ConnectionError: the process has ended.
            TimeoutError: the process hangs.
        """
        assert self._running is not None  # started by the caller
        pid, begun = self._running.process.pid, time.monotonic()
        worked, idle_looks = -1.0, 0
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=self._limits.silence / _LOOKS))[0]:
                work_done = processor_seconds(pid)
                worked_since = work_done > worked or _wants_to_work(pid)
                worked, idle_looks = work_done, 0 if worked_since else idle_looks + 1
                if idle_looks >= _LOOKS:
                    raise TimeoutError(f"did nothing for {self._limits.silence:g} s")
                if (waited := time.monotonic() - begun) >= patience:
                    raise TimeoutError(f"has not answered for {waited:.0f} s")
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _begun(self) -> _Running:
        """Start a new process."""
        mine, its = socket.socketpair()
        mine.setblocking(False)
        arguments = (
            str(its.fileno()),
            str(self._limits.solve),
            self._objective,
            str(os.getpid()),
        )
        with its:
            process = subprocess.Popen(  # noqa: S603 - this very program
                [sys.executable, "-P", "-m", "heddle_controller.planner.core", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                process_group=0,  # Ctrl-C is for the controller, which ends this process
            )
        log.debug("planning process started", planner=self._name, pid=process.pid)
        return _Running(process, mine)

    async def _end(self, why: str) -> None:
        """End the process, if there is one."""
        running, self._running = self._running, None
        if running is None:
            return
        if not self._closed:
            log.warning("planning process replaced", planner=self._name, why=why)
        running.end.close()
        running.unpacker.close()
        running.process.kill()
        await asyncio.to_thread(running.process.wait)


class Advisors:
    """An ``Advisor`` made of several processes, which may have other work too.

    A question goes to the first process that is idle. If there is none, it waits for the first.
    """

    def __init__(self, processes: Sequence[PlanningProcess]) -> None:
        """The first process should be one that has only questions to answer."""
        self._processes = tuple(processes)

    async def prepare(self, fabric: str, standing: Plan) -> None:
        """Implement ``Advisor.prepare``, in all processes at once."""
        preparing = [process.prepare(fabric, standing) for process in self._processes]
        await asyncio.gather(*preparing)

    async def what_if(self, intent: Intent, supposed: Intent, standing: Plan | None) -> WhatIf:
        """Implement ``Advisor.what_if``."""
        return await self._next().what_if(intent, supposed, standing)

    async def choose(self, intent: Intent, ask: PlacementAsk, standing: Plan | None) -> Choices:
        """Implement ``Advisor.choose``."""
        return await self._next().choose(intent, ask, standing)

    async def try_job(
        self,
        intent: Intent,
        job: Job,
        standing: Plan | None,
        *,
        settled: bool = False,
        hasty: bool = False,
    ) -> Trial:
        """Implement ``Advisor.try_job``."""
        process = self._next()
        return await process.try_job(intent, job, standing, settled=settled, hasty=hasty)

    def _next(self) -> PlanningProcess:
        first, *others = self._processes
        return next((process for process in (first, *others) if process.idle), first)


async def _readable(end: socket.socket) -> None:
    """Wait until there is something to read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(end, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(end)


def _wants_to_work(pid: int) -> bool:
    """Return whether a thread of a process is ready to run or waits for a disk: it is not hung."""
    try:
        return any(_wants(thread) for thread in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False


def _wants(thread: Path) -> bool:
    try:
        stat = (thread / "stat").read_text(encoding="utf-8")
    except OSError:  # it has just ended
        return False
    return stat.rpartition(")")[2].split()[0] in {"R", "D"}


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, seconds; 0 if it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid does for a process
    except OSError:
        return 0.0
