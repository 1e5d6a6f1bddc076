"""What a replica does for the leader: tells of its sessions, and carries what is for them.

Nothing here waits. A line that has a gap, in either direction, is replaced by a new
one, whose roster is the truth; what was under way on the old one counts as lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import structlog

from heddle.v1 import agent_pb2
from heddle.v1 import relay_pb2 as pb
from heddle_controller.serve.agents.stream import AgentStream
from heddle_controller.serve.agents.tenure import Tenure
from heddle_controller.serve.codec import agent as codec
from heddle_controller.serve.replicas.post import Post

log = structlog.stdlib.get_logger(__name__)

OVERDUE_CALLS = 4
"""A roster that the leader does not know of after so many calls is sent again."""


class Branch:
    """One replica's sessions, as the leader is to see them."""

    def __init__(
        self, post: Post, tenure: Tenure, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._post = post
        self._tenure = tenure
        self._now = now
        self._streams: dict[int, AgentStream] = {}
        self._numbers: dict[AgentStream, int] = {}
        self._last = 0
        self._leader = ""
        """Box of the leader whom the line is with; empty for none."""
        self._epoch = 0
        self._line = time.time_ns()
        self._sent = self._received = 0
        self._begun = 0.0
        self._known = False
        """Whether the leader has called our line by its number."""

    def opened(self, stream: AgentStream) -> None:
        """An agent has begun a session with us."""
        self._last += 1
        self._streams[self._last] = stream
        self._numbers[stream] = self._last
        if self._leader:
            note = self._session(self._last, stream)
            note.line, note.number = self._line, self._next()
            self._post.put(self._leader, pb.Note(opened=note))

    def closed(self, stream: AgentStream) -> None:
        """It is over."""
        session = self._numbers.pop(stream, None)
        if session is None:
            return
        del self._streams[session]
        if self._leader:
            note = pb.SessionClosed(line=self._line, number=self._next(), session=session)
            self._post.put(self._leader, pb.Note(closed=note))

    def lost(self) -> None:
        """Letters may have been lost: the leader's next call begins a new line."""
        self._leader = ""

    def called(self, sender: str, call: pb.LeaderCall) -> None:
        """Somebody says that he leads."""
        if not self._tenure.holds(call.epoch):
            return
        self._tenure.heard(call.epoch)
        if sender == self._post.box:
            self._leader = ""
            return
        ours = next((line for line in call.lines if line.replica == self._post.box), None)
        if (sender, call.epoch) != (self._leader, self._epoch):
            log.info("following", leader=call.holder, epoch=call.epoch)
            self._begin(sender, call.epoch)
        elif ours is None or ours.line != self._line:
            if self._known or self._now() > self._begun + OVERDUE_CALLS * self._post.pace:
                self._begin(sender, call.epoch)
        elif ours.sent != self._received:
            self._begin(sender, call.epoch)
        else:
            self._known = True
            beat = pb.LineBeat(replica=self._post.box, line=self._line, sent=self._sent)
            self._post.put(self._leader, pb.Note(beat=beat))

    def push(self, push: pb.RelayedPush) -> None:
        """The leader has something for one of our agents."""
        if not self._leader or push.line != self._line:
            return
        if push.number != self._received + 1:
            self._begin(self._leader, self._epoch)
            return
        self._received = push.number
        stream = self._streams.get(push.session)
        if stream is not None:  # if not, the leader is about to hear that it is over
            stream.carry(push.push, partial(self._reply, self._line, push.session))

    def _begin(self, leader: str, epoch: int) -> None:
        self._leader, self._epoch = leader, epoch
        self._line += 1
        self._sent = self._received = 0
        self._begun, self._known = self._now(), False
        sessions = [self._session(number, stream) for number, stream in self._streams.items()]
        roster = pb.Roster(line=self._line, epoch=epoch, sessions=sessions)
        self._post.put(leader, pb.Note(roster=roster))

    def _reply(self, line: int, session: int, result: agent_pb2.PushResult) -> None:
        if not self._leader or line != self._line:
            return
        note = pb.RelayedResult(line=line, number=self._next(), session=session, result=result)
        self._post.put(self._leader, pb.Note(result=note))

    def _next(self) -> int:
        self._sent += 1
        return self._sent

    def _session(self, number: int, stream: AgentStream) -> pb.SessionOpened:
        return pb.SessionOpened(
            session=number,
            time=stream.opened,
            parameters=codec.session_to_pb(stream.about),
            pushed=stream.about.pushed,
        )
