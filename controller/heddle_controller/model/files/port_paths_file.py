"""port-paths.json: which path each UDP source port takes, where switches hash.

There is one object for each pair of NICs. It has one object for each path that ports are known to
take::

    {"pairs": [{"source": "n0", "destination": "n1",
                "paths": [{"nodes": ["n0", "l0", "s1", "l1", "n1"], "keys": [0, 0, 0, 0],
                           "ports": [49152, 49160], "learned": "probed"}]}]}

``keys`` may be left out if the path uses no parallel links. ``learned`` is "probed" or "modelled"
and may be left out for "probed". Unknown names are ignored.

NICs may be named by their addresses. A probed path may be given by the addresses that answered,
with ``"hops": ["10.0.1.1", null, "10.0.3.1"]`` in place of nodes and keys. An address belongs to a
node or to the end of a link. A hop that did not answer (null) is filled in if only one switch can
be there. If the path remains ambiguous, its ports are ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from heddle_controller.model.arrays import NONE, Ints, distinct, starts
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric, NodeKind, Structure
from heddle_controller.model.files.content import MEBIBYTE, read_json, write_content
from heddle_controller.model.files.plan_file import arcs_between
from heddle_controller.model.files.records import short
from heddle_controller.model.port_paths import Learned, PortPaths, gathered

_CEILING = 4096 * MEBIBYTE
HIGHEST = 65535
_LEARNED = {one.name.lower(): int(one) for one in Learned}
_FORM = "give a list of objects with nodes, keys and ports"


def load_port_paths(path: Path, fabric: Fabric) -> PortPaths:
    """Read a port-paths.json, plain or gzip.

    Raises:
        InputError: the file cannot be read, is not JSON, or names nodes or links that are not in
            the fabric.
    """
    return parse_port_paths(read_json(path, _CEILING), fabric, str(path))


def save_port_paths(known: PortPaths, fabric: Fabric, path: Path) -> None:
    """Write a port-paths.json, as gzip if the name ends in ``.gz``.

    Raises:
        InputError: the file cannot be written.
    """
    write_content(path, orjson.dumps(port_paths_document(known, fabric)), b"\n")


def parse_port_paths(document: object, fabric: Fabric, origin: str) -> PortPaths:
    """Return the ways of source ports that a document contains.

    Raises:
        InputError: with ``origin`` as its source, and a problem for each faulty pair of NICs (at
            most ``MAX_PROBLEMS``).
    """
    pairs = document.get("pairs") if isinstance(document, Mapping) else None
    if not isinstance(pairs, list):
        raise refuse(origin, "pairs", "missing; give a list of pairs of NICs with their paths")
    rows = _Rows(fabric.structure)
    problems: list[Problem] = []
    for at, pair in enumerate(pairs):
        try:
            rows.take(pair)
        except _Fault as fault:
            problems.append(Problem(f"pairs[{at}]", str(fault)))
            if len(problems) == MAX_PROBLEMS:
                break
    if not problems:
        problems = rows.unknown_links()[:MAX_PROBLEMS]
    if problems:
        raise InputError(origin, *problems)
    return rows.known()


class _Fault(Exception):  # noqa: N818 - says what is wrong with a record
    """A record is not a path; the message says why."""


class _Rows:
    """Paths as columns, one element per path."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        self._at = _addresses(structure)
        self._label: list[str] = []
        self._ends: list[tuple[int, int]] = []
        self._learned: list[int] = []
        self._nodes: list[list[int]] = []
        self._keys: list[list[str]] = []
        self._ports: list[list[int]] = []
        self._seen = defaultdict[tuple[int, ...], set[int]](set)

    def take(self, pair: object) -> None:
        """Add the paths between two NICs.

        Raises:
            _Fault: the object is faulty.
        """
        if not isinstance(pair, dict) or not isinstance(pair.get("paths"), list):
            raise _Fault(f"is {short(pair)}; give source, destination and paths")
        ends = [self._nic(name, pair.get(name)) for name in ("source", "destination")]
        seen = self._seen[tuple(ends)]
        for path in pair["paths"]:
            if not isinstance(path, dict):
                raise _Fault(f"a path is {short(path)}; {_FORM}")
            self._path(path, ends)
            if not seen.isdisjoint(self._ports[-1]) or len({*self._ports[-1]}) < len(
                self._ports[-1]
            ):
                raise _Fault("a port is there twice; a port takes one path between two NICs")
            seen.update(self._ports[-1])

    def _nic(self, end: str, name: object) -> int:
        row = NONE
        if isinstance(name, str):
            row = self._structure.index.get(name, self._at.get(name, (NONE, NONE))[0])
        if row == NONE or self._structure.nodes.kind[row] != NodeKind.NIC:
            raise _Fault(f"{end} {short(name)} is not a NIC of the fabric")
        return row

    def _path(self, path: dict[str, Any], ends: list[int]) -> None:
        ports = _list_of(path.get("ports"), int)
        if not all(0 < port <= HIGHEST for port in ports):
            raise _Fault(f"ports are {short(ports)}; give some from 1 to {HIGHEST}")
        learned = path.get("learned", "probed")
        if not isinstance(learned, str) or learned not in _LEARNED:
            raise _Fault(f"learned is {short(learned)}; give one of {', '.join(_LEARNED)}")
        told = self._answered(path, ends) if "hops" in path else self._named(path, ends)
        nodes, keys = told or ([], [])
        ids = self._structure.nodes.ids
        self._label.append(f"{ids[ends[0]]} to {ids[ends[1]]}")
        self._ends.append((ends[0], ends[1]))
        self._learned.append(_LEARNED[learned])
        self._nodes.append(nodes)
        self._keys.append(keys)
        self._ports.append(ports)

    def _named(self, path: dict[str, Any], ends: list[int]) -> tuple[list[int], list[str]]:
        """Return the node rows and link keys of a path that is given by node ids."""
        names = _list_of(path.get("nodes"), str)
        nodes = [self._structure.index.get(name, NONE) for name in names]
        if NONE in nodes:
            raise _Fault(f"node {short(names[nodes.index(NONE)])} is not in the fabric")
        if [nodes[0], nodes[-1]] != ends or len(set(nodes)) < len(nodes):
            raise _Fault("a path must lead from source to destination, and meet no node twice")
        keys = path.get("keys", self._only_keys(nodes))
        if not isinstance(keys, list) or len(keys) != len(nodes) - 1:
            raise _Fault("a path needs keys, one fewer than nodes, where links run parallel")
        return nodes, [str(key) for key in keys]

    def _answered(
        self, path: dict[str, Any], ends: list[int]
    ) -> tuple[list[int], list[str]] | None:
        """Return the node rows and link keys of a path given by the addresses that answered.

        None if the path is ambiguous.
        """
        hops = path["hops"]
        if not isinstance(hops, list) or not {str, type(None)} >= set(map(type, hops)):
            raise _Fault(
                f"hops are {short(hops)}; give a list of addresses, null for what is silent"
            )
        nodes, links, silent = [ends[0]], list[int](), False
        for hop in [*hops, self._structure.nodes.address[ends[1]] or None]:
            if hop is None:
                silent = True
                continue
            if hop not in self._at:
                cure = "name the addresses of links: source_address, target_address"
                raise _Fault(
                    f"{short(hop)} is the address of no node or link of the fabric; {cure}"
                )
            node, link = self._at[hop]
            between = (
                self._silent(nodes[-1], node)
                if silent or not self._links(nodes[-1], node)
                else [node]
            )
            if between is None:
                return None
            for one in between:
                found = self._links(nodes[-1], one)
                own = [row for row in found if row == link] if one == node else []
                if len(own or found) != 1:
                    return None
                nodes.append(one)
                links += own or found
            silent = False
        if nodes[-1] != ends[1] or len(set(nodes)) < len(nodes):
            return None
        keys = self._structure.links.key
        return nodes, [str(keys[row]) for row in links]

    def _silent(self, before: int, after: int) -> list[int] | None:
        """Return the nodes after ``before``, up to ``after``, across hops that did not answer.

        If the two have a link, that is ``after`` alone. Otherwise it is the only switch that has
        links to both, and ``after``. None if there is no such switch, or more than one.
        """
        if self._links(before, after):
            return [after]
        structure = self._structure
        near, far = set(structure.neighbours(before)), set(structure.neighbours(after))
        switches = [n for n in near & far if structure.nodes.kind[n] != NodeKind.NIC]
        return [switches[0], after] if len(switches) == 1 else None

    def _links(self, one: int, two: int) -> list[int]:
        return [*self._structure.links_between.get((min(one, two), max(one, two)), ())]

    def _only_keys(self, rows: list[int]) -> list[Any] | None:
        """Return the keys of the links between consecutive nodes, "" where there is no link.

        None if two of them have parallel links.
        """
        keys = []
        for one, two in pairwise(rows):
            found = self._links(one, two)
            if len(found) > 1:
                return None
            keys += [self._structure.links.key[row] for row in found] or [""]
        return keys

    def unknown_links(self) -> list[Problem]:
        """Return a problem for each path with a link that is not in the fabric."""
        arcs = self._arcs()
        bounds = starts(np.array([len(keys) for keys in self._keys], dtype=np.int64))
        bad = distinct(np.searchsorted(bounds, np.flatnonzero(arcs == NONE), side="right") - 1)
        ids = self._structure.nodes.ids
        return [
            Problem(
                self._label[row],
                f"the fabric has not all links of the path {' '.join(map(short, names))}",
            )
            for row in bad.tolist()
            for names in [[ids[node] for node in self._nodes[row]]]
        ]

    def _arcs(self) -> Ints:
        tails = [*chain.from_iterable(rows[:-1] for rows in self._nodes)]
        heads = [*chain.from_iterable(rows[1:] for rows in self._nodes)]
        keys = [*chain.from_iterable(self._keys)]
        ends = [np.array(column, dtype=np.int64) for column in (tails, heads)]
        return arcs_between(self._structure, ends[0], ends[1], keys)

    def known(self) -> PortPaths:
        """Return the ways. All links must exist, see ``unknown_links``."""
        count = np.array([len(ports) for ports in self._ports], dtype=np.int64)
        hops = np.array([len(keys) for keys in self._keys], dtype=np.int64)
        path = np.repeat(np.arange(len(count)), count)
        ends = np.array(self._ends, dtype=np.int64).reshape(-1, 2)[path]
        bounds, arcs = starts(hops), self._arcs()
        first = starts(hops[path])
        at = np.repeat(bounds[path] - first[:-1], hops[path]) + np.arange(first[-1])
        return gathered(
            ends.T,
            np.array([*chain.from_iterable(self._ports)], dtype=np.int64),
            np.array(self._learned, dtype=np.int64)[path],
            (first, arcs[at]),
        )


