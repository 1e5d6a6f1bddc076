"""AgentService: one stream for each agent, which begins with the agent's introduction.

A stream has a writer (the call that gRPC runs) and a reader (a task of its own). When one of them
ends, it ends the other. An error of the reader becomes the status of the stream.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import structlog
from grpc import aio
from typing_extensions import override

from heddle.v1 import agent_pb2 as pb
from heddle.v1.agent_pb2_grpc import AgentServiceServicer
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import NodeKind
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.serve.agents.counters import CounterBook
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.introductions import Introductions, KeySchedule
from heddle_controller.serve.agents.link_book import (
    BURST,
    EACH,
    SHARE,
    LinkBook,
    Means,
    TooMuch,
)
from heddle_controller.serve.agents.overlays import OverlayBook
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.bucket import TokenBucket
from heddle_controller.serve.codec import agent as codec
from heddle_controller.serve.errors import (
    Refusal,
    denied,
    failed_precondition,
    no_fabric_for,
    not_in_fabric,
)
from heddle_controller.serve.security.caller import current_caller
from heddle_controller.state.errors import FabricDeleted, NotFound, PortError
from heddle_controller.state.records import FabricRecord
from heddle_controller.store.store import Store

log = structlog.stdlib.get_logger(__name__)

_WITHDRAWAL = 10.0
"""Interval in seconds at which sessions of agents that only have to remove their entries are looked
at. Their agents must come again if they do not answer, or if that is no longer what they have to
do."""

_Context = aio.ServicerContext[Any, Any]
Messages = AsyncIterator[pb.AgentMessage]


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """Settings of all sessions; agents get some of them when their session is accepted."""

    controller_id: str
    """Name of this controller, for people."""
    counter_interval: float
    """Seconds between counter reports; 0 means never."""
    entry_ttl: float
    """Seconds without a controller after which agents withdraw their entries; 0 means never."""
    introduction_limit: float = 10.0
    """Seconds that an agent has to send its introduction."""
    meters: bool = False
    """Whether agents count traffic that no entry matches."""
    peer_keys: KeySchedule = field(default_factory=KeySchedule)
    """Keys of peer notices."""


class AgentService(AgentServiceServicer):
    """Accepts sessions, and passes what agents report on to observations and the books."""

    def __init__(
        self,
        store: Store,
        gateway: Gateway,
        counters: CounterBook,
        terms: SessionTerms,
        epoch: Callable[[], int],
        *,
        observations: Observations,
        links: LinkBook,
        overlays: OverlayBook,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._counters = counters
        self._terms = terms
        self._epoch = epoch
        self._observations = observations
        self._links = links
        self._overlays = overlays
        self._instance = secrets.token_hex(8)
        """Random id of this start of the controller."""
        self.introductions = Introductions(terms.peer_keys, store, meters=terms.meters)

    @override
    async def Session(  # type: ignore[override]  # its stub knows generators only
        self, request_iterator: Messages, context: _Context
    ) -> None:
        first, found = await self._introduction(request_iterator)
        about = codec.session_from_pb(first, self._gateway.next_id())
        about = replace(about, certificate=current_caller().certificate)
        structlog.contextvars.bind_contextvars(fabric=about.fabric, switch=about.switch)
        if isinstance(found, Refusal):
            await self._withdraw(about, found, request_iterator, context)
            return
        means = Means(about, found.fabric.structure, self._store)
        session = self._gateway.open(about)
        self._observations.joined(about)
        log.info("agent connected", version=about.software_version)
        self._overlays.joined(session, found.overlay, withdrawn=first.overlay_withdrawn)
        self.introductions.joined(session, found.fabric.structure)
        del first, found  # they are large, and a session may last for months
        reader = asyncio.create_task(self._read(session, means, request_iterator))
        try:
            await context.write(self._accepted())
            async with aclosing(session.outgoing()) as outgoing:
                async for message in outgoing:
                    await context.write(message)
                    del message  # free its memory while the stream waits
        finally:
            reader.cancel()
            self.introductions.left(session)
            self._overlays.left(session)
            if self._gateway.close_session(session):
                self._counters.forget(session.about)
                self._links.forget(session.about)
                self._observations.left(session.about)
            log.info("agent disconnected")

    async def _withdraw(
        self, about: AgentSession, refusal: Refusal, messages: Messages, context: _Context
    ) -> None:
        """Have the leader tell a switch that no fabric has any more to remove its entries.

        The leader may wait for other switches first, for as long as their agents are away. It is
        logged once.

        Raises:
            Refusal: ``refusal``, once the agent has answered, or soon if it does not answer.
        """
        session = self._gateway.open(about)
        log.warning("agent has entries that no plan contains", why=str(refusal))
        reader = asyncio.create_task(self._read(session, refusal, messages))
        ending = asyncio.create_task(self._end_withdrawal(session, refusal))
        try:
            await context.write(self._accepted())
            async with aclosing(session.outgoing()) as outgoing:
                async for message in outgoing:
                    await context.write(message)
        finally:
            ending.cancel()
            reader.cancel()
            self._gateway.close_session(session)

    async def _end_withdrawal(self, session: AgentStream, refusal: Refusal) -> None:
        """End a session for a withdrawal if its agent is silent or nothing is left to withdraw."""
        why: Exception | None = refusal
        while why is refusal and not session.about.pushed:
            await asyncio.sleep(_WITHDRAWAL)
            why = await self._why_left_over(session.about, refusal)
        if why is refusal:
            await asyncio.sleep(_WITHDRAWAL)
        session.end(why)

    async def _why_left_over(self, about: AgentSession, refusal: Refusal) -> Exception | None:
        """Return ``refusal`` if it still holds, or else why a session for a withdrawal ends.

        It ends without an error if the fabric has the switch again.
        """
        try:
            found = await self._check_switch(about)
        except (Refusal, PortError) as why:  # another controller leads, or the store is away
            return why
        return refusal if isinstance(found, Refusal) else None

    async def _introduction(
        self, messages: Messages
    ) -> tuple[pb.SessionParameters, FabricRecord | Refusal]:
        """Return the agent's first message and its fabric, after all checks of who it is.

        Instead of the fabric, return a refusal if the session must end once the switch has removed
        its entries.

        Raises:
            InputError: the message is malformed or no introduction.
            Refusal: it came too late, the caller may not speak for the switch, the fabric or switch
                is unknown, or the switch is set aside.
        """
        try:
            async with asyncio.timeout(self._terms.introduction_limit):
                first = await anext(messages)
        except StopAsyncIteration:
            first = pb.AgentMessage()
        except TimeoutError:
            text = f"no session_parameters within {self._terms.introduction_limit:g} s"
            raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "NO_INTRODUCTION", text) from None
        if first.WhichOneof("message") != "session_parameters":
            reason = "the first message of a session must be session_parameters"
            raise refuse(codec.SOURCE, "message", reason)
        about = codec.session_from_pb(first.session_parameters, self._gateway.next_id())
        if not current_caller().may_speak_for(about.fabric, about.switch):
            message = (
                f"{current_caller()} may not speak for switch {about.switch!r} of "
                f"fabrics/{about.fabric}; give the agent that switch's certificate"
            )
            raise denied("NOT_YOUR_SWITCH", message)
        found = await self._check_switch(about)
        self._gateway.admit(about.fabric, about.switch)
        return first.session_parameters, found

    async def _check_switch(self, about: AgentSession) -> FabricRecord | Refusal:
        """Return the fabric; a refusal if this controller leads and has to withdraw entries.

        These are entries of a fabric that was deleted, or that was replaced by one without the
        switch.
        """
        named = {"fabric": about.fabric, "switch": about.switch}
        try:
            record = await self._store.get_fabric(about.fabric)
        except NotFound as error:
            gone = error.generation if isinstance(error, FabricDeleted) else 0
            return self._left_over(about, gone, no_fabric_for(about.switch, about.fabric))
        structure = record.fabric.structure
        row = structure.index.get(about.switch)
        if row is None:
            newest = (await self._store.versions(about.fabric)).generation
            return self._left_over(about, newest, not_in_fabric(about.switch, about.fabric))
        if structure.nodes.kind[row] == NodeKind.NIC:
            message = f"node {about.switch!r} of fabrics/{about.fabric} is a NIC; name a switch"
            raise failed_precondition("NOT_A_SWITCH", message, **named)
        return record

    def _left_over(self, about: AgentSession, newest: int, refusal: Refusal) -> Refusal:
        """Return ``refusal`` if this controller leads and has to withdraw the switch's entries.

        No generation of the fabric was above ``newest``. Otherwise, raise ``refusal``.
        """
        if self._gateway.guard.leading and about.holds_entries_before(newest):
            return refusal
        raise refusal from None

    def _accepted(self) -> pb.ControllerMessage:
        return pb.ControllerMessage(
            session_accepted=pb.SessionAccepted(
                controller_id=self._terms.controller_id,
                epoch=self._epoch(),
                counter_interval_seconds=self._terms.counter_interval,
                entry_ttl_seconds=self._terms.entry_ttl,
                controller_instance=self._instance,
            )
        )

    async def _read(self, session: AgentStream, means: Means | Refusal, messages: Messages) -> None:
        """Read the agent's messages until the stream ends, then end the session the same way.

        With a refusal in place of ``means``, only answers to pushes count. The session ends once
        all are answered.
        """
        pace = TokenBucket(BURST, SHARE, time.monotonic())
        try:
            async for message in messages:
                began = time.thread_time()
                kind = message.WhichOneof("message")
                if isinstance(means, Means):
                    if kind == "link_state":
                        message.link_state.CopyFrom(await means.links(message.link_state))
                    self._take(session, means, message)
                elif kind == "push_result":
                    session.answered(message.push_result, time.time())
                    if not session.pending_count:
                        session.end(await self._why_left_over(session.about, means))
                del message  # free its memory while the stream waits
                spent = time.thread_time() - began + EACH
                if (rest := pace.spend(spent, time.monotonic())) > 0:
                    await asyncio.sleep(rest)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the writer raises it, in the call it belongs to
            session.end(self._fault(session.about, error))
        else:
            session.end()

    def _fault(self, about: AgentSession, error: Exception) -> Exception:
        """Return the error that ends a session after an error of its reader.

        A switch is set aside if it reported too much, or sent malformed messages too often.
        """
        if isinstance(error, TooMuch):
            return self._gateway.set_aside(about.fabric, about.switch, str(error))
        if not isinstance(error, InputError | Refusal):
            return error
        if not self._gateway.aside.faulty(about.fabric, about.switch):
            return error
        log.warning("agent sent a malformed message", why=str(error)[:256])
        why = "sends malformed messages again and again"
        return self._gateway.set_aside(about.fabric, about.switch, why)

    def _take(self, session: AgentStream, means: Means, message: pb.AgentMessage) -> None:
        about = session.about
        match message.WhichOneof("message"):
            case "push_result":
                session.answered(message.push_result, time.time())
            case "link_state":
                report = codec.links_from_pb(message.link_state)
                self._links.take(about, message.link_state)
                self._observations.report(about, report, time.time())
            case "counters":
                means.counters(message.counters)
                self._counters.put(about, codec.counters_from_pb(message.counters))
            case "overlay":
                self._overlays.reported(session, message.overlay)
            case _:
                reason = "after session_parameters come answers and reports"
                raise refuse(codec.SOURCE, "message", reason)
