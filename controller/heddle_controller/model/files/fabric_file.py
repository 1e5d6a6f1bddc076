"""fabric.json: networkx node-link data, read into arrays and written back.

Everything is checked before a ``Fabric`` is made, so no other module meets a faulty one. States are
not part of the check: a fabric whose links are all down is valid.

The graph is checked too, as if all links were up. Paths do not pass through NICs, so only links
between switches connect switches. A fabric may be *rail-only*: several networks that no link joins,
each with a NIC of every host. Otherwise it is *half-connected* if two of its NICs have no path
between them, which is a mistake in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from heddle.names import link_name
from heddle.text import counted, some_of
from heddle_controller.model.arrays import NONE, Bools, Ints, distinct
from heddle_controller.model.errors import (
    MAX_PROBLEMS,
    MAX_TITLE,
    InputError,
    Problem,
    refuse,
    too_long,
)
from heddle_controller.model.fabric import (
    NUMBERS,
    Fabric,
    Forwarding,
    LinkKey,
    Links,
    NodeKind,
    Nodes,
    State,
    Structure,
)
from heddle_controller.model.files.content import MEBIBYTE, read_json, write_content
from heddle_controller.model.files.records import Records, short
from heddle_controller.model.graphs import joined_parts

_NAMES_TOLD = 3


def graph_problems(structure: Structure) -> list[Problem]:
    """Return what makes the graph unusable as a fabric; empty if nothing does."""
    nodes, links = structure.nodes, structure.links
    nic = nodes.kind == NodeKind.NIC
    if not nic.any():
        return [Problem("nodes", "none is a nic; flows start and end at nodes of kind nic")]
    alone = nic & (np.bincount(structure.tail, minlength=len(nic)) == 0)
    pairs = nic[links.a] & nic[links.b]
    found = [
        Problem(f"nic {nodes.ids[row]!r}", "has no link; give it one to a switch, or drop it")
        for row in np.flatnonzero(alone).tolist()
    ]
    found += [
        Problem(
            f"link {link_name(nodes.ids[links.a[row]], nodes.ids[links.b[row]], links.key[row])!r}",
            "joins a NIC to a NIC; NICs have links to switches only",
        )
        for row in np.flatnonzero(pairs).tolist()
    ]
    found += [
        Problem(f"nic {nodes.ids[row]!r}", "has a forwarding, which is of switches; drop it")
        for row in np.flatnonzero(nic & (nodes.forwarding != Forwarding.PROGRAMMED)).tolist()
    ]
    found += _gpu_problems(structure, nic)
    return found or _separate(structure, nic)


def _gpu_problems(structure: Structure, nic: Bools) -> list[Problem]:
    """Return problems of the GPU numbers of NICs.

    Each NIC with one needs a host, and its number must be unique on that host and less than the
    number of NICs there. Other nodes have none.
    """
    nodes = structure.nodes
    told = nodes.gpu != NONE
    found = [
        Problem(f"node {nodes.ids[row]!r}", "has a gpu, but is not a nic; drop it")
        for row in np.flatnonzero(told & ~nic).tolist()
    ]
    nics = np.bincount(nodes.host[nic & (nodes.host != NONE)])
    served: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(told & nic).tolist():
        host, gpu = int(nodes.host[row]), int(nodes.gpu[row])
        label = f"nic {nodes.ids[row]!r}"
        if host == NONE:
            found.append(Problem(label, f"serves gpu {gpu} of no host; name its host"))
        elif served.setdefault((host, gpu), row) != row:
            other = nodes.ids[served[host, gpu]]
            found.append(Problem(label, f"serves gpu {gpu}, as {other!r} does; give each its own"))
        elif gpu >= nics[host]:
            name, count = structure.host_names[host], int(nics[host])
            reason = f"serves gpu {gpu}, but host {name!r} has {counted(count, 'NIC')}"
            found.append(Problem(label, f"{reason}; number them 0 to {count - 1}"))
    return found


def _separate(structure: Structure, nic: Bools) -> list[Problem]:
    """Return problems of groups of NICs that have no path to some other NICs.

    A *part* is a set of switches that links between switches connect. A NIC belongs to every part
    that it has a link to. Two NICs can talk if they have a part in common. The largest group of
    NICs with the same parts is not reported.
    """
    links = structure.links
    inner = ~(nic[links.a] | nic[links.b])
    part = joined_parts(links.a[inner], links.b[inner], len(nic))
    arcs = np.flatnonzero(nic[structure.tail])
    nics, parts = structure.tail[arcs], part[structure.head[arcs]]
    sizes = np.bincount(parts[_firsts(nics, parts)], minlength=len(nic))
    if (sizes == np.count_nonzero(nic)).any() or _rail_only(structure, nics, parts):
        return []
    members: dict[int, set[int]] = {}
    for one, of in zip(nics.tolist(), parts.tolist(), strict=True):
        members.setdefault(one, set()).add(of)
    groups: dict[frozenset[int], list[int]] = {}
    for one, of_all in members.items():
        groups.setdefault(frozenset(of_all), []).append(one)
    main = max(groups, key=lambda group: len(groups[group]))
    return [
        _cut_off(structure, rows, part, len(members))
        for group, rows in groups.items()
        if any(not group & other for other in groups) and group != main
    ]


def _rail_only(structure: Structure, nics: Ints, parts: Ints) -> bool:
    """Return whether each part has a NIC of every host.

    ``nics`` and ``parts`` are parallel columns: each NIC with each part that it belongs to.
    """
    host = structure.nodes.host[nics]
    pairs = len(_firsts(host, parts))
    return NONE not in host and pairs == len(distinct(host)) * len(distinct(parts))


def _firsts(nodes: Ints, parts: Ints) -> Ints:
    """Return the first row of each distinct pair of a node, or host, and a part."""
    rows: Ints = np.unique(np.stack([nodes, parts]), axis=1, return_index=True)[1]
    return rows


def _cut_off(structure: Structure, nics: list[int], part: Ints, count: int) -> Problem:
    ids = structure.nodes.ids
    head = structure.head[np.isin(structure.tail, nics)]
    switches = np.flatnonzero(np.isin(part, part[head]) & (structure.nodes.kind != NodeKind.NIC))
    rest = f" and {counted(len(nics) - 1, 'more NIC')}" if len(nics) > 1 else ""
    told = some_of([ids[row] for row in switches.tolist()], _NAMES_TOLD)
    return Problem(
        f"nic {ids[nics[0]]!r}{rest}",
        f"half-connected: no path joins them to all of the other {count - len(nics)} NICs; "
        f"join their switches ({told}) to the rest, or give every host a NIC there",
    )


MOST_BYTES_OF_FABRIC = 1024 * MEBIBYTE
"""Size limit, unpacked, also of files of other systems. A fabric of 98,304 NICs takes 30 to 80 MB,
and what lldpctl tells of it takes 700 MB."""

_KEYS = ("directed", "multigraph", "graph", "nodes", "edges", "links")
_NODE = ("id", "kind", "zone", "host", "address", *NUMBERS, "forwarding", "state")
_EDGE = ("source", "target", "key", "gbps", "state", "source_address", "target_address")
_KINDS = {kind.name.lower(): int(kind) for kind in NodeKind}
_STATES = {state.name.lower(): int(state) for state in State}
_FORWARDING = {one.name.lower(): int(one) for one in Forwarding}


def load_fabric_file(path: Path, *, note: Callable[[str], object] | None = None) -> Fabric:
    """Read a fabric.json, plain or gzip.

    For ``note`` see ``parse_fabric``.

    Raises:
        InputError: the file cannot be read, is not JSON, or is not a valid fabric.
    """
    return parse_fabric(read_json(path, MOST_BYTES_OF_FABRIC), str(path), note=note)


def save_fabric_file(fabric: Fabric, path: Path) -> None:
    """Write a fabric.json, as gzip if the name ends in ``.gz``.

    Raises:
        InputError: the file cannot be written.
    """
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_content(path, orjson.dumps(fabric_document(fabric), option=options))


def parse_fabric(
    document: object,
    origin: str,
    *,
    kept: bool = False,
    note: Callable[[str], object] | None = None,
) -> Fabric:
    """Return the fabric in a node-link document.

    Ids and zones may be integers, which become strings. Link keys stay as they are. A link without
    a key gets the least integer that no other link between the same two nodes has. With ``kept``,
    the document was accepted earlier and stored, so addresses and the length of names are not
    checked again.

    Keys that are not part of the format, at the top level and in records, are ignored. ``note`` is
    called with sentences that name them, if there are any.

    Raises:
        InputError: with ``origin`` as its source, and a problem for each faulty record (at most
            ``MAX_PROBLEMS``).
    """
    if not isinstance(document, Mapping):
        raise refuse(origin, "", "not an object; give node-link data with nodes and edges")
    if document.get("directed"):
        raise refuse(origin, "directed", "is true; give each link once, directed false")
    records = _listed(document, ("nodes",), origin)
    edges = _listed(document, ("edges", "links"), origin)
    nodes, states, zones, hosts = _nodes(records, origin, kept=kept)
    index = {node: row for row, node in enumerate(nodes.ids)}
    links, link_states = _links(edges, index, origin, kept=kept)
    graph = document.get("graph")
    name = graph.get("name") if isinstance(graph, Mapping) else None
    if not kept and len(str(name)) > MAX_TITLE:
        raise refuse(origin, "graph", too_long("name", len(str(name)), MAX_TITLE))
    structure = Structure("" if name is None else str(name), nodes, links, zones, hosts)
    if problems := graph_problems(structure):
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    if note is not None:
        for where, some, known in (
            ("top level", [document], _KEYS),
            ("nodes", records, _NODE),
            ("edges", edges, _EDGE),
        ):
            if ignored := sorted(set().union(*some).difference(known)):
                names = some_of([short(key) for key in ignored], MAX_PROBLEMS)
                told = f"{where}: ignored: {names}; the known keys are {', '.join(known)}"
                note(f"note: {origin}: {told}")
    return Fabric(structure, link_states, states)


def _listed(
    document: Mapping[str, Any], names: tuple[str, ...], origin: str
) -> list[dict[str, Any]]:
    """Return the list of records under the first of the names that the document has."""
    name = next((name for name in names if name in document), None)
    if name is None:
        raise refuse(origin, names[0], "missing; a fabric has nodes and edges")
    records = document[name]
    if not isinstance(records, list) or not records:
        raise refuse(origin, name, f"is {short(records)}; give a list with at least one record")
    if not set(map(type, records)) <= {dict}:
        row = next(row for row, record in enumerate(records) if not isinstance(record, dict))
        raise refuse(origin, f"{name}[{row}]", f"is {short(records[row])}; give an object")
    return records


def _nodes(
    records: list[dict[str, Any]], origin: str, *, kept: bool
) -> tuple[Nodes, Ints, tuple[str, ...], tuple[str, ...]]:
    """Return the nodes, their states, the names of zones and the names of hosts."""

    def label(row: int) -> str:
        node = records[row].get("id")
        return f"nodes[{row}]" if node is None else f"node {short(node)}"

    table = Records(records, origin, label, kept=kept)
    ids = table.strings("id", required=True)
    table.faults((row for row, node in enumerate(ids) if node == ""), lambda _: "id is empty")
    if len(seen := dict(zip(ids, range(len(ids)), strict=True))) < len(ids):
        twice = [row for row, node in enumerate(ids) if seen[node] != row]
        table.faults(twice, lambda _: "this id is used twice; give each node its own")
    zones, zone = _named(table.strings("zone"))
    hosts, host = _named(table.strings("host"))
    nodes = Nodes(
        ids=tuple(ids),
        kind=table.choices("kind", _KINDS, None),
        zone=zone,
        rail=table.integers("rail"),
        plane=table.integers("plane"),
        host=host,
        address=tuple(table.strings("address") if kept else table.addresses("address")),
        table_size=table.integers("table_size"),
        gpu=table.integers("gpu"),
        forwarding=table.choices("forwarding", _FORWARDING, "programmed"),
    )
    states = table.choices("state", _STATES, "up")
    table.faults(
        np.flatnonzero(
            (nodes.kind == NodeKind.NIC) & (states != State.UP) & (states != NONE)
        ).tolist(),
        lambda _: "is a NIC and has a state, which is of switches and links; give it to its link",
    )
    table.finish()
    return nodes, states, zones, hosts


def _named(column: list[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct names in order of appearance, and the index of each; ``NONE`` for ""."""
    rows = {name: row for row, name in enumerate(dict.fromkeys(filter(None, column)))}
    return tuple(rows), np.array([rows.get(name, NONE) for name in column], dtype=np.int64)


