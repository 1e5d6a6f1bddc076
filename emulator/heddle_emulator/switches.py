"""Forwarding tables of a whole fabric in this process, over the underlay of its current state.

``world`` is the truth about which links are up. Each switch has the agents' own ``MemoryFib``.
Agents fill the tables, or they stay empty to measure hashing alone, so both cases are walked in the
same way.

BGP is separate from carrier: ``converge`` is the moment at which all switches have heard of the
world's state, or of the state of some links. Its agent tells a switch about its own ports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from heddle_agent.fib import DROPPED, MemoryFib, NextHop, NicIds, Packets
from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import ROCE_PORT
from heddle_emulator.hosts import Hosts
from heddle_emulator.underlay import Underlay


class Switches:
    """A ``MemoryFib`` for every switch of a fabric, by node row."""

    def __init__(self, fabric: Fabric, seed: int = 0) -> None:
        self.world = fabric
        self.names = NicIds()
        self._underlay = Underlay(fabric)
        ids, kind = fabric.structure.nodes.ids, fabric.structure.nodes.kind
        nics = fabric.rows_of_kind(NodeKind.NIC)
        self._name = np.full(len(ids), NONE, dtype=np.int64)
        self._nics = nics  # ids of their names are row numbers here, as these are the first names
        self._name[nics] = self.names.ids(ids[row] for row in nics.tolist())
        self.fibs: dict[int, MemoryFib] = {}
        self._arcs: dict[int, Ints] = {}
        self.routes: dict[int, Routes] = {}
        self.hosts = Hosts(fabric)
        """What hosts know of the plan; nothing until a caller sets it."""
        self._seed = seed
        for row in np.flatnonzero(kind != NodeKind.NIC).tolist():
            self.boot(row)

    def boot(self, switch: int) -> None:
        """Give a switch an empty table."""
        structure = self.world.structure
        own = structure.leaving(switch)
        hops = {arc: next_hop(self.world, arc) for arc in own.tolist()}
        routes = Routes(self.world, switch, hops, self._underlay, self._nics)
        size = max(int(structure.nodes.table_size[switch]), 0)
        self.fibs[switch] = MemoryFib(
            structure.nodes.ids[switch],
            list(hops.values()),
            routes,
            seed=seed_of(self._seed, switch),
            names=self.names,
            table_size=size,
        )
        self._arcs[switch] = np.append(own, NONE)  # -1 means "dropped" in a table's answers
        self.routes[switch] = routes

    def change(self, links: dict[int, State]) -> None:
        """Set the state of links, by row; routes stay unchanged until ``converge``."""
        self.world = self.world.with_links(links)

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Implement ``Hosting.leave``."""
        return self.hosts.leave(nic, destination, source_port)

    def converge(self, links: Mapping[int, State] | None = None) -> None:
        """Tell every switch's underlay the state of the world, or only of some links, by row."""
        known = self.world if links is None else self._underlay.fabric.with_links(links)
        self._underlay = Underlay(known)
        for routes in self.routes.values():
            routes.learn(self._underlay)

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Return the arc by which each packet leaves its switch; ``NONE`` if it is dropped.

        The arguments are node rows and UDP source ports, one element per packet.
        """
        result = np.full(len(switch), NONE, dtype=np.int64)
        order = np.argsort(switch, kind="stable")
        rows, starts = np.unique(switch[order], return_index=True)
        for row, at in zip(rows.tolist(), np.split(order, starts[1:]), strict=True):
            packets = Packets(
                self._name[source[at]],
                self._name[destination[at]],
                source_port[at],
                np.full(len(at), ROCE_PORT, dtype=np.int64),
            )
            result[at] = self._arcs[row][self.fibs[row].lookup_batch(packets)]
        return result


def seed_of(seed: int, switch: int) -> int:
    """Return the hash seed of one switch, always the same for the same ``seed``."""
    return int(np.random.SeedSequence([seed, switch]).generate_state(1, np.uint64)[0])


def next_hop(fabric: Fabric, arc: int) -> NextHop:
    """Return the neighbour that an arc leads to, named as its switch's agent names it."""
    nodes, head = fabric.structure.nodes, int(fabric.structure.head[arc])
    return NextHop(nodes.ids[head], str(fabric.structure.links.key[arc >> 1]), nodes.address[head])


