"""Answers the probes of a kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from heddle_kubernetes.cluster import Mirror

REQUEST_SECONDS = 5.0


class Health:
    """Answers 200 once the cluster has been read, 503 before; /live is always answered 200."""

    def __init__(self) -> None:
        self._mirrors: list[Mirror] = []

    def watch(self, *mirrors: Mirror) -> None:
        """Count these mirrors for ``ready``."""
        self._mirrors += mirrors

    async def listen(self, host: str, port: int) -> Callable[[], Awaitable[None]]:
        """Start answering; return a function that stops it."""
        server = await asyncio.start_server(self.answer, host, port, limit=8192)

        async def close() -> None:
            server.close()
            await server.wait_closed()

        return close

    @property
    def ready(self) -> bool:
        """Whether everything that is watched has been read once."""
        return bool(self._mirrors) and all(one.synced.is_set() for one in self._mirrors)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection: /live or /ready."""
        with suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(REQUEST_SECONDS):
                asked = await reader.readuntil(b"\r\n\r\n")
                good = self.ready or asked.startswith(b"GET /live ")
                status = b"200 OK" if good else b"503 Service Unavailable"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n")
                writer.write(b"Connection: close\r\n\r\n")
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
