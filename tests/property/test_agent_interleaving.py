"""Links that change while the backend is in use by another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_agent.fib import (
    Batch,
    Failure,
    Link,
    MemoryFib,
    NextHop,
    Packet,
    Steering,
)
from heddle_agent.table import Fence, Forwarding
from tests.support.agent_interleaving import Gate, Play
from tests.support.agent_worlds import HOPS, SPINES, SWITCH, FixedUnderlay
from tests.support.depth import examples


class Slow(MemoryFib):
    """A memory backend that can stop before and after a batch, and can avoid next hops."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(SWITCH, HOPS, FixedUnderlay(SPINES[-1:]))
        self._gate = gate
        self._inside = False
        self._avoided: set[tuple[str, str]] = set()
        self._down: frozenset[Link] = frozenset()

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Take a batch, waiting at the gate before and after it."""
        self._inside = True
        self._gate.come("before the batch")
        failures = super().apply(batch)
        self._gate.come("after the batch")
        self._inside = False
        return failures

    def steer(self, steering: Steering) -> None:
        """Steer, and assert that no batch is being applied at the same time."""
        assert not self._inside
        self._avoided, self._down = set(), steering.down
        super().steer(steering)

    def avoid(self, hops: Collection[tuple[str, str]]) -> None:
        """Act as if these next hops had no route."""
        assert self._inside
        self._avoided |= set(hops)

    def where(self, packet: Packet) -> NextHop:
        """The next hop of a packet, as if the routing tables of the avoided hops were empty."""
        hop = self.lookup(packet)
        assert hop is not None
        if hop.port in self._avoided:
            group = self.read_back()[packet]
            spare = group.backup if hop == group.primary else None
            if spare is not None and spare.port not in self._avoided:
                lost = {Link.between(SWITCH, spare.node), *group.backup_risks}
                return spare if self._down.isdisjoint(lost) else SPINES[-1]
            return SPINES[-1]
        return hop


@settings(max_examples=examples(16))
@given(st.integers(0, 2**32))
def test_no_packet_meets_a_lost_link_whatever_a_push_is_about(seed: int) -> None:
    """From the notice on, no packet meets a lost link, in old entries or in those being written.

    In the end, each flow is on its primary if that is whole, else on its backup, else on the
    underlay. This holds also if the caller gives up on the push half-way.
    """

    async def play() -> None:
        gate = Gate()
        backend = Slow(gate)

        def remember(_: Fence) -> None:
            gate.come("push taken in, not yet told")

        ports = [hop.port for hop in SPINES]
        forwarding = Forwarding(SWITCH, backend, ports, remember=remember)
        await Play(seed, forwarding, gate, backend.where).run(4)

    asyncio.run(play())
