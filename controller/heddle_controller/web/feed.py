"""One look at each fabric after something changed, and its overview for all who watch.

A look compares what is there with what was there before (``events``), whether anybody watches or
not. The overview is made once for all viewers, and only while there are any. A viewer that is slow
finds several looks merged into one: nothing waits for it, and nothing is queued.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

import orjson
import structlog

from heddle.v1 import plan_pb2
from heddle_controller.reconcile.observations import SeenLinks
from heddle_controller.serve.codec import names
from heddle_controller.serve.errors import Refusal
from heddle_controller.serve.reads import Reads
from heddle_controller.state.errors import NotFound, PortError, Unavailable
from heddle_controller.state.records import Committed, FabricRecord, JobRecord
from heddle_controller.web.events import EventLog, Sight
from heddle_controller.web.overview import Standing, overview
from heddle_controller.web.plan_view import PlanView, SwitchLinks, same_structure

log = structlog.stdlib.get_logger(__name__)

TICK_SECONDS = 1.0
"""How often it is asked who leads and whether the store can be reached."""
PACE, REST, LONGEST = 0.02, 4.0, 0.5
"""After a look, rest at least so many seconds, or so many times as long as it took, up to the last:
a storm of changes costs others little."""
SHOWN_EVENTS = 50
LONGEST_KEPT = 5.0
"""Seconds after which viewers are told again what nobody gives notice of."""


class FabricView:
    """One fabric, as far as this controller's viewers see it."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.number = 0
        """Grows with every overview."""
        self.overview = b""
        self.viewers: set[asyncio.Event] = set()
        self.before: Sight | None = None
        self.made = -LONGEST_KEPT
        """When the overview was made, by the loop's clock."""
        self._links: tuple[FabricRecord, SwitchLinks] | None = None
        self._plan: PlanView | None = None
        self._making = asyncio.Lock()
        self.looking = asyncio.Lock()
        """Held while one looks."""

    async def links(self, record: FabricRecord) -> SwitchLinks:
        """The links between switches, made once for a fabric."""
        known = self._links
        if known is None or known[0].fabric.structure is not record.fabric.structure:
            known = record, await asyncio.to_thread(SwitchLinks.of, record.fabric.structure)
            self._links = known
        return known[1]

    async def plan(self, committed: Committed | None) -> PlanView | None:
        """The view of a plan, made once for each, in a thread."""
        if committed is None:
            return None
        async with self._making:
            if self._plan is None or not self._plan.is_of(committed):
                self._plan = await asyncio.to_thread(PlanView.of, committed)
            return self._plan

    def tell(self, told: bytes) -> None:
        """Give all viewers another overview, if it is another."""
        self.made = time.monotonic()
        if told == self.overview:
            return
        self.number += 1
        self.overview = told
        for viewer in self.viewers:
            viewer.set()

    @contextmanager
    def viewing(self) -> Iterator[asyncio.Event]:
        """An event that is set with each overview."""
        wake = asyncio.Event()
        self.viewers.add(wake)
        try:
            yield wake
        finally:
            self.viewers.discard(wake)


class ViewFeed:
    """All fabrics of one controller."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self.start = secrets.token_hex(4)
        """Tells this process from the one before, in ids of server-sent events."""
        self.closed = asyncio.Event()
        self._views: dict[str, FabricView] = {}
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._leader = ""

    def view(self, fabric: str) -> FabricView:
        """The view of a fabric."""
        return self._views.setdefault(fabric, FabricView())

    async def run(self) -> None:
        """Look whenever something changed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_store(), name="web: store")
            tasks.create_task(self._follow(self.reads.observations.changes()), name="web: links")
            tasks.create_task(self._follow_agents(), name="web: agents")
            tasks.create_task(self._tick(), name="web: leader")
            tasks.create_task(self._look_at_changed(), name="web: look")

    def close(self) -> None:
        """End every view: the controller stops."""
        self.closed.set()
        for view in self._views.values():
            for viewer in view.viewers:
                viewer.set()

    async def _follow_store(self) -> None:
        while True:
            try:
                await self._follow(self.reads.store.changes(facts=True))
            except Unavailable as error:
                await asyncio.sleep(error.retry_after)
            else:
                return

    async def _follow(self, changes: AsyncIterator[str]) -> None:
        async for fabric in changes:
            self._mark(fabric)

    async def _follow_agents(self) -> None:
        async for event in self.reads.gateway.events():
            self._mark(event.session.fabric)

    async def _tick(self) -> None:
        """Who leads, and whether the store can be reached, nobody tells: ask."""
        before: tuple[str, bool, bool] | None = None
        while True:
            with suppress(PortError):
                self._leader = (await self.reads.store.leader()).holder
            now = (self._leader, bool(self.reads.gateway.guard.leading), self._stale() > 0)
            old = time.monotonic() - LONGEST_KEPT
            for fabric, view in self._views.items():
                if now != before or (view.viewers and view.made < old):
                    self._mark(fabric)
            before = now
            await asyncio.sleep(TICK_SECONDS)

    def _stale(self) -> float:
        return self.reads.store.stale_for()

    def _mark(self, fabric: str) -> None:
        self._changed.add(fabric)
        self._wake.set()

    async def _look_at_changed(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            began = time.monotonic()
            for fabric in changed:
                await self._try_to_look(fabric)
            spent = time.monotonic() - began
            await asyncio.sleep(min(max(PACE, REST * spent), LONGEST))

    async def _try_to_look(self, fabric: str) -> None:
        """Nothing hangs on a look but what people see."""
        try:
            await self.look(fabric)
        except (NotFound, Unavailable, Refusal):
            pass  # gone, or told by the next look
        except Exception:
            log.exception("the page was not told of a change", fabric=fabric)

    async def show(self, fabric: str) -> FabricView:
        """A view with an overview of now; while others watch there is one.

        Raises:
            NotFound: there is no such fabric.
            Unavailable: the store cannot be read.
        """
        await self.reads.store.versions(fabric)
        view = self.view(fabric)
        async with view.looking:
            if time.monotonic() - view.made > TICK_SECONDS:
                await self._look(fabric, view, tell=True)
        return view

    async def look(self, fabric: str) -> None:
        """Compare a fabric with the look before, and tell its viewers, if it has any.

        Raises:
            NotFound: there is no such fabric.
            Unavailable: the store cannot be read.
        """
        await self.reads.store.versions(fabric)
        view = self.view(fabric)
        async with view.looking:
            await self._look(fabric, view, tell=bool(view.viewers))

    async def _look(self, fabric: str, view: FabricView, *, tell: bool) -> None:
        reads = self.reads
        record = await reads.store.get_fabric(fabric)
        committed = await reads.store.committed(fabric)
        jobs = tuple(await reads.store.list_jobs(fabric))
        seen = reads.observations.of(fabric).seen(record.fabric)
        after = Sight(
            record=record,
            down=seen.down,
            jobs={one.job.name: one.facts.state for one in jobs},
            agents=frozenset(reads.gateway.sessions(fabric)),
            plan=(committed.program.epoch, committed.generation) if committed else (0, 0),
            moved=committed.facts.changed_count if committed else 0,
            lacking=len(committed.lacking()) if committed else 0,
            leader=self._leader,
            stale=self._stale() > 0,
        )
        view.log.compare(view.before, after, time.time())
        view.before = after
        if tell:
            view.tell(await self._told(view, committed, jobs, seen))

    async def _told(
        self,
        view: FabricView,
        committed: Committed | None,
        jobs: tuple[JobRecord, ...],
        seen: SeenLinks,
    ) -> bytes:
        assert view.before is not None
        record = view.before.record
        fabric = record.name
        links = await view.links(record)
        plan = await view.plan(committed)
        standing = Standing(
            record=record,
            seen=seen,
            unwell=dict(self.reads.unwell(fabric)),
            jobs=jobs,
            agents=frozenset(view.before.agents),
            aside=frozenset(self.reads.gateway.held_aside(fabric)),
            plan=await self._summary(fabric) if committed else None,
            view=plan if plan and same_structure(plan.plan.fabric, record.fabric) else None,
            leader=self._leader,
            leads=bool(self.reads.gateway.guard.leading),
            stale_seconds=self._stale(),
        )
        events = [asdict(event) for event in list(view.log.events)[-SHOWN_EVENTS:]]
        return await asyncio.to_thread(_encoded, standing, links, events)

    async def _summary(self, fabric: str) -> plan_pb2.Plan:
        request = plan_pb2.GetPlanRequest(name=names.plan_name(fabric))
        return await self.reads.plan.GetPlan(request, None)  # type: ignore[arg-type] # only reads


def _encoded(standing: Standing, links: SwitchLinks, events: list[dict[str, object]]) -> bytes:
    return orjson.dumps({**overview(standing, links), "events": events})
