"""A door into the lab's management network for programs outside of it.

A Unix socket belongs to no network namespace, so a client anywhere on the machine can
connect to one; every connection is passed on to a controller through a socket made
inside ``mgmt``: to the first of several that takes it. The machine's own network is not
touched.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from heddle_emulator.fleet.relay import Ends, Relay
from heddle_emulator.netns.kernel import inside

Target = tuple[str, int]
"""Host and port."""


class LabRelay(Relay):
    """Use as ``async with``: clients connect to ``address`` while inside."""

    def __init__(self, space: str, targets: Sequence[Target], path: Path) -> None:
        super().__init__(f"unix:{path}")
        self._space, self._targets, self._path = space, targets, path

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        self._path.unlink(missing_ok=True)

    async def _listen(self) -> asyncio.Server:
        self._path.unlink(missing_ok=True)
        return await asyncio.start_unix_server(self._serve, self._path)

    async def _connect(self) -> Ends:
        refused: OSError = ConnectionRefusedError()
        for target in self._targets:
            try:
                return await self._connect_to(target)
            except OSError as error:
                refused = error
        raise refused

    async def _connect_to(self, target: Target) -> Ends:
        near = inside(self._space, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        near.setblocking(False)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(near, target)
            return await asyncio.open_connection(sock=near)
        except BaseException:
            near.close()
            raise
