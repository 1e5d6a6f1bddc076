"""fabric.json: networkx node-link data, read into arrays and written back.

Everything is checked before a ``Fabric`` exists, so the rest of the house never
meets a half-made one. State is no part of the check: a fabric whose links are all
down is a sad one, not a malformed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, refuse
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
from heddle_controller.model.files.fabric_checks import graph_problems
from heddle_controller.model.files.records import Records, short
from heddle_controller.model.limits import MAX_TITLE, too_long

MOST_BYTES_OF_FABRIC = 64 * MEBIBYTE
"""A fabric of 24,576 NICs takes some 8 MB."""

_KINDS = {kind.name.lower(): int(kind) for kind in NodeKind}
_STATES = {state.name.lower(): int(state) for state in State}
_FORWARDING = {one.name.lower(): int(one) for one in Forwarding}


def load_fabric_file(path: Path) -> Fabric:
    """Read a fabric.json, plain or gzip.

    Raises:
        InputError: the file cannot be read, is not JSON, or is no sound fabric.
    """
    return parse_fabric(read_json(path, MOST_BYTES_OF_FABRIC), str(path))


def save_fabric_file(fabric: Fabric, path: Path) -> None:
    """Write a fabric.json, gzip where the name ends in ``.gz``.

    Raises:
        InputError: the file cannot be written.
    """
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_content(path, orjson.dumps(fabric_document(fabric), option=options))


def parse_fabric(document: object, origin: str, *, kept: bool = False) -> Fabric:
    """The fabric in a node-link document.

    Ids and zones may be integers and become strings; link keys stay as they are. A
    link without a key gets its ordinal among the links of the same two nodes. What was
    ``kept`` already is not asked whether its addresses are some: they have been taken.

    Raises:
        InputError: with ``origin`` as its source, and a problem for each faulty
            record (at most ``MAX_PROBLEMS``).
    """
    if not isinstance(document, Mapping):
        raise refuse(origin, "", "not an object; give node-link data with nodes and edges")
    if document.get("directed"):
        raise refuse(origin, "directed", "is true; give each link once, directed false")
    records = _listed(document, ("nodes",), origin)
    nodes, states, zones, hosts = _nodes(records, origin, kept=kept)
    index = {node: row for row, node in enumerate(nodes.ids)}
    links, link_states = _links(
        _listed(document, ("edges", "links"), origin), index, origin, kept=kept
    )
    graph = document.get("graph")
    name = graph.get("name") if isinstance(graph, Mapping) else None
    if not kept and len(str(name)) > MAX_TITLE:
        raise refuse(origin, "graph", too_long("name", len(str(name)), MAX_TITLE))
    structure = Structure("" if name is None else str(name), nodes, links, zones, hosts)
    if problems := graph_problems(structure):
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    return Fabric(structure, link_states, states)


def _listed(
    document: Mapping[str, Any], names: tuple[str, ...], origin: str
) -> list[dict[str, Any]]:
    """The records under the first of the names that is there."""
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
    """Nodes, their states, names of zones and of hosts."""

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
    table.finish()
    return nodes, states, zones, hosts


def _named(column: list[str]) -> tuple[tuple[str, ...], Ints]:
    """Distinct names in order of appearance, and the index of each; "" is none."""
    rows = {name: row for row, name in enumerate(dict.fromkeys(filter(None, column)))}
    return tuple(rows), np.array([rows.get(name, NONE) for name in column], dtype=np.int64)


def _links(
    records: list[dict[str, Any]], index: dict[str, int], origin: str, *, kept: bool
) -> tuple[Links, Ints]:
    """Links and their states."""

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
    """Keys as given, ordinals where missing; the same key twice is a fault.

    Keys are compared as strings, as the command line and the wire know them.
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
    """The least integer that no link of the same ends has; takes it."""
    key = next(key for key in range(len(taken) + 1) if str(key) not in taken)
    taken[str(key)] = row
    return key


def fabric_document(fabric: Fabric) -> dict[str, Any]:
    """Node-link data of a fabric; ``parse_fabric`` gives the same fabric back."""
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
    """Names of states, "" for the default."""
    return ["" if state == State.UP else State(state).name.lower() for state in states.tolist()]
