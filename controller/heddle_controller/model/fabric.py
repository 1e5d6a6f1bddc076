"""The fabric as arrays.

Nodes and links are rows; ids are translated at the edge and everything inside
works on row numbers. A link is stored once and has two directed *arcs*: arc
``2 * l`` runs from ``link_a[l]`` to ``link_b[l]``, arc ``2 * l + 1`` back, so the
reverse of an arc is ``arc ^ 1`` and its link ``arc >> 1``.

A ``Fabric`` is immutable. A change of state gives a new one that shares the
structure (and what was derived from it) with the old, so that taking a link
down in a fabric of 24,576 NICs costs one small copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from heddle.names import link_name, natural
from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, Reach

if TYPE_CHECKING:
    from heddle_controller.model.port_paths import PortPaths

LinkKey = int | str

NUMBERS: tuple[Literal["rail", "plane", "table_size", "gpu"], ...] = (
    "rail",
    "plane",
    "table_size",
    "gpu",
)
"""Columns of ``Nodes`` with numbers that a node may leave out."""


class NodeKind(IntEnum):
    """What a node is; the order is that of the tiers, from the hosts up."""

    NIC = 0
    LEAF = 1
    SPINE = 2
    CORE = 3
    SWITCH = 4


class State(IntEnum):
    """How a link or switch stands. DRAINED still carries, but takes no new paths."""

    UP = 0
    DOWN = 1
    DRAINED = 2


class Forwarding(IntEnum):
    """What decides where a switch sends packets, where it has a choice."""

    PROGRAMMED = 0
    """Entries, and a hash of addresses and ports where there is none."""
    ECMP = 1
    """That hash alone: nobody programs the switch."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """All nodes, one row each. ``NONE`` in an integer column means "not given"."""

    ids: tuple[str, ...]
    kind: Ints
    zone: Ints
    """Index into ``Structure.zone_names``."""
    rail: Ints
    plane: Ints
    host: Ints
    """Index into ``Structure.host_names``."""
    address: tuple[str, ...]
    table_size: Ints
    """Exact-match entries the switch holds; ``NONE`` is unlimited."""
    gpu: Ints
    """Which GPU of its host a NIC serves, from 0."""
    forwarding: Ints
    """``Forwarding`` of each switch; a NIC has ``PROGRAMMED``, which means nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """All links, one row each: ends are node rows, speed is in Gbit/s each way."""

    a: Ints
    b: Ints
    key: tuple[LinkKey, ...]
    gbps: Floats
    address: tuple[tuple[str, str], ...] = ()
    """IP address of either end on each link, "" where not given; no row at all where none is."""


@dataclass(frozen=True, slots=True, eq=False)
class StringTable:
    """What nodes, link keys and addresses of one structure are called, each text with a number.

    Columns of pushes speak of names by these numbers, so that entries need no search for them.
    """

    texts: list[str]
    """Node ids by row, then link keys, then addresses."""
    address: Ints
    """Number of each node's address, ``NONE`` where it has none; keys, behind the nodes, have none
    either."""
    is_nic: Bools
    """Of each of these, whether it is a NIC."""
    key: Ints
    """Of each link, the number of its key."""
    low: Ints
    """Node row of each link's end with the lesser id, as agents name links."""
    high: Ints
    """Node row of the other end."""


