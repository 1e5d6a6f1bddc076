"""Ports for servers that tests start with a port of their own choice.

A port that the kernel chose a moment ago may be taken by another connection before its server
starts, because other tests run at the same time and all of them connect. So these ports are below
those that the kernel gives to connections. Every test process begins at another place, and a
process gives no port twice.
"""

from __future__ import annotations

import itertools
import os
import socket

FIRST, LAST = 12_000, 32_000
APART = 997  # distance between the first ports of processes with consecutive ids
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
    """Return a TCP port that nobody listens on and that this process has not returned before."""
    ports = LAST - FIRST
    for turn in itertools.islice(_TURNS, ports):
        port = FIRST + (os.getpid() * APART + turn) % ports
        if _is_free(port):
            return port
    message = f"no port is free in {FIRST} to {LAST - 1}"
    raise OSError(message)
