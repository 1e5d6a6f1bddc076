"""The overlay's state, ordered of agents by the controller that leads, and what they say of it.

The leader follows the store and orders: at the start of a session, ahead of any push, when it
begins to lead, and whenever the flag changes. It is a level, not an event: what an agent is told
last is how it shall stand, and a leader that missed a change tells of it when it next reads the
store. While the store cannot be reached nobody is told anything: what was known last may be of
the past, and agents stay as they are. An order carries the leader's epoch, and an agent that
knows of a newer one does not obey. Agents tell every controller how they stand.

OverlayService: the panic switch, wanted in the store and told to agents beside this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog
from grpc import aio
from typing_extensions import override

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import overlay_pb2
from heddle.v1.overlay_pb2_grpc import OverlayServiceServicer
from heddle_controller.model.errors import refuse
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.request import request_of
from heddle_controller.state.errors import NotFound, PortError, Unavailable
from heddle_controller.state.records import FabricSummary, Overlay
from heddle_controller.store.store import Store

_LOOK_SECONDS = 2.0
"""How often the flag is read where no notice of a change came."""

log = structlog.stdlib.get_logger(__name__)


class OverlayMeter(Protocol):
    """Measures the state of the overlay."""

    def overlay_state(self, fabric: str, *, withdrawn: bool, disobeying: int) -> None:
        """A fabric's flag, and how many agents with a session here do not stand so (yet)."""


@dataclass(frozen=True, slots=True)
class Obedience:
    """One session."""

    told: bool
    """Whether it was last told to withdraw; how it stands, where we have told it nothing since."""
    stands: bool
    """Whether it has withdrawn, as it says."""
    message: str = ""
    """Why it does not stand as told."""


@dataclass(slots=True)
class FabricOverlay:
    """What is wanted of one fabric's agents, and how they stand, counted as they say so."""

    wanted: bool | None = None
    """Whether they are to withdraw; None until the store was read."""
    sessions: dict[AgentStream, Obedience] = field(default_factory=dict)
    withdrawn: int = 0
    """Of the sessions, how many stand withdrawn."""
    failed: dict[AgentStream, Obedience] = field(default_factory=dict)
    """Of the sessions, those that say why they do not stand as told."""

    def take(self, session: AgentStream, agent: Obedience | None) -> None:
        """Put the state of a session in place of the one before; None where the session is over."""
        before = self.sessions.pop(session, None)
        self.failed.pop(session, None)
        self.withdrawn -= before is not None and before.stands
        if agent is not None:
            self.sessions[session] = agent
            self.withdrawn += agent.stands
            if agent.message:
                self.failed[session] = agent

    def obeying(self, *, withdrawn: bool) -> int:
        """How many stand so."""
        return self.withdrawn if withdrawn else len(self.sessions) - self.withdrawn


@dataclass(frozen=True, slots=True)
class OverlayStates:
    """All agents of a fabric with a session here."""

    agents: int
    obeying: int
    """Of these, how many stand as they should."""
    failures: tuple[tuple[str, str], ...]
    """Switches whose agents say why they do not stand as told, and why."""


