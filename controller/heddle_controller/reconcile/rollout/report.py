"""What the leader tells of a rollout: facts to the store, figures to the metrics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Structure
from heddle_controller.reconcile.facts import job_facts
from heddle_controller.reconcile.metrics import Metric
from heddle_controller.reconcile.ports import Clock, Metrics, Store
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.progress import JobProgress
from heddle_controller.reconcile.rollout.target import Target
from heddle_controller.state.records import JobFacts, Programmed


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
