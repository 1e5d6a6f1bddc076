"""One evaluation of a rollout, the progress of jobs, and the facts that the leader writes.

An evaluation takes in what was heard, finds what is due, makes the pushes, and reads the progress
of each job from the ledger. It is pure, so that the driver can run it in a thread where a whole
plan is rolled out to thousands of switches. ``FactWriter`` writes facts to the store and figures to
the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heddle.text import counted
from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import Structure
from heddle_controller.reconcile.ports import AgentSession, Clock, Metric, Metrics, Push
from heddle_controller.reconcile.rollout.answers import (
    Answer,
    HeldState,
    acknowledged,
    introduced,
    to_ask,
    unanswered,
)
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.paths import flows_between
from heddle_controller.reconcile.rollout.steps import (
    Agenda,
    Step,
    Switches,
    agenda,
    operations_of,
    steps_of,
)
from heddle_controller.state.records import Committed, JobFacts, JobRecord, JobState, Programmed
from heddle_controller.store.store import Store

QUICK = 256
"""Entries to set or delete, up to which an evaluation runs on the event loop."""


@dataclass(frozen=True, slots=True)
class Inbox:
    """What has come since the last evaluation; steps belong to the ledger that takes it in."""

    answers: Sequence[Answer] = ()
    """Steps that were answered, with their failures."""
    lost: Sequence[Step] = ()
    """Steps whose sessions ended before an answer."""
    told: Sequence[HeldState] = ()
    """Answers of switches to questions."""
    orphans: Sequence[Step] = ()
    """Steps that were sent to sessions which newer ones have replaced."""
    met: Sequence[HeldState] = ()
    """New sessions whose introduction can be believed without a question."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The result of an evaluation."""

    ledger: Ledger
    """The ledger with all that was heard, and with failures forgotten if that was asked for."""
    failing: bool
    """Whether anything had failed, before any of it was forgotten."""
    pushes: Sequence[tuple[Step, Push]]
    """The pushes to send now."""
    progress: Mapping[str, JobProgress]
    """The progress of each job that has flows, by name."""
    pending: bool
    """Whether any pair does not have its new path yet."""
    doubtful: Sequence[AgentSession]
    """Sessions to ask for every entry."""
    behind: int
    """Number of switches with entries, wanted or not, that have not acknowledged the whole plan.

    One without any link left forwards nothing, so entries that it still holds do not count."""


def is_quick(ledger: Ledger, heard: Inbox) -> bool:
    """Return whether an evaluation is too quick to be worth a thread, as after a loss."""
    if heard.told or heard.met:  # whole tables are compared in this case
        return False
    return int(np.count_nonzero(~ledger.ok)) + len(ledger.old) <= QUICK


def taken_in(ledger: Ledger, heard: Inbox) -> Ledger:
    """Return the ledger after all that was heard."""
    ledger = acknowledged(ledger, heard.answers) if heard.answers else ledger
    ledger = unanswered(ledger, heard.lost)
    ledger = introduced(ledger, heard.told) if heard.told else ledger
    ledger = unanswered(ledger, heard.orphans)
    return introduced(ledger, heard.met) if heard.met else ledger


def in_doubt(ledger: Ledger, heard: Inbox) -> list[AgentSession]:
    """Return sessions to ask for every entry; ``ledger`` has already taken in ``heard``."""
    return to_ask(ledger, [*heard.told, *heard.met])


