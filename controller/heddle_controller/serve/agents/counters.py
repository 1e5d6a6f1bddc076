"""What switches count, as rates of flows, and of pairs of NICs that nobody announced.

Counters only grow, so a rate takes two reports of the same agent. Of a flow's
switches only the first counts (the one its NIC is joined to): those further on see
the same bytes again. What no entry matched is counted by pair of NICs: most often it is of
flows that need no entry, and otherwise of nobody's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.reconcile.unannounced import PairRates
from heddle_controller.serve.agents.gateway import AgentMeter
from heddle_controller.serve.codec.agent import Counters
from heddle_controller.serve.flow_index import PORTS, FlowIndex, FlowIndexes
from heddle_controller.serve.rates import RateBook, Rates
from heddle_controller.state.errors import PortError

BITS_PER_GIGABIT = 1e9
_TOGETHER = 256
"""Reports that are reckoned before what they say is published, at most."""
_ENTRIES = 4096
"""Entries of reports that are reckoned in one turn of the event loop. A report that has more by
itself is reckoned in a thread."""

_PACE = 0.05
"""Seconds for which reports are awaited that can be reckoned together: numpy takes as long for one
as for dozens."""

_Switch = tuple[str, str]
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
    """Pair, port, and then whether no entry matched, in this order."""
    packets: Ints
    bytes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What an agent's report says beyond the one before."""

    packets: int
    bytes: int
    rates: Rates
    unannounced: PairRates


class CounterBook:
    """The last counters of each switch; gives rates to the rate book.

    Reports that came together are reckoned together, by the event loop itself: a thread would hold
    the interpreter while clients wait for an answer, again and again, as there are thousands of
    agents.
    """

    def __init__(
        self,
        indexes: FlowIndexes,
        rates: RateBook,
        meter: AgentMeter,
        observations: Observations,
    ) -> None:
        self._indexes = indexes
        self._observations = observations
        self._rates = rates
        self._meter = meter
        self._waiting: dict[_Switch, Report] = {}
        self._last: dict[_Switch, CounterReading] = {}
        self._gone: set[_Switch] = set()
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
            if len(self._waiting) < _TOGETHER:
                await asyncio.sleep(_PACE)
            if not self._waiting:  # their agents are gone
                return
            fabric = next(iter(self._waiting))[0]
            self._gone.clear()
            with suppress(PortError):  # then there are no rates for a while
                await self._take(fabric, self._next(fabric))
            await asyncio.sleep(0)

    def _next(self, fabric: str) -> list[Report]:
        """Reports to reckon together: as many as a turn can take, and one at least."""
        mine: list[Report] = []
        room = _ENTRIES
        for switch in [switch for switch in self._waiting if switch[0] == fabric][:_TOGETHER]:
            room -= len(self._waiting[switch][1].source)
            if mine and room < 0:
                break
            mine.append(self._waiting.pop(switch))
        return mine

    async def _take(self, fabric: str, reports: Sequence[Report]) -> None:
        """Compare reports with those before, and publish what flows did in between."""
        index = await self._indexes.lately(fabric)
        if index is None:
            return
        before = [self._last.get((fabric, about.switch)) for about, _ in reports]
        if sum(len(counters.source) for _, counters in reports) > _ENTRIES:
            made = await asyncio.to_thread(_compared, index, reports, before)
        else:
            made = _compared(index, reports, before)
        packets = size = 0
        now, wall = asyncio.get_running_loop().time(), time.time()
        for (about, _), (reading, growth) in zip(reports, made, strict=True):
            if (fabric, about.switch) in self._gone:
                continue
            self._last[fabric, about.switch] = reading
            if growth is not None:
                packets, size = packets + growth.packets, size + growth.bytes
                self._rates.publish(fabric, f"switch/{about.switch}", growth.rates)
                self._observations.report_pairs(about, growth.unannounced, now, wall)
        if packets:
            self._meter.traffic_counted(fabric, packets, size)

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
    readings = _readings(index, reports)
    pairs = {
        place: (last, reading)
        for place, (last, reading) in enumerate(zip(before, readings, strict=True))
        if last is not None and _comparable(last, reading)
    }
    growths = dict(zip(pairs, _growths(index, [*pairs.values()]), strict=True))
    return [(reading, growths.get(place)) for place, reading in enumerate(readings)]


def _readings(index: FlowIndex, reports: Sequence[Report]) -> list[CounterReading]:
    """The entries of each report that count: NICs known, the source joined to the switch."""
    structure = index.plan.fabric.structure
    counters = [counters for _, counters in reports]
    by_id, by_address = structure.index, structure.nic_of_address
    nics = np.array(
        [
            by_id.get(nic, NONE) if nic else by_address.get(address, NONE)
            for each in counters
            for nic, address in each.nics
        ],
        dtype=np.int64,
    )
    known = np.cumsum([0, *(len(each.nics) for each in counters)])
    report = np.repeat(np.arange(len(counters)), [len(each.source) for each in counters])
    source = nics[np.concatenate([each.source for each in counters]) + known[report]]
    destination = nics[np.concatenate([each.destination for each in counters]) + known[report]]
    port = np.concatenate([each.source_port for each in counters])
    unmatched = np.concatenate([each.unmatched for each in counters])
    code = 2 * (index.pairs(source, destination) * PORTS + port) + unmatched
    switches = [about.switch for about, _ in reports]
    kept = np.flatnonzero(_joined(structure, switches, report, source) & (destination != NONE))
    order = kept[np.lexsort((code[kept], report[kept]))]
    again = (report[order][1:] == report[order][:-1]) & (code[order][1:] == code[order][:-1])
    rows = order[np.append(True, ~again)[: len(order)]]
    ends = np.searchsorted(report[rows], np.arange(len(counters) + 1)).tolist()
    columns = (
        code[rows],
        np.concatenate([each.packets for each in counters])[rows],
        np.concatenate([each.bytes for each in counters])[rows],
    )
    return [
        CounterReading(
            about.instance,
            structure,
            counters.time,
            *(column[begin:end].copy() for column in columns),
        )
        for (about, counters), (begin, end) in zip(reports, pairwise(ends), strict=True)
    ]


