"""Looks at each fabric after changes, and makes its overview for all viewers.

A look compares the state of now with the state at the look before, also if nobody watches. Changes
that follow each other closely are looked at together, because one event in the fabric causes a
dozen changes of the store. The overview is made once for all viewers, and only if there are any.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import orjson
import structlog

from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.reconcile.observations import SeenLinks
from heddle_controller.serve.api import Api
from heddle_controller.serve.codec.plan import committed_to_pb
from heddle_controller.serve.errors import Refusal
from heddle_controller.state.errors import NotFound, PortError, Unavailable
from heddle_controller.state.records import Committed, FabricRecord, JobRecord
from heddle_controller.web.audience import Audience, EventLog, Sight
from heddle_controller.web.overview import (
    PlanView,
    StandingPlan,
    SwitchLinks,
    overview,
    same_structure,
)

log = structlog.stdlib.get_logger(__name__)

TICK_SECONDS = 1.0
"""Interval at which the leader, and whether the store can be reached, are checked."""
_GATHER, _REST, _LONGEST = 0.4, 50.0, 0.6
"""Before a look, wait ``_GATHER`` seconds for further changes, or ``_REST`` times as long as the
last looks took, but at most ``_LONGEST`` seconds. So a storm of changes takes little time from
others, and is still seen within a second."""
BEAT_SECONDS = 2.0
"""Interval at which quiet streams get a beat, and all viewers are checked again."""
PLAN_REST = 500.0
"""The view of a plan for the overview is made again after so many times as long as it took, but at
most ``LONGEST_KEPT``. For a large plan it costs as much as several events of the fabric."""
SHOWN_EVENTS = 50
"""Events in an overview."""
LONGEST_KEPT = 5.0
"""Seconds after which an overview with viewers is made again, for values that give no notice of
changes."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentsHere:
    """The agents that have a session with this controller."""

    structure: Structure
    switches: frozenset[str]
    missing: tuple[str, ...]
    """Ids of the other switches that should have one, in order of their rows."""


