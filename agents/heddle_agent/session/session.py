"""A session with whichever controller answers, kept up for ever.

Losing all controllers is no emergency: entries stay and local repair goes on (fail-static), unless
the controller that spoke last has asked for entries to withdraw after a while.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import structlog

from heddle.v1 import agent_pb2_grpc
from heddle_agent.session.address import Address
from heddle_agent.session.backoff import Backoff
from heddle_agent.session.channels import Channels
from heddle_agent.session.conversation import (
    ENDED,
    Call,
    Conversation,
    ForeignError,
    Introduced,
)
from heddle_agent.session.encode import Identity
from heddle_agent.session.refusal import SessionEnd
from heddle_agent.table import LinkObservation, Status, Turns

_log = structlog.get_logger()


def _keep_to_oneself(_peers: Mapping[str, str], _keys: Sequence[bytes]) -> None:
    """Takes the peers of an agent that sends no peer notices."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How patient a session is; all in seconds."""

    backoff: Backoff = field(default_factory=Backoff)
    answer_timeout: float = 10.0
    """After so long without an answer to the session parameters, try the next controller."""
    steady: float = 1.0
    """A session that lasted so long was no failure: the next attempt does not wait longer."""
    remind: float = 60.0
    """The same failure is logged again after so long; in between only at debug level."""


class Session:
    """The session of one switch's agent."""

    def __init__(
        self,
        identity: Identity,
        turns: Turns,
        links: Callable[[], Sequence[LinkObservation]],
        *,
        controllers: Sequence[Address],
        channels: Channels,
        options: SessionOptions,
        introduced: Introduced = _keep_to_oneself,
    ) -> None:
        """``links`` gives all links as they are; ``introduced`` is told of peers and keys.

        ValueError if plain text would go out unasked.
        """
        if not controllers:
            raise ValueError("an agent needs at least one controller address")
        for address in controllers:
            channels.check(address)
        self.sessions = 0  # accepted since the start
        self.answered: Counter[Status] = Counter()
        self._identity = identity
        self._turns = turns
        self._links = links
        self._introduced = introduced
        self._random = random.SystemRandom()
        self._controllers = self._random.sample(controllers, len(controllers))  # spreads agents
        self._channels = channels
        self._options = options
        self._accepted = False
        self._conversation: Conversation | None = None  # not yet accepted, it collects reports
        self._withdrawal: asyncio.Task[None] | None = None
        self._withdrawals = 0
        self._logged: dict[Address, tuple[SessionEnd, float]] = {}
        self._log = _log.bind(switch=identity.switch)

    @property
    def connected(self) -> bool:
        """Whether a controller has accepted the session and it still stands."""
        return self._accepted

    def report(self, observations: Iterable[LinkObservation]) -> None:
        """Tell the controller of link changes; the next one hears of all links anyway."""
        if self._conversation is not None:
            self._conversation.report(observations)

    async def run(self) -> None:
        """Keep a session up until cancelled."""
        failures = turn = 0
        loop = asyncio.get_running_loop()
        try:
            while True:
                address = self._controllers[turn % len(self._controllers)]
                began, before = loop.time(), self.sessions
                end = await self._attempt(address)
                met = self.sessions > before
                steady = met and loop.time() - began > self._options.steady
                failures, turn = 0 if steady else failures + 1, turn + 1
                rounds = -(-failures // len(self._controllers))
                delay = self._options.backoff.delay(rounds, self._random.random())
                self._tell(address, end, delay, met=met)
                await asyncio.sleep(delay)
        finally:
            if self._withdrawal is not None:
                self._withdrawal.cancel()

    async def _attempt(self, address: Address) -> SessionEnd:
        """One session with one controller, to its end."""
        stub = agent_pb2_grpc.AgentServiceStub(self._channels.get(address))
        call = stub.Session()
        conversation = Conversation(
            call,
            self._turns,
            links=self._links,
            answered=self.answered,
            introduced=self._introduced,
        )
        self._conversation = conversation
        ttl, withdrawals = 0.0, self._withdrawals
        try:
            async with asyncio.timeout(self._options.answer_timeout):
                accepted = await conversation.introduce(self._identity)
            if self._withdrawals > withdrawals:  # it was introduced with what it has no longer
                return SessionEnd(grpc.StatusCode.ABORTED, "entries were withdrawn meanwhile")
            ttl = accepted.entry_ttl_seconds
            self._begin(address, accepted.controller_id)
            await conversation.run(accepted.counter_interval_seconds, self._random.random())
            return await _end(call)
        except TimeoutError:
            return SessionEnd(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer")
        except ForeignError as error:
            return SessionEnd(grpc.StatusCode.UNIMPLEMENTED, str(error))
        except ENDED:
            return await _end(call)
        finally:
            call.cancel()
            self._finish(ttl)

    def _begin(self, address: Address, controller: str) -> None:
        self._accepted = True
        self.sessions += 1
        self._logged.clear()
        if self._withdrawal is not None:
            self._withdrawal.cancel()
            self._withdrawal = None
        self._log.info("session accepted", controller=controller, address=str(address))

    def _finish(self, ttl: float) -> None:
        self._accepted = False
        self._conversation = None
        if ttl > 0:
            self._withdrawal = asyncio.create_task(self._withdraw(ttl))

    async def _withdraw(self, ttl: float) -> None:
        await asyncio.sleep(ttl)
        self._withdrawals += 1
        held = self._turns.forwarding.held.entries
        await self._turns.withdraw()
        self._log.warning("no controller: entries withdrawn", entries=held, after_seconds=ttl)

    def _tell(self, address: Address, end: SessionEnd, delay: float, *, met: bool) -> None:
        """Log a failure once, and again only if it changes or lasts."""
        known, since = self._logged.get(address, (None, 0.0))
        now = time.monotonic()
        loud = known is None or end.differs(known) or now - since > self._options.remind
        if loud:
            self._logged[address] = (end, now)
        log = self._log.warning if loud else self._log.debug
        log(
            "session lost" if met else "no session",
            address=str(address),
            status=end.code.name,
            why=end.details,
            cure=end.cure,
            retry_seconds=round(delay, 2),
        )


async def _end(call: Call) -> SessionEnd:
    """How a call that is over came to its end."""
    details = await call.details() or "the controller ended the stream"
    return SessionEnd(await call.code(), details)
