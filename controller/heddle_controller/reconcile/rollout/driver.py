"""The async shell around the core: sends steps, waits for answers, has facts told.

Whatever happens (an answer, a session that begins or ends, a new target, time) only
wakes one loop, which then looks at everything again. So no event is handled in the
middle of another, and one that is lost costs no more than a wait for the next.

What the store is told goes another way: pushes of the next stage do not wait until the
disk has taken what became of the last. It is always told of the newest look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heddle_controller.model.fabric import Structure
from heddle_controller.reconcile.errors import Unavailable
from heddle_controller.reconcile.metrics import Metric
from heddle_controller.reconcile.ports import AgentGateway, Clock, Metrics, Store
from heddle_controller.reconcile.records import Committed
from heddle_controller.reconcile.rollout.aims import first_ledger, may_hold, next_ledger
from heddle_controller.reconcile.rollout.answers import Answer, acknowledged, unanswered
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.presence import Presence
from heddle_controller.reconcile.rollout.progress import JobProgress, job_progress
from heddle_controller.reconcile.rollout.pushes import (
    EPOCH_LIMIT,
    Outrun,
    Sent,
    asked_of,
    question,
)
from heddle_controller.reconcile.rollout.report import Reporter
from heddle_controller.reconcile.rollout.sessions import introduced
from heddle_controller.reconcile.rollout.steps import Agenda, Step, Switches, agenda, steps_of
from heddle_controller.reconcile.rollout.target import RolloutSettings, Target
from heddle_controller.reconcile.southbound import AgentSession, Push, PushReport
from heddle_controller.reconcile.waiting import pause

STORE_RETRY = 1.0
"""Seconds until facts that the store could not take are written again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What was seen when everything was last looked at."""

    ledger: Ledger
    target: Target
    progress: dict[str, JobProgress]


class Rollout:
    """Brings one fabric's newest plan into its switches for as long as an epoch lasts."""

    def __init__(
        self,
        fabric: str,
        epoch: int,
        *,
        store: Store,
        gateway: AgentGateway,
        clock: Clock,
        metrics: Metrics,
        settings: RolloutSettings,
    ) -> None:
        self._fabric = fabric
        self._epoch = epoch
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._presence = Presence(settings.patience, clock.monotonic())
        self._reporter = Reporter(fabric, epoch, store, clock, metrics)
        self._wake = asyncio.Event()
        self._next: Target | None = None
        self._target: Target | None = None
        self._ledger: Ledger | None = None
        self._met: tuple[Mapping[str, AgentSession], Structure | None] = {}, None
        """Sessions as they were looked through last, and the switches that were asked for."""
        self._retry_delay = settings.retry_first
        self._retry_at: float | None = None
        self._look: _Look | None = None
        self._news = asyncio.Event()
        """There was another look since the store was last told."""

    def aim(self, target: Target) -> None:
        """Make this the plan to bring about, in place of any other."""
        self._next = target
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            Outrun: an agent has followed a newer leader.
            StaleEpoch: so has the store.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_sessions())
                tasks.create_task(self._work())
                tasks.create_task(self._tell())
        finally:
            for sent in self._presence.sent.values():
                sent.task.cancel()

    async def _follow_sessions(self) -> None:
        async for event in self._gateway.events():
            if event.session.fabric == self._fabric:
                self._wake.set()

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            await self._adopt()
            if self._ledger is not None and self._target is not None:
                self._round(self._ledger, self._target)
            await self._wait()

    async def _adopt(self) -> None:
        """Turn to the next target, if there is one."""
        target, self._next = self._next, None
        if target is None:
            return
        committed, ledger = target.committed, self._ledger
        if ledger is None:
            before = await self._before(committed)
            ledger = await asyncio.to_thread(first_ledger, committed, before)
            self._reporter.begin(ledger, target)
        elif ledger.generation != committed.generation:
            ledger = self._collect(ledger)
            sent = [sent for sent in self._presence.sent.values() if not sent.obsolete]
            steps = [one.step for one in sent if one.step is not None]
            ledger = await asyncio.to_thread(next_ledger, ledger, committed, steps)
            for one in sent:
                one.obsolete = one.step is not None
            self._reporter.begin(ledger, target)
            self._retry_at, self._retry_delay = None, self._settings.retry_first
        self._ledger, self._target = ledger, target

    async def _before(self, committed: Committed) -> list[Committed]:
        """Plans older than the newest that switches may hold entries of, the oldest first."""
        before: list[Committed] = []
        generation = committed.generation - 1
        while generation > 0 and may_hold(committed, generation):  # 0 asks for the newest
            older = await self._store.committed(self._fabric, generation)
            if older is None:
                break
            before.insert(0, older)
            generation -= 1
        return before

    def _round(self, ledger: Ledger, target: Target) -> None:
        """Look at everything once, and do what is to be done."""
        now = self._clock.monotonic()
        ledger = self._meet(self._collect(ledger), now)
        ledger = self._tried_again(ledger, now)
        switches = self._presence.switches(ledger.fabric, now)
        due = agenda(ledger, switches.stuck)
        for step in steps_of(ledger, due, switches):
            self._send(ledger, step, now)
        self._ledger = ledger
        self._report(ledger, target, due, switches, now)

    def _collect(self, ledger: Ledger) -> Ledger:
        """Take in the answers that have come."""
        answers: list[Answer] = []
        lost: list[Step] = []
        told: list[AgentSession] = []
        for sent in self._presence.answered():
            failures = sent.failures()
            if failures is not None:
                self._measure(sent, len(failures))
            if sent.obsolete:
                continue
            if sent.step is None:
                told += [sent.told()] if failures is not None else []
            elif failures is None:
                lost.append(sent.step)
            else:
                answers.append((sent.step, failures))
        ledger = acknowledged(ledger, answers) if answers else ledger
        ledger = unanswered(ledger, lost) if lost else ledger
        return self._introduced(ledger, told)

    def _introduced(self, ledger: Ledger, sessions: Sequence[AgentSession]) -> Ledger:
        """Take in what switches say that they hold."""
        index = ledger.fabric.structure.index
        known = [(index[one.switch], one) for one in sessions if one.switch in index]
        return introduced(ledger, known) if known else ledger

    def _meet(self, ledger: Ledger, now: float) -> Ledger:
        """Take in who has come and gone."""
        structure = ledger.fabric.structure
        sessions = self._gateway.sessions(self._fabric)
        if sessions == self._met[0] and structure is self._met[1]:
            new: list[AgentSession] = []  # nearly always, and there may be thousands
        else:
            present = {s: one for s, one in sessions.items() if one.highest_epoch < EPOCH_LIMIT}
            new = self._presence.update(present, structure, now)
            self._met = sessions, structure
        for session in new:
            if session.highest_epoch > self._epoch:
                raise Outrun(session.switch, session.highest_epoch)
        gone = [sent.step for sent in self._presence.orphaned() if not sent.obsolete]
        orphans = [step for step in gone if step is not None]
        ledger = unanswered(ledger, orphans) if orphans else ledger
        for session in new:
            if asked_of(session, self._epoch):
                self._push(session, None, question(ledger, self._epoch), now)
        return self._introduced(ledger, [s for s in new if not asked_of(s, self._epoch)])

    def _tried_again(self, ledger: Ledger, now: float) -> Ledger:
        """Forget failures once the time has come, later each time."""
        failing = ledger.failed.any() or ledger.undeletable.any()
        if not failing:
            self._retry_at = None
        elif self._retry_at is None:
            self._retry_at = now + self._retry_delay
        elif now >= self._retry_at:
            self._retry_at = None
            self._retry_delay = min(2 * self._retry_delay, self._settings.retry_last)
            return ledger.retried()
        return ledger

    def _send(self, ledger: Ledger, step: Step, now: float) -> None:
        sets, deletes = step.entries(ledger)
        push = Push(
            mode=step.mode,
            epoch=self._epoch,
            generation=ledger.generation,
            fabric=ledger.fabric,
            sets=sets,
            deletes=deletes,
            sweep_stale=step.sweep,
            completes_generation=step.completes,
        )
        session = self._presence.sessions[ledger.fabric.structure.nodes.ids[step.switch]]
        self._push(session, step, push, now)

    def _push(self, session: AgentSession, step: Step | None, push: Push, now: float) -> None:
        task = asyncio.ensure_future(self._gateway.push(session, push))
        task.add_done_callback(self._answered)
        self._presence.sent[session.switch] = Sent(session, step, push, now, task)

    def _answered(self, task: asyncio.Task[PushReport]) -> None:
        if not task.cancelled():
            task.exception()  # taken here: the epoch may be over, and nobody look any more
        self._wake.set()

    def _measure(self, sent: Sent, failures: int) -> None:
        seconds = self._clock.monotonic() - sent.time
        self._metrics.count(Metric.PUSHES, self._fabric)
        self._metrics.count(Metric.OPERATIONS, self._fabric, sent.operations)
        self._metrics.count(Metric.OPERATION_FAILURES, self._fabric, failures)
        self._metrics.observe(Metric.PUSH_SECONDS, self._fabric, seconds)

    def _report(
        self, ledger: Ledger, target: Target, due: Agenda, switches: Switches, now: float
    ) -> None:
        """Measure how far things are, and have it told."""
        why = self._presence.why_stuck(ledger.fabric, now) if len(due.blocked) else {}
        progress = job_progress(ledger, due, switches.stuck, why)
        self._reporter.figures(ledger, target, pending=len(due.pending) > 0)
        self._look = _Look(ledger, target, progress)
        self._news.set()

    async def _tell(self) -> None:
        """Tell the store of the newest look, again and again."""
        while True:
            await self._news.wait()
            self._news.clear()
            look = self._look
            assert look is not None  # it is what the news are
            try:
                await self._reporter.programmed(look.ledger)
                await self._reporter.jobs(look.target, look.progress)
            except Unavailable:
                await self._clock.sleep(STORE_RETRY)
                self._news.set()

    async def _wait(self) -> None:
        """Until something happens; then a little longer, for what comes with it."""
        clock = self._clock
        await pause(clock, self._wake, self._ends())
        end = clock.monotonic() + self._settings.linger
        while self._next is None and self._presence.busy(clock.monotonic()):
            if clock.monotonic() >= end:
                return
            self._wake.clear()
            await pause(clock, self._wake, [end])

    def _ends(self) -> Sequence[float | None]:
        if self._ledger is None:
            return ()
        structure = self._ledger.fabric.structure
        patience = self._presence.next_end(structure, self._clock.monotonic())
        return (patience, self._retry_at)
