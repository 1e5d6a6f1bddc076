"""The port itself: accepts connections, terminates TLS, checks frames and passes them on to gRPC.

All of it runs in a thread with an event loop of its own, so that a stranger's connection slows
nobody else down. gRPC receives the connections over a Unix socket in a folder that only this
process can use; ``origin`` says which address is behind each of them.
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

from heddle_controller.serve.door.frames import Answers, Frames, Unbearable
from heddle_controller.serve.security.certificates import Tls, server_context

log = structlog.stdlib.get_logger(__name__)

CONNECTIONS, CONNECTIONS_OF_ONE = 1024, 64
"""At once, and of one address."""
ARRIVALS, ARRIVALS_A_SECOND = 64.0, 20.0
"""Connections that one address may begin at once, and as time goes by; more wait."""
HANDSHAKE_SECONDS = 10.0
UNANSWERED = 32
"""Calls of one address that nothing was answered to yet; its next ones are read later, those of
each connection in turn. A stranger's are answered as soon as they are looked at."""
SLOW_SECONDS = 2.0
"""After which a call counts no more: its answer comes when it has done what it is for."""
_CHUNK = 64 << 10
BACKLOG = 128
ACCEPT_AGAIN = 0.1
"""Seconds after which to accept again where it failed."""
_SITE = 64
"""Bits of an IPv6 address that whoever has one has all the rest of."""


class Door:
    """One port."""

    def __init__(self, listening: socket.socket, tls: Tls, inner: Path) -> None:
        """Own a socket that is bound; nothing is accepted before ``start``.

        ``inner`` is gRPC's; sockets of connections to it are named beside it.
        """
        self._listening = listening
        self._tls = tls
        self._inner = inner
        self._number = itertools.count()
        self._origins: dict[str, str] = {}
        self._there: Counter[str] = Counter()
        self._arrivals: dict[str, tuple[float, float]] = {}
        self._room: dict[str, asyncio.Semaphore] = {}
        self._context = server_context(tls)
        self._stamp = tls.stamp()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listening.getsockname()[1])

    def origin(self, name: str) -> str | None:
        """The address of who is behind a connection to gRPC from the socket of this name."""
        return self._origins.get(name)

    def start(self) -> None:
        """Accept connections."""
        self._listening.listen(BACKLOG)
        self._thread.start()

    def stop(self) -> None:
        """Close the port and all connections; wait for the thread."""
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
            except OSError as error:  # files have run out, or whoever came has gone
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
        """Seconds that the newest connection of an address has to wait."""
        now = self._loop.time()
        begun, at = self._arrivals.pop(site, (0.0, now))
        begun = max(0.0, begun - ARRIVALS_A_SECOND * (now - at)) + 1.0
        self._arrivals[site] = begun, now
        if len(self._arrivals) > CONNECTIONS:  # forget who was not here for longest
            del self._arrivals[next(iter(self._arrivals))]
        return max(0.0, begun - ARRIVALS) / ARRIVALS_A_SECOND

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
        """What is said and answered, once the handshake is through.

        Not ``StreamWriter.start_tls``: it loses what was read before.
        """
        reader = asyncio.StreamReader(_CHUNK, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            accepted,
            ssl=self._newest(),
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _dial(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To gRPC, from a socket of that name."""
        dialled = _named(name)
        try:
            await self._loop.sock_connect(dialled, str(self._inner))
        except BaseException:
            dialled.close()
            raise
        return await asyncio.open_connection(sock=dialled, limit=_CHUNK)

    def _newest(self) -> ssl.SSLContext:
        """Credentials by the files as they are now; as they were while they cannot be used."""
        stamp = self._tls.stamp()
        if stamp != self._stamp:
            with suppress(Exception):  # half a change: told where gRPC's own port finds it
                self._context, self._stamp = server_context(self._tls), stamp
        return self._context


class Unanswered:
    """The calls of one connection that nothing was answered to yet."""

    def __init__(self, room: asyncio.Semaphore) -> None:
        """``room`` is that of all connections of the same address."""
        self._room = room
        self._calls: dict[int, asyncio.TimerHandle] = {}

    async def begin(self, call: int) -> None:
        """Wait until there may be one more."""
        await self._room.acquire()
        loop = asyncio.get_running_loop()
        self._calls[call] = loop.call_later(SLOW_SECONDS, self.end, call)

    def end(self, call: int) -> bool:
        """Something was answered, or it was taken back; whether nothing was before."""
        timer = self._calls.pop(call, None)
        if timer is None:
            return False
        timer.cancel()
        self._room.release()
        return True

    def close(self) -> None:
        """The connection is gone."""
        for call in list(self._calls):
            self.end(call)


async def _check(
    reader: asyncio.StreamReader, inner: asyncio.StreamWriter, calls: Unanswered
) -> None:
    """Pass on what a client says, as far as it can be borne."""
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
    """Pass on what is answered."""
    answers = Answers()
    while data := await reader.read(_CHUNK):
        for call in answers.take(data):
            calls.end(call)
        writer.write(data)
        await writer.drain()
    raise EOFError  # gRPC is through with it


def _named(name: str) -> socket.socket:
    """A socket that tells this name to whom it connects; nobody can connect to it by that."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    made.bind(name)
    Path(name).unlink()
    return made


def _site(host: str) -> str:
    """What connections are counted by."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(int(address) >> (128 - _SITE))
    return host
