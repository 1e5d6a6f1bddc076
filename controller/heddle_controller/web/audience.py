"""The viewers of a fabric, and the log of its events.

An event for viewers is made and framed once, and then written to each connection. This costs one
write per viewer, and no task is woken. A viewer that has not yet received the last event gets none
until it has. Then it gets the newest overview, and the ones between are skipped. So nothing is
queued, and nobody waits for a slow viewer.

The log of events has the differences between one look at the fabric and the next. Several changes
between two looks appear as one. The event of a new plan names the events since the plan before,
which are its possible causes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.serve.errors import Refusal
from heddle_controller.state.records import FabricRecord, JobState

CONNECTION = "heddle_connection"
"""Key of the connection's transport in the state of each request."""
NO_STORE = {"cache-control": "no-store"}


class Viewer:
    """One viewer, whose response has begun."""

    def __init__(self, transport: asyncio.Transport, *, chunked: bool, seen: str) -> None:
        """Write to a connection.

        Args:
            transport: The viewer's connection.
            chunked: Whether the response uses HTTP/1.1's chunked encoding.
            seen: Id of the newest overview that the viewer has.
        """
        self.seen = seen
        self.over = asyncio.Event()
        """Set once nothing more will be sent."""
        self._transport = transport
        self._place = int(chunked)

    def write(self, told: tuple[bytes, bytes]) -> bool:
        """Write an event from ``framed``; return False if closed or if older bytes still wait."""
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        self._transport.write(told[self._place])
        return True

    def end(self, why: str = "") -> None:
        """End the stream; send the reason first, if there is one."""
        if why and not self.over.is_set():
            self.write(framed(b"event: refused\ndata: %b\n\n" % orjson.dumps(why)))
        self.over.set()


class Audience:
    """All viewers of one fabric."""

    def __init__(self) -> None:
        self.name = ""
        """Id of the newest overview; empty before the first."""
        self._newest = framed(b"")
        self._viewers: dict[Viewer, Callable[[], None]] = {}
        self._quiet: set[Viewer] = set()
        """Viewers to which nothing was sent since the last beat."""

    def __len__(self) -> int:
        return len(self._viewers)

    @contextmanager
    def joined(self, viewer: Viewer, check: Callable[[], None]) -> Iterator[None]:
        """Add a viewer for the time of a ``with`` block.

        ``check`` raises ``Refusal`` once the viewer may no longer look.
        """
        self._viewers[viewer] = check
        self._tell(viewer)
        try:
            yield
        finally:
            del self._viewers[viewer]
            self._quiet.discard(viewer)

    def tell(self, name: str, overview: bytes) -> None:
        """Send a new overview (JSON) with this id to all viewers."""
        event = b"id: %b\nevent: overview\ndata: %b\n\n" % (name.encode(), overview)
        self.name, self._newest = name, framed(event)
        for viewer in self._viewers:
            self._tell(viewer)

    def _tell(self, viewer: Viewer) -> bool:
        if viewer.seen == self.name or not self.name or not viewer.write(self._newest):
            return False
        viewer.seen = self.name
        self._quiet.discard(viewer)
        return True

    def beat(self, stale: float) -> None:
        """Send a beat to quiet viewers, and end the streams of those who may no longer look.

        ``stale`` is for how many seconds the store has been out of reach.
        """
        told = framed(b"event: beat\ndata: %.1f\n\n" % stale)
        for viewer, check in self._viewers.items():
            try:
                check()
            except Refusal as refusal:
                viewer.end(refusal.message)
                continue
            if not self._tell(viewer) and viewer in self._quiet:
                viewer.write(told)
        self._quiet = set(self._viewers)

    def end(self, why: str = "") -> None:
        """End all streams; send the reason first, if there is one."""
        for viewer in self._viewers:
            viewer.end(why)


class OverviewStream(Response):
    """The response that streams overviews, until the viewer leaves or its stream is ended."""

    media_type = "text/event-stream"

    def __init__(self, audience: Audience, seen: str, check: Callable[[], None]) -> None:
        super().__init__(headers=NO_STORE)
        del self.headers["content-length"]
        self._audience, self._seen, self._check = audience, seen, check

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        if scope["method"] == "GET":
            await send(_body(b"retry: 1000\n\n", more=True))
            chunked = scope["http_version"] != "1.0"
            viewer = Viewer(scope["state"][CONNECTION], chunked=chunked, seen=self._seen)
            with self._audience.joined(viewer, self._check):
                await _over(viewer, receive)
        await send(_body(b"", more=False))


