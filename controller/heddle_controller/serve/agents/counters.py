"""What switches count, as rates of flows.

Counters only grow, so a rate takes two reports of the same agent. Of a flow's
switches only the first counts (the one its NIC is joined to): those further on see
the same bytes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints, Structure
from heddle_controller.reconcile.southbound import AgentSession
from heddle_controller.serve.agents.gateway import AgentMeter
from heddle_controller.serve.codec.agent import Counters
from heddle_controller.serve.flow_index import PORTS, FlowIndex, FlowIndexes
from heddle_controller.serve.rates import RateBook, Rates
from heddle_controller.state.errors import PortError

BITS_PER_GIGABIT = 1e9
TOGETHER = 64
"""Reports that are reckoned before what they say is published: not all of thousands at once."""

PACE = 0.05
"""Seconds for which reports are awaited that can be reckoned together: a turn in a thread for each
of hundreds a second would keep those who plan, and those who ask, waiting for one another."""

Switch = tuple[str, str]
"""Fabric and switch."""
Report = tuple[AgentSession, Counters]


@dataclass(frozen=True, slots=True, eq=False)
class CounterReading:
    """Counters of the entries of one switch, sorted by pair of NICs and port."""

    instance: str
    structure: Structure
    """Whose rows the codes are made of; those of another fabric mean nothing."""
    time: float
    code: Ints
    packets: Ints
    bytes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What an agent's report says beyond the one before."""

    packets: int
    bytes: int
    rates: Rates


class CounterBook:
    """The last counters of each switch; gives rates to the rate book.

    Reports are put here and reckoned in a thread, those together that came together: there are
    thousands of agents, and what waits for the event loop must not wait for them.
    """

    def __init__(self, indexes: FlowIndexes, rates: RateBook, meter: AgentMeter) -> None:
        self._indexes = indexes
        self._rates = rates
        self._meter = meter
        self._waiting: dict[Switch, Report] = {}
        self._last: dict[Switch, CounterReading] = {}
        self._gone: set[Switch] = set()
        """Forgotten since the reports that are being reckoned came."""
        self._work: asyncio.Task[None] | None = None

    def put(self, about: AgentSession, counters: Counters) -> None:
        """A report; it takes the place of one of the same switch that waits still."""
        self._waiting[about.fabric, about.switch] = about, counters
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._reckon(), name="counters")

    async def reckoned(self) -> None:
        """Wait until nothing waits any more."""
        if self._work is not None:
            await asyncio.wait([self._work])

    async def _reckon(self) -> None:
        while self._waiting:
            if len(self._waiting) < TOGETHER:
                await asyncio.sleep(PACE)
            if not self._waiting:  # their agents are gone
                return
            fabric = next(iter(self._waiting))[0]
            mine = [switch for switch in self._waiting if switch[0] == fabric][:TOGETHER]
            reports = [self._waiting.pop(switch) for switch in mine]
            self._gone.clear()
            with suppress(PortError):  # then there are no rates for a while
                await self._take(fabric, reports)

    async def _take(self, fabric: str, reports: Sequence[Report]) -> None:
        """Compare reports with those before, and publish what flows did in between."""
        index = await self._indexes.lately(fabric)
        if index is None:
            return
        before = [self._last.get((fabric, about.switch)) for about, _ in reports]
        made = await asyncio.to_thread(_compared, index, reports, before)
        for (about, _), (reading, growth) in zip(reports, made, strict=True):
            if (fabric, about.switch) in self._gone:
                continue
            self._last[fabric, about.switch] = reading
            if growth is not None:
                self._meter.traffic_counted(fabric, growth.packets, growth.bytes)
                self._rates.publish(fabric, f"switch/{about.switch}", growth.rates)

    def forget(self, about: AgentSession) -> None:
        """The agent is gone: its last counters and rates with it."""
        switch = about.fabric, about.switch
        self._gone.add(switch)
        self._waiting.pop(switch, None)
        self._last.pop(switch, None)
        self._rates.forget(about.fabric, f"switch/{about.switch}")


def _compared(
    index: FlowIndex, reports: Sequence[Report], before: Sequence[CounterReading | None]
) -> list[tuple[CounterReading, Growth | None]]:
    """Each report as a reading, and how much it grew, where there is one to compare it with."""
    made = []
    for (about, counters), last in zip(reports, before, strict=True):
        reading, growth = _reading(about, counters, index), None
        if last is not None and _comparable(last, reading):
            packets, size = _grown(last, reading)
            rates = _rates(index, reading, size, reading.time - last.time)
            growth = Growth(int(packets.sum()), int(size.sum()), rates)
        made.append((reading, growth))
    return made


def _reading(about: AgentSession, counters: Counters, index: FlowIndex) -> CounterReading:
    """The entries that count: NICs known, the source joined to the switch."""
    structure = index.plan.fabric.structure
    rows = np.array([structure.index.get(nic, NONE) for nic in counters.nics] or [NONE])
    source, destination = rows[counters.source], rows[counters.destination]
    kept = _joined(structure, about.switch, source) & (destination != NONE)
    code = index.pairs(source[kept], destination[kept]) * PORTS + counters.source_port[kept]
    code, first = np.unique(code, return_index=True)
    return CounterReading(
        about.instance,
        structure,
        counters.time,
        code,
        counters.packets[kept][first],
        counters.bytes[kept][first],
    )


def _joined(structure: Structure, switch: str, nics: Ints) -> Bools:
    """Which of the NICs have a link to the switch."""
    row = structure.index.get(switch)
    if row is None:
        return np.zeros(len(nics), dtype=np.bool_)
    first, arcs = structure.out
    near = np.zeros(len(structure.nodes.ids) + 1, dtype=np.bool_)  # the last for unknown ones
    near[structure.head[arcs[first[row] : first[row + 1]]]] = True
    found: Bools = near[nics]
    return found


def _comparable(before: CounterReading, now: CounterReading) -> bool:
    if before.instance != now.instance or now.time <= before.time:
        return False
    if before.structure is now.structure:
        return True
    return before.structure.nodes.ids == now.structure.nodes.ids


def _grown(before: CounterReading, now: CounterReading) -> tuple[Ints, Ints]:
    """By how many packets and bytes each entry grew; one that began anew counts from 0."""
    at = np.searchsorted(before.code, now.code)
    known = np.append(before.code, NONE)[at] == now.code
    grown = []
    for old, new in ((before.packets, now.packets), (before.bytes, now.bytes)):
        base = np.where(known, np.append(old, 0)[at], 0)
        grown.append(np.where(new >= base, new - base, new))
    return grown[0], grown[1]


def _rates(index: FlowIndex, reading: CounterReading, size: Ints, seconds: float) -> Rates:
    """Rates of the flows that the entries carry; a flow's QPs added up."""
    pair, port = np.divmod(reading.code, PORTS)
    element, row, share = index.shares(pair, port)
    flows, of = np.unique(row, return_inverse=True)
    bits = np.bincount(of, weights=size[element] * share * 8, minlength=len(flows))
    ids = index.plan.flows.ids
    return Rates(
        time=reading.time - seconds / 2,
        interval=seconds,
        flows=tuple(ids[flow] for flow in flows.tolist()),
        gbps=bits / seconds / BITS_PER_GIGABIT,
    )