class FabricView:
    """What this controller keeps of one fabric for its viewers."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.number = 0
        """Number of the newest overview."""
        self.overview = b""
        """The newest overview as JSON; empty before the first."""
        self.audience = Audience()
        self.connected: AgentsHere | None = None
        """The connected agents; None if sessions have changed since they were read."""
        self.before: Sight | None = None
        """The fabric at the last look; None before the first."""
        self.standing: StandingPlan | None = None
        """What the newest overview was made of; None before the first."""
        self.made = -LONGEST_KEPT
        """When the overview was last made, by the monotonic clock."""
        self._links: tuple[FabricRecord, SwitchLinks] | None = None
        self._plan: PlanView | None = None
        self._viewing = asyncio.Lock()
        """Held while a view of a plan is made."""
        self._rests_until = 0.0
        """When the next view of a plan may be made for an overview, by the monotonic clock."""
        self.looking = asyncio.Lock()
        """Held during a look."""

    async def links(self, record: FabricRecord) -> SwitchLinks:
        """Return the links between switches, made once per structure."""
        known = self._links
        if known is None or known[0].fabric.structure is not record.fabric.structure:
            known = record, await asyncio.to_thread(SwitchLinks.of, record.fabric.structure)
            self._links = known
        return known[1]

    async def plan(self, committed: Committed | None) -> PlanView | None:
        """Return the view of a plan, made once per plan; None without a plan."""
        if committed is None:
            return None
        async with self._viewing:
            if self._plan is None or not self._plan.is_of(committed):
                began = time.monotonic()
                self._plan = await asyncio.to_thread(PlanView.of, committed)
                ended = time.monotonic()
                self._rests_until = ended + min(PLAN_REST * (ended - began), LONGEST_KEPT)
            return self._plan

    async def recent_plan(self, committed: Committed, fabric: Fabric) -> PlanView | None:
        """Return the view of a plan, or of one some seconds older if plans follow each other fast.

        It is None if that plan is for another structure than the fabric's.
        """
        if self._plan is None or time.monotonic() >= self._rests_until:
            await self.plan(committed)
        return self._plan if self._plan and same_structure(self._plan.plan.fabric, fabric) else None

    def agents(self, api: Api, record: FabricRecord) -> AgentsHere:
        """Return the connected agents; read again only after sessions changed, for speed."""
        known, structure = self.connected, record.fabric.structure
        if known is None or known.structure is not structure:
            there, ids = frozenset(api.gateway.sessions(record.name)), structure.nodes.ids
            missing = (ids[row] for row in structure.programmed.tolist() if ids[row] not in there)
            known = self.connected = AgentsHere(structure, there, tuple(missing))
        return known

    def tell(self, start: str, told: bytes) -> None:
        """Send an overview (JSON) to all viewers, if it differs from the last one.

        ``start`` is ``ViewFeed.start``.
        """
        self.made = time.monotonic()
        if told == self.overview:
            return
        self.number += 1
        self.overview = told
        self.audience.tell(f"{start}.{self.number}", told)


class ViewFeed:
    """The views of all fabrics of one controller."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.start = secrets.token_hex(4)
        """Random id of this process, for ids of server-sent events."""
        self._views: dict[str, FabricView] = {}
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._leader = ""

    def view(self, fabric: str) -> FabricView:
        """Return the view of a fabric."""
        return self._views.setdefault(fabric, FabricView())

    async def run(self) -> None:
        """Look at fabrics when they have changed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.api.store.follow(self._mark), name="web: store")
            tasks.create_task(self._follow_links(), name="web: links")
            tasks.create_task(self._follow_agents(), name="web: agents")
            tasks.create_task(self._tick(), name="web: leader")
            tasks.create_task(self._look_at_changed(), name="web: look")
            tasks.create_task(self._beat(), name="web: beat")

    @property
    def viewers(self) -> int:
        """Number of viewers of all fabrics together."""
        return sum(len(view.audience) for view in self._views.values())

    def close(self) -> None:
        """End all streams, because the controller stops."""
        for view in self._views.values():
            view.audience.end()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for view in self._views.values():
                view.audience.beat(self._stale())

    async def _follow_links(self) -> None:
        async for fabric in self.api.observations.changes():
            await self._mark(fabric)

    async def _follow_agents(self) -> None:
        async for event in self.api.gateway.events():
            self.view(event.session.fabric).connected = None
            await self._mark(event.session.fabric)

    async def _tick(self) -> None:
        """Check at intervals who leads and whether the store can be reached: nothing reports it."""
        before: tuple[str, bool, bool] | None = None
        while True:
            with suppress(PortError):
                self._leader = (await self.api.store.leader()).holder
            now = (self._leader, bool(self.api.gateway.guard.leading), self._stale() > 0)
            old = time.monotonic() - LONGEST_KEPT
            for fabric, view in self._views.items():
                if now != before or (view.audience and view.made < old):
                    await self._mark(fabric)
            before = now
            await asyncio.sleep(TICK_SECONDS)

    def _stale(self) -> float:
        return self.api.store.stale_for()

    async def _mark(self, fabric: str) -> None:
        self._changed.add(fabric)
        self._wake.set()

    async def _look_at_changed(self) -> None:
        spent = 0.0
        while True:
            await self._wake.wait()
            await asyncio.sleep(min(max(_GATHER, _REST * spent), _LONGEST))
            self._wake.clear()
            changed, self._changed = self._changed, set()
            began = time.monotonic()
            for fabric in changed:
                await self._try_to_look(fabric)
            spent = time.monotonic() - began

    async def _try_to_look(self, fabric: str) -> None:
        """Look at a fabric; an error is logged and stops nothing else."""
        try:
            await self.look(fabric)
        except NotFound:
            self.view(fabric).audience.end("the fabric is gone")
        except (Unavailable, Refusal):
            await self._look_back(self.view(fabric))
        except Exception:
            log.exception("the page was not told of a change", fabric=fabric)

    async def show(self, fabric: str) -> FabricView:
        """Return a view whose overview is at most ``TICK_SECONDS`` old; make one if need be.

        Raises:
            NotFound: there is no such fabric.
            Unavailable: the store cannot be read.
        """
        await self.api.store.versions(fabric)
        view = self.view(fabric)
        async with view.looking:
            if time.monotonic() - view.made > TICK_SECONDS:
                await self._look(fabric, view, tell=True)
        return view

    async def look(self, fabric: str) -> None:
        """Compare a fabric with the look before, and send an overview if it has viewers.

        Raises:
            NotFound: there is no such fabric.
            Unavailable: the store cannot be read.
        """
        await self.api.store.versions(fabric)
        view = self.view(fabric)
        async with view.looking:
            await self._look(fabric, view, tell=bool(view.audience))

    async def _look(self, fabric: str, view: FabricView, *, tell: bool) -> None:
        api = self.api
        record = await api.store.get_fabric(fabric)
        committed = await api.store.committed(fabric)
        jobs = tuple(await api.store.list_jobs(fabric))
        seen = api.observations.of(fabric).seen(record.fabric)
        agents = view.agents(api, record)
        after = Sight(
            record=record,
            down=seen.down,
            jobs={one.job.name: one.facts.state for one in jobs},
            agents=agents.switches,
            plan=(committed.program.epoch, committed.generation) if committed else (0, 0),
            moved=committed.facts.changed_count if committed else 0,
            lacking=len(committed.lacking()) if committed else 0,
            leader=self._leader,
            stale=self._stale() > 0,
        )
        view.log.compare(view.before, after, time.time())
        view.before = after
        if tell:
            view.standing = await self._standing(view, committed, jobs, seen, agents.missing)
            view.tell(self.start, await self._told(view, view.standing))

    async def _look_back(self, view: FabricView) -> None:
        """Send the last overview with its age, because the store cannot be read now."""
        async with view.looking:
            if view.before is None or view.standing is None:
                return
            stale = self._stale()
            after = replace(view.before, stale=stale > 0)
            view.log.compare(view.before, after, time.time())
            view.before, view.standing = after, replace(view.standing, stale_seconds=stale)
            if view.audience:
                view.tell(self.start, await self._told(view, view.standing))

    async def _standing(
        self,
        view: FabricView,
        committed: Committed | None,
        jobs: tuple[JobRecord, ...],
        seen: SeenLinks,
        missing: tuple[str, ...],
    ) -> StandingPlan:
        assert view.before is not None
        record = view.before.record
        fabric = record.name
        plan = await view.recent_plan(committed, record.fabric) if committed else None
        return StandingPlan(
            record=record,
            seen=seen,
            unwell=dict(self.api.unwell(fabric)),
            jobs=jobs,
            missing=missing,
            aside=frozenset(self.api.gateway.held_aside(fabric)),
            plan=committed_to_pb(fabric, committed) if committed else None,
            view=plan,
            leader=self._leader,
            leads=bool(self.api.gateway.guard.leading),
            stale_seconds=self._stale(),
        )

    async def _told(self, view: FabricView, standing: StandingPlan) -> bytes:
        links = await view.links(standing.record)
        told = {**overview(standing, links), "events": list(view.log.events)[-SHOWN_EVENTS:]}
        return orjson.dumps(told)
