"""Ports for servers that tests start with a port of their own choice.

A port that the kernel chose a moment ago may be taken by another connection before its server
starts, because other tests run at the same time and all of them connect. So these ports are below
those that the kernel gives to connections. Every test process begins at another place. A port that
a process has given is that process's until it ends: it holds the UDP port of the same number, so
that others skip the port even while no server listens on it.
"""

from __future__ import annotations

import itertools
import os
import socket

FIRST, LAST = 12_000, 32_000
APART = 997  # distance between the first ports of processes with consecutive ids
_TURNS = itertools.count()
_CLAIMS: list[socket.socket] = []
"""UDP sockets bound to the numbers of the ports that this process has given."""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _claim(port: int) -> bool:
    claim = socket.socket(type=socket.SOCK_DGRAM)
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    _CLAIMS.append(claim)
    return True


def free_port() -> int:
    """Return a TCP port that nobody listens on and that no test process has returned before."""
    ports = LAST - FIRST
    for turn in itertools.islice(_TURNS, ports):
        port = FIRST + (os.getpid() * APART + turn) % ports
        if _is_free(port) and _claim(port):
            return port
    message = f"no port is free in {FIRST} to {LAST - 1}"
    raise OSError(message)