async def _over(viewer: Viewer, receive: Receive) -> None:
    """Wait until the viewer leaves, or its stream is ended."""

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    waits = [asyncio.create_task(leaves()), asyncio.create_task(viewer.over.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


def _body(part: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": part, "more_body": more}


def framed(told: bytes) -> tuple[bytes, bytes]:
    """Return bytes as the body of HTTP/1.0 (plain) and of HTTP/1.1 (one chunk)."""
    return told, b"%x\r\n%b\r\n" % (len(told), told)


_KEPT = 200
"""Most events of one fabric that are kept."""
_NAMED = 5
"""Most events of one kind from one look that name their subject, and most causes of a plan."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change of a fabric."""

    number: int
    time: float
    """When it was seen, Unix seconds."""
    kind: str
    """"link", "switch", "job", "plan", "tables", "agent", "leader", "store" or "fabric"."""
    text: str
    because: tuple[int, ...] = ()
    """For plans: numbers of the newest link, switch and job events since the plan before."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """A fabric at one moment."""

    record: FabricRecord
    down: frozenset[int]
    """Link rows that agents say are down."""
    jobs: Mapping[str, JobState]
    agents: AbstractSet[str]
    plan: tuple[int, int]
    """Epoch and generation; (0, 0) without a plan."""
    moved: int
    """Flows that the plan moved."""
    lacking: int
    """Switches that do not hold the plan yet."""
    leader: str
    stale: bool


@dataclass(slots=True)
class EventLog:
    """The newest events of one fabric, found by comparing looks."""

    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_KEPT))
    number: int = 0
    _planned: int = 0
    """Number of the event of the newest plan."""

    def add(self, now: float, kind: str, text: str) -> None:
        """Add an event at the time ``now`` (Unix seconds)."""
        self.number += 1
        because: tuple[int, ...] = ()
        if kind == "plan":
            since = [one for one in self.events if one.number > self._planned]
            causes = [one.number for one in since if one.kind in {"link", "switch", "job"}]
            because, self._planned = tuple(causes[-_NAMED:]), self.number
        self.events.append(Event(self.number, now, kind, text, because))

    def compare(self, before: Sight | None, after: Sight, now: float) -> None:
        """Add an event for each difference; ``before`` is None at the first look."""
        if before is None:
            self.add(now, "fabric", "this controller began to look")
            return
        if before.record.revision != after.record.revision:
            self.add(now, "fabric", "the fabric was put anew")
        else:
            self._states(before, after, now)
        self._jobs(before, after, now)
        self._agents(before, after, now)
        if before.plan != after.plan:
            moved = f"{after.moved} flows moved" if after.moved != 1 else "1 flow moved"
            self.add(now, "plan", f"plan {after.plan[1]} was committed; {moved}")
        if after.plan[1] and not after.lacking and (before.lacking or before.plan != after.plan):
            self.add(now, "tables", f"every switch holds plan {after.plan[1]}")
        if before.leader != after.leader and after.leader:
            self.add(now, "leader", f"{after.leader} leads")
        if before.stale != after.stale:
            lost = "the store cannot be reached" if after.stale else "the store is back"
            self.add(now, "store", lost)

    def _states(self, before: Sight, after: Sight, now: float) -> None:
        fabric = after.record.fabric
        for rows, one, many in (
            (after.down - before.down, "is down", "are down"),
            (before.down - after.down, "is up again", "are up again"),
        ):
            labels = [fabric.link_name(row) for row in sorted(rows)]
            for text in _told(labels, one, f"links {many}"):
                self.add(now, "link", text)
        self._admin(before.record.fabric, fabric, now)

    def _admin(self, before: Fabric, after: Fabric, now: float) -> None:
        for row in np.flatnonzero(before.link_state != after.link_state)[:_NAMED].tolist():
            state = State(int(after.link_state[row])).name
            self.add(now, "link", f"{after.link_name(row)} was set {state} by an operator")
        kinds, ids = after.structure.nodes.kind, after.structure.nodes.ids
        for row in np.flatnonzero(before.node_state != after.node_state)[:_NAMED].tolist():
            if kinds[row] != NodeKind.NIC:
                state = State(int(after.node_state[row])).name
                self.add(now, "switch", f"{ids[row]} was set {state} by an operator")

    def _jobs(self, before: Sight, after: Sight, now: float) -> None:
        changed = [
            f"job {name} is {state.name}"
            for name, state in after.jobs.items()
            if before.jobs.get(name) != state
        ]
        changed += [f"job {name} ended" for name in before.jobs if name not in after.jobs]
        for text in changed[:_NAMED]:
            self.add(now, "job", text)
        if len(changed) > _NAMED:
            self.add(now, "job", f"and {len(changed) - _NAMED} more jobs changed")

    def _agents(self, before: Sight, after: Sight, now: float) -> None:
        if before.agents is after.agents:
            return
        for names, one, many in (
            (after.agents - before.agents, "has a session", "have sessions"),
            (before.agents - after.agents, "has no session any more", "have no session any more"),
        ):
            owners = [f"the agent of {name}" for name in sorted(names)]
            for text in _told(owners, one, f"agents {many}"):
                self.add(now, "agent", text)


def _told(names: list[str], one: str, many: str) -> list[str]:
    """Return a sentence for each name; if there are many, only one with their number."""
    return [f"{name} {one}" for name in names] if len(names) <= _NAMED else [f"{len(names)} {many}"]
