"""Relays that pass connections on to the controller's present address, or refuse them.

So agents and clients can keep one address although a restarted controller listens on another port,
and the connection between them can be cut. A subclass decides what a relay listens on, and how it
reaches the controller.
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
    """Accepts connections at ``address`` and passes them on. Use it with ``async with``."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Address for clients, in the form that gRPC takes."""
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def _listen(self) -> asyncio.Server:
        """Start to accept connections, and hand each to ``_serve``."""

    @abstractmethod
    async def _connect(self) -> Ends:
        """Open a connection to the controller, and return its reader and writer.

        Raises:
            OSError: no connection can be made.
        """

    async def __aenter__(self) -> Self:
        self._server = await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.drop()

    async def drop(self) -> None:
        """End every open connection."""
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
        """Copy bytes both ways until one side ends."""
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
    """A relay on a TCP port of this machine. ``target`` may be changed at any time."""

    def __init__(self) -> None:
        self.target = ""
        """Address of the controller, host:port; "" refuses all connections."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        host, port = self._socket.getsockname()
        super().__init__(f"{host}:{port}")
        self.is_cut = False

    async def cut(self) -> None:
        """End every connection, and refuse new ones until ``join``."""
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