def evaluate(
    ledger: Ledger,
    heard: Inbox,
    switches: Switches,
    why_stuck: Callable[[], Mapping[int, str]],
    *,
    epoch: int,
    retry: bool,
) -> Evaluation:
    """Evaluate everything once.

    Args:
        ledger: As the last evaluation left it.
        heard: What has come since then.
        switches: What can be expected of each switch.
        why_stuck: Returns in words why switches are stuck, by node row. Called only if a pair is
            blocked.
        epoch: The epoch of the pushes.
        retry: Whether to try again what has failed.
    """
    ledger = taken_in(ledger, heard)
    failing = bool(ledger.failed.any() or ledger.undeletable.any())
    if failing and retry:
        ledger = ledger.retried()
    doubtful = in_doubt(ledger, heard)
    switches = switches.asking([ledger.fabric.structure.index[one.switch] for one in doubtful])
    due = agenda(ledger, switches.stuck)
    steps = steps_of(ledger, due, switches)
    why = why_stuck() if len(due.blocked) else {}
    concerned = np.zeros(ledger.fabric.node_count, dtype=np.bool_)
    concerned[ledger.old.switch[ledger.present]] = True
    concerned &= ledger.fabric.connected
    concerned[ledger.target.switch] = True
    behind = np.count_nonzero(ledger.knowledge.generation[concerned] != ledger.generation)
    return Evaluation(
        ledger=ledger,
        failing=failing,
        pushes=pushes_of(ledger, steps, epoch),
        progress=job_progress(ledger, due, switches.stuck, why),
        pending=len(due.pending) > 0,
        doubtful=doubtful,
        behind=int(behind),
    )


