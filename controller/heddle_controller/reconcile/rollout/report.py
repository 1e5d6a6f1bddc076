"""What the leader tells of a rollout: facts to the store, figures to the metrics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heddle_controller.model.fabric import Bools
from heddle_controller.reconcile.facts import job_facts
from heddle_controller.reconcile.metrics import Metric
from heddle_controller.reconcile.ports import Clock, Metrics, Store
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.progress import JobProgress
from heddle_controller.reconcile.rollout.target import Target
from heddle_controller.state.records import JobFacts


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
        self._noted: Bools = np.zeros(0, dtype=np.bool_)
        """Nodes of which the store knows that they hold that generation."""
        self._complete = False

    def begin(self, ledger: Ledger, target: Target) -> None:
        """Another plan is being rolled out: what was told of the last one is void."""
        structure, committed = ledger.fabric.structure, target.committed
        self._noted = np.zeros(ledger.fabric.node_count, dtype=np.bool_)
        facts = {id(fact): fact for fact in committed.programmed.values()}  # most share one
        if any(fact.generation >= committed.generation for fact in facts.values()):
            self._noted[
                [
                    structure.index[switch]
                    for switch, fact in committed.programmed.items()
                    if fact.generation >= committed.generation and switch in structure.index
                ]
            ] = True
        self._generation = committed.generation
        self._complete = False

    async def programmed(self, ledger: Ledger) -> None:
        """Note the switches that have come to hold the generation, if it is the newest still."""
        if ledger.generation != self._generation:
            return
        noted = self._noted  # another plan may begin before the store has answered
        new = np.flatnonzero((ledger.knowledge.generation == ledger.generation) & ~noted)
        if not len(new):
            return
        ids = ledger.fabric.structure.nodes.ids
        await self._store.record_programmed(
            self._fabric,
            epoch=self._epoch,
            generation=ledger.generation,
            switches=[ids[row] for row in new.tolist()],
            time=self._clock.now(),
        )
        noted[new] = True

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
