"""A door into the lab's management network for programs outside of it.

A Unix socket belongs to no network namespace, so a client anywhere on the machine can
connect to one; every connection is passed on to the controller through a socket made
inside ``mgmt``. The machine's own network is not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from heddle_emulator.netns.kernel import inside

BYTES = 1 << 18


class Relay:
    """Use as ``async with``: clients connect to ``address`` while inside."""

    def __init__(self, space: str, target: tuple[str, int], path: Path) -> None:
        self.address = f"unix:{path}"
        self._space, self._target, self._path = space, target, path
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await self._connect()
                await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))
        finally:
            writer.close()
            self._busy.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        near = inside(self._space, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        near.setblocking(False)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(near, self._target)
            return await asyncio.open_connection(sock=near)
        except BaseException:
            near.close()
            raise


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes from one side to the other until the first ends."""
    try:
        while content := await reader.read(BYTES):
            writer.write(content)
            await writer.drain()
    finally:
        writer.close()
