"""The overlay's flag: whether agents follow their entries or leave all traffic to the underlay.

The store keeps the flag of each fabric, and the leader orders agents to follow it: at the start of
a session, before any push, when it begins to lead, and when the flag changes. The order is a level
and not an event: the newest order holds, and a leader that missed a change sends it after its next
read of the store. While the store cannot be reached, no orders are sent, because the known flag
may be out of date, and agents stay as they are. An order has the leader's epoch, and an agent that
has seen a higher epoch does not obey. Agents report their state to every controller.

OverlayService is the API of the flag.
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
from heddle_controller.serve.codec import names, times
from heddle_controller.serve.request import request_of
from heddle_controller.state.errors import NotFound, PortError, Unavailable
from heddle_controller.state.records import FabricSummary, Overlay
from heddle_controller.store.store import Store

_LOOK_SECONDS = 2.0
"""Interval at which the flag is read even without a notice of a change."""

log = structlog.stdlib.get_logger(__name__)


class OverlayMeter(Protocol):
    """Measures the state of the overlay."""

    def overlay_state(self, fabric: str, *, withdrawn: bool, disobeying: int) -> None:
        """Set a fabric's flag, and how many agents with a session here are not in that state."""


@dataclass(frozen=True, slots=True)
class Obedience:
    """What one agent was ordered, and what it reported."""

    told: bool
    """Whether our last order was to withdraw; without an order since, the state it reported."""
    stands: bool
    """Whether it has withdrawn, by its own report."""
    message: str = ""
    """Why it did not obey its last order; empty if it did or has not answered."""


@dataclass(slots=True)
class FabricOverlay:
    """The flag of one fabric and the states of its agents, counted as reports arrive."""

    wanted: bool | None = None
    """Whether agents shall withdraw; None until the store was read."""
    sessions: dict[AgentStream, Obedience] = field(default_factory=dict)
    withdrawn: int = 0
    """Number of sessions whose agents have withdrawn."""
    told: int = 0
    """``withdrawn`` when it was last noted as changed."""
    failed: dict[AgentStream, Obedience] = field(default_factory=dict)
    """The sessions whose agents reported why they did not obey."""

    def take(self, session: AgentStream, agent: Obedience | None) -> None:
        """Replace the state of a session; None means that the session is over."""
        before = self.sessions.pop(session, None)
        self.failed.pop(session, None)
        self.withdrawn -= before is not None and before.stands
        if agent is not None:
            self.sessions[session] = agent
            self.withdrawn += agent.stands
            if agent.message:
                self.failed[session] = agent

    def obeying(self, *, withdrawn: bool) -> int:
        """Return how many sessions are in this state."""
        return self.withdrawn if withdrawn else len(self.sessions) - self.withdrawn


@dataclass(frozen=True, slots=True)
class OverlayStates:
    """Counts of the agents of a fabric with a session here."""

    agents: int
    obeying: int
    """How many of them are in the wanted state."""
    failures: tuple[tuple[str, str], ...]
    """Switches whose agents did not obey, each with the reason that its agent gave."""


