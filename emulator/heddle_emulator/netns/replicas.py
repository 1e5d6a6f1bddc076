"""Replicas of a lab's controller: where each listens, what they share, and who of them leads.

All are programs in ``mgmt``, on ports of their own. One keeps its state in a file; several
share a Redis, which is a program in ``mgmt`` as well and goes with the lab. Who leads is read
from what they log, as no drill should change what it looks at by asking.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from heddle_emulator.netns import tools
from heddle_emulator.netns.errors import LabError
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT

API_PORT = 7400
METRICS_PORT = 7401
NEXT_PORT = 10
"""From a replica's port to the next one's."""
LEADING = '"event": "leading"'
"""How a replica logs that it has come to lead."""
SECONDS = 20.0
POLL_SECONDS = 0.02


def names(count: int) -> tuple[str, ...]:
    """What the replicas are called; the first is the node ``mgmt``, and no node has the others'."""
    return (MGMT, *(f"{MGMT}#{number}" for number in range(2, count + 1)))


def number(replica: str) -> int:
    """From 0, of a replica by its name."""
    return int(replica.partition("#")[2] or 1) - 1


def ports(replica: str) -> tuple[int, int]:
    """Of its API and of its metrics."""
    further = NEXT_PORT * number(replica)
    return API_PORT + further, METRICS_PORT + further


def log_name(replica: str) -> str:
    """Of the file that it writes to."""
    return "controller.log" if replica == MGMT else f"controller-{number(replica) + 1}.log"


def leader(logs: Iterable[tuple[str, Path]]) -> str:
    """The replica that came to lead last, by names and logs; "" if none ever did."""
    return max((_epoch(log), replica) for replica, log in (*logs, ("", Path())))[1]


def _epoch(log: Path) -> int:
    found = 0
    with contextlib.suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            if LEADING in line:
                with contextlib.suppress(ValueError, KeyError):
                    found = max(found, int(json.loads(line)["epoch"]))
    return found


class SharedStore:
    """A Redis for replicas: durable to the second, reached by a socket in the lab's folder."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._socket = lab.folder / "redis.sock"

    @property
    def url(self) -> str:
        """For ``--store``."""
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            LabError: it is not installed, or does not start.
        """
        program = shutil.which("redis-server")
        if program is None:
            raise LabError("several controllers need a Redis: apt-get install redis-server")
        folder = self._lab.folder / "redis"
        folder.mkdir()
        command = [
            program,
            *("--port", "0", "--unixsocket", str(self._socket), "--dir", str(folder)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
        ]
        log = self._lab.folder / "redis.log"
        tools.start_inside(self._lab.spaces[MGMT], command, log)
        deadline = time.monotonic() + SECONDS
        while not self._answers():
            if time.monotonic() > deadline:
                words = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise LabError(f"redis-server does not answer: {' | '.join(words)}")
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(SECONDS)
            connection.connect(str(self._socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False