def _links(
    records: list[dict[str, Any]], index: dict[str, int], origin: str, *, kept: bool
) -> tuple[Links, Ints]:
    """Return the links and their states."""

    def label(row: int) -> str:
        ends = [records[row].get(end) for end in ("source", "target")]
        if None in ends:
            return f"edges[{row}]"
        key = records[row].get("key")
        return f"edge {'-'.join(map(short, ends))}" + (f" key {short(key)}" if key else "")

    table = Records(records, origin, label, kept=kept)
    a = _ends(table, "source", index)
    b = _ends(table, "target", index)
    gbps = table.rates("gbps")
    states = table.choices("state", _STATES, "up")
    table.faults(
        np.flatnonzero((a == b) & (a != NONE)).tolist(),
        lambda _: "joins a node to itself; drop it",
    )
    keys = _keys(table, np.minimum(a, b) * len(index) + np.maximum(a, b))
    ends = [
        table.strings(name) if kept else table.addresses(name)
        for name in ("source_address", "target_address")
    ]
    table.finish()
    address = tuple(zip(*ends, strict=True)) if any(map(any, ends)) else ()
    return Links(a, b, keys, gbps, address), states


def _ends(table: Records, field: str, index: dict[str, int]) -> Ints:
    names, given = table.strings(field, required=True), table.column(field)
    rows = np.array([index.get(name, NONE) for name in names], dtype=np.int64)
    table.faults(
        (row for row in np.flatnonzero(rows == NONE).tolist() if names[row] or given[row] == ""),
        lambda row: f"{field} {short(names[row])} is not a node; add the node or drop the edge",
    )
    return rows


