"""The fabric as arrays.

Each node and each link is a row. Ids are translated at the edge of the program; everything inside
works with row numbers. A link is stored once and has two directed *arcs*: arc ``2 * l`` runs from
``links.a[l]`` to ``links.b[l]``, and arc ``2 * l + 1`` runs back. So the reverse of an arc is
``arc ^ 1``, and its link is ``arc >> 1``.

A ``Fabric`` is immutable. A change of state makes a new one that shares the structure, and
everything derived from it, with the old one. Taking down a link in a fabric of 24,576 NICs
therefore costs one small copy.
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
from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, Reach, distinct
from heddle_controller.model.graphs import joined_parts

if TYPE_CHECKING:
    from heddle_controller.model.port_paths import PortPaths

LinkKey = int | str

NUMBERS: tuple[Literal["rail", "plane", "table_size", "gpu"], ...] = (
    "rail",
    "plane",
    "table_size",
    "gpu",
)
"""Integer columns of ``Nodes`` that fabric.json may leave out; the column then has ``NONE``."""


class NodeKind(IntEnum):
    """What a node is. The kinds are ordered like the tiers, from the hosts up."""

    NIC = 0
    LEAF = 1
    SPINE = 2
    CORE = 3
    SWITCH = 4


class State(IntEnum):
    """State of a link or node. A DRAINED one still forwards packets but takes no new paths."""

    UP = 0
    DOWN = 1
    DRAINED = 2


class Forwarding(IntEnum):
    """What decides which next hop a switch uses when it has several."""

    PROGRAMMED = 0
    """Its entries, or a hash of addresses and ports for packets that match no entry."""
    ECMP = 1
    """Only that hash. Heddle does not program the switch."""


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
    """How many exact-match entries fit the switch. ``NONE`` means no limit."""
    gpu: Ints
    """Which GPU of its host a NIC serves, counted from 0."""
    forwarding: Ints
    """``Forwarding`` of each switch. A NIC has ``PROGRAMMED``, which has no meaning for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """All links, one row each: ``a`` and ``b`` are node rows, ``gbps`` is the speed each way."""

    a: Ints
    b: Ints
    key: tuple[LinkKey, ...]
    gbps: Floats
    address: tuple[tuple[str, str], ...] = ()
    """IP addresses of ends ``a`` and ``b`` of each link, "" where not given. Empty when no link
    has any."""


@dataclass(frozen=True, slots=True, eq=False)
class StringTable:
    """Numbers for the node ids, link keys and addresses of one structure.

    Pushes to agents use these numbers in place of names, so that no entry needs a text lookup.
    """

    texts: list[str]
    """The text of each number: node ids by row, then distinct link keys, then addresses."""
    address: Ints
    """Number of each node's address, shape (nodes + distinct keys,). ``NONE`` for a node without
    one, and for the keys."""
    is_nic: Bools
    """Whether each text is the id of a NIC; shaped like ``address``."""
    key: Ints
    """Number of each link's key, shape (links,)."""
    low: Ints
    """Node row of each link's end with the lesser id, shape (links,). Agents name links so."""
    high: Ints
    """Node row of each link's other end, shape (links,)."""


