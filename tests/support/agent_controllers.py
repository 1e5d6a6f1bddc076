"""A small real controller: a gRPC server on a free port that sends what the test tells it to."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import agent_pb2_grpc
from tests.support.waiting import until

Context = grpc.aio.ServicerContext[pb.AgentMessage, pb.ControllerMessage]
HOPS = [f"spine{number}" for number in range(4)]
"""Next hops that ``wire_push`` knows, by number."""


@dataclass(eq=False)
class Stream:
    """One session as the controller sees it."""

    context: Context
    parameters: pb.SessionParameters
    received: list[pb.AgentMessage] = field(default_factory=list)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def results(self) -> list[pb.PushResult]:
        """Return the answers to pushes, in order."""
        return [m.push_result for m in self.received if m.HasField("push_result")]

    def links(self) -> list[pb.LinkStateReport]:
        """Return the link reports, in order."""
        return [m.link_state for m in self.received if m.HasField("link_state")]

    def counters(self) -> list[pb.CounterReport]:
        """Return the counter reports, in order."""
        return [m.counters for m in self.received if m.HasField("counters")]

    async def push(self, message: pb.Push) -> None:
        """Send a push."""
        await self.context.write(pb.ControllerMessage(push=message))

    async def acked(self, answers: int = 1) -> list[pb.PushResult]:
        """Wait for so many answers in all; return them."""
        await until(lambda: len(self.results()) >= answers, f"{answers} answers to pushes")
        return self.results()


class Controller(agent_pb2_grpc.AgentServiceServicer):
    """Accepts sessions and sends what it was told to, or refuses them."""

    def __init__(self) -> None:
        self.accept = pb.SessionAccepted(controller_id="c1", epoch=1)
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.first: pb.ControllerMessage | None = None  # sent instead of SessionAccepted
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.attempts = 0
        self.streams: list[Stream] = []
        self.live = 0
        self.port = 0

    @property
    def address(self) -> str:
        """Address on which it listens."""
        return f"127.0.0.1:{self.port}"

    async def Session(  # type: ignore[override]  # noqa: N802 - named so by the protocol; its stub knows iterators only
        self, request_iterator: object, context: Context
    ) -> None:
        """Serve one session until either side ends it."""
        del request_iterator
        self.attempts += 1
        first = await context.read()
        assert isinstance(first, pb.AgentMessage)
        if self.refusal is not None:
            await context.abort(*self.refusal)
        await self.speaks.wait()
        await context.write(self.first or pb.ControllerMessage(session_accepted=self.accept))
        stream = Stream(context, first.session_parameters)
        self.streams.append(stream)
        self.live += 1
        reader = asyncio.create_task(self._read(stream))
        closing = asyncio.create_task(stream.closing.wait())
        try:
            await asyncio.wait([reader, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.live -= 1
            reader.cancel()
            closing.cancel()
            await asyncio.gather(reader, closing, return_exceptions=True)

    async def stream(self, number: int = 0) -> Stream:
        """Return the session with this number, once its first message is here."""
        await until(
            lambda: len(self.streams) > number and self.streams[number].received,
            f"session {number}",
        )
        return self.streams[number]

    async def _read(self, stream: Stream) -> None:
        while isinstance(message := await stream.context.read(), pb.AgentMessage):
            stream.received.append(message)


@asynccontextmanager
async def listening(controller: Controller, port: int = 0) -> AsyncIterator[Controller]:
    """Run the controller on a real server; at the end everything is closed at once."""
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(controller, server)
    controller.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield controller
    finally:
        await server.stop(None)


def wire_push(
    *rows: tuple[str, str, int, int, int | None],
    epoch: int = 1,
    generation: int = 1,
    nonce: int = 1,
    full: bool = False,
    sweep: bool = False,
    completes: bool = True,
    risk: tuple[str, str] | None = None,
) -> pb.Push:
    """Return a push of sets: source, destination, source port, primary and backup spine or None.

    With ``risk``, all entries depend on that link.
    """
    names = sorted({*HOPS, "0", *(risk or ()), *(name for row in rows for name in row[:2])})
    ways = list(dict.fromkeys(row[3:] for row in rows))

    def named(*texts: str) -> bytes:
        return numbers(*map(names.index, texts))

    return pb.Push(
        mode=pb.PUSH_MODE_FULL_SYNC if full else pb.PUSH_MODE_INCREMENTAL,
        epoch=epoch,
        generation=generation,
        nonce=nonce,
        sweep_stale=sweep,
        completes_generation=completes,
        operations=pb.OperationBatch(
            names=names,
            hop_nodes=named(*HOPS),
            hop_keys=named(*["0"] * len(HOPS)),
            link_sources=named(*risk[:1]) if risk else b"",
            link_targets=named(*risk[1:]) if risk else b"",
            link_keys=named("0") if risk else b"",
            risk_ends=numbers(1) if risk else b"",
            risk_links=numbers(0) if risk else b"",
            way_primaries=numbers(*(primary for primary, _ in ways)),
            way_backups=numbers(*(0 if backup is None else backup + 1 for _, backup in ways)),
            way_risks=numbers(*[1 if risk else 0] * len(ways)),
            way_backup_risks=numbers(*[0] * len(ways)),
            sources=named(*(row[0] for row in rows)),
            destinations=named(*(row[1] for row in rows)),
            source_ports=numbers(*(row[2] for row in rows)),
            destination_ports=numbers(*[0] * len(rows)),
            ways=numbers(*(ways.index(row[3:]) + 1 for row in rows)),
        ),
    )


def numbers(*values: int) -> bytes:
    """Return a column of a batch."""
    return struct.pack(f"<{len(values)}I", *values)
