"""What a test needs of any FIB backend: the backend, and a way to see where packets really go.

A bench stands for one switch, ``leaf0``, with uplinks to ``spine0`` … ``spine3`` and an underlay
that spreads over all of them. ``where`` answers from the data plane, never from what was
programmed: memory evaluates, a kernel is sent packets and its counters are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np

from heddle_agent.fib import Choice, Fib, Group, Link, MemoryFib, NextHop, Packet, Packets, Steering
from tests.support import fib_linux
from tests.support.agent_worlds import SPINES, SWITCH, FixedUnderlay

ADDRESSES = {
    **{f"nic{number}": f"10.0.0.{number + 1}" for number in range(2)},
    **{f"far{number}": f"10.9.0.{number + 1}" for number in range(4)},
}


class Bench(Protocol):
    """One switch with a backend under test."""

    fib: Fib

    def where(self, packet: Packet) -> NextHop | None:
        """The uplink by which a packet leaves; None if it is lost."""

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Send so many packets of so many bytes."""

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """Links are lost or come back, and the agent steers."""


Opener = Callable[[int], AbstractContextManager[Bench]]
"""Opens a bench whose table holds so many entries; 0 is as many as it can."""


class MemoryBench:
    """The memory backend, which evaluates."""

    def __init__(self, table_size: int) -> None:
        self.memory = MemoryFib(SWITCH, SPINES, FixedUnderlay(), seed=5, table_size=table_size)
        self.fib: Fib = self.memory

    def where(self, packet: Packet) -> NextHop | None:
        """Ask one by one and in bulk, which must agree."""
        one = self.memory.lookup(packet)
        row = int(self.memory.lookup_batch(self.packets(packet))[0])
        assert one == (None if row < 0 else self.memory.next_hops[row])
        return one

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Count them."""
        for _ in range(number):
            self.memory.count(self.packets(packet), size)

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """There is nothing below it that could fail."""
        self.memory.steer(Steering(choices, down))

    def packets(self, packet: Packet) -> Packets:
        """One packet as arrays."""
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
def linux(table_size: int) -> Iterator[Bench]:
    """Open the linux bench: a switch of network namespaces."""
    with fib_linux.world() as world:
        bench = fib_linux.LinuxBench(world, table_size, ADDRESSES)
        try:
            yield bench
        finally:
            bench.fib.close()


BACKENDS: dict[str, Opener] = {"memory": memory, "linux": linux}