def _addresses(structure: Structure) -> dict[str, tuple[int, int]]:
    """Map each address to its node row and link row. The link is ``NONE`` for a node's own."""
    links = structure.links
    at: dict[str, tuple[int, int]] = {}
    for row, ends in enumerate(links.address):
        for node, address in zip((links.a[row], links.b[row]), ends, strict=True):
            at[address] = int(node), row
    at |= {address: (node, NONE) for node, address in enumerate(structure.nodes.address)}
    at.pop("", None)
    return at


def _list_of(value: object, kind: type) -> list[Any]:
    if isinstance(value, list) and set(map(type, value)) == {kind}:
        return value
    raise _Fault(f"a path has {short(value)} for its nodes or ports; {_FORM}")


def port_paths_document(known: PortPaths, fabric: Fabric) -> dict[str, Any]:
    """Return the document of some ways; ``parse_port_paths`` reads the same ways back."""
    structure = fabric.structure
    ids, keys = structure.nodes.ids, structure.links.key
    pairs: list[dict[str, Any]] = []
    for way in range(len(known)):
        ends = ids[known.source[way]], ids[known.destination[way]]
        if not pairs or (pairs[-1]["source"], pairs[-1]["destination"]) != ends:
            pairs.append({"source": ends[0], "destination": ends[1], "paths": []})
        arcs = known.arcs[known.first[way] : known.first[way + 1]]
        pairs[-1]["paths"].append(
            {
                "nodes": [ends[0], *(ids[node] for node in structure.head[arcs].tolist())],
                "keys": [keys[link] for link in (arcs >> 1).tolist()],
                "ports": _ports(known, way),
                "learned": Learned(int(known.learned[way])).name.lower(),
            }
        )
    return {"pairs": pairs}


def _ports(known: PortPaths, way: int) -> Sequence[int]:
    ports: list[int] = known.ports[known.first_port[way] : known.first_port[way + 1]].tolist()
    return ports
