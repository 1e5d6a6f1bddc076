"""Leadership: one worker for each fabric, for as long as the epoch lasts.

An epoch ends when another controller leads, or when an agent has followed another leader
of this epoch or a higher one. All workers then end, and this controller seeks leadership
again with an epoch above all it has met. Nothing of the old epoch is carried over: the
store and the agents hold all there is to know. A fault of our own in one fabric ends its
worker, and another takes its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

import structlog

from heddle_controller.reconcile.ports import Metric
from heddle_controller.reconcile.rollout.presence import Superseded
from heddle_controller.reconcile.worker import Dependencies, Worker
from heddle_controller.state.errors import FabricDeleted, PortError, StaleEpoch, Unavailable
from heddle_controller.store.applier import Leader, end_if_asked

log = structlog.stdlib.get_logger(__name__)

CLAIMS, CLAIM_SECONDS = 5, 600.0
"""A switch is set aside when its agent claims ``CLAIMS`` times within ``CLAIM_SECONDS`` to have
followed a later leader. A store that lost its newest writes causes at most a few such claims."""


class Reconciler:
    """Leads whenever it can, and otherwise follows the leader and waits."""

    def __init__(self, world: Dependencies) -> None:
        self._world = world
        self._above = 0
        self._claims: dict[tuple[str, str], deque[float]] = {}
        """Monotonic times at which an agent claimed a later leader, by fabric and switch."""
        self._epoch = 0
        self._leader = Leader()
        """The leader that we followed last."""
        self.known = asyncio.Event()
        """Set once it is known who leads. Only then does ``app`` report the API as serving."""

    @property
    def epoch(self) -> int:
        """The epoch of our current or last leadership; 0 before the first."""
        return self._epoch

    async def run(self) -> None:
        """Lead, or wait to lead, until cancelled."""
        delay = self._world.settings.retry_first
        while True:
            failed = False
            try:
                await self._reign()
                delay = self._world.settings.retry_first
            except* (StaleEpoch, Superseded) as ended:
                self._learn(ended)
                log.warning("leadership over", epoch=self._epoch, why=_words(ended))
                delay = self._world.settings.retry_first
            except* Unavailable as away:
                log.warning("waits for the store to lead", epoch=self._epoch, why=_words(away))
                failed = True
            except* Exception as fault:
                log.exception("leadership failed", epoch=self._epoch, why=_words(fault))
                failed = True
            end_if_asked()
            if failed:
                await self._world.clock.sleep(delay)
                delay = min(2 * delay, self._world.settings.retry_last)

    def _learn(self, ended: BaseExceptionGroup[PortError]) -> None:
        """Remember the highest epoch met, and set aside switches that claim one too often."""
        now = self._world.clock.monotonic()
        for error in _leaves(ended):
            if not isinstance(error, Superseded):
                continue
            self._above = max(self._above, error.highest)
            claims = self._claims.setdefault((error.fabric, error.switch), deque(maxlen=CLAIMS))
            claims.append(now)
            if len(claims) == CLAIMS and now - claims[0] < CLAIM_SECONDS:
                why = f"claimed {CLAIMS} times to have followed a later leader"
                self._world.gateway.set_aside(error.fabric, error.switch, why)

    async def _reign(self) -> None:
        store, settings = self._world.store, self._world.settings
        epoch = await store.acquire_leadership(
            settings.holder, above=self._above, following=self._following
        )
        self._epoch = epoch
        self.known.set()
        log.info("leading", epoch=epoch)
        gateway = self._world.gateway
        gateway.lead(epoch)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_changes(epoch, tasks))
                await self._mind_the_end(epoch)  # not a task: see end_if_asked
        finally:
            await store.release_leadership(epoch)

    def _following(self, leader: Leader) -> None:
        """Note who has the lease: another controller, or this one before it lost the store."""
        if leader != self._leader:
            self._leader = leader
            self._world.gateway.follow(leader.epoch)
            if leader.holder == self._world.settings.holder:
                log.info("waits for the end of its own earlier lease", epoch=leader.epoch)
            else:
                log.info("following", leader=leader.holder, epoch=leader.epoch)
        self.known.set()

    async def _follow_changes(self, epoch: int, tasks: asyncio.TaskGroup) -> None:
        workers: dict[str, Worker] = {}

        def begin(fabric: str) -> None:
            if fabric not in workers:
                followers: dict[str, int] = {}
                workers[fabric] = Worker(fabric, epoch, self._world, followers)
                tasks.create_task(self._tend(fabric, epoch, workers, followers))

        tasks.create_task(self._follow_agents(workers))
        tasks.create_task(self._follow_sessions(begin))
        async for fabric in self._world.store.changes():
            begin(fabric)
            workers[fabric].wake()

    async def _follow_sessions(self, begin: Callable[[str], None]) -> None:
        """Begin a worker also for a fabric that was deleted, if a switch still holds entries."""
        async for event in self._world.gateway.events():
            begin(event.session.fabric)

    async def _follow_agents(self, workers: Mapping[str, Worker]) -> None:
        async for fabric in self._world.observations.changes():
            if fabric in workers:  # a worker that starts later reads all observations
                workers[fabric].wake()

    async def _tend(
        self, fabric: str, epoch: int, workers: dict[str, Worker], followers: dict[str, int]
    ) -> None:
        """Run a fabric's worker, and replace it when it fails. Other fabrics are not affected.

        The worker that follows a deletion waits until the name is put again.
        """
        settings = self._world.settings
        delay = settings.retry_first
        while True:
            deleted = False
            try:
                await workers[fabric].run()
            except* (StaleEpoch, Superseded):
                raise
            except* FabricDeleted:
                log.info("fabric is deleted", fabric=fabric)
                deleted = True
            except* Unavailable as away:  # not our fault, but handled like one: with a new worker
                log.warning("fabric waits for the store", fabric=fabric, why=_words(away))
            except* Exception as fault:
                log.exception("fabric failed", fabric=fabric, epoch=epoch, why=_words(fault))
            end_if_asked()
            if not deleted:
                self._world.metrics.count(Metric.RECONCILE_FAILURES, fabric)
                await self._world.clock.sleep(delay)
                delay = min(2 * delay, settings.retry_last)
            workers[fabric] = Worker(fabric, epoch, self._world, followers)

    async def _mind_the_end(self, epoch: int) -> None:
        await self._world.store.leadership_lost(epoch)
        raise StaleEpoch(epoch, self._world.store.applier.epoch)


def _leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _words(group: BaseExceptionGroup[Exception]) -> str:
    return "; ".join(dict.fromkeys(str(error) for error in _leaves(group)))
