"""Links are lost while the kernel is busy with a batch; real packets show what happens."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import closing
from typing import Any

import pytest

from heddle_agent.fib import NextHop, Packet
from heddle_agent.fib.linux import LinuxFib
from heddle_agent.netlink import NETFILTER
from heddle_agent.table import Forwarding
from tests.support import fib_linux
from tests.support.agent_interleaving import ADDRESSES, Gate, Play
from tests.support.agent_worlds import SPINES, SWITCH
from tests.support.fib_linux import CABLES

_DUMP = 0x300
_FLAGS = slice(6, 8)  # of a netlink message


class Gated(socket.socket):
    """A netlink socket at which a thread stops at a gate before and after it sends.

    Changes of routes do not stop: they are short, and made under a lock.
    """

    gate: Gate | None = None

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """Send a message, with a stop before and after."""
        dump = int.from_bytes(buffers[0][_FLAGS], sys.byteorder) & _DUMP == _DUMP
        gate = self.gate if dump or self.proto == NETFILTER else None
        if gate is not None:
            gate.come("before the kernel has it")
        sent = super().sendmsg(buffers, *more)
        if gate is not None:
            gate.come("after the kernel has it")
        return sent


@pytest.mark.parametrize("seed", range(4))
def test_no_packet_meets_a_lost_link_while_the_kernel_is_busy(seed: int) -> None:
    """After the notice no packet goes to a lost link, by old entries or by those under way."""
    with fib_linux.world() as world:
        world.switch.ip("route replace 10.9.0.0/16 via 10.1.3.1 dev up3")  # the underlay
        opened: list[Gated] = []

        def opener(protocol: int) -> socket.socket:
            made = Gated(fileno=world.switch.netlink(protocol).detach())
            opened.append(made)
            return made

        def where(packet: Packet) -> NextHop:
            wire = (ADDRESSES[packet.source], ADDRESSES[packet.destination], *packet[2:])
            cable = world.arrives(world.send(wire))
            assert cable is not None, packet
            return SPINES[int(cable.removeprefix("up"))]

        async def play() -> None:
            backend = LinuxFib(SWITCH, CABLES, opener=opener)
            backend.piece = [LinuxFib.piece, 2][seed % 2]
            with closing(backend):
                forwarding = Forwarding(SWITCH, backend, [hop.port for hop in SPINES])
                gate = Gate()
                for made in opened:
                    made.gate = gate
                await Play(seed, forwarding, gate, where).run(5)

        asyncio.run(play())
