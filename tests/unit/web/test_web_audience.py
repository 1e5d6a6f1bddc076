"""What viewers are sent, byte by byte, over connections that accept it and ones that do not."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import grpc

from heddle_controller.serve.errors import Refusal
from heddle_controller.web.audience import Audience, Viewer, framed

SHUT_OUT = Refusal(grpc.StatusCode.UNAUTHENTICATED, "BAD_TOKEN", 'the "token" was taken back')


class Connection(asyncio.Transport):
    """A connection that accepts what is written, unless it is told to hold it back."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes] = []
        self.holds = 0
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:  # noqa: D102 - asyncio's own
        self.told.append(bytes(data))

    def get_write_buffer_size(self) -> int:  # noqa: D102 - asyncio's own
        return self.holds

    def is_closing(self) -> bool:  # noqa: D102 - asyncio's own
        return self.closing


def anybody() -> None:
    """Allow the viewer to look."""


def event(name: str, overview: bytes) -> bytes:
    """Return the event as the stream sends it."""
    return b"id: %b\nevent: overview\ndata: %b\n\n" % (name.encode(), overview)


async def test_who_takes_nothing_finds_all_that_came_merged_into_the_newest() -> None:
    """Nothing is queued for a slow viewer, and no other viewer waits for it."""
    audience, slow, quick = Audience(), Connection(), Connection()
    with ExitStack() as stack:
        for one in (slow, quick):
            viewer = Viewer(one, chunked=False, seen="")
            stack.enter_context(audience.joined(viewer, anybody))
        audience.tell("s.1", b"1")
        slow.holds = 1
        for number in range(2, 100):
            audience.tell(f"s.{number}", b"%d" % number)
        audience.beat(0.0)
        assert slow.told == [event("s.1", b"1")]
        assert len(quick.told) == 99
        slow.holds = 0
        audience.beat(0.0)
        assert slow.told == [event("s.1", b"1"), event("s.99", b"99")]
        assert len(quick.told) == 99 + 1  # a beat, because nothing was sent since the beat before
        assert quick.told[-1] == b"event: beat\ndata: 0.0\n\n"
        quick.closing = True
        audience.tell("s.100", b"100")
        assert len(quick.told) == 100
    assert not len(audience)


async def test_who_comes_with_the_newest_is_told_the_next_only() -> None:
    """The newest event is known by its id. Chunks are framed as in HTTP/1.1."""
    audience, one = Audience(), Connection()
    audience.tell("s.7", b"old")
    viewer = Viewer(one, chunked=True, seen="s.7")
    with audience.joined(viewer, anybody):
        assert one.told == []
        audience.tell("s.8", b"x" * 300)
        whole = event("s.8", b"x" * 300)
        assert one.told == [b"%x\r\n%b\r\n" % (len(whole), whole)]
        assert framed(whole) == (whole, one.told[0])


async def test_who_is_shut_out_is_told_why_and_no_more() -> None:
    """At the next beat the viewer gets the reason, and the stream ends."""
    audience, one, allowed = Audience(), Connection(), True

    def check() -> None:
        if not allowed:
            raise SHUT_OUT

    viewer = Viewer(one, chunked=False, seen="")
    with audience.joined(viewer, check):
        audience.beat(0.0)
        assert not viewer.over.is_set()
        allowed = False
        audience.beat(0.0)
        assert viewer.over.is_set()
        assert one.told == [b'event: refused\ndata: "the \\"token\\" was taken back"\n\n']
