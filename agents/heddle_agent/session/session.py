"""A session with one controller, kept up for ever, with its own back-off."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import structlog

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import agent_pb2_grpc
from heddle_agent.session.backoff import Backoff
from heddle_agent.session.channels import Channels
from heddle_agent.session.conversation import (
    ENDED,
    Call,
    Conversation,
    ForeignError,
    Introduced,
    PushTold,
)
from heddle_agent.session.encode import Identity
from heddle_agent.session.refusal import SessionEnd
from heddle_agent.session.resolve import Endpoint
from heddle_agent.stopping import asked_to_end
from heddle_agent.table import LinkObservation, Status, TableWorker

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Time limits of sessions, in seconds, and who is informed of pushes."""

    backoff: Backoff = field(default_factory=Backoff)
    answer_timeout: float = 10.0
    """Time to wait for a connection, and then for the answer to the session parameters."""
    steady: float = 1.0
    """After a session that lasted longer than this, the back-off starts anew."""
    remind: float = 60.0
    """The same failure is logged as a warning again after this time. In between it is logged at
    debug level."""
    resolve: float = 10.0
    """How often the names of controllers are looked up again."""
    pushed: PushTold | None = None
    """Is called with each push that was carried out."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions of a switch have in common."""

    identity: Identity
    worker: TableWorker
    links: Callable[[], Sequence[LinkObservation]]
    """Returns the current state of all links."""
    introduced: Introduced
    """Is called with peers and keys."""
    channels: Channels
    options: SessionOptions
    answered: Counter[Status] = field(default_factory=Counter)
    """Number of pushes by status."""


class SessionOwner(Protocol):
    """The owner of all sessions of an agent, as a single session uses it."""

    @property
    def withdrawals(self) -> int:
        """How often entries were withdrawn because there was no controller."""

    def accepted(self, session: Session, controller: pb.SessionAccepted) -> None:
        """Take note that a controller has accepted a session."""

    def ended(self, session: Session, entry_ttl: float) -> None:
        """Take note that an accepted session is over; ``entry_ttl`` is in seconds, 0 for none."""

    def overlay_told(self, report: pb.OverlayReport) -> None:
        """Report to all controllers whether the overlay is withdrawn."""


class Session:
    """A session with one controller."""

    def __init__(self, endpoint: Endpoint, context: SessionContext, owner: SessionOwner) -> None:
        self.endpoint = endpoint
        self.conversation: Conversation | None = None
        """The current stream, if any. It collects reports even before it is accepted."""
        self.retired = False
        """Whether names no longer resolve to this endpoint. The current stream continues, but no
        new one begins."""
        self._context = context
        self._owner = owner
        self.over = asyncio.Event()
        """Set while no controller has accepted the session."""
        self.over.set()
        self._instead: Session | None = None
        """Another session with the same controller, by another address."""
        self._random = random.SystemRandom()
        self._logged: tuple[SessionEnd, float] | None = None
        self._log = _log.bind(switch=context.identity.switch)

    @property
    def accepted(self) -> bool:
        """Whether the controller has accepted the session and it has not ended."""
        return not self.over.is_set()

    def stand_by(self, other: Session) -> None:
        """Make no attempts for as long as another session with the same controller lasts."""
        self._instead = other

    async def run(self) -> None:
        """Keep the session up until this task is cancelled or the session is retired."""
        failures, options = 0, self._context.options
        loop = asyncio.get_running_loop()
        while not self.retired:
            if self._instead is not None:
                await self._instead.over.wait()
                self._instead = None
            began = loop.time()
            end, met = await self._attempt()
            if asked_to_end():
                raise asyncio.CancelledError
            steady = met and loop.time() - began > options.steady
            failures = 0 if steady else failures + 1
            delay = options.backoff.delay(failures, self._random.random())
            self._tell(end, delay, met=met)
            await asyncio.sleep(delay)

    async def _attempt(self) -> tuple[SessionEnd, bool]:
        """Run one stream to its end; return how it ended, and whether it was accepted."""
        context, owner = self._context, self._owner
        if (end := await self._unreachable()) is not None:
            return end, False
        call = agent_pb2_grpc.AgentServiceStub(context.channels.get(self.endpoint)).Session()
        conversation = self.conversation = Conversation(
            call,
            context.worker,
            links=context.links,
            answered=context.answered,
            introduced=context.introduced,
            overlay_told=owner.overlay_told,
            pushed=context.options.pushed,
        )
        ttl, withdrawals = 0.0, owner.withdrawals
        try:
            async with asyncio.timeout(context.options.answer_timeout):
                accepted = await conversation.introduce(context.identity)
            if owner.withdrawals > withdrawals:  # the parameters named entries that are gone now
                anew = "entries were withdrawn meanwhile; the agent introduces itself again"
                return SessionEnd(grpc.StatusCode.CANCELLED, anew), False
            ttl = accepted.entry_ttl_seconds
            self._begin(accepted)
            await conversation.run(accepted.counter_interval_seconds, self._random.random())
            return await _end(call), True
        except TimeoutError:
            return SessionEnd(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer"), self.accepted
        except ForeignError as error:
            return SessionEnd(grpc.StatusCode.UNIMPLEMENTED, str(error)), self.accepted
        except ENDED:
            return await _end(call), self.accepted
        finally:
            call.cancel()
            self.conversation = None
            if self.accepted:
                self.over.set()
                owner.ended(self, ttl)

    async def _unreachable(self) -> SessionEnd | None:
        """Return why no stream is worth trying; None if something listens at the address."""
        try:
            async with asyncio.timeout(self._context.options.answer_timeout):
                await self._context.channels.reach(self.endpoint)
        except ValueError as error:  # the name now has an address on another machine
            return SessionEnd(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except TimeoutError:
            return SessionEnd(grpc.StatusCode.UNAVAILABLE, "nothing answers at this address")
        except OSError as error:
            why = error.strerror or str(error)
            return SessionEnd(grpc.StatusCode.UNAVAILABLE, f"cannot connect: {why}")
        return None

    def _begin(self, accepted: pb.SessionAccepted) -> None:
        self._logged = None
        self.over.clear()
        self._owner.accepted(self, accepted)
        controller = accepted.controller_id
        self._log.info("session accepted", controller=controller, address=str(self.endpoint))

    def _tell(self, end: SessionEnd, delay: float, *, met: bool) -> None:
        """Log a failure once as a warning, and again only if it changes or lasts."""
        now = time.monotonic()
        loud = True
        if self._logged is not None:
            known, since = self._logged
            loud = end.differs(known) or now - since > self._context.options.remind
        if self._instead is not None:  # another session has this controller: no failure
            loud = False
        elif loud:
            self._logged = end, now
        log = self._log.warning if loud else self._log.debug
        log(
            "session lost" if met else "no session",
            address=str(self.endpoint),
            status=end.code.name,
            why=end.details,
            cure=end.cure,
            retry_seconds=round(delay, 2),
        )


async def _end(call: Call) -> SessionEnd:
    """Return how a finished call ended."""
    details = await call.details() or "the controller ended the stream"
    return SessionEnd(await call.code(), details)