@dataclass(frozen=True, eq=False)
class Structure:
    """The part of a fabric that does not depend on state: nodes, links, and what they imply."""

    name: str
    nodes: Nodes
    links: Links
    zone_names: tuple[str, ...]
    host_names: tuple[str, ...]

    @cached_property
    def index(self) -> dict[str, int]:
        """Map each node id to its row."""
        return {node: row for row, node in enumerate(self.nodes.ids)}

    @cached_property
    def zones(self) -> Ints:
        """Number of each node's zone, shape (nodes,); ``NONE`` for nodes in none.

        If the fabric states no zones, they are the parts that only cores join.
        """
        core = self.nodes.kind == NodeKind.CORE
        if not core.any() or (self.nodes.zone != NONE).any():
            return self.nodes.zone
        below = ~(core[self.links.a] | core[self.links.b])
        part = joined_parts(self.links.a[below], self.links.b[below], len(core))
        found = np.full(len(core), NONE, dtype=np.int64)
        found[~core] = np.unique(part[~core], return_inverse=True)[1]
        return found

    @cached_property
    def rails(self) -> Ints:
        """Number of each node's rail, shape (nodes,); ``NONE`` for nodes on none.

        If no NIC states its rail, and no link joins the networks that NICs are on, as in rail-only
        fabrics, each network is a rail.
        """
        nic, stated = self.nodes.kind == NodeKind.NIC, self.nodes.rail
        if (stated[nic] != NONE).any():
            return stated
        inner = ~(nic[self.links.a] | nic[self.links.b])
        part = joined_parts(self.links.a[inner], self.links.b[inner], len(nic))
        arcs = np.flatnonzero(nic[self.tail])
        found = np.full(len(nic), NONE, dtype=np.int64)
        found[self.tail[arcs]] = network = part[self.head[arcs]]
        on_several = (found[self.tail[arcs]] != network).any()
        return stated if on_several or len(distinct(network)) == 1 else found

    @cached_property
    def nic_of_address(self) -> dict[str, int]:
        """Map the address of each NIC that has one to its node row."""
        nics = np.flatnonzero(self.nodes.kind == NodeKind.NIC).tolist()
        return {self.nodes.address[row]: row for row in nics if self.nodes.address[row]}

    @cached_property
    def switches(self) -> Ints:
        """Node rows of all switches, ascending."""
        return np.flatnonzero(self.nodes.kind != NodeKind.NIC)

    @cached_property
    def programmed(self) -> Ints:
        """Node rows of the switches that Heddle programs, ascending."""
        return self.switches[~self.hashes[self.switches]]

    @cached_property
    def hashes(self) -> Bools:
        """Mark the switches that only hash (``Forwarding.ECMP``), shape (nodes,)."""
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
        """Mark the arcs between two switches, shape (2 x links,)."""
        switch = self.nodes.kind != NodeKind.NIC
        found: Bools = switch[self.tail] & switch[self.head]
        return found

    @cached_property
    def capacity(self) -> Floats:
        """Speed of each arc in Gbit/s, shape (2 x links,)."""
        return np.repeat(self.links.gbps, 2)

    @cached_property
    def out(self) -> tuple[Ints, Ints]:
        """Arcs grouped by the node they leave, as compressed rows ``(first, arcs)``.

        The arcs that leave node ``n`` are ``arcs[first[n]:first[n + 1]]``, ordered by the node
        that they enter and then by link; see also ``leaving``.
        """
        arcs = np.lexsort((self.head, self.tail)).astype(np.int64)
        counts = np.bincount(self.tail, minlength=len(self.nodes.ids))
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), arcs

    def leaving(self, node: int) -> Ints:
        """Return the arcs that leave a node, ordered as in ``out``."""
        first, arcs = self.out
        return arcs[first[node] : first[node + 1]]

    def neighbours(self, node: int) -> list[int]:
        """Return the nodes that have a link to a node, ascending, each once."""
        return [*dict.fromkeys(self.head[self.leaving(node)].tolist())]

    @cached_property
    def place_out(self) -> Ints:
        """Position of each arc within the arcs of ``out``, shape (2 x links,)."""
        _, arcs = self.out
        place = np.empty_like(arcs)
        place[arcs] = np.arange(len(arcs))
        return place

    @cached_property
    def tier_of_arc(self) -> Ints:
        """Index into ``tiers`` of each arc, shape (2 x links,)."""
        low, high = self._kind_pairs
        _, inverse = np.unique(low * len(NodeKind) + high, return_inverse=True)
        return np.repeat(inverse.astype(np.int64), 2)

    @cached_property
    def tiers(self) -> tuple[str, ...]:
        """Names of the tiers of links, such as "leaf-spine", from the hosts up."""
        low, high = self._kind_pairs
        codes = np.unique(low * len(NodeKind) + high)
        return tuple(
            f"{NodeKind(int(c) // len(NodeKind)).name.lower()}"
            f"-{NodeKind(int(c) % len(NodeKind)).name.lower()}"
            for c in codes
        )

    @cached_property
    def strings(self) -> StringTable:
        """The names that pushes to agents use by number."""
        return _string_table(self.nodes, self.links)

    @property
    def _kind_pairs(self) -> tuple[Ints, Ints]:
        ends = self.nodes.kind[np.stack([self.links.a, self.links.b])]
        return ends.min(axis=0), ends.max(axis=0)

    @cached_property
    def tier_runs(self) -> tuple[Ints, Ints]:
        """First arc of each run of consecutive arcs of one tier, and the tier of each run.

        Most files list links tier by tier, so there are few runs. The worst arc of each tier is
        found faster by runs than arc by arc.
        """
        first = np.flatnonzero(np.diff(self.tier_of_arc, prepend=NONE))
        return first, self.tier_of_arc[first]

    def worst_by_tier(self, values: Floats) -> Floats:
        """Return the greatest value among each tier's arcs, but at least 0, shape (tiers,)."""
        first, tier = self.tier_runs
        worst = np.zeros(len(self.tiers))
        if len(first):
            np.maximum.at(worst, tier, np.maximum.reduceat(values, first))
        return worst

    @cached_property
    def links_between(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Link rows by the two nodes that they join, keyed (lesser node row, greater node row)."""
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        low = np.minimum(self.links.a, self.links.b).tolist()
        high = np.maximum(self.links.a, self.links.b).tolist()
        for row, ends in enumerate(zip(low, high, strict=True)):
            found[ends] = (*found.get(ends, ()), row)
        return found

    @cached_property
    def nics_of_host(self) -> dict[str, tuple[int, ...]]:
        """NIC rows of each host in the order of its GPUs. Hosts are in natural order.

        A NIC with a ``gpu`` has that position. The others fill the remaining positions, ordered
        by rail and then by id in natural order, where ``mlx5_10`` comes after ``mlx5_9``.
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
        """Order the NICs of one host, given as (rail, node row), by the GPUs that they serve."""
        ids, gpu = self.nodes.ids, self.nodes.gpu
        if len({rail for rail, _ in nics}) < len(nics):
            nics = sorted(nics, key=lambda nic: (nic[0], natural(ids[nic[1]])))
        rows = [row for _, row in sorted(nics, key=itemgetter(0))]
        place = {int(gpu[row]): row for row in rows if gpu[row] != NONE}
        others = iter([row for row in rows if gpu[row] == NONE])
        return tuple(place[n] if n in place else next(others) for n in range(len(rows)))

    @cached_property
    def nic_line(self) -> Floats:
        """Total speed of each NIC's links in Gbit/s, 0 for a switch, shape (nodes,)."""
        tail, capacity = self._nic_arcs
        return np.bincount(tail, capacity, minlength=len(self.nodes.ids)).astype(np.float64)

    @cached_property
    def nic_port(self) -> Floats:
        """Speed of each NIC's fastest link in Gbit/s, 0 for a switch, shape (nodes,)."""
        tail, capacity = self._nic_arcs
        port: Floats = np.zeros(len(self.nodes.ids))
        np.maximum.at(port, tail, capacity)
        return port

    @property
    def reaches(self) -> Mapping[bytes, Reach]:
        """Hop counts kept for ``underlay``, the newest last.

        The key is the mask of arcs that carry packets, packed to bits.
        """
        kept: Mapping[bytes, Reach] = self.__dict__.get("_reaches", {})
        return kept

    def keep_reaches(self, reaches: Mapping[bytes, Reach]) -> None:
        """Replace ``reaches``. Do not change the mapping afterwards: other threads may read it."""
        self.__dict__["_reaches"] = reaches

    @property
    def _nic_arcs(self) -> tuple[Ints, Floats]:
        """Tail and capacity (Gbit/s) of the arcs that leave NICs."""
        out = self.nodes.kind[self.tail] == NodeKind.NIC
        return self.tail[out], self.capacity[out]


@dataclass(frozen=True, eq=False)
class Fabric:
    """A structure, and the state of each of its links and nodes."""

    structure: Structure
    link_state: Ints
    """``State`` of each link, shape (links,)."""
    node_state: Ints = field(repr=False)
    """``State`` of each node, shape (nodes,)."""
    port_paths: PortPaths | None = field(default=None, repr=False)
    """Paths that source ports are known to take where switches hash. None if nothing is known."""

    @property
    def name(self) -> str:
        """Name of the fabric, or an empty string."""
        return self.structure.name

    @property
    def node_count(self) -> int:
        """Number of nodes: NICs and switches."""
        return len(self.structure.nodes.ids)

    @property
    def link_count(self) -> int:
        """Number of links. Each counts once, not once per direction."""
        return len(self.structure.links.key)

    @cached_property
    def effective(self) -> Ints:
        """The worst state of each link and its two ends (DOWN, then DRAINED), shape (links,)."""
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
        """Whether each node has a link that forwards packets, shape (nodes,), read-only."""
        result = np.zeros(self.node_count, dtype=np.bool_)
        result[self.structure.tail[self.carries]] = True
        result.flags.writeable = False
        return result

    def with_links(self, states: Mapping[int, State]) -> Fabric:
        """Return the same fabric with new states for some links, given by row."""
        if not states:
            return self
        other = replace(self, link_state=_changed(self.link_state, states))
        return self._handing_on(other, np.fromiter(states, dtype=np.int64))

    def with_nodes(self, states: Mapping[int, State]) -> Fabric:
        """Return the same fabric with new states for some nodes, given by row."""
        if not states:
            return self
        other = replace(self, node_state=_changed(self.node_state, states))
        changed = np.zeros(self.node_count, dtype=np.bool_)
        changed[list(states)] = True
        links = self.structure.links
        return self._handing_on(other, np.flatnonzero(changed[links.a] | changed[links.b]))

    def _handing_on(self, other: Fabric, links: Ints) -> Fabric:
        """Fill the cached properties of ``other``, which differs only in the state of ``links``.

        Copies what this fabric has computed, and computes anew only for these links.
        """
        # A cached property keeps its value in the instance's ``__dict__``.
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
        """Return whether each of some nodes has a link that carries; each must have a link."""
        first, arcs = self.structure.out
        lengths = first[nodes + 1] - first[nodes]
        begin = np.cumsum(lengths) - lengths
        own = arcs[np.repeat(first[nodes] - begin, lengths) + np.arange(int(lengths.sum()))]
        found: Bools = np.logical_or.reduceat(self.carries[own], begin)
        return found

    def find_links(self, a: str, b: str, key: LinkKey | None = None) -> tuple[int, ...]:
        """Return the rows of the links between two nodes, given by id.

        With a key, only links with that key count; 1 equals "1". The result is empty when there
        is no such link or an id is unknown.
        """
        index = self.structure.index
        if a not in index or b not in index:
            return ()
        ends = (min(index[a], index[b]), max(index[a], index[b]))
        rows = self.structure.links_between.get(ends, ())
        keys = self.structure.links.key
        return tuple(r for r in rows if key is None or str(keys[r]) == str(key))

    def links_named(self, text: str) -> tuple[int, ...]:
        """Return the rows of the links that ``A,B`` or ``A,B,KEY`` names; empty if there are none.

        Node ids may have commas, too.
        """
        commas = [place for place, letter in enumerate(text) if letter == ","]
        for place in commas:
            a, rest = text[:place], text[place + 1 :]
            b, _, key = rest.rpartition(",")
            if found := self.find_links(a, rest) or self.find_links(a, b, key):
                return found
        return ()

    def link_name(self, row: int) -> str:
        """Return a link's name as all commands accept and print it: ``A,B,KEY``."""
        links, ids = self.structure.links, self.structure.nodes.ids
        return link_name(ids[links.a[row]], ids[links.b[row]], links.key[row])

    def rows_of_kind(self, *kinds: NodeKind) -> Ints:
        """Return the node rows of the given kinds, ascending."""
        return np.flatnonzero(np.isin(self.structure.nodes.kind, kinds))


def no_fabric() -> Fabric:
    """Return a fabric without nodes and links."""
    none = np.zeros(0, dtype=np.int64)
    nodes = Nodes((), none, none, none, none, none, (), none, none, none)
    links = Links(none, none, (), np.zeros(0))
    return Fabric(Structure("", nodes, links, (), ()), none, none)


_Column = TypeVar("_Column", Ints, Bools)


def _with(column: _Column, places: Ints, values: _Column) -> _Column:
    """Return a copy of the column with other values at some places."""
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
    """Append each distinct text of ``found`` to ``texts``, and return their numbers."""
    numbers: dict[str, int] = {}
    for text in found:
        if text not in numbers:
            numbers[text] = len(texts)
            texts.append(text)
    return numbers
