"""Index of a plan's flows: finds the flow of an id, or of a pair of NICs and a source port.

Every counter report and every batch of rates needs it, so it is made once per plan and shared.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, ranges
from heddle_controller.model.flows import Flows, unannounced_rows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.explain import ExplainIndex, explain_index_of, paths_of
from heddle_controller.plan.limits import Fares, fares_of, hottest_arcs
from heddle_controller.state.errors import NotFound
from heddle_controller.state.records import Committed
from heddle_controller.store.store import Store

PORTS = 65536
FEW_PATHS = 16
"""Most paths of a flow that is explained in the event loop and not in a thread."""
LATELY_SECONDS = 0.5
"""For so long ``lately`` returns an index without asking the store for a newer plan."""


@dataclass(frozen=True, slots=True, eq=False)
class Ports:
    """The source ports of flows, and the flows sorted by pair of NICs and port."""

    first: Ints
    """Source port of QP 0 of each flow, by flow row."""
    order: Ints
    """Flow rows, sorted by ``code``."""
    code: Ints
    """``pair * PORTS + first port`` of the flows in ``order``, ascending."""
    end: Ints
    """``pair * PORTS + last port + 1`` of the flows in ``order``."""

    @classmethod
    def of(cls, flows: Flows, nodes: int) -> Ports:
        """Return the ports of a plan's flows; ``nodes`` is the fabric's node count."""
        first = flows.source_ports()
        code = (flows.source * nodes + flows.destination) * PORTS + first
        order = np.argsort(code)
        return cls(first, order, code[order], (code + flows.qps)[order])


class FlowIndex:
    """The flows of one plan, found by id, or by NICs and source port of their packets."""

    def __init__(self, committed: Committed, before: FlowIndex | None = None) -> None:
        """``before`` is the index of an earlier plan; parts that still hold are reused."""
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
        """Return whether this index was made of this plan.

        The epoch is compared too, because a store that was restored from an older copy repeats
        generations.
        """
        newest = committed.program.epoch, committed.generation
        return (self.epoch, self.generation) == newest

    def is_of(self, plan: Plan) -> bool:
        """Return whether a plan has the same structure, flows and ports of NICs."""
        mine, ports = self.plan, plan.nic_ports
        same = mine.nic_ports is None if ports is None else ports.same_as(mine.nic_ports)
        structure = mine.fabric.structure
        return same and structure is plan.fabric.structure and mine.flows.same_as(plan.flows)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Flow row by id; use it in a thread, because the first use takes a while."""
        return {flow: row for row, flow in enumerate(self.plan.flows.ids)}

    @cached_property
    def explain_index(self) -> ExplainIndex:
        """What explanations of its flows need; use it in a thread, as ``rows``."""
        return explain_index_of(self.plan)

    @cached_property
    def fares(self) -> Fares:
        """What each flow gets of its demand; use it in a thread, as ``rows``."""
        return fares_of(self.plan)

    @cached_property
    def hottest(self) -> Ints:
        """The arcs with load, the fullest first; use it in a thread, as ``rows``."""
        return hottest_arcs(self.plan)

    def explains_at_once(self, flow: str) -> bool:
        """Return whether explaining a flow takes only milliseconds: all is ready, few paths.

        A thread would delay other calls for longer, because the event loop gives up the
        interpreter at each system call and then has to wait for the thread.
        """
        known = vars(self)
        if "rows" not in known or "explain_index" not in known:
            return False
        row = self.rows.get(flow)
        return row is None or len(paths_of(self.plan, row)) <= FEW_PATHS

    @cached_property
    def announced_pairs(self) -> Ints:
        """The pairs of NICs of all flows that a job or a demand set announced, ascending."""
        found = np.zeros(len(self.plan.flows), dtype=np.bool_)
        found[unannounced_rows(self.plan.flows)] = True
        pairs: Ints = (self.by_port.code // PORTS)[~found[self.by_port.order]]
        return pairs

    def announced(self, pair: Ints) -> Bools:
        """Return for each pair whether a job or a demand set announced it."""
        at = np.searchsorted(self.announced_pairs, pair)
        found: Bools = np.append(self.announced_pairs, NONE)[at] == pair
        return found

    def pairs(self, source: Ints, destination: Ints) -> Ints:
        """Return a number for each pair of node rows: ``source * nodes + destination``."""
        return source * self.plan.fabric.node_count + destination

    def leaving(self, nics: Ints) -> Ints:
        """Return the rows of flows whose source is one of these NICs (node rows), ascending."""
        code, reach = self.by_port.code, self.plan.fabric.node_count * PORTS
        first, last = np.searchsorted(code, nics * reach), np.searchsorted(code, (nics + 1) * reach)
        return np.sort(self.by_port.order[ranges(first, last)])

    def shares(self, pair: Ints, port: Ints) -> tuple[Ints, Ints, Floats]:
        """Return to which flows packets belong, as columns: element, flow row, share.

        Port 0 means any port: such an element belongs to all flows of its pair, in proportion to
        their demands. Elements without a flow in the plan are left out.

        Args:
            pair: Pair of NICs of each element, see ``pairs``.
            port: Source port of each element.
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
        rows = self.by_port.order[ranges(first, last)]
        owner = np.repeat(np.arange(len(elements)), last - first)
        gbps = self.plan.flows.gbps[rows]
        total = np.bincount(owner, weights=gbps, minlength=len(elements))
        return elements[owner], rows, gbps / total[owner]


class FlowIndexes:
    """Makes the index of each fabric's newest plan, and keeps it until there is a newer plan."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, FlowIndex] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._asked: dict[str, float] = {}

    def newest(self, fabric: str) -> FlowIndex | None:
        """Return the index that is ready, of the newest or an older plan; None without one."""
        return self._kept.get(fabric)

    async def lately(self, fabric: str) -> FlowIndex | None:
        """Return an index as ``of`` does, of a plan that was the newest half a second ago.

        It is for frequent calls, such as counter reports of thousands of switches, which need not
        each ask the store for the newest plan.
        """
        now = asyncio.get_running_loop().time()
        kept = self._kept.get(fabric)
        if kept is not None and now - self._asked[fabric] < LATELY_SECONDS:
            return kept
        return await self.of(fabric)

    async def of(self, fabric: str) -> FlowIndex | None:
        """Return the index of the newest plan; None if there is no plan yet.

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
            # Ask again, because the previous holder of the lock may have seen a newer plan.
            committed, kept = await self._store.committed(fabric), self._kept.get(fabric)
            if committed is None:
                return None
            if kept is None or not kept.is_made_of(committed):
                kept = await asyncio.to_thread(FlowIndex, committed, kept)
                self._kept[fabric] = kept
            return kept

    async def run(self) -> None:
        """Make the index of each new plan early, for fabrics whose index was used before.

        It runs until the store is closed, and waits while the store cannot be reached.
        """
        await self._store.follow(self._renew)

    async def _renew(self, fabric: str) -> None:
        try:
            if fabric in self._kept:
                await self.of(fabric)
        except NotFound:
            self._kept.pop(fabric, None)
