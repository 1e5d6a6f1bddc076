"""Ports of servers that tests start with a port of their own choice.

A port that the kernel chose a moment ago may be the next connection's by the time that its
server starts: other tests run beside, and all of them connect. So ports come from below those
that the kernel gives to connections, every test process beginning at another place, and none
is given twice by one process.
"""

from __future__ import annotations

import itertools
import os
import socket

FIRST, LAST = 12_000, 32_000
APART = 997  # between the places at which processes with ids in a row begin
_TURNS = itertools.count()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A TCP port that nobody listens on, and that nobody is given meanwhile."""
    ports = LAST - FIRST
    for turn in itertools.islice(_TURNS, ports):
        port = FIRST + (os.getpid() * APART + turn) % ports
        if _is_free(port):
            return port
    message = f"no port is free in {FIRST} to {LAST - 1}"
    raise OSError(message)
