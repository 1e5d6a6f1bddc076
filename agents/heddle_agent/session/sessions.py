"""Sessions with all controllers of an agent, at the same time.

All controllers receive what the agent sees. Each push and each order carries an epoch, and the
table obeys only the highest, so the next leader already has its session. Losing all controllers is
no emergency. Entries stay and local repair continues (fail-static), unless the controller whose
session ended last has asked that entries are withdrawn after a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from heddle.v1 import agent_pb2 as pb
from heddle_agent.session.address import Address
from heddle_agent.session.channels import Channels
from heddle_agent.session.conversation import Introduced
from heddle_agent.session.encode import Identity
from heddle_agent.session.resolve import Endpoint, Resolver
from heddle_agent.session.session import Session, SessionContext, SessionOptions
from heddle_agent.table import LinkObservation, Status, TableWorker

_log = structlog.get_logger()


def _keep_to_oneself(_peers: Mapping[str, str], _keys: Sequence[bytes]) -> None:
    """Ignore peers and keys, for an agent that sends no peer notices."""


class Sessions:
    """All sessions of one switch's agent."""

    def __init__(
        self,
        identity: Identity,
        worker: TableWorker,
        links: Callable[[], Sequence[LinkObservation]],
        *,
        controllers: Sequence[Address],
        channels: Channels,
        options: SessionOptions,
        introduced: Introduced = _keep_to_oneself,
    ) -> None:
        """Take ``links``, which returns all link states; ``introduced`` takes peers and keys.

        Raises ValueError if there is no controller, or if plain text would leave this machine
        without permission.
        """
        if not controllers:
            raise ValueError("an agent needs at least one controller address")
        for address in controllers:
            channels.check(address)
        self.begun = 0
        """Number of sessions accepted since the start."""
        self.withdrawals = 0
        """How often entries were withdrawn because there was no controller."""
        self._context = SessionContext(identity, worker, links, introduced, channels, options)
        self._resolver = Resolver(controllers)
        self._sessions: dict[Endpoint, Session] = {}
        self._by_controller: dict[str, Session] = {}
        """The session accepted last by each controller, by the controller's instance id."""
        self._withdrawal: asyncio.Task[None] | None = None
        self._log = _log.bind(switch=identity.switch)

    @property
    def answered(self) -> Counter[Status]:
        """Number of pushes by status."""
        return self._context.answered

    @property
    def connected(self) -> int:
        """Number of controllers with which there is a session."""
        return sum(session.accepted for session in self._sessions.values())

    def report(self, observations: Iterable[LinkObservation]) -> None:
        """Report link changes to every controller. One without a session gets all links later."""
        seen = list(observations)
        for session in self._sessions.values():
            if session.conversation is not None:
                session.conversation.report(seen)

    async def run(self) -> None:
        """Keep sessions up until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._turn_to(await self._resolver.endpoints(), tasks)
                    if self._resolver.settled:
                        await asyncio.Event().wait()
                    await asyncio.sleep(self._context.options.resolve)
        finally:
            if self._withdrawal is not None:
                self._withdrawal.cancel()

    def _turn_to(self, endpoints: Sequence[Endpoint], tasks: asyncio.TaskGroup) -> None:
        """Begin sessions with new endpoints; retire the sessions of endpoints that are gone."""
        for endpoint in endpoints:
            known = self._sessions.get(endpoint)
            if known is not None:
                known.retired = False
                continue
            session = self._sessions[endpoint] = Session(endpoint, self._context, self)
            tasks.create_task(self._keep(session), name=f"session with {endpoint}")
        for endpoint in self._sessions.keys() - set(endpoints):
            self._sessions[endpoint].retired = True

    async def _keep(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            if self._sessions.get(session.endpoint) is session:
                del self._sessions[session.endpoint]

    def accepted(self, session: Session, controller: pb.SessionAccepted) -> None:
        """Take note that a controller has accepted a session.

        If there is already a session with the same controller by another address, that one stands
        by. A controller has one session per switch, so the two would replace each other for ever.
        """
        self.begun += 1
        if self._withdrawal is not None:
            self._withdrawal.cancel()
            self._withdrawal = None
        instance = controller.controller_instance
        if not instance:
            return
        other = self._by_controller.get(instance)
        if other is not None and other is not session:
            other.stand_by(session)
        self._by_controller[instance] = session

    def ended(self, session: Session, entry_ttl: float) -> None:
        """Take note that a session is over; after the last one, the time to withdrawal begins."""
        for instance in [key for key, one in self._by_controller.items() if one is session]:
            del self._by_controller[instance]
        if entry_ttl > 0 and not self.connected:
            self._withdrawal = asyncio.create_task(self._withdraw(entry_ttl))

    def overlay_told(self, report: pb.OverlayReport) -> None:
        """Report to every controller whether the overlay is withdrawn."""
        for session in self._sessions.values():
            if session.conversation is not None:
                session.conversation.report_overlay(report)

    async def _withdraw(self, ttl: float) -> None:
        await asyncio.sleep(ttl)
        self.withdrawals += 1
        worker = self._context.worker
        held = worker.forwarding.held.entries
        await worker.withdraw()
        self._log.warning("no controller: entries withdrawn", entries=held, after_seconds=ttl)
