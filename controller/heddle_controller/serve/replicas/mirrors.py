"""What the leader does: has the sessions of other replicas as if they were its own.

A session of another replica is a stream of our gateway whose far end is not an agent
but a line to that replica. Its bounds, its answers and its end are those of any
stream, so that nobody above knows the difference.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import structlog

from heddle.v1 import relay_pb2 as pb
from heddle_controller.model.errors import InputError
from heddle_controller.reconcile.southbound import AgentSession
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.codec import agent as codec
from heddle_controller.serve.replicas.post import COMMON, Post

log = structlog.stdlib.get_logger(__name__)

SILENT_CALLS = 6
"""A replica that has not answered so many calls has no agents, as far as we know."""


@dataclass(slots=True, eq=False)
class RemoteSession:
    """One session of another replica."""

    about: AgentSession
    opened: float
    stream: AgentStream | None = None
    """None while a later session of the same switch is open."""
    pump: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class Line:
    """What there is with one replica."""

    replica: str
    number: int
    heard: float
    """By the monotonic clock."""
    received: int = 0
    sent: int = 0
    mirrors: dict[int, RemoteSession] = field(default_factory=dict)


class Mirrors:
    """The leader's side of all lines; idle while we do not lead."""

    def __init__(
        self,
        post: Post,
        gateway: Gateway,
        holder: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._gateway = gateway
        self._holder = holder
        self._now = now
        self._epoch = 0
        self._lines: dict[str, Line] = {}

    def lead(self, epoch: int) -> None:
        """We lead: call all replicas."""
        self._epoch = epoch
        self.call()

    def retire(self, epoch: int) -> None:
        """We do not lead any more: sessions of others are none of our business."""
        if epoch == self._epoch:
            self._epoch = 0
            self.lost()

    def lost(self) -> None:
        """Letters may have been lost: close all lines, so that new ones are opened."""
        for line in list(self._lines.values()):
            self._hang_up(line)

    def call(self) -> None:
        """Tell everybody that we lead, and of lines that are silent, that they are closed."""
        if not self._epoch:
            return
        for line in list(self._lines.values()):
            if self._now() > line.heard + SILENT_CALLS * self._post.pace:
                log.warning("replica silent", replica=line.replica)
                self._hang_up(line)
        lines = [
            pb.LineBeat(replica=line.replica, line=line.number, sent=line.sent)
            for line in self._lines.values()
        ]
        call = pb.LeaderCall(epoch=self._epoch, holder=self._holder, lines=lines)
        self._post.put(COMMON, pb.Note(call=call))

    def roster(self, sender: str, roster: pb.Roster) -> None:
        """A replica opens a line, with all sessions that it has."""
        if not self._epoch or roster.epoch != self._epoch:
            return
        if sender in self._lines:
            self._hang_up(self._lines[sender])
        line = self._lines[sender] = Line(sender, roster.line, self._now())
        log.info("replica follows", replica=sender, sessions=len(roster.sessions))
        for session in roster.sessions:
            self._open(line, session)

    def opened(self, sender: str, session: pb.SessionOpened) -> None:
        """An agent has begun a session with a replica."""
        line = self._line(sender, session.line, session.number)
        if line is not None:
            self._open(line, session)

    def closed(self, sender: str, closed: pb.SessionClosed) -> None:
        """It is over."""
        line = self._line(sender, closed.line, closed.number)
        if line is not None and closed.session in line.mirrors:
            mirror = line.mirrors.pop(closed.session)
            self._close(mirror)
            self.vacant(mirror.about)

    def result(self, sender: str, result: pb.RelayedResult) -> None:
        """An agent of a replica has answered."""
        line = self._line(sender, result.line, result.number)
        mirror = line.mirrors.get(result.session) if line is not None else None
        if mirror is None or mirror.stream is None:
            return
        try:
            mirror.stream.answered(result.result, time.time())
        except InputError as error:  # its own replica has let it pass
            log.warning("answer not understood", switch=mirror.about.switch, why=str(error))

    def beat(self, sender: str, beat: pb.LineBeat) -> None:
        """A replica is there, and says how much it has sent."""
        line = self._lines.get(sender)
        if line is None or line.number != beat.line:
            return
        line.heard = self._now()
        if line.received != beat.sent:
            self._hang_up(line)

    def vacant(self, about: AgentSession) -> None:
        """A session of a switch is over: an earlier one that is open still counts again."""
        found = [
            (mirror.opened, line.replica, session)
            for line in self._lines.values()
            for session, mirror in line.mirrors.items()
            if (mirror.about.fabric, mirror.about.switch) == (about.fabric, about.switch)
        ]
        if found:
            _, replica, session = max(found)
            self._show(self._lines[replica], session)

    def _line(self, sender: str, number: int, note: int) -> Line | None:
        """The line of a numbered note that is the next one on it."""
        line = self._lines.get(sender)
        if line is None or line.number != number:
            return None
        line.heard = self._now()
        if note != line.received + 1:
            log.warning("letters lost", replica=sender, missing=note - line.received - 1)
            self._hang_up(line)
            return None
        line.received = note
        return line

    def _open(self, line: Line, session: pb.SessionOpened) -> None:
        try:
            about = codec.session_from_pb(session.parameters, self._gateway.next_id())
        except InputError as error:
            log.warning("session not understood", replica=line.replica, why=str(error))
            return
        about = replace(about, pushed=session.pushed)
        line.mirrors[session.session] = RemoteSession(about, session.time)
        self._show(line, session.session)

    def _show(self, line: Line, session: int) -> None:
        """Open a session in the gateway, if it is the last one of its switch."""
        mirror = line.mirrors[session]
        if mirror.pump is not None:
            return
        about = replace(mirror.about, id=self._gateway.next_id())
        mirror.stream = self._gateway.open_remote(about, mirror.opened)
        if mirror.stream is not None:
            pump = self._pump(line, session, mirror, mirror.stream)
            mirror.pump = asyncio.create_task(pump, name=f"relay {about.switch}")

    async def _pump(
        self, line: Line, session: int, mirror: RemoteSession, stream: AgentStream
    ) -> None:
        """Put what is for the agent on the line, until the session is over."""
        try:
            async with aclosing(stream.outgoing()) as outgoing:
                async for message in outgoing:
                    if not message.HasField("push"):
                        continue  # its own replica tells it all else
                    mirror.about = replace(mirror.about, pushed=True)
                    line.sent += 1
                    push = pb.RelayedPush(
                        line=line.number, number=line.sent, session=session, push=message.push
                    )
                    self._post.put(line.replica, pb.Note(push=push))
        except Exception as error:  # noqa: BLE001 - another session has taken its place
            log.debug("remote session over", switch=stream.about.switch, why=str(error))
        finally:
            mirror.stream = mirror.pump = None

    def _close(self, mirror: RemoteSession) -> None:
        if mirror.stream is not None:
            self._gateway.close_session(mirror.stream)

    def _hang_up(self, line: Line) -> None:
        """Close a line and all sessions on it; the replica opens another."""
        if self._lines.get(line.replica) is line:
            del self._lines[line.replica]
        for mirror in line.mirrors.values():
            self._close(mirror)
        for mirror in line.mirrors.values():
            self.vacant(mirror.about)

    def replicas(self) -> Iterator[str]:
        """Boxes of the replicas that follow."""
        yield from self._lines
