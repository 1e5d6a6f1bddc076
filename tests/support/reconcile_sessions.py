"""Sessions of agents as a gateway keeps them, whatever becomes of what is pushed to them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping

from heddle_controller.reconcile.southbound import (
    AgentSession,
    SessionChange,
    SessionEvent,
    TableState,
)


class Sessions:
    """The part of ``AgentGateway`` that is the same for every gateway of tests."""

    def __init__(self, fabric: str) -> None:
        self._fabric = fabric
        self._aside: dict[str, str] = {}
        self._ids = itertools.count(1)
        self._sessions: dict[str, AgentSession] = {}
        self._lost: dict[int, asyncio.Event] = {}
        self._listeners: set[asyncio.Queue[SessionEvent]] = set()

    def begin(self, switch: str, epoch: int, held: TableState, table_size: int = 0) -> None:
        """Begin a session, in place of any before, with the highest epoch and what is held."""
        if switch in self._aside:
            return
        if switch in self._sessions:
            self._lost[self._sessions[switch].id].set()
        session = AgentSession(
            id=next(self._ids),
            fabric=self._fabric,
            switch=switch,
            instance="i",
            software_version="0",
            capabilities=frozenset(),
            table_size=table_size,
            highest_epoch=epoch,
            generation=held.generation,
            table_digest=held.digest,
        )
        self._sessions[switch] = session
        self._lost[session.id] = asyncio.Event()
        self._tell(SessionChange.CONNECTED, session)

    def disconnect(self, *switches: str) -> None:
        """End the session of each; what was sent and has not reached the agent never will."""
        for switch in switches:
            session = self._sessions.pop(switch)
            self._lost[session.id].set()
            self._tell(SessionChange.DISCONNECTED, session)

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """See the port."""
        return dict(self._sessions) if fabric == self._fabric else {}

    def set_aside(self, fabric: str, switch: str, why: str) -> object:
        """See the port; for as long as the test lasts."""
        if switch not in self._aside:
            self._aside[switch] = f"set aside, as its agent {why}"
            if switch in self._sessions:
                self.disconnect(switch)
        return fabric

    def held_aside(self, fabric: str) -> Mapping[str, str]:
        """See the port."""
        return dict(self._aside) if fabric == self._fabric else {}

    def lead(self, epoch: int) -> None:
        """See the port."""

    def follow(self, epoch: int) -> None:
        """See the port."""

    async def events(self) -> AsyncIterator[SessionEvent]:
        """See the port."""
        queue: asyncio.Queue[SessionEvent] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    def _tell(self, change: SessionChange, session: AgentSession) -> None:
        for queue in self._listeners:
            queue.put_nowait(SessionEvent(change, session))
