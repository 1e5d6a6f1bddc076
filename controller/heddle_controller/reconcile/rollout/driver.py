"""The async shell around the core: it sends steps, waits for answers and writes facts.

Every event (an answer, a session that begins or ends, a new target, time) only wakes one
loop, which then evaluates everything again. So no event is handled in the middle of
another, and a lost event costs no more than the wait for the next one.

Facts are written to the store by a task of their own, so that pushes of the next stage do
not wait for the disk. It always writes the results of the newest evaluation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from heddle_controller.model.fabric import Structure, no_fabric
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import (
    AgentGateway,
    AgentSession,
    Clock,
    Metric,
    Metrics,
    OperationFailure,
    Push,
    PushMode,
    PushReport,
)
from heddle_controller.reconcile.rollout.answers import (
    Answer,
    HeldState,
    first_ledger,
    is_small_step,
    may_hold,
    next_ledger,
)
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.presence import (
    PendingPush,
    Presence,
    Superseded,
    asked_of,
    believed,
    question,
    supersedes,
)
from heddle_controller.reconcile.rollout.report import (
    Evaluation,
    FactWriter,
    Inbox,
    Target,
    evaluate,
    in_doubt,
    is_quick,
    taken_in,
)
from heddle_controller.reconcile.rollout.steps import Step
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import Committed
from heddle_controller.store.store import Store

log = structlog.stdlib.get_logger(__name__)

STORE_RETRY = 1.0
"""Seconds until facts that the store could not take are written again."""

_SHARE = 0.2
"""Largest share of the time that evaluations may take while answers are due. Each one holds up the
event loop, and the answers of thousands of switches come one by one."""

TELL_AFTER = 0.05
"""Most seconds for which facts are not written while answers are due that will change them."""

AT_ONCE, PAUSE = 16, 0.001
"""Pushes that are handed over together, and the pause before the next ones, in seconds. An answer
to a client takes a dozen turns of the event loop, which should not all be full of pushes."""

LATE, MOST_PAUSES = 0.002, 8
"""A pause that ends this many seconds late shows that the event loop is busy with pushes or
acknowledgements, so another pause follows, up to this many pauses."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How patient a rollout is. All times are in seconds."""

    patience: float = 5.0
    """After so long, a switch that is away or silent holds up only the flows that need it."""
    linger: float = 0.02
    """How long the first of several answers waits for others, to be evaluated together."""
    retry_first: float = 1.0
    """Until an entry that failed is tried again; doubled each time."""
    retry_last: float = 60.0
    """The longest time until a failed entry is tried again."""