class OverlayBook:
    """All sessions of this controller."""

    def __init__(self, store: Store, leading: Callable[[], int], meter: OverlayMeter) -> None:
        """``leading`` tells the epoch with which we lead now, 0 while we do not."""
        self._store = store
        self._leading = leading
        self._meter = meter
        self._fabrics: dict[str, FabricOverlay] = {}
        self._led = asyncio.Event()
        """Set when we have begun to lead."""

    def joined(self, session: AgentStream, overlay: Overlay, *, withdrawn: bool) -> None:
        """A session begins of an agent that stands so; it is told if that is wrong."""
        name = session.about.fabric
        fabric = self._fabrics.setdefault(name, FabricOverlay())
        fabric.take(session, Obedience(withdrawn, withdrawn))
        if fabric.wanted is not overlay.withdrawn:
            self.spread(name, overlay)
        elif self._store.stale_for() <= 0:
            self._order(fabric, [session])
        self._measure(name)

    def left(self, session: AgentStream) -> None:
        """A session is over."""
        name = session.about.fabric
        if name in self._fabrics:
            self._fabrics[name].take(session, None)
        self._measure(name)

    def reported(self, session: AgentStream, report: pb.OverlayReport) -> None:
        """An agent says how it stands."""
        about = session.about
        fabric = self._fabrics.get(about.fabric)
        if fabric is None or session not in fabric.sessions:
            return
        told, message = fabric.sessions[session].told, report.message[:256]
        if message:
            log.warning("overlay order not obeyed", switch=about.switch, why=message)
        else:  # another controller may have ordered it: looked at again before long
            told = report.withdrawn
        fabric.take(session, Obedience(told, report.withdrawn, message))
        self._measure(about.fabric)

    def lead(self) -> None:
        """We begin to lead: whatever others have ordered, agents are ordered anew where need be."""
        for fabric in self._fabrics.values():
            for session, agent in list(fabric.sessions.items()):
                fabric.take(session, replace(agent, told=agent.stands))
        self._led.set()

    def spread(self, name: str, overlay: Overlay) -> None:
        """Tell every agent that was last told otherwise, if this is of now and we lead."""
        if self._store.stale_for() > 0:
            return
        fabric = self._fabrics.setdefault(name, FabricOverlay())
        if bool(fabric.wanted) is not overlay.withdrawn:
            log.warning("overlay", fabric=name, withdrawn=overlay.withdrawn)
        fabric.wanted = overlay.withdrawn
        self._order(fabric, list(fabric.sessions))
        self._measure(name)

    def _order(self, fabric: FabricOverlay, sessions: Iterable[AgentStream]) -> None:
        """Order what is wanted of those that were last told otherwise, while we lead."""
        epoch, wanted = self._leading(), bool(fabric.wanted)
        for session in sessions if epoch else ():
            agent = fabric.sessions[session]
            if agent.told is not wanted:
                fabric.take(session, Obedience(wanted, agent.stands))
                session.order(pb.OverlayOrder(withdrawn=wanted, epoch=epoch))

    def standing(self, name: str, *, withdrawn: bool) -> OverlayStates:
        """How the agents of a fabric stand, if they are to stand so."""
        fabric = self._fabrics.get(name, FabricOverlay())
        failures = tuple(
            (session.about.switch, agent.message) for session, agent in fabric.failed.items()
        )
        return OverlayStates(len(fabric.sessions), fabric.obeying(withdrawn=withdrawn), failures)

    async def run(self) -> None:
        """Follow the store until it is closed."""
        again = asyncio.create_task(self._look_again())
        try:
            await self._store.follow(self._look, facts=False)
        finally:
            again.cancel()

    async def _look_again(self) -> None:
        """When we begin to lead, and now and then: the store may have been away."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._led.wait()
            self._led.clear()
            for fabric in [name for name, one in self._fabrics.items() if one.sessions]:
                with suppress(Unavailable):
                    await self._look(fabric)

    async def _look(self, fabric: str) -> None:
        try:
            record = await self._store.get_fabric(fabric)
        except NotFound:
            if fabric in self._fabrics:
                self._fabrics[fabric].wanted = None
        except Unavailable:
            raise
        except PortError as error:
            log.warning("overlay not read", fabric=fabric, why=str(error))
        else:
            self.spread(fabric, record.overlay)

    def _measure(self, name: str) -> None:
        fabric = self._fabrics.get(name, FabricOverlay())
        wanted = bool(fabric.wanted)
        disobeying = len(fabric.sessions) - fabric.obeying(withdrawn=wanted)
        self._meter.overlay_state(name, withdrawn=wanted, disobeying=disobeying)


_Context = aio.ServicerContext[Any, Any]

MAX_FAILURES = 100


class OverlayService(OverlayServiceServicer):
    """Writes the flag; says how many agents have it, as the book knows. See overlay.proto."""

    def __init__(self, store: Store, book: OverlayBook) -> None:
        self._store = store
        self._book = book

    @override
    async def SetOverlay(
        self, request: overlay_pb2.SetOverlayRequest, context: _Context
    ) -> overlay_pb2.Overlay:
        """Agents are told before the answer; what they make of it, ``GetOverlay`` says."""
        fabric = names.overlay_name.fabric(request.name, "name")
        if request.state not in (
            overlay_pb2.OVERLAY_STATE_ACTIVE,
            overlay_pb2.OVERLAY_STATE_WITHDRAWN,
        ):
            cure = "use OVERLAY_STATE_ACTIVE or OVERLAY_STATE_WITHDRAWN"
            raise refuse("request", "state", f"it is missing or unknown: {cure}")
        summary = await self._store.set_overlay(
            fabric,
            withdrawn=request.state == overlay_pb2.OVERLAY_STATE_WITHDRAWN,
            request=request_of(request.request_id),
        )
        self._book.spread(fabric, (await self._store.get_fabric(fabric)).overlay)
        return self._told(summary)

    @override
    async def GetOverlay(
        self, request: overlay_pb2.GetOverlayRequest, context: _Context
    ) -> overlay_pb2.Overlay:
        """As stored, and as agents of this controller say."""
        fabric = names.overlay_name.fabric(request.name, "name")
        return self._told((await self._store.get_fabric(fabric)).summary())

    def _told(self, summary: FabricSummary) -> overlay_pb2.Overlay:
        wanted = summary.overlay
        standing = self._book.standing(summary.name, withdrawn=wanted.withdrawn)
        states = overlay_pb2.OVERLAY_STATE_WITHDRAWN, overlay_pb2.OVERLAY_STATE_ACTIVE
        answer = overlay_pb2.Overlay(
            name=names.overlay_name(summary.name),
            state=states[0] if wanted.withdrawn else states[1],
            agent_count=standing.agents,
            obeying_count=standing.obeying,
            failures=[
                overlay_pb2.OverlayFailure(switch=switch, message=message)
                for switch, message in standing.failures[:MAX_FAILURES]
            ],
        )
        if wanted.time:
            answer.state_time.CopyFrom(common.time_to_pb(wanted.time))
        return answer
