"""What switches count, as rates of flows.

Counters only grow, so a rate takes two reports of the same agent. Of a flow's
switches only the first counts (the one its NIC is joined to): those further on see
the same bytes again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints, Structure
from heddle_controller.reconcile.southbound import AgentSession
from heddle_controller.serve.agents.gateway import AgentMeter
from heddle_controller.serve.codec.agent import Counters
from heddle_controller.serve.flow_index import PORTS, FlowIndex, FlowIndexes
from heddle_controller.serve.rates import RateBook, Rates

BITS_PER_GIGABIT = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Counters of the entries of one switch, sorted by pair of NICs and port."""

    instance: str
    structure: Structure
    """Whose rows the codes are made of; those of another fabric mean nothing."""
    time: float
    code: Ints
    packets: Ints
    bytes: Ints


class CounterBook:
    """The last counters of each switch; gives rates to the rate book."""

    def __init__(self, indexes: FlowIndexes, rates: RateBook, meter: AgentMeter) -> None:
        self._indexes = indexes
        self._rates = rates
        self._meter = meter
        self._last: dict[tuple[str, str], Reading] = {}

    async def take(self, about: AgentSession, counters: Counters) -> None:
        """Compare a report with the one before, and publish what flows did in between."""
        index = await self._indexes.lately(about.fabric)
        if index is None:
            return
        reading = _reading(about, counters, index)
        before = self._last.get((about.fabric, about.switch))
        self._last[about.fabric, about.switch] = reading
        if before is None or not _comparable(before, reading):
            return
        packets, size = _grown(before, reading)
        self._meter.traffic_counted(about.fabric, int(packets.sum()), int(size.sum()))
        rates = _rates(index, reading, size, reading.time - before.time)
        self._rates.publish(about.fabric, f"switch/{about.switch}", rates)

    def forget(self, about: AgentSession) -> None:
        """The agent is gone: its last counters and rates with it."""
        self._last.pop((about.fabric, about.switch), None)
        self._rates.forget(about.fabric, f"switch/{about.switch}")


def _reading(about: AgentSession, counters: Counters, index: FlowIndex) -> Reading:
    """The entries that count: NICs known, the source joined to the switch."""
    structure = index.plan.fabric.structure
    rows = np.array([structure.index.get(nic, NONE) for nic in counters.nics] or [NONE])
    source, destination = rows[counters.source], rows[counters.destination]
    kept = _joined(structure, about.switch, source) & (destination != NONE)
    code = index.pairs(source[kept], destination[kept]) * PORTS + counters.source_port[kept]
    code, first = np.unique(code, return_index=True)
    return Reading(
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


def _comparable(before: Reading, now: Reading) -> bool:
    if before.instance != now.instance or now.time <= before.time:
        return False
    if before.structure is now.structure:
        return True
    return before.structure.nodes.ids == now.structure.nodes.ids


def _grown(before: Reading, now: Reading) -> tuple[Ints, Ints]:
    """By how many packets and bytes each entry grew; one that began anew counts from 0."""
    at = np.searchsorted(before.code, now.code)
    known = np.append(before.code, NONE)[at] == now.code
    grown = []
    for old, new in ((before.packets, now.packets), (before.bytes, now.bytes)):
        base = np.where(known, np.append(old, 0)[at], 0)
        grown.append(np.where(new >= base, new - base, new))
    return grown[0], grown[1]


def _rates(index: FlowIndex, reading: Reading, size: Ints, seconds: float) -> Rates:
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
