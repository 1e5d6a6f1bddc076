"""The overlay's state, ordered of agents by the controller that leads, and what they say of it.

The leader follows the store and orders: at the start of a session, ahead of any push, when it
begins to lead, and whenever the flag changes. It is a level, not an event: what an agent is told
last is how it shall stand, and a leader that missed a change tells of it when it next reads the
store. While the store cannot be reached nobody is told anything: what was known last may be of
the past, and agents stay as they are. An order carries the leader's epoch, and an agent that
knows of a newer one does not obey. Agents tell every controller how they stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from heddle.v1 import agent_pb2 as pb
from heddle_controller.reconcile.ports import Store
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.state.errors import NotFound, PortError, Unavailable
from heddle_controller.state.records import Overlay

LOOK_SECONDS = 2.0
"""How often the flag is read where no notice of a change came."""

log = structlog.stdlib.get_logger(__name__)


class OverlayMeter(Protocol):
    """Where the state is measured."""

    def overlay_state(self, fabric: str, *, withdrawn: bool, disobeying: int) -> None:
        """A fabric's flag, and how many agents with a session here do not stand so (yet)."""


@dataclass(slots=True)
class Obedience:
    """One session."""

    told: bool
    """Whether it was last told to withdraw; how it stands, where we have told it nothing since."""
    stands: bool
    """Whether it has withdrawn, as it says."""
    message: str = ""
    """Why it does not stand as told."""


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
        self._wanted: dict[str, bool] = {}
        self._led = asyncio.Event()
        """Set when we have begun to lead."""
        self._sessions: dict[str, dict[AgentStream, Obedience]] = {}

    def joined(self, session: AgentStream, overlay: Overlay, *, withdrawn: bool) -> None:
        """A session begins of an agent that stands so; it is told if that is wrong."""
        fabric = session.about.fabric
        self._sessions.setdefault(fabric, {})[session] = Obedience(withdrawn, withdrawn)
        self.spread(fabric, overlay)

    def left(self, session: AgentStream) -> None:
        """A session is over."""
        sessions = self._sessions.get(session.about.fabric, {})
        sessions.pop(session, None)
        self._measure(session.about.fabric)

    def reported(self, session: AgentStream, report: pb.OverlayReport) -> None:
        """An agent says how it stands."""
        about = session.about
        agent = self._sessions.get(about.fabric, {}).get(session)
        if agent is None:
            return
        agent.stands, agent.message = report.withdrawn, report.message[:256]
        if agent.message:
            log.warning("overlay order not obeyed", switch=about.switch, why=agent.message)
        else:  # another controller may have ordered it: looked at again before long
            agent.told = agent.stands
        self._measure(about.fabric)

    def lead(self) -> None:
        """We begin to lead: whatever others have ordered, agents are ordered anew where need be."""
        for sessions in self._sessions.values():
            for agent in sessions.values():
                agent.told = agent.stands
        self._led.set()

    def spread(self, fabric: str, overlay: Overlay) -> None:
        """Tell every agent that was last told otherwise, if this is of now and we lead."""
        if self._store.stale_for() > 0:
            return
        if self._wanted.get(fabric, False) is not overlay.withdrawn:
            log.warning("overlay", fabric=fabric, withdrawn=overlay.withdrawn)
        self._wanted[fabric] = overlay.withdrawn
        epoch = self._leading()
        for session, agent in self._sessions.get(fabric, {}).items():
            if epoch and agent.told is not overlay.withdrawn:
                agent.told, agent.message = overlay.withdrawn, ""
                order = pb.OverlayOrder(withdrawn=overlay.withdrawn, epoch=epoch)
                session.order(order)
        self._measure(fabric)

    def standing(self, fabric: str, *, withdrawn: bool) -> OverlayStates:
        """How the agents of a fabric stand, if they are to stand so."""
        sessions = self._sessions.get(fabric, {})
        obeying = sum([agent.stands is withdrawn for agent in sessions.values()])
        failed = [(session, agent) for session, agent in sessions.items() if agent.message]
        failures = tuple((session.about.switch, agent.message) for session, agent in failed)
        return OverlayStates(len(sessions), obeying, failures)

    async def run(self) -> None:
        """Follow the store until it is closed."""
        again = asyncio.create_task(self._look_again())
        try:
            await self._follow()
        finally:
            again.cancel()

    async def _look_again(self) -> None:
        """When we begin to lead, and now and then: the store may have been away."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._led.wait()
            self._led.clear()
            for fabric in [name for name, sessions in self._sessions.items() if sessions]:
                with suppress(Unavailable):
                    await self._look(fabric)

    async def _follow(self) -> None:
        while True:
            try:
                async for fabric in self._store.changes():
                    await self._look(fabric)
            except Unavailable as error:
                await asyncio.sleep(error.retry_after)
            else:
                return

    async def _look(self, fabric: str) -> None:
        try:
            record = await self._store.get_fabric(fabric)
        except NotFound:
            self._wanted.pop(fabric, None)
        except Unavailable:
            raise
        except PortError as error:
            log.warning("overlay not read", fabric=fabric, why=str(error))
        else:
            self.spread(fabric, record.overlay)

    def _measure(self, fabric: str) -> None:
        wanted = self._wanted.get(fabric, False)
        agents = self._sessions.get(fabric, {}).values()
        disobeying = sum(agent.stands is not wanted for agent in agents)
        self._meter.overlay_state(fabric, withdrawn=wanted, disobeying=disobeying)
