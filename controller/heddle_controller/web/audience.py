"""Those who watch a fabric: what they are told is made and framed once, and written to each.

A viewer costs one write to its connection, and no task is woken for it. Who has not taken yet what
was told before is told no more until it has: then it gets the newest, and what came between is
merged into that. So nothing is queued, and nothing waits for a slow viewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from heddle_controller.serve.errors import Refusal

CONNECTION = "heddle_connection"
"""Key of a connection's transport in the state of its requests."""
NO_STORE = {"cache-control": "no-store"}


class Viewer:
    """One who watches, by a response that has begun."""

    def __init__(self, transport: asyncio.Transport, *, chunked: bool, seen: str) -> None:
        """``seen`` is the id of the newest overview that it has."""
        self.seen = seen
        self.over = asyncio.Event()
        """Set once there is nothing more to tell."""
        self._transport = transport
        self._place = int(chunked)

    def write(self, told: tuple[bytes, bytes]) -> bool:
        """Send it; False if what was sent before is not taken yet."""
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        self._transport.write(told[self._place])
        return True

    def end(self, why: str = "") -> None:
        """Tell it why, and no more."""
        if why and not self.over.is_set():
            self.write(framed(b"event: refused\ndata: %b\n\n" % orjson.dumps(why)))
        self.over.set()


class Audience:
    """All who watch one fabric."""

    def __init__(self) -> None:
        self.name = ""
        """Id of the newest overview."""
        self._newest = framed(b"")
        self._viewers: dict[Viewer, Callable[[], None]] = {}
        self._quiet: set[Viewer] = set()
        """Who was told nothing since the last beat."""

    def __len__(self) -> int:
        return len(self._viewers)

    @contextmanager
    def joined(self, viewer: Viewer, check: Callable[[], None]) -> Iterator[None]:
        """Tell one, too; ``check`` raises ``Refusal`` once it may look no more."""
        self._viewers[viewer] = check
        self._tell(viewer)
        try:
            yield
        finally:
            del self._viewers[viewer]
            self._quiet.discard(viewer)

    def tell(self, name: str, overview: bytes) -> None:
        """Another overview."""
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
        """Have all who hear nothing else know that there is somebody, and how old the news is."""
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
        """Ends all streams."""
        for viewer in self._viewers:
            viewer.end(why)


class OverviewStream(Response):
    """What an audience is told, until the viewer leaves or may look no more."""

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
    """Wait until the viewer leaves, or there is nothing more for it."""

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
    """As HTTP/1.0 and as HTTP/1.1 have it."""
    return told, b"%x\r\n%b\r\n" % (len(told), told)
