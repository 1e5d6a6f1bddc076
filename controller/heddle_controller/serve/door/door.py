"""The port itself: accepts connections, terminates TLS, checks frames and passes them on to gRPC.

All of it runs in a thread with an event loop of its own, so that a stranger's connection slows
nobody else down. gRPC receives the connections over a Unix socket in a folder that only this
user can open. ``origin`` returns the client's address behind each of these connections.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import threading
from collections import Counter
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import structlog

from heddle_controller.serve.bucket import TokenBucket
from heddle_controller.serve.door.frames import Answers, Frames, Unbearable
from heddle_controller.serve.security.certificates import FollowedTls, Tls, server_context

log = structlog.stdlib.get_logger(__name__)

CONNECTIONS, CONNECTIONS_OF_ONE = 1024, 64
"""Most connections at the same time, in total and from one address."""
ARRIVALS, ARRIVALS_A_SECOND = 64.0, 20.0
"""Connections that one address may begin in a burst, and per second in the long run; more have to
wait."""
HANDSHAKE_SECONDS = 10.0
UNANSWERED = 32
"""Calls of one address that may wait for their first answer; further calls are read later, those of
each connection in turn. Calls without a valid token are answered as soon as gRPC reads them."""
SLOW_SECONDS = 2.0
"""A call that has waited so long for its answer no longer counts as unanswered: its work takes
long."""
_CHUNK = 64 << 10
BACKLOG = 128
ACCEPT_AGAIN = 0.1
"""Seconds until the next attempt after accepting a connection failed."""
_SITE = 64
"""Bits of an IPv6 address by which clients are distinguished: a client usually has all addresses
with the same first bits."""


class Door:
    """One port for strangers."""

    def __init__(self, listening: socket.socket, tls: Tls, inner: Path) -> None:
        """Take over a bound socket; no connection is accepted before ``start``.

        Args:
            listening: The bound socket; ``stop`` closes it.
            tls: Files of the server's certificate and key.
            inner: gRPC's Unix socket; names of connections to it begin with this path.
        """
        self._listening = listening
        self._tls = FollowedTls(tls, server_context)
        self._inner = inner
        self._number = itertools.count()
        self._origins: dict[str, str] = {}
        self._there: Counter[str] = Counter()
        self._arrivals: dict[str, TokenBucket] = {}
        self._room: dict[str, asyncio.Semaphore] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that this socket listens on."""
        return int(self._listening.getsockname()[1])

    def origin(self, name: str) -> str | None:
        """Return the client's address behind a connection to gRPC; None for an unknown name."""
        return self._origins.get(name)

    def start(self) -> None:
        """Begin to accept connections."""
        self._listening.listen(BACKLOG)
        self._thread.start()

    def stop(self) -> None:
        """Close the port and all connections, and wait for the thread to end."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._listening.setblocking(False)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        ending = [accepting, *self._tasks]
        for task in ending:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*ending, return_exceptions=True))
        self._loop.close()

    async def _accept(self) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(self._listening)
            except OSError as error:  # no free file descriptor, or the client has gone
                log.warning("connection not accepted", why=str(error))
                await asyncio.sleep(ACCEPT_AGAIN)
            else:
                self._begin(accepted, str(address[0]))

    def _begin(self, accepted: socket.socket, host: str) -> None:
        site = _site(host)
        if self._there[site] >= CONNECTIONS_OF_ONE or self._there.total() >= CONNECTIONS:
            accepted.close()
            return
        self._there[site] += 1
        room = self._room.setdefault(site, asyncio.Semaphore(UNANSWERED))
        task = self._loop.create_task(self._serve(accepted, host, self._arrive(site), room))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._gone(site, task))

    def _arrive(self, site: str) -> float:
        """Return the seconds that a new connection from an address has to wait."""
        now = self._loop.time()
        known = self._arrivals.pop(site, None)
        bucket = self._arrivals[site] = known or TokenBucket(ARRIVALS, ARRIVALS_A_SECOND, now)
        if len(self._arrivals) > CONNECTIONS:  # forget the address that was idle for longest
            del self._arrivals[next(iter(self._arrivals))]
        return bucket.spend(1.0, now)

    def _gone(self, site: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._there[site] -= 1
        if not self._there[site]:
            del self._there[site], self._room[site]

    async def _serve(
        self, accepted: socket.socket, host: str, wait: float, room: asyncio.Semaphore
    ) -> None:
        calls = Unanswered(room)
        writer: asyncio.StreamWriter | None = None
        inner: asyncio.StreamWriter | None = None
        name = f"{self._inner}.{self.port}.{next(self._number)}"
        try:
            await asyncio.sleep(wait)
            reader, writer = await self._secure(accepted)
            self._origins[name] = host
            answers, inner = await self._dial(name)
            async with asyncio.TaskGroup() as both:
                back = both.create_task(_copy(answers, writer, calls))
                await _check(reader, inner, calls)
                back.cancel()
        except* Unbearable as ended:
            log.warning("connection closed", peer=host, why=str(ended.exceptions[0]))
        except* (TimeoutError, OSError, ssl.SSLError, EOFError):
            pass
        finally:
            for end in (writer, inner):
                if end is not None:
                    with suppress(OSError, RuntimeError):
                        end.transport.abort()
            if writer is None:
                accepted.close()
            self._origins.pop(name, None)
            calls.close()

    async def _secure(
        self, accepted: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return reader and writer of a connection after the TLS handshake.

        ``StreamWriter.start_tls`` is not used, because it loses bytes that were read before.
        """
        reader = asyncio.StreamReader(_CHUNK, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=self._tls.newer() or self._tls.made,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _dial(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to gRPC from a socket with this name."""
        dialled = _named(name)
        try:
            await self._loop.sock_connect(dialled, str(self._inner))
        except BaseException:
            dialled.close()
            raise
        return await asyncio.open_connection(sock=dialled, limit=_CHUNK)


class Unanswered:
    """The calls of one connection that have had no answer yet."""

    def __init__(self, room: asyncio.Semaphore) -> None:
        """``room`` is shared by all connections from the same address."""
        self._room = room
        self._calls: dict[int, asyncio.TimerHandle] = {}

    async def begin(self, call: int) -> None:
        """Wait until the address may have one more unanswered call, and count this call."""
        await self._room.acquire()
        loop = asyncio.get_running_loop()
        self._calls[call] = loop.call_later(SLOW_SECONDS, self.end, call)

    def end(self, call: int) -> bool:
        """Stop counting a call that was answered or reset; return whether it still counted."""
        timer = self._calls.pop(call, None)
        if timer is None:
            return False
        timer.cancel()
        self._room.release()
        return True

    def close(self) -> None:
        """Stop counting all calls, because the connection has ended."""
        for call in list(self._calls):
            self.end(call)


async def _check(
    reader: asyncio.StreamReader, inner: asyncio.StreamWriter, calls: Unanswered
) -> None:
    """Pass a client's checked frames on to gRPC, no faster than the limits allow.

    Raises:
        Unbearable: the client sent something malformed or too large.
    """
    frames = Frames()
    while data := await reader.read(_CHUNK):
        for part in frames.take(data):
            if part.began:
                await calls.begin(part.began)
            inner.write(part.data)
            if part.reset and calls.end(part.reset):
                frames.took_back()
            await inner.drain()
            if (rest := frames.rest()) > 0:
                await asyncio.sleep(rest)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, calls: Unanswered
) -> None:
    """Pass gRPC's answers on to the client.

    Raises:
        EOFError: gRPC closed the connection.
    """
    answers = Answers()
    while data := await reader.read(_CHUNK):
        for call in answers.take(data):
            calls.end(call)
        writer.write(data)
        await writer.drain()
    raise EOFError  # ends both directions


def _named(name: str) -> socket.socket:
    """Return a Unix socket that shows this name to its peer; nobody can connect to the name."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    made.bind(name)
    Path(name).unlink()
    return made


def _site(host: str) -> str:
    """Return the key by which connections are counted: the IPv4 address or the IPv6 network."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> (128 - _SITE))
    return host
