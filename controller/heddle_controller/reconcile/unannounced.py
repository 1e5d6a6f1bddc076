"""Elephants (large flows) that nobody announced, found from what switches count.

Agents count what pairs of NICs send, at the first switch. Pairs that belong to no job and no demand
set are handled here. A pair is found when it sends at least a given share of the NICs' speed in one
interval between reports. It is forgotten after two intervals with less than half of that share. So
each elephant is planned within two intervals, because it sends throughout one of them.

The planned rate of a pair stays as it is until the pair sends a quarter more, or less than half of
it in two intervals. Only then does it become what the pair sends. So an elephant whose rate goes up
and down moves nothing. The planned rates at a NIC never add up to more than its speed.

None of this is stored: each controller has it from its own sessions. A leader that begins takes
over the flows of the current plan until two intervals of reports say otherwise.

Agents may lie. So an agent is believed only for NICs with a link to its switch, and only up to what
each NIC can send. At most ``MOST_UNANNOUNCED`` pairs are found at a time, the largest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.model.flows import SET, UNANNOUNCED_JOB, flow_id, unannounced_rows
from heddle_controller.model.plan import Plan
from heddle_controller.state.records import DemandRecord

Pair: TypeAlias = tuple[str, str]
"""Ids of the source and the destination NIC."""

MOST_UNANNOUNCED = 256
"""The most flows found at a time in one fabric: few enough to be planned without a wait."""
STAYS = 0.5
"""Part of the share that finds a pair: a pair that sends no more than this is forgotten."""
GROWS, SHRINKS = 1.25, 0.5
"""Multiples of the planned rate of a pair beyond which the rate is raised or lowered."""
_WORTH = STAYS / 4
"""Part of that share that one switch must count for a pair to be remembered.

It is less than ``STAYS`` because a NIC may have links to several switches.
"""
TINY = 1e-9
SILENT = 3.0
"""Intervals without a report after which an agent's earlier reports no longer count."""


@dataclass(frozen=True, slots=True)
class UnannouncedTerms:
    """What counts as an elephant."""

    share: float = 0.0
    """Share of the NICs' speed from which a pair counts; 0 finds no pairs at all."""
    interval: float = 10.0
    """Seconds between two reports of an agent."""


@dataclass(frozen=True, slots=True, eq=False)
class PairRates:
    """What unannounced pairs of NICs sent between two reports, as parallel columns."""

    structure: Structure
    source: Ints
    """Node rows of the source NICs; ``destination`` holds those of the destination NICs."""
    destination: Ints
    gbps: Floats


@dataclass(frozen=True, slots=True, eq=False)
class FoundFlows:
    """All flows found in one fabric at one moment."""

    version: int = 0
    """Grows with every change of the flows."""
    change_time: float = 0.0
    """When the flows last changed, Unix seconds."""
    gbps: Mapping[Pair, float] = field(default_factory=dict)

    def record(self, structure: Structure) -> DemandRecord | None:
        """Return the flows as a demand set; None if the structure has none of their NICs."""
        index, kind = structure.index, structure.nodes.kind

        def is_nic(node: str) -> bool:
            return node in index and kind[index[node]] == NodeKind.NIC

        pairs = sorted(pair for pair in self.gbps if all(map(is_nic, pair)))
        if not pairs:
            return None
        demands = Demands(
            ids=tuple(flow_id(*pair) for pair in pairs),
            source=tuple(source for source, _ in pairs),
            destination=tuple(destination for _, destination in pairs),
            gbps=_within_lines(np.array([self.gbps[pair] for pair in pairs]), pairs, structure),
            job=(UNANNOUNCED_JOB,) * len(pairs),
            phase=("",) * len(pairs),
            qps=np.ones(len(pairs), dtype=np.int64),
            traffic_class=np.zeros(len(pairs), dtype=np.int64),
        )
        return DemandRecord(SET, demands, f"found-{self.version}", self.change_time)


def _within_lines(gbps: Floats, pairs: list[Pair], structure: Structure) -> Floats:
    """Scale rates down to what each NIC can send, and then to what each can receive."""
    for end in (0, 1):
        nics = np.array([structure.index[pair[end]] for pair in pairs])
        total = np.bincount(nics, gbps, minlength=len(structure.nodes.ids))[nics]
        gbps = gbps * np.minimum(1.0, structure.nic_line[nics] / total)
    return gbps