def _joined(structure: Structure, switches: Sequence[str], report: Ints, nic: Ints) -> Bools:
    """Which of the NICs, each from the report of one of the switches, have a link to it."""
    first, arcs = structure.out
    nodes = len(structure.nodes.ids)
    near = [np.empty(0, dtype=np.int64)]
    for place, switch in enumerate(switches):
        row = structure.index.get(switch)
        if row is not None:
            near.append(place * nodes + structure.head[arcs[first[row] : first[row + 1]]])
    found: Bools = np.isin(report * nodes + nic, np.concatenate(near)) & (nic != NONE)
    return found


def _comparable(before: CounterReading, now: CounterReading) -> bool:
    if before.instance != now.instance or now.time <= before.time:
        return False
    if before.structure is now.structure:
        return True
    return before.structure.nodes.ids == now.structure.nodes.ids


def _growths(
    index: FlowIndex, pairs: Sequence[tuple[CounterReading, CounterReading]]
) -> list[Growth]:
    """How much each reading grew since one before, and the rates of the flows that it carries."""
    if not pairs:
        return []
    old, new = [before for before, _ in pairs], [now for _, now in pairs]
    of, code = _joint(new)
    since = _same_entry(_joint(old), (of, code))
    packets = _grown([one.packets for one in old], [one.packets for one in new], since)
    size = _grown([one.bytes for one in old], [one.bytes for one in new], since)
    pair, port = np.divmod(code // 2, PORTS)
    element, row, share = index.shares(pair, port)
    flows = max(len(index.plan.flows), 1)
    carried, place = np.unique(of[element] * flows + row, return_inverse=True)
    bits = np.bincount(place, weights=size[element] * share * 8, minlength=len(carried))
    readings = np.arange(len(pairs) + 1)
    ends = np.searchsorted(of, readings).tolist()
    flow_ends = np.searchsorted(carried // flows, readings).tolist()
    ids, rows = index.plan.flows.ids, (carried % flows).tolist()
    strangers = _unannounced(index, of, pair, size, [b.time - a.time for a, b in pairs])
    made = []
    for (before, now), entries, some, strange in zip(
        pairs, pairwise(ends), pairwise(flow_ends), strangers, strict=True
    ):
        seconds = now.time - before.time
        rates = Rates(
            time=now.time - seconds / 2,
            interval=seconds,
            flows=tuple(ids[flow] for flow in rows[slice(*some)]),
            gbps=bits[slice(*some)] / seconds / BITS_PER_GIGABIT,
        )
        grown = slice(*entries)
        made.append(Growth(int(packets[grown].sum()), int(size[grown].sum()), rates, strange))
    return made


def _unannounced(
    index: FlowIndex, of: Ints, pair: Ints, size: Ints, seconds: Sequence[float]
) -> list[PairRates]:
    """What pairs of NICs sent in each reading that no job and no demand set tells of."""
    structure, nodes = index.plan.fabric.structure, index.plan.fabric.node_count
    nic = structure.nodes.kind == NodeKind.NIC
    source, destination = np.divmod(pair, nodes)
    ends = nic[source] & nic[destination] & (source != destination)
    strange = np.flatnonzero((size > 0) & ends & ~index.announced(pair))
    reach = nodes * nodes
    key, place = np.unique(of[strange] * reach + pair[strange], return_inverse=True)
    bits = np.bincount(place, weights=size[strange] * 8.0, minlength=len(key))
    reading, both = np.divmod(key, reach)
    gbps = bits / np.array(seconds)[reading] / BITS_PER_GIGABIT
    bounds = np.searchsorted(reading, np.arange(len(seconds) + 1)).tolist()
    return [
        PairRates(structure, both[some] // nodes, both[some] % nodes, gbps[some])
        for some in (slice(*bound) for bound in pairwise(bounds))
    ]


def _joint(readings: Sequence[CounterReading]) -> tuple[Ints, Ints]:
    """The entries of all readings: which of these, and the code."""
    counts = [len(reading.code) for reading in readings]
    return np.repeat(np.arange(len(readings)), counts), np.concatenate(
        [reading.code for reading in readings]
    )


def _same_entry(old: tuple[Ints, Ints], new: tuple[Ints, Ints]) -> Ints:
    """The place of each new entry among the old ones; NONE where it was not there."""
    of, code = (np.concatenate(both) for both in zip(old, new, strict=True))
    order = np.lexsort((code, of))  # stable: the old one first
    ordered = of[order], code[order]
    same = (ordered[0][1:] == ordered[0][:-1]) & (ordered[1][1:] == ordered[1][:-1])
    found = np.full(len(new[0]), NONE, dtype=np.int64)
    found[order[1:][same] - len(old[0])] = order[:-1][same]
    return found


def _grown(old: Sequence[Ints], new: Sequence[Ints], since: Ints) -> Ints:
    """How much each entry grew; one that began anew counts from 0."""
    before = np.append(np.concatenate(old), 0)[since]  # NONE is the last place
    now = np.concatenate(new)
    grown: Ints = np.where(now >= before, now - before, now)
    return grown
