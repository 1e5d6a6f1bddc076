"""How long one kernel call holds a processor during a long batch, which may delay a notice.

A kernel that is not preemptible releases a processor only when a call is done. The same 10,000
entries are moved in one transaction, and in pieces as the agent does it, by turns in one process.
The figure is the processor time of the longest call.
"""

from __future__ import annotations

import socket
import time
from contextlib import closing
from typing import Any

from heddle_agent.fib import Batch, Group, Match
from heddle_agent.fib.linux import LinuxFib
from tests.bench.rows import Row, spread
from tests.support.agent_worlds import ROCE, SPINES, SWITCH, far
from tests.support.fib_linux import CABLES, World, world

ENTRIES = 10_000
WHOLE = 10**9
PORTS = 16
MOST = 0.010
"""Seconds within which a local or remote failure has to be repaired, p99."""


class Timed(socket.socket):
    """A netlink socket that measures the processor time of its sends, in which the kernel works."""

    longest = 0.0

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """Send the message, and keep the time if it is the longest so far."""
        begin = time.thread_time()
        sent = super().sendmsg(buffers, *more)
        Timed.longest = max(Timed.longest, time.thread_time() - begin)
        return sent


def rows(runs: int) -> list[Row]:
    """Return a row for pieces, and one for a single transaction."""
    with world() as made:
        seconds = _measured(made, runs)
    title = f"longest the kernel keeps a processor over {ENTRIES:,} entries"
    found = []
    for who, piece in (("Heddle", LinuxFib.piece), ("one transaction", WHOLE)):
        told = spread(seconds[piece])
        ours = piece != WHOLE
        found.append(
            Row(
                title,
                who,
                f"median {told['median'] * 1e3:.1f} ms, most {told['most'] * 1e3:.1f} ms",
                f"<= {MOST * 1e3:.0f} ms" if ours else "",
                told["most"] <= MOST if ours else None,
                "a notice may have to wait for it where all processors are busy",
                {"seconds": told},
            )
        )
    return found


def _measured(made: World, runs: int) -> dict[int, list[float]]:
    """Return the seconds of the longest call in each run, by entries per transaction."""

    def opener(protocol: int) -> socket.socket:
        return Timed(fileno=made.switch.netlink(protocol).detach())

    seconds: dict[int, list[float]] = {WHOLE: [], LinuxFib.piece: []}
    with closing(LinuxFib(SWITCH, CABLES, opener=opener)) as backend:
        backend.apply(_batch(0))
        for run in range(runs):
            for place, (piece, series) in enumerate(seconds.items()):
                backend.piece = piece
                Timed.longest = 0.0
                failures = backend.apply(_batch(1 + 2 * run + place))
                assert not failures, failures[0]
                series.append(Timed.longest)
    return seconds


def _batch(shift: int) -> Batch:
    """Return a batch of all entries. The next ``shift`` moves each of them to another uplink."""
    groups = [Group(SPINES[n], SPINES[(n + 1) % 4], (far(n),)) for n in range(4)]
    addresses = {"nic0": "10.0.0.1"}
    sets: dict[Match, Group] = {}
    for row in range(ENTRIES):
        number, port = divmod(row, PORTS)
        addresses[f"far{number}"] = f"10.9.{number >> 8}.{number & 255}"
        sets["nic0", f"far{number}", 1000 + port, ROCE] = groups[(row + shift) % 4]
    return Batch(sets, addresses=addresses)