class Unannounced:
    """Finds and forgets the unannounced flows of one fabric."""

    def __init__(self, terms: UnannouncedTerms | None = None) -> None:
        self._terms = terms or UnannouncedTerms()
        self._found: dict[Pair, float] = {}
        """Planned Gbit/s of each pair that is found."""
        self._said: dict[str, dict[Pair, tuple[float, float]]] = {}
        """By switch and pair: Gbit/s in the last interval but one and in the last one."""
        self._heard: dict[str, float] = {}
        """When each switch reported last, the one that has been silent longest first."""
        self.flows = FoundFlows()

    def report(self, switch: str, told: PairRates, now: float, wall: float) -> bool:
        """Take in what a switch counted and return whether the found flows changed.

        Args:
            switch: The switch whose agent reports.
            told: All unannounced pairs that sent something. The source of each has a link to the
                switch.
            now: The time by the monotonic clock, in seconds.
            wall: The time in Unix seconds.
        """
        if self._terms.share <= 0:
            return False
        rates = self._worth(told)
        before = self._said.get(switch, {})
        touched = {*before, *rates, *self._fall_silent(now)}
        both = {p: (before.get(p, (0.0, 0.0))[1], rates.get(p, 0.0)) for p in {*before, *rates}}
        self._said[switch] = {pair: said for pair, said in both.items() if any(said)}
        self._heard.pop(switch, None)
        self._heard[switch] = now
        return self._judged(touched, told.structure, wall)

    def adopt(self, plan: Plan, now: float, wall: float) -> None:
        """Take over the unannounced flows of a plan until reports say otherwise."""
        if self._terms.share <= 0:
            return
        structure, flows = plan.fabric.structure, plan.flows
        ids, found = structure.nodes.ids, dict(self._found)
        for row in unannounced_rows(flows).tolist():
            pair = ids[int(flows.source[row])], ids[int(flows.destination[row])]
            switches = _switches(structure, pair[0])
            if (
                any(pair in self._said.get(switch, ()) for switch in switches)
                or len(found) >= MOST_UNANNOUNCED
            ):
                continue
            found[pair] = float(flows.gbps[row])
            part = found[pair] / len(switches)
            for switch in switches:
                self._said.setdefault(switch, {})[pair] = part, part
                self._heard.setdefault(switch, now)
        self._settle(found, wall)

    def _settle(self, found: dict[Pair, float], wall: float) -> bool:
        """Set the found flows and return whether they changed."""
        changed = found != self.flows.gbps
        self._found = found
        if changed:
            self.flows = FoundFlows(self.flows.version + 1, wall, dict(found))
        return changed

    def _worth(self, told: PairRates) -> dict[Pair, float]:
        """Rates of the pairs that may matter, limited to what each source NIC can send."""
        structure, ids = told.structure, told.structure.nodes.ids
        line = structure.nic_line
        total = np.bincount(told.source, told.gbps, minlength=len(ids))[told.source]
        gbps = told.gbps * np.minimum(1.0, line[told.source] / np.maximum(total, TINY))
        speed = np.minimum(line[told.source], line[told.destination])
        rows = np.flatnonzero(gbps > _WORTH * self._terms.share * speed)
        ends = told.source[rows].tolist(), told.destination[rows].tolist(), gbps[rows].tolist()
        return {(ids[one], ids[other]): rate for one, other, rate in zip(*ends, strict=True)}

    def _fall_silent(self, now: float) -> Iterator[Pair]:
        """Forget switches that have been silent for long, and yield the pairs they reported."""
        while self._heard:
            switch, last = next(iter(self._heard.items()))
            if now - last <= SILENT * self._terms.interval:
                return
            del self._heard[switch]
            yield from self._said.pop(switch, ())

    def _judged(self, pairs: Collection[Pair], structure: Structure, wall: float) -> bool:
        """Judge found pairs, then others, largest first; return whether anything changed."""
        newest = {pair: sum(said[1] for said in self._of(pair, structure)) for pair in pairs}
        known = [pair for pair in pairs if pair in self._found]
        for pair in known:
            self._judge(pair, newest[pair], structure)
        others = sorted(newest.keys() - set(known), key=lambda pair: (-newest[pair], pair))
        for pair in others:
            speed = min(_speed(structure, nic) for nic in pair)
            if speed <= 0 or newest[pair] < self._terms.share * speed:
                continue
            if not self._has_room(newest[pair]):
                break  # the remaining pairs send even less
            self._found[pair] = min(newest[pair], speed)
        return self._settle(self._found, wall)

    def _judge(self, pair: Pair, newest: float, structure: Structure) -> None:
        """Keep a found pair, change its planned rate, or forget it."""
        recent = sum(max(said) for said in self._of(pair, structure))
        speed = min(_speed(structure, nic) for nic in pair)
        planned, least = self._found[pair], self._terms.share * speed
        if recent <= STAYS * least:
            del self._found[pair]
        elif newest > GROWS * planned:
            self._found[pair] = min(newest, speed)
        elif recent < SHRINKS * planned:
            self._found[pair] = recent

    def _has_room(self, gbps: float) -> bool:
        """Return whether one more pair fits. A clearly smaller one is removed to make room."""
        if len(self._found) < MOST_UNANNOUNCED:
            return True
        smallest = min(self._found, key=lambda pair: (self._found[pair], pair))
        if gbps <= GROWS * self._found[smallest]:
            return False
        del self._found[smallest]
        return True

    def _of(self, pair: Pair, structure: Structure) -> list[tuple[float, float]]:
        """What each switch of the source NIC reported of a pair in the last two intervals."""
        switches = _switches(structure, pair[0])
        return [self._said.get(switch, {}).get(pair, (0.0, 0.0)) for switch in switches]


def _switches(structure: Structure, nic: str) -> list[str]:
    """Ids of the switches that a NIC has links to; empty if there is no such NIC."""
    row = structure.index.get(nic)
    if row is None:
        return []
    return [structure.nodes.ids[switch] for switch in structure.neighbours(row)]


def _speed(structure: Structure, nic: str) -> float:
    """Gbit/s of a NIC's links together; 0 if there is no such NIC."""
    row = structure.index.get(nic)
    return 0.0 if row is None else float(structure.nic_line[row])
