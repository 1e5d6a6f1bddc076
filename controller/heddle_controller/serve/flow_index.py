"""Which flow of the newest plan a packet or an id belongs to.

Made once a plan and shared by all that measure, because every counter report and
every batch of rates asks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.demand import unannounced_rows
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.explain import ExplainIndex, explain_index_of, paths_of
from heddle_controller.plan.limits import Fares, fares_of, hottest_arcs
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import Committed
from heddle_controller.store.store import Store

PORTS = 65536
FEW_PATHS = 16
"""Paths of a flow that is explained by the event loop itself."""
LATELY_SECONDS = 0.5
"""How old the newest plan that ``lately`` knows of may be."""


@dataclass(frozen=True, slots=True, eq=False)
class Ports:
    """The source ports of flows, and the flows sorted by pair of NICs and port."""

    first: Ints
    """Of QP 0 of each flow."""
    order: Ints
    """Flow rows."""
    code: Ints
    """Pair and first port, in that order; ascending."""
    end: Ints
    """Likewise, behind the last port."""

    @classmethod
    def of(cls, flows: Flows, nodes: int) -> Ports:
        """Those of a plan's flows; ``nodes`` is the fabric's node count."""
        first = flows.source_ports()
        code = (flows.source * nodes + flows.destination) * PORTS + first
        order = np.argsort(code)
        return cls(first, order, code[order], (code + flows.qps)[order])


class FlowIndex:
    """Flows of one plan, found by id or by the identity of their packets."""

    def __init__(self, committed: Committed, before: FlowIndex | None = None) -> None:
        """``before`` is the index of an earlier plan: what still holds is taken from it."""
        self.epoch, self.generation = committed.program.epoch, committed.generation
        self.plan = committed.plan
        same = before is not None and before.is_of(self.plan)
        known = before if same else None
        self.by_port: Ports = (
            known.by_port if known else Ports.of(self.plan.flows, self.plan.fabric.node_count)
        )
        self.ports: Ints = self.by_port.first
        """Source port of QP 0 of each flow."""
        if known and "rows" in vars(known):
            self.rows = known.rows
        if known and "announced_pairs" in vars(known):
            self.announced_pairs = known.announced_pairs

    def is_made_of(self, committed: Committed) -> bool:
        """Whether a plan is the one that it was made of.

        By epoch too: generations go on from lower ones where a store came back older.
        """
        newest = committed.program.epoch, committed.generation
        return (self.epoch, self.generation) == newest

    def is_of(self, plan: Plan) -> bool:
        """Whether a plan is for the same flows between the same rows, with the same ports."""
        mine, ports = self.plan, plan.nic_ports
        same = mine.nic_ports is None if ports is None else ports.same_as(mine.nic_ports)
        structure = mine.fabric.structure
        return same and structure is plan.fabric.structure and mine.flows.same_as(plan.flows)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Flow row by id; to be asked for in a thread, as the first time takes a while."""
        return {flow: row for row, flow in enumerate(self.plan.flows.ids)}

    @cached_property
    def explain_index(self) -> ExplainIndex:
        """What its flows are explained from; likewise."""
        return explain_index_of(self.plan)

    @cached_property
    def fares(self) -> Fares:
        """How its flows fare; likewise."""
        return fares_of(self.plan)

    @cached_property
    def hottest(self) -> Ints:
        """The arcs that carry something, the fullest first; likewise."""
        return hottest_arcs(self.plan)

    def explains_at_once(self, flow: str) -> bool:
        """Whether to explain a flow takes a few milliseconds: all is ready, and its paths are few.

        In a thread it would keep all others waiting for longer: whoever answers them gives up the
        interpreter at each system call, and has to wait for it.
        """
        known = vars(self)
        if "rows" not in known or "explain_index" not in known:
            return False
        row = self.rows.get(flow)
        return row is None or len(paths_of(self.plan, row)) <= FEW_PATHS

    @cached_property
    def announced_pairs(self) -> Ints:
        """The pairs of all flows that somebody announced, ascending."""
        found = np.zeros(len(self.plan.flows), dtype=np.bool_)
        found[unannounced_rows(self.plan.flows)] = True
        pairs: Ints = (self.by_port.code // PORTS)[~found[self.by_port.order]]
        return pairs

    def announced(self, pair: Ints) -> Bools:
        """Which of these pairs a job or a demand set tells of."""
        at = np.searchsorted(self.announced_pairs, pair)
        found: Bools = np.append(self.announced_pairs, NONE)[at] == pair
        return found

    def pairs(self, source: Ints, destination: Ints) -> Ints:
        """One number for each pair of node rows."""
        return source * self.plan.fabric.node_count + destination

    def leaving(self, nics: Ints) -> Ints:
        """Flow rows that leave some NICs, given by node row, ascending."""
        code, reach = self.by_port.code, self.plan.fabric.node_count * PORTS
        first, last = np.searchsorted(code, nics * reach), np.searchsorted(code, (nics + 1) * reach)
        counts = last - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(self.by_port.order[np.repeat(first, counts) + within])

    def shares(self, pair: Ints, port: Ints) -> tuple[Ints, Ints, Floats]:
        """The flows that packets with a pair and a source port are of: element, flow row, share.

        A port of 0, any, belongs to all flows of its pair, by their demands.
        Elements that belong to no flow of the plan are left out.
        """
        exact = np.flatnonzero(port > 0)
        code = pair[exact] * PORTS + port[exact]
        known = self.by_port
        at = np.searchsorted(known.code, code, side="right") - 1
        hit = (at >= 0) & (code < known.end[at]) if len(known.code) else np.zeros(len(at), bool)
        elements, rows, shares = self._any_port(pair, np.flatnonzero(port == 0))
        return (
            np.concatenate([exact[hit], elements]),
            np.concatenate([self.by_port.order[at[hit]], rows]),
            np.concatenate([np.ones(int(hit.sum())), shares]),
        )

    def _any_port(self, pair: Ints, elements: Ints) -> tuple[Ints, Ints, Floats]:
        first = np.searchsorted(self.by_port.code, pair[elements] * PORTS)
        last = np.searchsorted(self.by_port.code, (pair[elements] + 1) * PORTS)
        counts = last - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.by_port.order[np.repeat(first, counts) + within]
        owner = np.repeat(np.arange(len(elements)), counts)
        gbps = self.plan.flows.gbps[rows]
        total = np.bincount(owner, weights=gbps, minlength=len(elements))
        return elements[owner], rows, gbps / total[owner]


class FlowIndexes:
    """The index of each fabric's newest plan, kept until there is a newer one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, FlowIndex] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._asked: dict[str, float] = {}

    def newest(self, fabric: str) -> FlowIndex | None:
        """The one that is ready, if any; there may be a newer plan."""
        return self._kept.get(fabric)

    async def lately(self, fabric: str) -> FlowIndex | None:
        """As ``of``, of a plan that was the newest half a second ago.

        For what comes again and again, from every switch: thousands of them need not ask the
        store which plan is the newest.
        """
        now = asyncio.get_running_loop().time()
        kept = self._kept.get(fabric)
        if kept is not None and now - self._asked[fabric] < LATELY_SECONDS:
            return kept
        return await self.of(fabric)

    async def of(self, fabric: str) -> FlowIndex | None:
        """The index; None where there is no plan yet.

        Raises:
            NotFound: there is no such fabric.
        """
        asked = asyncio.get_running_loop().time()
        committed = await self._store.committed(fabric)
        self._asked[fabric] = max(asked, self._asked.get(fabric, asked))
        kept = self._kept.get(fabric)
        if committed is None:
            return None
        if kept is not None and kept.is_made_of(committed):
            return kept
        async with self._making.setdefault(fabric, asyncio.Lock()):
            # Asked again: whoever had the turn before may have met a newer one.
            committed, kept = await self._store.committed(fabric), self._kept.get(fabric)
            if committed is None:
                return None
            if kept is None or not kept.is_made_of(committed):
                kept = await asyncio.to_thread(FlowIndex, committed, kept)
                self._kept[fabric] = kept
            return kept

    async def run(self) -> None:
        """Have the index of a new plan made before anybody asks, where one was asked for before.

        Until the store is closed; waits while it cannot be reached.
        """
        await self._store.follow(self._renew)

    async def _renew(self, fabric: str) -> None:
        try:
            if fabric in self._kept:
                await self.of(fabric)
        except NotFound:
            self._kept.pop(fabric, None)
