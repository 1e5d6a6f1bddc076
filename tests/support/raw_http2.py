"""HTTP/2 frames made by hand, for what no client library would send."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RESET, SETTINGS, PING, CONTINUATION = 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
NEWEST = b"\xbe"
"""One byte that refers to the newest entry of the header table."""
PATH = b"/grpc.health.v1.Health/Check"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4) + payload


def field(name: bytes, value: bytes, *, keep: bool = False) -> bytes:
    """Return a literal header field; ``keep`` adds it to the table."""
    return (b"\x40" if keep else b"\x00") + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    rest = len(text) - 127
    if rest < 0:
        return bytes([len(text)]) + text
    digits = bytearray([127])
    while rest >= 128:
        digits.append(rest % 128 + 128)
        rest //= 128
    return bytes([*digits, rest]) + text


def call(path: bytes = PATH) -> bytes:
    """Return the headers of a gRPC call."""
    named = {b":path": path, b":authority": b"x", b"te": b"trailers"}
    fields = b"".join(field(name, value) for name, value in named.items())
    return b"\x83\x86" + fields + field(b"content-type", b"application/grpc")


@asynccontextmanager
async def connection(port: int, ca: Path) -> AsyncIterator[asyncio.StreamWriter]:
    """Open a TLS connection, send the preface, and discard what is received.

    Raises:
        OSError: The server closed the connection, perhaps before it was complete.
    """
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    dropping = asyncio.create_task(_drop(reader))
    try:
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        yield writer
    finally:
        writer.transport.abort()
        await dropping


async def _drop(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass
