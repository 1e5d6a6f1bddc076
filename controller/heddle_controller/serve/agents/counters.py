"""Counters of switches, turned into rates of flows and of unannounced pairs of NICs.

Counters only grow, so a rate needs two reports of the same agent. Only the first switch of a flow
counts (the one with a link to the source NIC), because later switches see the same bytes again.
Agents count traffic without an entry by pair of NICs. Most of it belongs to flows that need no
entry, and the rest was announced by nobody.
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
"""Most reports that are processed together."""
_ENTRIES = 4096
"""Most entries of reports that are processed in one turn of the event loop. A single report with
more entries is processed in a thread."""

_PACE = 0.25
"""Seconds to wait for more reports to process together: numpy takes as long for one as for
dozens. A report covers seconds, so that rates are hardly older."""

_Switch = tuple[str, str]
"""Fabric and switch."""
Report = tuple[AgentSession, Counters]


@dataclass(frozen=True, slots=True, eq=False)
class CounterReading:
    """Counters of the entries of one switch, sorted by pair of NICs and port."""

    instance: str
    structure: Structure
    """The structure whose node rows are in the codes; they are valid for this one only."""
    time: float
    """When the counters were read, Unix seconds."""
    code: Ints
    """``2 * (pair * PORTS + source port) + unmatched``, ascending; ``unmatched`` is 1 for traffic
    that no entry matched."""
    packets: Ints
    bytes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What a report counts beyond the previous report of the same agent."""

    packets: int
    bytes: int
    rates: Rates
    unannounced: PairRates


class CounterBook:
    """The last counters of each switch; publishes rates in the rate book and observations.

    Reports that arrive together are processed together, in the event loop itself. With thousands
    of agents, threads would hold the interpreter again and again while clients wait for answers.
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
        """Switches forgotten since the current reports were taken."""
        self._work: asyncio.Task[None] | None = None

    def put(self, about: AgentSession, counters: Counters) -> None:
        """Queue a report; it replaces one of the same switch that still waits."""
        self._waiting[about.fabric, about.switch] = about, counters
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._reckon(), name="counters")

    async def _reckon(self) -> None:
        while self._waiting:
            if len(self._waiting) < _TOGETHER:
                await asyncio.sleep(_PACE)
            if not self._waiting:  # their agents have disconnected meanwhile
                return
            fabric = next(iter(self._waiting))[0]
            self._gone.clear()
            with suppress(PortError):  # these reports give no rates
                await self._take(fabric, self._next(fabric))
            await asyncio.sleep(0)

    def _next(self, fabric: str) -> list[Report]:
        """Take reports of a fabric to process together: one, or as many as a turn allows."""
        mine: list[Report] = []
        room = _ENTRIES
        for switch in [switch for switch in self._waiting if switch[0] == fabric][:_TOGETHER]:
            room -= len(self._waiting[switch][1].source)
            if mine and room < 0:
                break
            mine.append(self._waiting.pop(switch))
        return mine

    async def _take(self, fabric: str, reports: Sequence[Report]) -> None:
        """Compare reports with the previous ones of their switches, and publish the rates."""
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
        """Forget the counters and rates of an agent whose session is over."""
        switch = about.fabric, about.switch
        self._gone.add(switch)
        self._waiting.pop(switch, None)
        self._last.pop(switch, None)
        self._rates.forget(about.fabric, f"switch/{about.switch}")


def _compared(
    index: FlowIndex, reports: Sequence[Report], before: Sequence[CounterReading | None]
) -> list[tuple[CounterReading, Growth | None]]:
    """Return each report as a reading, with its growth; None if it cannot be compared."""
    readings = _readings(index, reports)
    pairs = {
        place: (last, reading)
        for place, (last, reading) in enumerate(zip(before, readings, strict=True))
        if last is not None and _comparable(last, reading)
    }
    growths = dict(zip(pairs, _growths(index, [*pairs.values()]), strict=True))
    return [(reading, growths.get(place)) for place, reading in enumerate(readings)]


def _readings(index: FlowIndex, reports: Sequence[Report]) -> list[CounterReading]:
    """Return a reading of each report.

    It has the entries whose two NICs are known and whose source NIC has a link to the switch. Of
    entries with equal codes it has the first.
    """
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
    """Return for each NIC whether it has a link to the switch with index ``report``."""
    nodes = len(structure.nodes.ids)
    near = [np.empty(0, dtype=np.int64)]
    for place, switch in enumerate(switches):
        row = structure.index.get(switch)
        if row is not None:
            near.append(place * nodes + structure.head[structure.leaving(row)])
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
    """Return how much each (old, new) pair of readings grew, and the rates of its flows."""
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
    """Return for each reading the rates of pairs that no job and no demand set announced."""
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
    """Return the entries of all readings as two columns: index of the reading, and code."""
    counts = [len(reading.code) for reading in readings]
    return np.repeat(np.arange(len(readings)), counts), np.concatenate(
        [reading.code for reading in readings]
    )


def _same_entry(old: tuple[Ints, Ints], new: tuple[Ints, Ints]) -> Ints:
    """Return the position of each new entry among the old ones; NONE for entries that are new."""
    of, code = (np.concatenate(both) for both in zip(old, new, strict=True))
    order = np.lexsort((code, of))  # stable, so an old entry comes before its new one
    ordered = of[order], code[order]
    same = (ordered[0][1:] == ordered[0][:-1]) & (ordered[1][1:] == ordered[1][:-1])
    found = np.full(len(new[0]), NONE, dtype=np.int64)
    found[order[1:][same] - len(old[0])] = order[:-1][same]
    return found


def _grown(old: Sequence[Ints], new: Sequence[Ints], since: Ints) -> Ints:
    """Return how much each entry grew; an entry whose counter was reset counts from 0."""
    before = np.append(np.concatenate(old), 0)[since]  # NONE is -1, the appended 0
    now = np.concatenate(new)
    grown: Ints = np.where(now >= before, now - before, now)
    return grown
