"""Doors that pass connections on to wherever the controller is at the time, or to nowhere.

Agents and clients know one address for as long as they live, whichever port a controller
has taken when it started anew; and what lies between them can be cut. What a door listens
on, and how it reaches the controller, is a kind of door's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from typing import Self

BYTES = 1 << 18

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay(ABC):
    """Use as ``async with``: clients connect to ``address`` while inside."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Where to connect, as gRPC takes it."""
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def _listen(self) -> asyncio.Server:
        """Take connections, each for ``_serve``."""

    @abstractmethod
    async def _connect(self) -> Ends:
        """Both ends of a connection to the controller.

        Raises:
            OSError: there is none to be had.
        """

    async def __aenter__(self) -> Self:
        self._server = await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.drop()

    async def drop(self) -> None:
        """End every connection there is."""
        busy = list(self._busy)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._busy.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways until one side ends."""
        there, back = await self._connect()
        try:
            pumps = [
                asyncio.ensure_future(_pump(reader, back)),
                asyncio.ensure_future(_pump(there, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            back.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(BYTES):
            writer.write(data)
            await writer.drain()


class TcpRelay(Relay):
    """On a port of this machine; ``target`` may be set anew at any time."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        """host:port; empty: nowhere."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        host, port = self._socket.getsockname()
        super().__init__(f"{host}:{port}")
        self.is_cut = False

    async def cut(self) -> None:
        """End every connection, and take none until ``join``."""
        self.is_cut = True
        await self.drop()

    def join(self) -> None:
        """Pass connections on again."""
        self.is_cut = False

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, sock=self._socket)

    async def _connect(self) -> Ends:
        if self.is_cut or not self.target:
            raise ConnectionRefusedError
        host, _, port = self.target.rpartition(":")
        return await asyncio.open_connection(host, int(port))
