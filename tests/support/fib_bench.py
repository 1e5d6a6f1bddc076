"""Benches for the FIB backends: memory evaluates lookups, and a kernel is sent packets.

``heddle_agent.conformance.bench`` says what a bench is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from heddle_agent.conformance import Bench, OpenBench
from heddle_agent.fib import Choice, Fib, Group, Link, MemoryFib, NextHop, Packet, Packets, Steering
from tests.support import fib_linux
from tests.support.agent_worlds import SPINES, SWITCH, FixedUnderlay
from tests.support.orchagent import SonicSwitch


class MemoryBench:
    """The memory backend, which evaluates lookups."""

    def __init__(self, table_size: int) -> None:
        self.memory = MemoryFib(SWITCH, SPINES, FixedUnderlay(), seed=5, table_size=table_size)
        self.fib: Fib = self.memory

    def where(self, packet: Packet) -> NextHop | None:
        """Look up a packet singly and in bulk, which must agree."""
        one = self.memory.lookup(packet)
        row = int(self.memory.lookup_batch(self.packets(packet))[0])
        assert one == (None if row < 0 else self.memory.next_hops[row])
        return one

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Count packets."""
        for _ in range(number):
            self.memory.count(self.packets(packet), size)

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """Let the agent steer; there are no carriers that could fail."""
        self.memory.steer(Steering(choices, down))

    def packets(self, packet: Packet) -> Packets:
        """Return one packet as arrays."""
        names = self.memory.names
        ports = (np.array([port]) for port in packet[2:])
        return Packets(names.ids([packet.source]), names.ids([packet.destination]), *ports)


@contextmanager
def memory(table_size: int) -> Iterator[Bench]:
    """Open the memory bench."""
    bench = MemoryBench(table_size)
    yield bench
    bench.fib.close()


@contextmanager
def linux(table_size: int, *, ipv6: bool = False) -> Iterator[Bench]:
    """Open the linux bench: a switch of network namespaces."""
    with fib_linux.world(ipv6=ipv6) as world:
        bench = fib_linux.LinuxBench(world, table_size)
        try:
            yield bench
        finally:
            bench.fib.close()


@contextmanager
def sonic(table_size: int, *, ipv6: bool = False) -> Iterator[Bench]:
    """Open the SONiC bench: a Redis and an imitated orchagent."""
    with tempfile.TemporaryDirectory(prefix="heddle-sonic-") as folder:
        switch = SonicSwitch(Path(folder), table_size, ipv6=ipv6)
        try:
            yield switch
        finally:
            switch.close()


BACKENDS: dict[str, OpenBench] = {
    "memory": memory,
    "linux": linux,
    "linux-ipv6": partial(linux, ipv6=True),
    "sonic": sonic,
    "sonic-ipv6": partial(sonic, ipv6=True),
}
