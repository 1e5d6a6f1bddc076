"""A session with one controller, kept up for ever, with a back-off of its own."""

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
    """How patient sessions are, in seconds, and who hears of pushes."""

    backoff: Backoff = field(default_factory=Backoff)
    answer_timeout: float = 10.0
    """After so long without an answer to the session parameters, try again."""
    steady: float = 1.0
    """A session that lasted so long was no failure: the next attempt does not wait longer."""
    remind: float = 60.0
    """The same failure is logged again after so long; in between only at debug level."""
    resolve: float = 10.0
    """How often names of controllers are looked up again."""
    pushed: PushTold | None = None
    """Is told of each push that was carried out."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions of a switch have in common."""

    identity: Identity
    worker: TableWorker
    links: Callable[[], Sequence[LinkObservation]]
    """All links as they are."""
    introduced: Introduced
    """Is told of peers and keys."""
    channels: Channels
    options: SessionOptions
    answered: Counter[Status] = field(default_factory=Counter)
    """Pushes by how they were taken."""


class SessionOwner(Protocol):
    """The sessions with all controllers, as one of them sees it."""

    @property
    def withdrawals(self) -> int:
        """How often entries were withdrawn because there was no controller."""

    def accepted(self, session: Session, controller: pb.SessionAccepted) -> None:
        """A controller has accepted a session."""

    def ended(self, session: Session, entry_ttl: float) -> None:
        """A session that was accepted is over."""

    def overlay_told(self, report: pb.OverlayReport) -> None:
        """How the switch stands, for all controllers."""


class Session:
    """A session with one controller."""

    def __init__(self, endpoint: Endpoint, context: SessionContext, owner: SessionOwner) -> None:
        self.endpoint = endpoint
        self.conversation: Conversation | None = None
        """Collects reports before it is accepted."""
        self.retired = False
        """Whether nobody gives this address any more: what stands goes on, nothing is begun."""
        self._context = context
        self._owner = owner
        self.over = asyncio.Event()
        """Set while it is not accepted."""
        self.over.set()
        self._instead: Session | None = None
        """Another session, with the same controller by another address."""
        self._random = random.SystemRandom()
        self._logged: tuple[SessionEnd, float] | None = None
        self._log = _log.bind(switch=context.identity.switch)

    @property
    def accepted(self) -> bool:
        """Whether the controller has accepted it and it still stands."""
        return not self.over.is_set()

    def stand_by(self, other: Session) -> None:
        """Leave the controller to another session of ours for as long as that one lasts."""
        self._instead = other

    async def run(self) -> None:
        """Keep it up until cancelled, or retired."""
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
        """One stream to its end; and whether it was accepted."""
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
            if owner.withdrawals > withdrawals:  # it was introduced with what it has no longer
                aborted = "entries were withdrawn meanwhile"
                return SessionEnd(grpc.StatusCode.ABORTED, aborted), False
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
        """Why there is no use in asking for a stream; None where somebody listens."""
        try:
            async with asyncio.timeout(self._context.options.answer_timeout):
                await self._context.channels.reach(self.endpoint)
        except ValueError as error:  # a name has got an address beyond this machine
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
        """Log a failure once, and again only if it changes or lasts."""
        now = time.monotonic()
        loud = True
        if self._logged is not None:
            known, since = self._logged
            loud = end.differs(known) or now - since > self._context.options.remind
        if self._instead is not None:  # the same controller, and all is well
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
    """How a call that is over came to its end."""
    details = await call.details() or "the controller ended the stream"
    return SessionEnd(await call.code(), details)
