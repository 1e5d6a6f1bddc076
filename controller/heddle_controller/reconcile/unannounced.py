"""Elephants that nobody announced: found by what switches count, forgotten when they end.

Agents count what pairs of NICs send, at the first switch. Pairs that no job and no demand set tells
of come here. A pair is found when what it sends in one interval between reports is a share of the
NICs' speed, and is forgotten after two intervals of less than half of that. So each is planned
within two intervals, as in one of these it sent all the while.

What is planned for it is what it sent when that was looked at last. That follows upwards when it
sends a quarter more, and downwards when it sent less than half in two intervals: an elephant whose
rate goes up and down moves nothing. What flows are planned for never comes to more than the NICs'
speed at either end.

All of this is soft: each controller has it from its own sessions, and none of it is stored. A
leader that begins takes over what the plan that stands was made with, for as long as two intervals
do not say otherwise.

Agents may lie. One is heard for NICs with a link to its switch alone, for no more than what each
can send; and of all pairs, no more than ``MOST_UNANNOUNCED`` are found, the largest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.demand import SET, UNANNOUNCED_JOB, Demands, flow_id, unannounced_rows
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.model.plan import Plan
from heddle_controller.state.records import DemandRecord

Pair: TypeAlias = tuple[str, str]
"""Ids of source and destination NIC."""

MOST_UNANNOUNCED = 256
"""Flows of a fabric that are found at a time: as many as are planned without anybody waiting."""
STAYS = 0.5
"""Of the share at which a pair is found, what it has to send to stay."""
GROWS, SHRINKS = 1.25, 0.5
"""Times what is planned for a pair, beyond which more or less is planned."""
_WORTH = STAYS / 4
"""Likewise, what one switch has to count to be remembered: a NIC may have a few."""
TINY = 1e-9
SILENT = 3.0
"""Intervals without a report after which nothing counts any more that an agent said."""


@dataclass(frozen=True, slots=True)
class UnannouncedTerms:
    """What counts as an elephant."""

    share: float = 0.0
    """Of the NICs' speed; 0 is none."""
    interval: float = 10.0
    """Seconds between two reports of an agent."""


@dataclass(frozen=True, slots=True, eq=False)
class PairRates:
    """What pairs of NICs that nobody announced sent between two reports; parallel columns."""

    structure: Structure
    source: Ints
    """Node rows, likewise ``destination``."""
    destination: Ints
    gbps: Floats


@dataclass(frozen=True, slots=True, eq=False)
class FoundFlows:
    """All that is found of one fabric, at one moment."""

    version: int = 0
    """Of two that say the same, the same."""
    change_time: float = 0.0
    """Unix seconds."""
    gbps: Mapping[Pair, float] = field(default_factory=dict)

    def record(self, structure: Structure) -> DemandRecord | None:
        """As a demand set of this structure; NICs that it lacks are left out."""
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
    """Rates that come to no more than each NIC can send, and then receive."""
    for end in (0, 1):
        nics = np.array([structure.index[pair[end]] for pair in pairs])
        total = np.bincount(nics, gbps, minlength=len(structure.nodes.ids))[nics]
        gbps = gbps * np.minimum(1.0, structure.nic_line[nics] / total)
    return gbps


class Unannounced:
    """Flows of one fabric that nobody announced."""

    def __init__(self, terms: UnannouncedTerms | None = None) -> None:
        self._terms = terms or UnannouncedTerms()
        self._found: dict[Pair, float] = {}
        """Gbit/s that is planned."""
        self._said: dict[str, dict[Pair, tuple[float, float]]] = {}
        """By switch, Gbit/s in the interval before the last and in the last one."""
        self._heard: dict[str, float] = {}
        """When each switch reported last; who is silent for longest comes first."""
        self.flows = FoundFlows()

    def report(self, switch: str, told: PairRates, now: float, wall: float) -> bool:
        """Take in what a switch counted; whether what is found changed by it.

        Args:
            switch: Whose agent says so.
            told: All pairs that nobody announced and that sent something. The source of each has a
                link to the switch.
            now: By the monotonic clock.
            wall: Unix seconds.
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
        """Take over what a plan was made with, until reports say otherwise."""
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
        """Have these be found; whether that is a change."""
        changed = found != self.flows.gbps
        self._found = found
        if changed:
            self.flows = FoundFlows(self.flows.version + 1, wall, dict(found))
        return changed

    def _worth(self, told: PairRates) -> dict[Pair, float]:
        """What a switch counted of pairs that may matter, as far as their NICs can send it."""
        structure, ids = told.structure, told.structure.nodes.ids
        line = structure.nic_line
        total = np.bincount(told.source, told.gbps, minlength=len(ids))[told.source]
        gbps = told.gbps * np.minimum(1.0, line[told.source] / np.maximum(total, TINY))
        speed = np.minimum(line[told.source], line[told.destination])
        rows = np.flatnonzero(gbps > _WORTH * self._terms.share * speed)
        ends = told.source[rows].tolist(), told.destination[rows].tolist(), gbps[rows].tolist()
        return {(ids[one], ids[other]): rate for one, other, rate in zip(*ends, strict=True)}

    def _fall_silent(self, now: float) -> Iterator[Pair]:
        """Forget switches that have not reported for long; the pairs that they spoke of."""
        while self._heard:
            switch, last = next(iter(self._heard.items()))
            if now - last <= SILENT * self._terms.interval:
                return
            del self._heard[switch]
            yield from self._said.pop(switch, ())

    def _judged(self, pairs: Collection[Pair], structure: Structure, wall: float) -> bool:
        """Judge pairs anew: known ones, then others, largest first; whether anything changed."""
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
                break  # nor is there for those that send less
            self._found[pair] = min(newest[pair], speed)
        return self._settle(self._found, wall)

    def _judge(self, pair: Pair, newest: float, structure: Structure) -> None:
        """Keep or forget one that is known."""
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
        """Whether one more can be found; one that is clearly smaller makes way."""
        if len(self._found) < MOST_UNANNOUNCED:
            return True
        smallest = min(self._found, key=lambda pair: (self._found[pair], pair))
        if gbps <= GROWS * self._found[smallest]:
            return False
        del self._found[smallest]
        return True

    def _of(self, pair: Pair, structure: Structure) -> list[tuple[float, float]]:
        """What each switch of the source said of a pair."""
        switches = _switches(structure, pair[0])
        return [self._said.get(switch, {}).get(pair, (0.0, 0.0)) for switch in switches]


def _switches(structure: Structure, nic: str) -> list[str]:
    """Those that a NIC has a link to; none where there is no such NIC."""
    row = structure.index.get(nic)
    if row is None:
        return []
    (first, arcs), ids = structure.out, structure.nodes.ids
    heads = structure.head[arcs[first[row] : first[row + 1]]].tolist()
    return [ids[head] for head in dict.fromkeys(heads)]


def _speed(structure: Structure, nic: str) -> float:
    """Gbit/s; 0 where there is no such NIC."""
    row = structure.index.get(nic)
    return 0.0 if row is None else float(structure.nic_line[row])