class OverlayBook:
    """Orders and states of all sessions of this controller."""

    def __init__(
        self,
        store: Store,
        leading: Callable[[], int],
        meter: OverlayMeter,
        changed: Callable[[str], None],
    ) -> None:
        """Take what the book works with.

        Args:
            store: Keeps the flags.
            leading: Returns the epoch with which this controller leads, or 0.
            meter: Measures the overlays.
            changed: Is called with a fabric's name when more or fewer agents have withdrawn.
        """
        self._changed = changed
        self._store = store
        self._leading = leading
        self._meter = meter
        self._fabrics: dict[str, FabricOverlay] = {}
        self._led = asyncio.Event()
        """Set when this controller begins to lead."""

    def joined(self, session: AgentStream, overlay: Overlay, *, withdrawn: bool) -> None:
        """Add a new session; order its agent to change if its state is not the wanted one."""
        name = session.about.fabric
        fabric = self._fabrics.setdefault(name, FabricOverlay())
        fabric.take(session, Obedience(withdrawn, withdrawn))
        if fabric.wanted is not overlay.withdrawn:
            self.spread(name, overlay)
        elif self._store.stale_for() <= 0:
            self._order(fabric, [session])
        self._measure(name)

    def left(self, session: AgentStream) -> None:
        """Forget a session that is over."""
        name = session.about.fabric
        if name in self._fabrics:
            self._fabrics[name].take(session, None)
        self._measure(name)

    def reported(self, session: AgentStream, report: pb.OverlayReport) -> None:
        """Take in an agent's report of its state."""
        about = session.about
        fabric = self._fabrics.get(about.fabric)
        if fabric is None or session not in fabric.sessions:
            return
        told, message = fabric.sessions[session].told, report.message[:256]
        if message:
            log.warning("overlay order not obeyed", switch=about.switch, why=message)
        else:  # another controller may have ordered it; ``run`` soon checks again
            told = report.withdrawn
        fabric.take(session, Obedience(told, report.withdrawn, message))
        self._measure(about.fabric)

    def lead(self) -> None:
        """Begin to lead: forget past orders, so that agents in the wrong state get a new one."""
        for fabric in self._fabrics.values():
            for session, agent in list(fabric.sessions.items()):
                fabric.take(session, replace(agent, told=agent.stands))
        self._led.set()

    def spread(self, name: str, overlay: Overlay) -> None:
        """Set a fabric's flag and, if we lead, order its agents; do nothing on stale data."""
        if self._store.stale_for() > 0:
            return
        fabric = self._fabrics.setdefault(name, FabricOverlay())
        if bool(fabric.wanted) is not overlay.withdrawn:
            log.warning("overlay", fabric=name, withdrawn=overlay.withdrawn)
        fabric.wanted = overlay.withdrawn
        self._order(fabric, list(fabric.sessions))
        self._measure(name)

    def _order(self, fabric: FabricOverlay, sessions: Iterable[AgentStream]) -> None:
        """If we lead, order the wanted state from agents whose last order was another one."""
        epoch, wanted = self._leading(), bool(fabric.wanted)
        for session in sessions if epoch else ():
            agent = fabric.sessions[session]
            if agent.told is not wanted:
                fabric.take(session, Obedience(wanted, agent.stands))
                session.order(pb.OverlayOrder(withdrawn=wanted, epoch=epoch))

    def any_withdrawn(self, name: str) -> bool:
        """Return whether some agents of a fabric report that they ignore their entries."""
        fabric = self._fabrics.get(name)
        return fabric is not None and fabric.withdrawn > 0

    def standing(self, name: str, *, withdrawn: bool) -> OverlayStates:
        """Return the counts of a fabric's agents; ``withdrawn`` is the wanted state."""
        fabric = self._fabrics.get(name, FabricOverlay())
        failures = tuple(
            (session.about.switch, agent.message) for session, agent in fabric.failed.items()
        )
        return OverlayStates(len(fabric.sessions), fabric.obeying(withdrawn=withdrawn), failures)

    async def run(self) -> None:
        """Follow changes of the flags in the store, until the store is closed."""
        again = asyncio.create_task(self._look_again())
        try:
            await self._store.follow(self._look, facts=False)
        finally:
            again.cancel()

    async def _look_again(self) -> None:
        """Read the flags when we begin to lead, and at intervals: a notice may have been missed."""
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
        if fabric.told != fabric.withdrawn:
            fabric.told = fabric.withdrawn
            self._changed(name)
        self._meter.overlay_state(name, withdrawn=wanted, disobeying=disobeying)


_Context = aio.ServicerContext[Any, Any]

MAX_FAILURES = 100


class OverlayService(OverlayServiceServicer):
    """Writes and reads the flag, with counts of the agents that obey; see overlay.proto."""

    def __init__(self, store: Store, book: OverlayBook) -> None:
        self._store = store
        self._book = book

    @override
    async def SetOverlay(
        self, request: overlay_pb2.SetOverlayRequest, context: _Context
    ) -> overlay_pb2.Overlay:
        """Store the flag and order agents before the answer; ``GetOverlay`` shows who obeyed."""
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
        with suppress(NotFound):  # the call may be repeated after the fabric was deleted
            self._book.spread(fabric, (await self._store.get_fabric(fabric)).overlay)
        return self._told(summary)

    @override
    async def GetOverlay(
        self, request: overlay_pb2.GetOverlayRequest, context: _Context
    ) -> overlay_pb2.Overlay:
        """Return the stored flag, and how many of this controller's agents obey it."""
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
            answer.state_time.CopyFrom(times.time_to_pb(wanted.time))
        return answer
