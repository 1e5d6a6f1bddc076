"""Which flow of the newest plan a packet or an id belongs to.

Made once a plan and shared by all that measure, because every counter report and
every batch of rates asks.
"""

from __future__ import annotations

import asyncio
from functools import cached_property

import numpy as np

from heddle_controller.model.fabric import Floats, Ints
from heddle_controller.model.load import arc_loads
from heddle_controller.reconcile.ports import Store
from heddle_controller.reconcile.records import Committed

PORTS = 65536
LATELY_SECONDS = 0.5
"""How old the newest plan that ``lately`` knows of may be."""


class FlowIndex:
    """Flows of one plan, found by id or by the identity of their packets."""

    def __init__(self, committed: Committed) -> None:
        self.generation = committed.generation
        self.plan = committed.plan
        flows = self.plan.flows
        self.ports = flows.source_ports()
        """Source port of QP 0 of each flow."""
        code = self.pairs(flows.source, flows.destination) * PORTS + self.ports
        self._order = np.argsort(code)
        self._code = code[self._order]
        self._end = (code + flows.qps)[self._order]

    @cached_property
    def rows(self) -> dict[str, int]:
        """Flow row by id."""
        return {flow: row for row, flow in enumerate(self.plan.flows.ids)}

    @cached_property
    def loads(self) -> Floats:
        """Load of each arc, Gbit/s."""
        return arc_loads(len(self.plan.fabric.structure.tail), self.plan.flows, self.plan.paths)

    def pairs(self, source: Ints, destination: Ints) -> Ints:
        """One number for each pair of node rows."""
        return source * self.plan.fabric.node_count + destination

    def shares(self, pair: Ints, port: Ints) -> tuple[Ints, Ints, Floats]:
        """Who packets with a pair and a source port belong to: element, flow row, share.

        A port of 0, any, belongs to all flows of its pair, by their demands.
        Elements that belong to no flow of the plan are left out.
        """
        exact = np.flatnonzero(port > 0)
        code = pair[exact] * PORTS + port[exact]
        at = np.searchsorted(self._code, code, side="right") - 1
        hit = (at >= 0) & (code < self._end[at]) if len(self._code) else np.zeros(len(at), bool)
        elements, rows, shares = self._any_port(pair, np.flatnonzero(port == 0))
        return (
            np.concatenate([exact[hit], elements]),
            np.concatenate([self._order[at[hit]], rows]),
            np.concatenate([np.ones(int(hit.sum())), shares]),
        )

    def _any_port(self, pair: Ints, elements: Ints) -> tuple[Ints, Ints, Floats]:
        first = np.searchsorted(self._code, pair[elements] * PORTS)
        last = np.searchsorted(self._code, (pair[elements] + 1) * PORTS)
        counts = last - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._order[np.repeat(first, counts) + within]
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
        generation = (await self._store.versions(fabric)).generation
        self._asked[fabric] = max(asked, self._asked.get(fabric, asked))
        async with self._making.setdefault(fabric, asyncio.Lock()):
            kept = self._kept.get(fabric)
            if kept is not None and kept.generation >= generation:
                return kept
            committed = await self._store.committed(fabric)
            if committed is None:
                return None
            self._kept[fabric] = await asyncio.to_thread(FlowIndex, committed)
            return self._kept[fabric]