async def pause(clock: Clock, wake: asyncio.Event, ends: Sequence[float | None]) -> None:
    """Wait until ``wake`` is set or the earliest of ``ends``, which are monotonic times or None."""
    times = [end for end in ends if end is not None]
    waits: list[asyncio.Task[object]] = [asyncio.create_task(wake.wait())]
    if times:
        seconds = max(0.0, min(times) - clock.monotonic())
        waits.append(asyncio.create_task(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class Rollout:
    """Brings the newest plan of one fabric into its switches, for as long as an epoch lasts."""

    def __init__(
        self,
        fabric: str,
        epoch: int,
        followers: dict[str, int],
        *,
        store: Store,
        gateway: AgentGateway,
        clock: Clock,
        metrics: Metrics,
        settings: RolloutSettings,
    ) -> None:
        """``followers`` are the switches that were sent a push in this epoch.

        Each has the generation of the newest push. More are added here.
        """
        self._fabric = fabric
        self._epoch = epoch
        self._followers = followers
        self._store = store
        self._gateway = gateway
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._presence = Presence(settings.patience, clock.monotonic())
        self._reporter = FactWriter(fabric, epoch, store, clock, metrics)
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        """Set when no push is under way any more, or when there is another target."""
        self._under_way = 0
        self._looked = clock.monotonic()
        """When the last evaluation began. It knew of all that had ended by then."""
        self._look_seconds = 0.0
        """How long the last evaluation took."""
        self._deleted_at = 0
        """Generation that the deletion of the fabric took; 0 if it is not deleted."""
        self._next: Target | None = None
        self._target: Target | None = None
        self._ledger: Ledger | None = None
        self._met: Structure | None = None
        """Structure of the last look at all sessions; None if one began or ended since."""
        self._left_out: tuple[str, ...] = ()
        """Switches with a session that were not in the fabric then."""
        self._retry_delay = settings.retry_first
        self._retry_at: float | None = None
        self._newest: tuple[Evaluation, Target] | None = None
        self._news = asyncio.Event()
        """Set when there was an evaluation since facts were last written."""

    def aim(self, target: Target) -> None:
        """Roll out this plan from now on, in place of any other."""
        self._next = target
        self._wake.set()
        self._settled.set()

    def withdraw(self, generation: int) -> None:
        """From now on, have switches remove the entries of the fabric, because it was deleted.

        The deletion took this generation. A switch is told once in a session. If it fails, its
        agent comes again (``serve.agents``).
        """
        self._deleted_at = generation
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            Superseded: an agent has followed another leader, of this epoch or a newer one.
            StaleEpoch: the store has seen a newer epoch.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_sessions())
                tasks.create_task(self._work())
                tasks.create_task(self._tell())
        finally:
            for sent in self._presence.sent.values():
                sent.task.cancel()
            self._reporter.end()

    async def _follow_sessions(self) -> None:
        async for event in self._gateway.events():
            if event.session.fabric == self._fabric:
                self._met = None
                self._wake.set()

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            await self._adopt()
            if self._ledger is not None and self._target is not None:
                await self._round(self._ledger, self._target)
            elif self._deleted_at:
                sessions = self._gateway.sessions(self._fabric)
                self._withdraw(sessions.values(), self._deleted_at)
            await self._wait()

    def _withdraw(self, sessions: Iterable[AgentSession], generation: int) -> None:
        """Have switches that are in no fabric any more remove all their entries.

        ``generation`` is not below that of any plan that contained them.
        """
        none = no_entries()
        push = Push(
            mode=PushMode.FULL_SYNC,
            epoch=self._epoch,
            generation=generation,
            fabric=no_fabric(),
            sets=none,
            deletes=none,
            sweep_stale=True,
            completes_generation=True,
        )
        for session in sessions:
            if session.pushed:
                due = 0 < self._followers.get(session.switch, 0) < generation
            else:
                due = session.holds_entries_before(generation)
            if due and session.highest_epoch <= self._epoch:
                self._followers[session.switch] = generation
                answer = asyncio.ensure_future(self._gateway.push(session, push))
                answer.add_done_callback(_retrieve)  # nobody waits for it

    async def _adopt(self) -> None:
        """Make the next target the current one, if there is one."""
        target, self._next = self._next, None
        if target is None:
            return
        self._deleted_at = 0
        committed, ledger = target.committed, self._ledger
        if ledger is None:
            before = await self._before(committed)
            ledger = await asyncio.to_thread(first_ledger, committed, before)
            self._reporter.begin(ledger, target)
        elif ledger.generation != committed.generation:
            heard = self._collect()
            sent = [sent for sent in self._presence.sent.values() if not sent.obsolete]
            steps = [one.step for one in sent if one.step is not None]
            turn = partial(_turned, ledger, heard, committed, steps)
            quick = is_quick(ledger, heard) and is_small_step(ledger, committed, steps)
            turned = turn() if quick else await asyncio.to_thread(turn)
            ledger, doubtful = turned
            self._ask(ledger, doubtful)
            for one in sent:
                one.obsolete = one.step is not None
            self._reporter.begin(ledger, target)
            self._retry_at, self._retry_delay = None, self._settings.retry_first
        self._ledger, self._target = ledger, target

    async def _before(self, committed: Committed) -> list[Committed]:
        """Return older plans of which switches may hold entries, the oldest first."""
        before: list[Committed] = []
        generation = committed.generation - 1
        while generation > 0 and may_hold(committed, generation):  # 0 asks for the newest
            older = await self._store.committed(self._fabric, generation)
            if older is None:
                break
            before.insert(0, older)
            generation -= 1
        return before

    async def _round(self, ledger: Ledger, target: Target) -> None:
        """Evaluate everything once, send the pushes that are due, and report."""
        now = self._looked = self._clock.monotonic()
        heard = self._meet(self._collect(), ledger, now)
        fabric, presence, retry_at = ledger.fabric, self._presence, self._retry_at
        probe = partial(
            evaluate,
            ledger,
            heard,
            presence.switches(fabric, now),
            partial(presence.why_stuck, fabric, now, self._gateway.held_aside(self._fabric)),
            epoch=self._epoch,
            retry=retry_at is not None and now >= retry_at,
        )
        seen = probe() if is_quick(ledger, heard) else await asyncio.to_thread(probe)
        self._look_seconds = self._clock.monotonic() - now
        self._ledger = seen.ledger
        self._plan_retry(now, failing=seen.failing)
        self._ask(seen.ledger, seen.doubtful)
        await self._send(seen.pushes)
        if self._left_out and not seen.behind:  # nothing is sent to these switches any more
            sessions = self._gateway.sessions(self._fabric)
            left_out = [sessions[switch] for switch in self._left_out if switch in sessions]
            self._withdraw(left_out, ledger.generation)
        self._report(seen, target)

    def _collect(self) -> Inbox:
        """Return the answers that have come since the last call."""
        answers: list[Answer] = []
        lost: list[Step] = []
        told: list[HeldState] = []
        for sent in self._presence.answered():
            failures = sent.failures()
            if failures is not None:
                self._measure(sent, len(failures))
            if failures:
                self._log_refused(sent, failures)
            if sent.obsolete:
                continue
            if sent.step is None:
                told += [sent.told()] if failures is not None else []
            elif failures is None:
                lost.append(sent.step)
            else:
                answers.append((sent.step, failures))
        return Inbox(answers=answers, lost=lost, told=told)

    def _meet(self, heard: Inbox, ledger: Ledger, now: float) -> Inbox:
        """Return ``heard`` with sessions that began or were replaced, and ask the new ones.

        Raises:
            Superseded: the agent of a new session has followed another leader.
        """
        structure = ledger.fabric.structure
        new: list[AgentSession] = []
        if structure is not self._met:  # rare; there may be thousands of sessions
            self._met = structure
            sessions = self._gateway.sessions(self._fabric)
            present = {s: one for s, one in sessions.items() if self._believes(one)}
            new = self._presence.update(present, structure, now)
            self._left_out = tuple(s for s in present if s not in structure.index)
        for session in new:
            followed = session.switch in self._followers
            if supersedes(session.highest_epoch, self._epoch, followed=followed):
                raise Superseded(session, session.highest_epoch)
        gone = [sent.step for sent in self._presence.orphaned() if not sent.obsolete]
        asking = question(ledger, self._epoch)  # one for all, as there may be thousands
        for session in new:
            if asked_of(session, self._epoch):
                self._push(session, None, asking, now)
        orphans = [step for step in gone if step is not None]
        met = [HeldState(session) for session in new if not asked_of(session, self._epoch)]
        return replace(heard, orphans=orphans, met=met)

    def _believes(self, session: AgentSession) -> bool:
        """Return whether an agent can have seen the epoch it claims; if not, it is ignored."""
        if believed(session.highest_epoch, self._epoch):
            return True
        claim = session.highest_epoch
        log.warning("claims an epoch that no leader has had", switch=session.switch, claim=claim)
        return False

    def _plan_retry(self, now: float, *, failing: bool) -> None:
        """Plan when failures are to be forgotten; the delay doubles each time."""
        if not failing:
            self._retry_at = None
        elif self._retry_at is None:
            self._retry_at = now + self._retry_delay
        elif now >= self._retry_at:  # the last evaluation forgot them
            self._retry_at = None
            self._retry_delay = min(2 * self._retry_delay, self._settings.retry_last)

    def _ask(self, ledger: Ledger, sessions: Sequence[AgentSession]) -> None:
        """Ask agents for every entry that their switches hold."""
        now, asking = self._clock.monotonic(), question(ledger, self._epoch, entries=True)
        for session in sessions:
            self._push(session, None, asking, now)

    async def _send(self, pushes: Sequence[tuple[Step, Push]]) -> None:
        """Hand the pushes over, no faster than their sessions take them: there may be thousands.

        When another target arrives, the remaining pushes are not sent, as it may need others.
        """
        now, sessions = self._clock.monotonic(), self._presence.sessions
        for number, (step, push) in enumerate(pushes, 1):
            self._push(sessions[push.fabric.structure.nodes.ids[step.switch]], step, push, now)
            if number % AT_ONCE == 0:
                await self._taken()
                if self._next is not None:
                    return

    async def _taken(self) -> None:
        """Wait, up to a limit, until the event loop has processed what it was handed."""
        for _ in range(MOST_PAUSES):
            end = self._clock.monotonic() + PAUSE + LATE
            await self._clock.sleep(PAUSE)
            if self._clock.monotonic() < end:
                return

    def _push(self, session: AgentSession, step: Step | None, push: Push, now: float) -> None:
        self._followers[session.switch] = push.generation
        self._under_way += 1
        task = asyncio.ensure_future(self._gateway.push(session, push))
        task.add_done_callback(self._answered)
        self._presence.sent[session.switch] = PendingPush(session, step, push, now, task)

    def _answered(self, task: asyncio.Task[PushReport]) -> None:
        _retrieve(task)  # nobody may look at it once the epoch is over
        self._under_way -= 1
        if not self._under_way:
            self._settled.set()
        self._wake.set()

    def _measure(self, sent: PendingPush, failures: int) -> None:
        seconds = self._clock.monotonic() - sent.time
        self._metrics.count(Metric.PUSHES, self._fabric)
        self._metrics.count(Metric.OPERATIONS, self._fabric, sent.operations)
        self._metrics.count(Metric.OPERATION_FAILURES, self._fabric, failures)
        self._metrics.observe(Metric.PUSH_SECONDS, self._fabric, seconds)

    def _log_refused(self, sent: PendingPush, failures: Sequence[OperationFailure]) -> None:
        """Log how many operations of a push failed, and the first with its reason."""
        first = failures[0]
        log.warning(
            "entries refused",
            fabric=self._fabric,
            switch=sent.session.switch,
            generation=sent.push.generation,
            operations=sent.operations,
            failures=len(failures),
            entry=" ".join(map(str, sent.push.match(first.operation))),
            reason=first.reason.name,
            why=first.message,
        )

    def _report(self, seen: Evaluation, target: Target) -> None:
        """Update the metrics of the rollout, and have the facts written."""
        self._reporter.figures(target, behind=seen.behind, pending=seen.pending)
        self._newest = seen, target
        self._news.set()

    async def _tell(self) -> None:
        """Write the facts of the newest evaluation to the store, again and again."""
        while True:
            await self._news.wait()
            await self._hear_more()
            self._news.clear()
            assert self._newest is not None  # set before ``_news``
            seen, target = self._newest
            try:
                await self._reporter.programmed(seen.ledger)
                await self._reporter.jobs(target, seen.progress)
            except Unavailable:
                await self._clock.sleep(STORE_RETRY)
                self._news.set()

    async def _hear_more(self) -> None:
        """Wait briefly for later stages, because to write the facts of each would delay the next.

        No plan depends on these facts, and those of the last stage are written without delay.
        """
        clock = self._clock
        end = clock.monotonic() + TELL_AFTER
        while self._presence.busy(clock.monotonic()) and clock.monotonic() < end:
            self._news.clear()
            await pause(clock, self._news, [end])

    async def _wait(self) -> None:
        """Wait until something happens, and then a little longer for what comes with it."""
        clock = self._clock
        await pause(clock, self._wake, self._ends())
        now = clock.monotonic()
        rest = self._look_seconds * (1.0 / _SHARE - 1.0)
        if self._next is None and self._presence.busy(now):
            self._settled.clear()
            end = now + max(self._settings.linger, rest)
            await pause(clock, self._settled, [end, *self._ends()])

    def _ends(self) -> Sequence[float | None]:
        if self._ledger is None:
            return ()
        # Patience that has ended since the last evaluation calls for another one at once.
        patience = self._presence.next_end(self._ledger.fabric.structure, self._looked)
        return (patience, self._retry_at)


def _retrieve(task: asyncio.Future[PushReport]) -> None:
    """Mark the error of a push as retrieved."""
    if not task.cancelled():
        task.exception()


def _turned(
    ledger: Ledger, heard: Inbox, committed: Committed, under_way: Sequence[Step]
) -> tuple[Ledger, list[AgentSession]]:
    """Take in ``heard``; return the ledger of a newer plan, and sessions to ask for entries."""
    ledger = taken_in(ledger, heard)
    return next_ledger(ledger, committed, under_way), in_doubt(ledger, heard)