def _keys(table: Records, ends: Ints) -> tuple[LinkKey, ...]:
    """Return the keys of links, with free integers where they are missing.

    Two links between the same nodes must not have the same key. Keys are compared as strings,
    because the command line and the API know them as strings.
    """
    keys = table.column("key")
    if not set(map(type, keys)) <= {int, str, type(None)}:
        bad = [row for row, key in enumerate(keys) if type(key) not in (int, str, type(None))]
        table.faults(bad, lambda row: f"key is {short(keys[row])}; give an integer or a string")
        return ()
    table.bound("key", ["" if key is None else str(key) for key in keys])
    _, group, count = np.unique(ends, return_inverse=True, return_counts=True)
    parallel = count[group] > 1
    for row in [row for row, key in enumerate(keys) if key is None and not parallel[row]]:
        keys[row] = 0
    used: dict[int, dict[str, int]] = {}
    rows = np.flatnonzero(parallel).tolist()
    for row in rows:
        if (
            keys[row] is not None
            and used.setdefault(int(ends[row]), {}).setdefault(str(keys[row]), row) != row
        ):
            table.fault(row, "is there twice; give parallel links different keys")
    for row in rows:
        if keys[row] is None:
            keys[row] = _free_key(used.setdefault(int(ends[row]), {}), row)
    return tuple(keys)