@dataclass(frozen=True, eq=False)
class Structure:
    """What never changes with state: nodes, links, and what follows from them."""

    name: str
    nodes: Nodes
    links: Links
    zone_names: tuple[str, ...]
    host_names: tuple[str, ...]

    @cached_property
    def index(self) -> dict[str, int]:
        """Node row by id."""
        return {node: row for row, node in enumerate(self.nodes.ids)}

    @cached_property
    def nic_of_address(self) -> dict[str, int]:
        """Node row by address, of NICs."""
        nics = np.flatnonzero(self.nodes.kind == NodeKind.NIC).tolist()
        return {self.nodes.address[row]: row for row in nics if self.nodes.address[row]}

    @cached_property
    def switches(self) -> Ints:
        """Node rows of all switches, ascending."""
        return np.flatnonzero(self.nodes.kind != NodeKind.NIC)

    @cached_property
    def programmed(self) -> Ints:
        """Node rows of the switches that have agents and hold entries, ascending."""
        return self.switches[~self.hashes[self.switches]]

    @cached_property
    def hashes(self) -> Bools:
        """Switches that hash and are not programmed, shape (nodes,)."""
        switch = self.nodes.kind != NodeKind.NIC
        found: Bools = switch & (self.nodes.forwarding == Forwarding.ECMP)
        return found

    @cached_property
    def tail(self) -> Ints:
        """Node row that each arc leaves, shape (2 x links,)."""
        return np.stack([self.links.a, self.links.b], axis=1).ravel()

    @cached_property
    def head(self) -> Ints:
        """Node row that each arc enters, shape (2 x links,)."""
        return np.stack([self.links.b, self.links.a], axis=1).ravel()

    @cached_property
    def inner(self) -> Bools:
        """Arcs between switches, shape (2 x links,)."""
        switch = self.nodes.kind != NodeKind.NIC
        found: Bools = switch[self.tail] & switch[self.head]
        return found

    @cached_property
    def capacity(self) -> Floats:
        """Speed of each arc in Gbit/s, shape (2 x links,)."""
        return np.repeat(self.links.gbps, 2)

    @cached_property
    def out(self) -> tuple[Ints, Ints]:
        """Arcs by the node they leave: ``(first, arcs)``, compressed rows.

        The arcs that leave node ``n`` are ``arcs[first[n]:first[n + 1]]``, in
        order of the node they enter and then of the link.
        """
        arcs = np.lexsort((self.head, self.tail)).astype(np.int64)
        counts = np.bincount(self.tail, minlength=len(self.nodes.ids))
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), arcs

    @cached_property
    def place_out(self) -> Ints:
        """Where each arc is among the arcs of ``out``."""
        _, arcs = self.out
        place = np.empty_like(arcs)
        place[arcs] = np.arange(len(arcs))
        return place

    @cached_property
    def tier_of_arc(self) -> Ints:
        """Index into ``tiers`` of each arc."""
        low, high = self._kind_pairs
        _, inverse = np.unique(low * len(NodeKind) + high, return_inverse=True)
        return np.repeat(inverse.astype(np.int64), 2)

    @cached_property
    def tiers(self) -> tuple[str, ...]:
        """Names such as "leaf-spine", from the hosts up."""
        low, high = self._kind_pairs
        codes = np.unique(low * len(NodeKind) + high)
        return tuple(
            f"{NodeKind(int(c) // len(NodeKind)).name.lower()}"
            f"-{NodeKind(int(c) % len(NodeKind)).name.lower()}"
            for c in codes
        )

    @cached_property
    def strings(self) -> StringTable:
        """The names that pushes speak of by number."""
        return _string_table(self.nodes, self.links)

    @property
    def _kind_pairs(self) -> tuple[Ints, Ints]:
        ends = self.nodes.kind[np.stack([self.links.a, self.links.b])]
        return ends.min(axis=0), ends.max(axis=0)

    @cached_property
    def tier_runs(self) -> tuple[Ints, Ints]:
        """Where each run of arcs of one tier begins, and that tier.

        Files list links tier by tier, so that there are few: the worst of each tier is
        quicker found by runs than arc by arc.
        """
        first = np.flatnonzero(np.diff(self.tier_of_arc, prepend=NONE))
        return first, self.tier_of_arc[first]

    def worst_by_tier(self, values: Floats) -> Floats:
        """The greatest value, at least 0, of the arcs of each tier, shape (tiers,)."""
        first, tier = self.tier_runs
        worst = np.zeros(len(self.tiers))
        if len(first):
            np.maximum.at(worst, tier, np.maximum.reduceat(values, first))
        return worst

    @cached_property
    def links_between(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Rows of the links between two nodes, lesser node row first."""
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        low = np.minimum(self.links.a, self.links.b).tolist()
        high = np.maximum(self.links.a, self.links.b).tolist()
        for row, ends in enumerate(zip(low, high, strict=True)):
            found[ends] = (*found.get(ends, ()), row)
        return found

    @cached_property
    def nics_of_host(self) -> dict[str, tuple[int, ...]]:
        """NIC rows of each host in the order of its GPUs; hosts in the order that people count in.

        A NIC that says which GPU it serves has that place. The others fill the places that
        are left, by rail and then by id, in which ``mlx5_10`` comes after ``mlx5_9``.
        """
        nodes = self.nodes
        nics = np.flatnonzero((nodes.host != NONE) & (nodes.kind == NodeKind.NIC))
        told = zip(nics.tolist(), nodes.host[nics].tolist(), nodes.rail[nics].tolist(), strict=True)
        found: dict[int, list[tuple[int, int]]] = {}
        for nic, host, rail in told:
            found.setdefault(host, []).append((rail, nic))
        hosts = sorted(found, key=lambda host: natural(self.host_names[host]))
        return {self.host_names[host]: self._by_gpu(found[host]) for host in hosts}

    def _by_gpu(self, nics: list[tuple[int, int]]) -> tuple[int, ...]:
        """Rows of NICs of one host, given with their rails, in the order of its GPUs."""
        ids, gpu = self.nodes.ids, self.nodes.gpu
        if len({rail for rail, _ in nics}) < len(nics):
            nics = sorted(nics, key=lambda nic: (nic[0], natural(ids[nic[1]])))
        rows = [row for _, row in sorted(nics, key=itemgetter(0))]
        place = {int(gpu[row]): row for row in rows if gpu[row] != NONE}
        others = iter([row for row in rows if gpu[row] == NONE])
        return tuple(place[n] if n in place else next(others) for n in range(len(rows)))

    @cached_property
    def nic_line(self) -> Floats:
        """Gbit/s of each NIC's links together, 0 for a switch; shape (nodes,)."""
        tail, capacity = self._nic_arcs
        return np.bincount(tail, capacity, minlength=len(self.nodes.ids)).astype(np.float64)

    @cached_property
    def nic_port(self) -> Floats:
        """Gbit/s of each NIC's fastest link, 0 for a switch; shape (nodes,)."""
        tail, capacity = self._nic_arcs
        port: Floats = np.zeros(len(self.nodes.ids))
        np.maximum.at(port, tail, capacity)
        return port

    @property
    def reaches(self) -> Mapping[bytes, Reach]:
        """Hop counts kept for sets of arcs that carry, by packed mask; the newest last."""
        kept: Mapping[bytes, Reach] = self.__dict__.get("_reaches", {})
        return kept

    def keep_reaches(self, reaches: Mapping[bytes, Reach]) -> None:
        """Keep these in place of those kept; threads may read either, so none is changed after."""
        self.__dict__["_reaches"] = reaches

    @property
    def _nic_arcs(self) -> tuple[Ints, Floats]:
        """Tail and capacity of the arcs that leave NICs."""
        out = self.nodes.kind[self.tail] == NodeKind.NIC
        return self.tail[out], self.capacity[out]


@dataclass(frozen=True, eq=False)
class Fabric:
    """A structure and how each link and node in it stands."""

    structure: Structure
    link_state: Ints
    """``State`` of each link, shape (links,)."""
    node_state: Ints = field(repr=False)
    """``State`` of each node, shape (nodes,)."""
    port_paths: PortPaths | None = field(default=None, repr=False)
    """What is known of the paths of source ports, where switches hash; None where nothing is."""

    @property
    def name(self) -> str:
        """Name given in the file."""
        return self.structure.name

    @property
    def node_count(self) -> int:
        """NICs and switches."""
        return len(self.structure.nodes.ids)

    @property
    def link_count(self) -> int:
        """Links, each counted once."""
        return len(self.structure.links.key)

    @cached_property
    def effective(self) -> Ints:
        """State of each link with that of its ends: DOWN beats DRAINED beats UP."""
        return self._effective_of(np.arange(self.link_count))

    def _effective_of(self, rows: Ints) -> Ints:
        links, node = self.structure.links, self.node_state
        states = np.stack([self.link_state[rows], node[links.a[rows]], node[links.b[rows]]])
        down = (states == State.DOWN).any(axis=0)
        drained = (states == State.DRAINED).any(axis=0)
        return np.where(down, State.DOWN, np.where(drained, State.DRAINED, State.UP))

    @cached_property
    def carries(self) -> Bools:
        """Whether each arc forwards packets, shape (2 x links,)."""
        return np.repeat(self.effective != State.DOWN, 2)

    @cached_property
    def plannable(self) -> Bools:
        """Whether new paths may use each arc, shape (2 x links,)."""
        return np.repeat(self.effective == State.UP, 2)

    @cached_property
    def connected(self) -> Bools:
        """Which nodes have a link that carries, shape (nodes,); not to be written to."""
        result = np.zeros(self.node_count, dtype=np.bool_)
        result[self.structure.tail[self.carries]] = True
        result.flags.writeable = False
        return result

    def with_links(self, states: Mapping[int, State]) -> Fabric:
        """The same fabric with some links, by row, in another state."""
        if not states:
            return self
        other = replace(self, link_state=_changed(self.link_state, states))
        return self._handing_on(other, np.fromiter(states, dtype=np.int64))

    def with_nodes(self, states: Mapping[int, State]) -> Fabric:
        """The same fabric with some nodes, by row, in another state."""
        if not states:
            return self
        other = replace(self, node_state=_changed(self.node_state, states))
        changed = np.zeros(self.node_count, dtype=np.bool_)
        changed[list(states)] = True
        links = self.structure.links
        return self._handing_on(other, np.flatnonzero(changed[links.a] | changed[links.b]))

    def _handing_on(self, other: Fabric, links: Ints) -> Fabric:
        """Gives a fabric that differs in these links alone what is known of all the others."""
        # As if it had been asked for: the place where a cached property keeps its answer.
        known, told = vars(self), vars(other)
        if "effective" in known:
            states = other._effective_of(links)
            told["effective"] = _with(self.effective, links, states)
            arcs, both = np.append(2 * links, 2 * links + 1), np.append(states, states)
            if "carries" in known:
                told["carries"] = _with(self.carries, arcs, both != State.DOWN)
            if "plannable" in known:
                told["plannable"] = _with(self.plannable, arcs, both == State.UP)
            if "connected" in known and len(links):
                nodes = np.unique([self.structure.links.a[links], self.structure.links.b[links]])
                told["connected"] = _with(self.connected, nodes, other._connects(nodes))
                told["connected"].flags.writeable = False
        return other

    def _connects(self, nodes: Ints) -> Bools:
        """Whether each of some nodes that have links has one that carries."""
        first, arcs = self.structure.out
        lengths = first[nodes + 1] - first[nodes]
        begin = np.cumsum(lengths) - lengths
        own = arcs[np.repeat(first[nodes] - begin, lengths) + np.arange(int(lengths.sum()))]
        found: Bools = np.logical_or.reduceat(self.carries[own], begin)
        return found

    def find_links(self, a: str, b: str, key: LinkKey | None = None) -> tuple[int, ...]:
        """Rows of the links between two node ids; of one key if given (1 equals "1").

        Empty where there are none, or where an id is unknown.
        """
        index = self.structure.index
        if a not in index or b not in index:
            return ()
        ends = (min(index[a], index[b]), max(index[a], index[b]))
        rows = self.structure.links_between.get(ends, ())
        keys = self.structure.links.key
        return tuple(r for r in rows if key is None or str(keys[r]) == str(key))

    def link_name(self, row: int) -> str:
        """``A,B``, as commands take it, and ``,KEY`` where links run parallel."""
        links, ids = self.structure.links, self.structure.nodes.ids
        a, b = int(links.a[row]), int(links.b[row])
        parallel = len(self.structure.links_between[min(a, b), max(a, b)]) > 1
        return link_name(ids[a], ids[b], links.key[row] if parallel else "")

    def rows_of_kind(self, *kinds: NodeKind) -> Ints:
        """Node rows of the given kinds, ascending."""
        return np.flatnonzero(np.isin(self.structure.nodes.kind, kinds))


_Column = TypeVar("_Column", Ints, Bools)


def _with(column: _Column, places: Ints, values: _Column) -> _Column:
    """A copy with other values at some places."""
    copy = column.copy()
    copy[places] = values
    return copy


def _changed(states: Ints, changes: Mapping[int, State]) -> Ints:
    result = states.copy()
    if changes:
        result[list(changes)] = list(changes.values())
    return result


def _string_table(nodes: Nodes, links: Links) -> StringTable:
    ids = nodes.ids
    texts = list(ids)
    keys = _numbered(map(str, links.key), texts)
    called = len(texts)
    addresses = _numbered(filter(None, nodes.address), texts)
    ends = zip(links.a.tolist(), links.b.tolist(), strict=True)
    swapped = np.array([ids[a] > ids[b] for a, b in ends], dtype=np.bool_)
    address = np.full(called, NONE, dtype=np.int64)
    address[: len(ids)] = [addresses[text] if text else NONE for text in nodes.address]
    is_nic = np.zeros(called, dtype=np.bool_)
    is_nic[: len(ids)] = nodes.kind == NodeKind.NIC
    return StringTable(
        texts,
        address=address,
        is_nic=is_nic,
        key=np.array([keys[str(key)] for key in links.key], dtype=np.int64),
        low=np.where(swapped, links.b, links.a),
        high=np.where(swapped, links.a, links.b),
    )


def _numbered(found: Iterable[str], texts: list[str]) -> dict[str, int]:
    """Numbers of further texts, which join the others."""
    numbers: dict[str, int] = {}
    for text in found:
        if text not in numbers:
            numbers[text] = len(texts)
            texts.append(text)
    return numbers
