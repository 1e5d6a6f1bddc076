"""A real redis-server for tests, on a socket of its own, and clients that wait for it.

While a server is gone, the clients repeat their calls until they succeed.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import Request
from heddle_controller.store.redis.store import RedisStore, open_redis
from tests.support.needs import missing
from tests.support.store_samples import job
from tests.support.waiting import PATIENCE, wait_until

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec")
NEVER = ("--appendonly", "no")


def ask(connection: socket.socket, *words: str) -> bytes:
    """Send a command; return the reply, at most 64 KiB of it."""
    parts = [f"*{len(words)}\r\n", *(f"${len(w)}\r\n{w}\r\n" for w in words)]
    connection.sendall("".join(parts).encode())
    return connection.recv(1 << 16)


class RedisServer:
    """One server; its data is in ``folder`` and survives ``kill`` and ``start``."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        program = shutil.which("redis-server")
        if program is None:
            missing("redis-server: apt-get install redis-server")
        self._program = program
        self._sockets = tempfile.TemporaryDirectory(prefix="heddle-redis-")
        self._options = options or EVERY_SECOND
        self.folder = folder
        self.port = port
        self.socket = Path(self._sockets.name) / "socket"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Value for ``--store``."""
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket}"

    def start(self, *more: str) -> Self:
        """Start it, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            self._program,
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket), "--dir", str(self.folder)),
            *("--save", "", "--logfile", str(self.folder / "log"), *self._options, *more),
        ]
        self.process = subprocess.Popen(command)
        wait_until(self._answers, "redis-server to answer")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def command(self, *words: str) -> bytes:
        """Send a command over the socket; return the reply, at most 64 KiB of it."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.socket))
            return ask(connection, *words)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._sockets.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


Answer = TypeVar("Answer")

CALL_SECONDS = 30.0
"""A server that is not dead answers within this time, even on a busy machine."""


SHORT_LEASE = 1.0
"""For tests where a lease must run out, and do not care who leads meanwhile."""


async def opened(url: str, **options: Any) -> RedisStore:
    """Open a store with limits so long that a pause of this machine does not matter."""
    return await open_redis(url, **{"timeout": CALL_SECONDS, "lease": PATIENCE, **options})


async def acknowledged(write: Callable[[], Awaitable[Answer]]) -> Answer:
    """Write as a client does: repeat under the same id until it is acknowledged."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await write()
            except Unavailable:
                await asyncio.sleep(0.05)


async def submitted(store: RedisStore, number: int) -> str:
    """Submit the job with this number; return its name once it is acknowledged."""
    wanted, request = job(f"j{number:03}", (f"h0.{number}",)), Request(f"r{number}")
    await acknowledged(lambda: store.submit_job("f1", wanted, request=request))
    return wanted.name


async def until_they_agree(stores: list[RedisStore], names: list[str]) -> None:
    """Wait until every controller reads these jobs from the current master, not from memory.

    A controller that was connected to an old master has to find out first.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            found = [[r.job.name for r in await store.list_jobs("f1")] for store in stores]
            fresh = not any(store.stale_for() for store in stores)
            if fresh and all(jobs == names for jobs in found):
                return
            await asyncio.sleep(0.1)