def _free_key(taken: dict[str, int], row: int) -> int:
    """Return the least integer that is not in ``taken``, and add it for this row."""
    key = next(key for key in range(len(taken) + 1) if str(key) not in taken)
    taken[str(key)] = row
    return key


def fabric_document(fabric: Fabric) -> dict[str, Any]:
    """Return the node-link document of a fabric; ``parse_fabric`` reads the same fabric back."""
    return {
        "directed": False,
        "multigraph": True,
        "graph": {"name": fabric.name},
        "nodes": _node_records(fabric),
        "edges": _edge_records(fabric),
    }


def _node_records(fabric: Fabric) -> list[dict[str, Any]]:
    structure, nodes = fabric.structure, fabric.structure.nodes
    records: list[dict[str, Any]] = [
        {"id": node, "kind": NodeKind(kind).name.lower()}
        for node, kind in zip(nodes.ids, nodes.kind.tolist(), strict=True)
    ]
    columns: dict[str, list[Any]] = {
        "zone": [structure.zone_names[z] if z != NONE else "" for z in nodes.zone.tolist()],
        "host": [structure.host_names[h] if h != NONE else "" for h in nodes.host.tolist()],
        "address": list(nodes.address),
    }
    for name in NUMBERS:
        columns[name] = ["" if v == NONE else v for v in getattr(nodes, name).tolist()]
    columns["forwarding"] = ["ecmp" if one else "" for one in structure.hashes.tolist()]
    columns["state"] = _state_names(fabric.node_state)
    for field, column in columns.items():
        for record, value in zip(records, column, strict=True):
            if value != "":
                record[field] = value
    return records


def _edge_records(fabric: Fabric) -> list[dict[str, Any]]:
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    columns = zip(
        links.a.tolist(),
        links.b.tolist(),
        links.key,
        links.gbps.tolist(),
        _state_names(fabric.link_state),
        strict=True,
    )
    records: list[dict[str, Any]] = [
        {"source": ids[a], "target": ids[b], "key": key, "gbps": gbps}
        | ({"state": state} if state else {})
        for a, b, key, gbps, state in columns
    ]
    for record, ends in zip(records, links.address, strict=False):
        told = zip(("source_address", "target_address"), ends, strict=True)
        record.update((name, address) for name, address in told if address)
    return records


def _state_names(states: Ints) -> list[str]:
    """Return the names of states, "" for UP, which is the default."""
    return ["" if state == State.UP else State(state).name.lower() for state in states.tolist()]
