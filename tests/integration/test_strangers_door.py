"""What strangers send to a port that requires no certificate is never expanded in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from heddle.v1 import fabric_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from tests.integration.certifying import Authority
from tests.integration.test_security_doors import file_with_token
from tests.integration.test_serve_floods import dial, peak_memory
from tests.support.operating import Controller, controlling
from tests.support.raw_http2 import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    NEWEST,
    PING,
    RESET,
    call,
    connection,
    field,
    frame,
)
from tests.support.waiting import PATIENCE

MEBIBYTES = 100
"""MiB that all attacks together may cost; expanded, one attack of references takes a GiB."""
CONNECTIONS, CALLS = 4, 400
LIST = fabric_pb2.ListFabricsRequest()


def references(value: bytes) -> Iterator[bytes]:
    """Yield calls whose headers name one entry of the table twelve thousand times."""
    yield frame(HEADERS, END_HEADERS, 1, call() + field(b"x", value, keep=True))
    for number in range(1, CALLS):
        block = call() + NEWEST * 12_000
        yield frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, block)


def small_references() -> Iterator[bytes]:
    """Return references to an entry of one byte."""
    return references(b"")


def large_references() -> Iterator[bytes]:
    """Return references to an entry that fills the table."""
    return references(b"v" * 4000)


def fixed_references() -> Iterator[bytes]:
    """Yield calls that name an entry of the static table twelve thousand times."""
    for number in range(CALLS):
        yield frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, call() + b"\x90" * 12_000)


def endless_headers() -> Iterator[bytes]:
    """Yield one call whose headers never end."""
    yield frame(HEADERS, 0, 1, call())
    for _ in range(CALLS):
        yield frame(CONTINUATION, 0, 1, b"\x90" * 12_000)


def resets() -> Iterator[bytes]:
    """Yield calls that are cancelled at once."""
    for number in range(CALLS // 40):
        stream = 2 * number + 1
        yield frame(HEADERS, END_HEADERS, stream, call())
        yield frame(RESET, 0, stream, (8).to_bytes(4))


def pings() -> Iterator[bytes]:
    """Yield many pings."""
    for number in range(5 * CALLS):
        yield frame(PING, 0, 0, number.to_bytes(8))


ATTACKS: list[Callable[[], Iterator[bytes]]] = [
    small_references,
    large_references,
    fixed_references,
    endless_headers,
    resets,
    pings,
]


async def attack(port: int, ca: Path, said: Callable[[], Iterator[bytes]]) -> None:
    """Send an attack over several connections at once, until it ends or is cut off."""
    await asyncio.gather(*(_say(port, ca, said) for _ in range(CONNECTIONS)))


async def _say(port: int, ca: Path, said: Callable[[], Iterator[bytes]]) -> None:
    with suppress(OSError):
        async with connection(port, ca) as stranger:
            for part in said():
                stranger.write(part)
                await stranger.drain()


@asynccontextmanager
async def strangers_welcome(folder: Path) -> AsyncIterator[tuple[Controller, Path, str]]:
    """Yield a controller with tokens, its authority's certificate, and a scheduler's token."""
    authority = Authority(folder / "pki")
    server = authority.server()
    _, token = file_with_token(folder)
    options = ("--tls-cert", server.cert, "--tls-key", server.key, "--tokens", folder / "tokens")
    async with controlling(folder, *map(str, options)) as controller:
        yield controller, authority.ca, token


async def test_what_strangers_send_is_not_expanded(tmp_path: Path) -> None:
    """Under all attacks memory stays bounded, and every call with a token is answered."""
    async with strangers_welcome(tmp_path) as (controller, ca, token):
        async with dial(controller.port, ca) as channel:
            fabrics = FabricServiceStub(channel)
            known = (("authorization", f"Bearer {token}"),)
            await fabrics.ListFabrics(LIST, metadata=known, timeout=PATIENCE)
            before = peak_memory(controller)
            attacks = asyncio.gather(*(attack(controller.port, ca, said) for said in ATTACKS))
            while not attacks.done():
                await fabrics.ListFabrics(LIST, metadata=known, timeout=PATIENCE)
            await attacks
            await fabrics.ListFabrics(LIST, metadata=known, timeout=PATIENCE)
        assert peak_memory(controller) - before < MEBIBYTES << 20
        assert await controller.ends() == 0
        log = controller.log.read_text()
        assert "headers of a call are more than" in log
        assert "Traceback" not in log
