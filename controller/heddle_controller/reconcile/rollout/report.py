"""A rollout's target, and what the leader tells of it: facts to the store, figures to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Structure
from heddle_controller.reconcile.metrics import Metric
from heddle_controller.reconcile.ports import Clock, Metrics, Store
from heddle_controller.reconcile.rollout.evaluate import NO_FLOWS, SUSPENDED, JobProgress
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.state.records import Committed, JobFacts, JobRecord, JobState, Programmed


@dataclass(frozen=True, slots=True)
class Account:
    """The jobs that there are, and what is to be told of them besides their progress."""

    generation: int = 0
    """Of the newest plan; 0 for none."""
    jobs: tuple[JobRecord, ...] = ()
    """Those that the plan holds."""
    others: tuple[JobRecord, ...] = ()
    """Those that it does not hold."""
    refused: tuple[tuple[str, str], ...] = ()
    """Jobs that no plan can hold, by name, and why."""
    trouble: str = ""
    """Why there is no newer plan although there should be; empty where all is well."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A committed plan, and the jobs to tell of."""

    committed: Committed
    account: Account = Account()
    since: float | None = None
    """When the intent changed that led to this plan, Unix seconds; None for long ago."""


class FactWriter:
    """Writes only what is new; what could not be written is new again the next time."""

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
        """The generation that each node holds, as far as the store knows."""
        self._time = 0.0
        """When the last switch with entries came to hold the generation."""
        self._complete = False

    def begin(self, ledger: Ledger, target: Target) -> None:
        """Another plan is being rolled out: what was told of the last one is void."""
        index, held = ledger.fabric.structure.index, target.committed.programmed
        self._reached = np.full(ledger.fabric.node_count, held.generation, dtype=np.int64)
        for switch, generation in held.others.items():
            if switch in index:
                self._reached[index[switch]] = generation
        self._generation, self._time = target.committed.generation, held.time
        self._complete = False

    async def programmed(self, ledger: Ledger) -> None:
        """Note the switches that have come to hold the generation, if it is the newest still."""
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
        """Tell how far jobs have come."""
        account = target.account
        facts = job_facts(account, progress, self._told, self._clock.now())
        if facts:
            await self._store.record_jobs(self._fabric, epoch=self._epoch, facts=facts)
            self._told |= facts
        known = {record.job.name for record in (*account.jobs, *account.others)}
        self._told = {name: fact for name, fact in self._told.items() if name in known}

    def figures(self, target: Target, *, behind: int, pending: bool) -> None:
        """Measure how far the rollout is, and when it is through, how long it took.

        ``behind`` is the number of switches that have not acknowledged all of the plan.
        """
        self._metrics.set(Metric.PENDING_SWITCHES, self._fabric, float(behind))
        if pending or self._complete:
            return
        self._complete = True
        if target.since is not None:
            seconds = max(0.0, self._clock.now() - target.since)
            self._metrics.observe(Metric.PROGRAM_SECONDS, self._fabric, seconds)


def _told(reached: Ints, structure: Structure, time: float) -> Programmed:
    """What all switches hold: what most of them do, and who holds another generation."""
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
    """The facts of jobs that differ from those told last, by name.

    ``told`` gives what was told since the account's records were read. A job that
    stays in a state keeps the time when that was reached.
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
    """The fact with the time of its state; None where there is nothing new."""
    if fact == before:
        return None
    return fact if fact.state == before.state else replace(fact, state_time=now)