@dataclass(slots=True)
class Routes:
    """The underlay of one switch in the agents' terms, computed when it is first asked."""

    fabric: Fabric
    switch: int
    hops: dict[int, NextHop]
    underlay: Underlay
    nics: Ints
    """Node row of each NIC, by the id of its name."""
    _set_of_group: list[int] = field(default_factory=list)
    _sets: list[Sequence[NextHop]] = field(default_factory=list)
    _attached: dict[int, Sequence[NextHop]] | None = None

    def learn(self, underlay: Underlay) -> None:
        """Use new routes from now on."""
        self.underlay = underlay
        self._set_of_group, self._sets, self._attached = [], [], None

    def next_hops(self, destination: str) -> Sequence[NextHop]:
        """Return equal-cost next hops towards a NIC, one shared object for equal sets."""
        if self._attached is None:
            self._attached = self._neighbours()
        nic = self.fabric.structure.index[destination]
        if nic in self._attached:
            return self._attached[nic]
        if not self._sets:
            self._work_out()
        return self._sets[self._set_of_group[int(self.underlay.group[nic])]]

    def table(self, destinations: Ints, dead: Collection[int]) -> tuple[Ints, Ints, Ints]:
        """Implement ``TabledUnderlay.table``; next hops are numbered as in ``hops``."""
        structure, nics = self.fabric.structure, self.nics[destinations]
        own = structure.leaving(self.switch)
        live = np.flatnonzero(self.underlay.fabric.carries[own])
        heads = structure.head[own[live]]
        to_nic = structure.nodes.kind[heads] == NodeKind.NIC
        near, at = np.unique(heads[to_nic], return_inverse=True)
        usable = np.zeros((len(near), len(own)), dtype=np.bool_)
        usable[at, live[to_nic]] = True
        row = np.searchsorted(near, nics)
        far = np.flatnonzero(np.append(near, NONE)[row] != nics)
        if len(far):
            _, ways = self.underlay.ways(self.switch)
            beyond = np.zeros((ways.shape[1], len(own)), dtype=np.bool_)
            beyond[:, live[~to_nic]] = ways.T
            row[far] = len(near) + self.underlay.group[nics[far]]
            usable = np.concatenate([usable, beyond])
        usable[:, list(dead)] = False
        return (*_padded(usable), row)

    def _work_out(self) -> None:
        arcs, ways = self.underlay.ways(self.switch)
        first, which = _alike(ways)
        self._sets = [self._named(arcs[column]) for column in ways[:, first].T]
        self._set_of_group = which.tolist()

    def _neighbours(self) -> dict[int, Sequence[NextHop]]:
        """Return next hops to the NICs of this switch; many switches are never asked for more."""
        found: dict[int, Sequence[NextHop]] = {}
        heads = self.fabric.structure.head
        own = self.underlay.arcs_of(self.switch)
        for arc in own[self.fabric.structure.nodes.kind[heads[own]] == NodeKind.NIC].tolist():
            nic = int(heads[arc])
            found[nic] = (*found.get(nic, ()), self.hops[arc])
        return found

    def _named(self, arcs: Ints) -> Sequence[NextHop]:
        return tuple(self.hops[arc] for arc in arcs.tolist())


def _padded(marks: Bools) -> tuple[Ints, Ints]:
    """Return each row's marked columns, ascending and padded with ``DROPPED``, and their counts."""
    row, column = np.nonzero(marks)
    count = np.bincount(row, minlength=len(marks))
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    columns = np.full((len(marks), max(1, count.max(initial=0))), DROPPED, dtype=np.int64)
    columns[row, place] = column
    return columns, count


def _alike(columns: Bools) -> tuple[Ints, Ints]:
    """Return one column of each kind, and the kind of each column.

    Columns are compared 64 rows at a time.
    """
    rows, count = columns.shape
    padded = np.zeros((count, -(-max(rows, 1) // 64) * 64), dtype=np.bool_)
    padded[:, :rows] = columns.T
    words = np.packbits(padded, axis=1).view(np.uint64)
    order = np.lexsort(words.T)
    new = np.ones(count, dtype=np.bool_)
    new[1:] = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    which = np.empty(count, dtype=np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which