def pushes_of(ledger: Ledger, steps: Sequence[Step], epoch: int) -> list[tuple[Step, Push]]:
    """Return the push of each step."""
    return [
        (
            step,
            Push(
                mode=step.mode,
                epoch=epoch,
                generation=ledger.generation,
                fabric=ledger.fabric,
                sets=sets,
                deletes=deletes,
                sweep_stale=step.sweep,
                completes_generation=step.completes,
            ),
        )
        for step, (sets, deletes) in zip(steps, operations_of(ledger, steps), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far the switches have the paths of a job's flows."""

    state: JobState
    reason: str
    flow_count: int
    unrouted_count: int


NO_FLOWS = JobProgress(JobState.PROGRAMMED, "", 0, 0)
"""Progress of a job that sends nothing over the fabric."""
SUSPENDED = JobProgress(JobState.SUSPENDED, "", 0, 0)
"""Progress of a job that is suspended."""


def job_progress(
    ledger: Ledger, due: Agenda, stuck: Bools, why_stuck: Mapping[int, str]
) -> dict[str, JobProgress]:
    """Return the progress of each job that has flows in the plan, by name.

    Args:
        ledger: The state of the rollout.
        due: The agenda of the ledger.
        stuck: Whether each switch is stuck, shape (nodes,).
        why_stuck: Why stuck switches are stuck, in words, by node row.
    """
    plan, flows = ledger.plan, ledger.plan.flows
    jobs = len(flows.job_names)
    total = np.bincount(flows.job, minlength=jobs)
    lost = np.array(list(plan.unrouted), dtype=np.int64)
    unrouted = np.bincount(flows.job[lost], minlength=jobs)
    blocked, pair = flows_between(plan, due.blocked)
    held_up = np.bincount(flows.job[blocked], minlength=jobs)
    going = np.bincount(flows.job[flows_between(plan, due.pending)[0]], minlength=jobs)
    first_lost = _first_of(flows.job[lost], jobs)
    first_blocked = _first_of(flows.job[blocked], jobs)
    progress = {}
    for job, name in enumerate(flows.job_names):
        reasons = []
        if unrouted[job]:
            row = int(lost[first_lost[job]])
            flows_told = counted(int(unrouted[job]), "flow")
            first_told = f"{flows.ids[row]}: {plan.unrouted[row]}"
            reasons.append(f"{flows_told} without a path: {first_told}")
        if held_up[job]:
            first = int(due.blocked[pair[first_blocked[job]]])
            reason = _why(ledger, first, stuck, why_stuck)
            flows_told = counted(int(held_up[job]), "flow")
            reasons.append(f"{flows_told} not programmed as planned: {reason}")
        state = JobState.DEGRADED if reasons else JobState.PROGRAMMED
        if not reasons and going[job]:
            state = JobState.PLANNED
        progress[name] = JobProgress(state, "; ".join(reasons), int(total[job]), int(unrouted[job]))
    return progress


def _first_of(column: Ints, count: int) -> Ints:
    """Return the first place of each number below ``count`` in a column, 0 if it is absent."""
    found = np.zeros(count, dtype=np.int64)
    found[column[::-1]] = np.arange(len(column) - 1, -1, -1)
    return found


def _why(ledger: Ledger, pair: int, stuck: Bools, why_stuck: Mapping[int, str]) -> str:
    """Return in words what holds up a blocked pair: a failed entry or a stuck switch."""
    wanted = np.flatnonzero((ledger.pair == pair) & ~ledger.ok)
    for row in wanted[ledger.failed[wanted]].tolist():
        failure = ledger.reasons[row]
        switch = ledger.fabric.structure.nodes.ids[int(ledger.desired.switch[row])]
        words = f": {failure.message}" if failure.message else ""
        return f"switch {switch}: {failure.reason.name}{words}"
    standing = np.flatnonzero((ledger.old_pair == pair) & ledger.present)
    around = np.concatenate([ledger.desired.switch[wanted], ledger.old.switch[standing]])
    for away in around[stuck[around]].tolist():
        return why_stuck[away]
    switch = ledger.fabric.structure.nodes.ids[int(ledger.old.switch[standing[0]])]
    return f"switch {switch} could not delete an entry that is in the way"


@dataclass(frozen=True, slots=True)
class Account:
    """The jobs of a fabric, and what is to be reported of them besides their progress."""

    generation: int = 0
    """Generation of the newest plan; 0 for none."""
    jobs: tuple[JobRecord, ...] = ()
    """Jobs that the plan contains."""
    others: tuple[JobRecord, ...] = ()
    """Jobs that the plan does not contain."""
    refused: tuple[tuple[str, str], ...] = ()
    """Jobs and demand sets that no plan can hold, and why; see ``PlanAnswer``."""
    trouble: str = ""
    """Why planning failed; empty if it did not."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A committed plan to roll out, and the jobs to report on."""

    committed: Committed
    account: Account = Account()
    since: float | None = None
    """When the change that led to this plan was made, Unix seconds; None to measure no time."""


class FactWriter:
    """Writes facts to the store, and only new ones. A write that failed is repeated next time."""

    def __init__(
        self, fabric: str, epoch: int, store: Store, clock: Clock, metrics: Metrics
    ) -> None:
        self._fabric = fabric
        self._epoch = epoch
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._told: dict[str, JobFacts] = {}
        self._generation = 0
        self._reached: Ints = np.zeros(0, dtype=np.int64)
        """The generation that each node holds, as far as the store knows, shape (nodes,)."""
        self._time = 0.0
        """When a switch with wanted entries last came to hold the generation, Unix seconds."""
        self._complete = False

    def begin(self, ledger: Ledger, target: Target) -> None:
        """Start over for another plan, from what the store knows of its switches."""
        index, held = ledger.fabric.structure.index, target.committed.programmed
        self._reached = np.full(ledger.fabric.node_count, held.generation, dtype=np.int64)
        for switch, generation in held.others.items():
            if switch in index:
                self._reached[index[switch]] = generation
        self._generation, self._time = target.committed.generation, held.time
        self._complete = False

    async def programmed(self, ledger: Ledger) -> None:
        """Write which switches have come to hold the generation, if it is still the newest."""
        if ledger.generation != self._generation:
            return
        reached = self._reached  # another plan may begin before the store has answered
        new = (ledger.knowledge.generation == ledger.generation) & (reached != ledger.generation)
        if not new.any():
            return
        first = not (reached == ledger.generation).any()
        if first or new[ledger.target.switch].any():
            self._time = self._clock.now()
        told = np.where(new, ledger.generation, reached)
        programmed = _told(told, ledger.fabric.structure, self._time)
        await self._store.record_programmed(self._fabric, epoch=self._epoch, programmed=programmed)
        reached[new] = ledger.generation

    async def jobs(self, target: Target, progress: Mapping[str, JobProgress]) -> None:
        """Write how far jobs have come."""
        account = target.account
        facts = job_facts(account, progress, self._told, self._clock.now())
        if facts:
            await self._store.record_jobs(self._fabric, epoch=self._epoch, facts=facts)
            self._told |= facts
        known = {record.job.name for record in (*account.jobs, *account.others)}
        self._told = {name: fact for name, fact in self._told.items() if name in known}

    def figures(self, target: Target, *, behind: int, pending: bool) -> None:
        """Update the metrics: switches that are behind and, at the end, the time it took.

        Args:
            target: What is rolled out.
            behind: Number of switches that have not acknowledged the whole plan.
            pending: Whether any pair does not have its new path yet.
        """
        self._metrics.set(Metric.PENDING_SWITCHES, self._fabric, float(behind))
        if pending or self._complete:
            return
        self._complete = True
        if target.since is not None:
            seconds = max(0.0, self._clock.now() - target.since)
            self._metrics.observe(Metric.PROGRAM_SECONDS, self._fabric, seconds)

    def end(self) -> None:
        """Show no switch as behind any more: only the leader knows, and another may lead now."""
        self._metrics.set(Metric.PENDING_SWITCHES, self._fabric, 0.0)


def _told(reached: Ints, structure: Structure, time: float) -> Programmed:
    """Return the generation that most switches hold, and those that hold another one."""
    switches, ids = structure.programmed, structure.nodes.ids
    generations, counts = np.unique(reached[switches], return_counts=True)
    most = int(generations[counts.argmax()])
    others = switches[reached[switches] != most].tolist()
    return Programmed(most, {ids[row]: int(reached[row]) for row in others}, time)


def job_facts(
    account: Account,
    progress: Mapping[str, JobProgress],
    told: Mapping[str, JobFacts],
    now: float,
) -> dict[str, JobFacts]:
    """Return the facts of jobs that differ from the last ones written, by name.

    ``told`` are facts written since the records of the account were read. A job that
    stays in its state keeps the time at which it reached that state.
    """
    refused = dict(account.refused)
    facts = {}
    for record in account.jobs:
        name = record.job.name
        before = _before(record, told)
        done = SUSPENDED if record.job.suspended else progress.get(name, NO_FLOWS)
        facts[name] = _news(before, _planned(before, done, account), now)
    for record in account.others:
        before = _before(record, told)
        if reason := refused.get(record.job.name) or account.trouble:
            fact = replace(before, state=JobState.DEGRADED, reason=f"not planned: {reason}")
            facts[record.job.name] = _news(before, fact, now)
    return {name: fact for name, fact in facts.items() if fact is not None}


def _before(record: JobRecord, told: Mapping[str, JobFacts]) -> JobFacts:
    before = told.get(record.job.name, record.facts)
    return before if before.etag == record.etag else record.facts


def _planned(before: JobFacts, done: JobProgress, account: Account) -> JobFacts:
    generation = account.generation
    state, reasons = done.state, [done.reason] if done.reason else []
    if account.trouble:
        state = JobState.DEGRADED
        reasons.append(
            f"planning failed: {account.trouble}; the plan of generation {generation} stays"
        )
    return JobFacts(
        etag=before.etag,
        state=state,
        reason="; ".join(reasons),
        flow_count=done.flow_count,
        unrouted_count=done.unrouted_count,
        generation=before.generation or generation,
        state_time=before.state_time,
    )


def _news(before: JobFacts, fact: JobFacts, now: float) -> JobFacts | None:
    """Return the fact with the time of its state; None if it is not new."""
    if fact == before:
        return None
    return fact if fact.state == before.state else replace(fact, state_time=now)
