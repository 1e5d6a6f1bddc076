"""A master, a replica, and a sentinel that makes the replica replace the master."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.needs import missing
from tests.support.ports import free_port
from tests.support.redis_server import ALWAYS, RedisServer, ask
from tests.support.waiting import PATIENCE, wait_until

DOWN_MILLISECONDS = 600_000
"""Time without an answer after which the sentinel considers the master dead.

It is longer than any test, so a master that is only slow on a busy machine is not replaced.
"""


class Sentinels:
    """One sentinel over a master and a replica; the URL names another one that does not run."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-sentinel")
        if program is None:
            missing("redis-sentinel: apt-get install redis-sentinel")
        self._program = program
        self._folder = folder
        options = (*ALWAYS, "--repl-diskless-sync-delay", "0")
        self.master = RedisServer(folder / "one", *options, port=free_port())
        follow = ("--replicaof", f"127.0.0.1 {self.master.port}")
        self.replica = RedisServer(folder / "two", *options, *follow, port=free_port())
        self._ports = [free_port() for _ in range(2)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Value for ``--store``."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/heddle"

    def __enter__(self) -> Self:
        self.master.start()
        self.replica.start()
        wait_until(lambda: self._says(b"master_link_status:up"), "a replica in step")
        self._start(self._ports[-1])
        wait_until(self._knows, "a sentinel that knows the replica")
        return self

    def _start(self, port: int) -> None:
        config = self._folder / f"sentinel-{port}.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f"logfile {self._folder}/sentinel-{port}.log\n"
            f"sentinel monitor heddle 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds heddle {DOWN_MILLISECONDS}\n"
            "sentinel failover-timeout heddle 3000\n"
        )
        self._processes.append(subprocess.Popen([self._program, str(config)]))

    def _knows(self) -> bool:
        """Return whether the sentinel has found the replica."""
        log = self._folder / f"sentinel-{self._ports[-1]}.log"
        return log.exists() and "+slave " in log.read_text()

    def _says(self, text: bytes) -> bool:
        """Return whether the replica's INFO has this text; False if its connection was cut."""
        try:
            return text in self.replica.command("INFO", "replication")
        except OSError:
            return False

    def fail_over(self) -> None:
        """Kill the master; once the replica has replaced it, start it again as a replica."""
        self.master.kill()
        wait_until(self._promoted, "a new master")
        self.master.start()

    def _promoted(self) -> bool:
        """Return whether the replica is the master; if not, tell the sentinel to make it one."""
        if self._says(b"role:master"):
            return True
        with socket.create_connection(("127.0.0.1", self._ports[-1]), PATIENCE) as connection:
            ask(connection, "SENTINEL", "FAILOVER", "heddle")
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.replica.close()
        self.master.close()
