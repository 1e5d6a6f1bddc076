"""Import tables that name, for each host, the switch above it in each layer.

Inventories have such tables, as CSV with one row per host and one column per layer. They name only
one switch per layer, so the links between layers must be chosen. The choices, each of them an
option, give a connected fabric in which no links before the cores limit the traffic:

- A host has ``nics_per_host`` NICs of ``nic_gbps``, all on its leaf. They have no rail, because
  they share the leaf.
- The name of a leaf need not be unique. A leaf is identified by its spine group *and* its name, and
  its id is "SPINE.LEAF". (In lingjun2023_topo.csv 48 ASW names are in 119 PSW/ASW pairs, which
  makes 119 leaves.)
- A named spine stands for a group of ``spines_per_group`` spines, "SPINE-0" and so on, by default
  as many as a host has NICs. A leaf's uplinks together are as fast as its NICs together (1:1). They
  are spread evenly over the spines, and rounded up to whole cables for each spine. By default
  nothing needs rounding: a leaf of 5 hosts has the speed of 5 NICs to each of 8 spines, and every
  permutation fits at utilisation 1.0.
- Each cable from a leaf to a spine is a link of its own, as fast as a NIC unless ``uplink_gbps``
  says otherwise. A flow takes one cable, so treating a bundle as one link would hide collisions
  that really happen.
- Cores connect the groups of spines in planes. For each position in a group there are
  ``cores_per_plane`` cores, each with one link to the spine at that position in every group. Its
  speed is rounded up to whole NICs. A spine's links to the cores together are as fast as its links
  to the leaves divided by ``core_taper``.
- Without a core column, cores are still added if there are several groups of spines. Without a
  spine column, all leaves are in one group.

The same is read from the graph of NVIDIA topograph. There an instance is a host, and its
``network_layers`` are the leaf, the group of spines and the group of cores above it.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from heddle.text import similar
from heddle_controller.importers.options import ImportOptions, check_words
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.content import read_text
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.files.records import short

_COLUMNS = {
    "host": ("host", "hostname", "host_name", "server", "ip", "node", "name"),
    "leaf": ("leaf", "asw", "tor", "rtsw", "rsw", "leaf_switch"),
    "spine": ("spine", "psw", "ctsw", "agg", "fsw", "spine_switch"),
    "core": ("core", "dsw", "atsw", "ssw", "super_spine", "core_switch"),
}
"""Our word for each column, and the names that are tried if no mapping is given."""

_NEEDED = ("host", "leaf")


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host and the switches above it. Spine and core are "" without a column for them."""

    where: str
    """Its place in the file, for messages."""
    host: str
    leaf: str
    spine: str
    core: str


def read_rows(path: Path, mapping: Mapping[str, str]) -> list[HostRow]:
    """Read the rows of a host table, plain or gzip.

    Raises:
        InputError: the file cannot be read or is not a CSV, a column is missing, a cell is empty,
            or a host occurs twice.
    """
    check_words(mapping, _COLUMNS, str(path))
    content = read_text(path, "JSON")
    try:
        lines = csv.reader(io.StringIO(content, newline=""), strict=True)
        header = [name.strip() for name in next(lines, [])]
        found = _columns(header, mapping, path)
        rows = list(_rows(lines, header, found, path))
    except csv.Error as error:
        raise refuse(str(path), "", f"malformed CSV: {error}") from error
    if not rows:
        raise refuse(str(path), "", "no host below the header; give a row for each host")
    refuse_twice(rows, str(path))
    return rows


def _columns(header: list[str], mapping: Mapping[str, str], path: Path) -> dict[str, int]:
    """Return the position of each of our columns that the header has."""
    lower = [name.lower() for name in header]
    found = {}
    for ours, names in _COLUMNS.items():
        theirs = mapping.get(ours)
        if theirs is None and not (mapping and ours not in _NEEDED):
            theirs = next((header[lower.index(name)] for name in names if name in lower), None)
        elif theirs is not None and theirs not in header:
            close = similar(theirs, header)
            hint = f"did you mean {close[0]}?" if close else f"they are {short(header)}"
            raise refuse(str(path), "line 1", f"no column {theirs!r} for {ours}; {hint}")
        if theirs is not None:
            found[ours] = header.index(theirs)
    for ours in _NEEDED:
        if ours not in found:
            reason = f"no column for {ours} in {short(header)}; map one, such as {ours}=NAME"
            raise refuse(str(path), "line 1", reason)
    return found


def _rows(
    lines: Iterator[list[str]], header: list[str], found: Mapping[str, int], path: Path
) -> Iterator[HostRow]:
    problems = []
    for number, cells in enumerate(lines, 2):
        if not any(cell.strip() for cell in cells):
            continue
        named = {ours: cells[row].strip() for ours, row in found.items() if row < len(cells)}
        empty = [header[row] for ours, row in found.items() if not named.get(ours)]
        if empty:
            problems.append(Problem(f"line {number}", f"{empty[0]} is empty; fill it in"))
            if len(problems) == MAX_PROBLEMS:
                break
        else:
            yield HostRow(f"line {number}", *(named.get(ours, "") for ours in _COLUMNS))
    if problems:
        raise InputError(str(path), *problems)


def refuse_twice(rows: list[HostRow], origin: str) -> None:
    """Raise ``InputError`` if a host has two rows."""
    first: dict[str, HostRow] = {}
    problems = []
    for row in rows:
        if first.setdefault(row.host, row) is not row:
            reason = f"stands in {first[row.host].where} too; give each host once"
            problems.append(Problem(f"{row.where}, host {row.host!r}", reason))
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])


MAX_NICS = 1 << 20
"""Most NICs of a fabric made from a table."""
CORE = "core"
"""Name of the group of cores if the table names none."""

_Record = dict[str, object]
_Layer = tuple[list[_Record], list[_Record]]
"""Records of nodes and of edges."""
Leaves = Mapping[tuple[str, str], int]
"""Number of hosts under each leaf. A leaf is a pair of spine group and name."""


def import_hosts(path: Path, mapping: Mapping[str, str], options: ImportOptions) -> Fabric:
    """Read the fabric of a host table.

    ``mapping`` names the columns for host, leaf, spine and core. Host and leaf are found by common
    names if they are not mapped. Without any mapping, so are spine and core.

    Raises:
        InputError: the file cannot be read, lacks a column, or has faulty rows (with the line).
    """
    return fabric_of_rows(path.name.split(".")[0], read_rows(path, mapping), str(path), options)


def fabric_of_rows(name: str, rows: list[HostRow], origin: str, options: ImportOptions) -> Fabric:
    """Return the fabric of hosts and the switches above them.

    Raises:
        InputError: there are too many NICs or more than one core, or the result is not a valid
            fabric.
    """
    if len(rows) * options.nics_per_host > MAX_NICS:
        reason = f"{len(rows):,} hosts × {options.nics_per_host} NICs; at most {MAX_NICS:,} NICs"
        raise refuse(origin, "option nics_per_host", reason)
    leaves = Counter((row.spine, row.leaf) for row in rows)
    core = _core_group(rows, origin)
    layers = [_host_layer(rows, options), _leaf_layer(leaves, options)]
    if core:
        layers.append(_core_layer(core, leaves, options))
    document = {
        "graph": {"name": name},
        "nodes": [node for nodes, _ in layers for node in nodes],
        "edges": [edge for _, edges in layers for edge in edges],
    }
    return parse_fabric(document, origin)


def _core_group(rows: list[HostRow], origin: str) -> str:
    """Return the name of the only group of cores, or "" if no cores are needed."""
    first = {row.core: row for row in reversed(rows)}
    if len(first) > 1:
        other = next(row for row in rows if row.core != rows[0].core)
        reason = (
            f"core {other.core!r}, but hosts above are under {rows[0].core!r}, and nothing joins "
            "the two; keep one of them, or join all spines: leave out the layer of cores (in a "
            "CSV: map no column for it)"
        )
        raise refuse(origin, other.where, reason)
    several = len({row.spine for row in rows}) > 1
    return rows[0].core or (CORE if several else "")


def _host_layer(rows: list[HostRow], options: ImportOptions) -> _Layer:
    """Return NICs, and their links to leaves."""
    nodes: list[_Record] = []
    edges: list[_Record] = []
    digits = len(str(options.nics_per_host - 1))  # so that NICs sort by number
    for row in rows:
        for nic in range(options.nics_per_host):
            node = f"{row.host}-nic{nic:0{digits}}"
            nodes.append({"id": node, "kind": "nic", "host": row.host, "zone": row.spine or None})
            edges.append(_link(node, _leaf_id(row.spine, row.leaf), options.nic_gbps))
    return nodes, edges


def _leaf_layer(leaves: Leaves, options: ImportOptions) -> _Layer:
    """Return leaves and spines, and the links between them."""
    count = _spine_count(options)
    nodes: list[_Record] = [
        {"id": _leaf_id(*leaf), "kind": "leaf", "zone": leaf[0] or None} for leaf in leaves
    ]
    for group in _groups(leaves):
        nodes += [
            {"id": _spine_id(group, place), "kind": "spine", "zone": group or None, "plane": place}
            for place in range(count)
        ]
    edges = [
        _link(_leaf_id(group, leaf), _spine_id(group, place), gbps, key)
        for (group, leaf), hosts in leaves.items()
        for place in range(count)
        for key, gbps in enumerate(_cables(hosts, options))
    ]
    return nodes, edges


def _cables(hosts: int, options: ImportOptions) -> list[float]:
    """Return the speed (Gbit/s) of each link from a leaf with some hosts to one of its spines."""
    share = hosts * options.nics_per_host / _spine_count(options)
    cable = options.uplink_gbps or options.nic_gbps
    return [cable] * _whole(share * options.nic_gbps / cable)


def _core_layer(core: str, leaves: Leaves, options: ImportOptions) -> _Layer:
    """Return cores, and a link from each spine to each core of its plane."""
    planes = range(_spine_count(options))
    places = range(options.cores_per_plane)
    nodes: list[_Record] = [
        {"id": f"{core}-{plane}-{place}", "kind": "core", "plane": plane}
        for plane in planes
        for place in places
    ]
    edges = []
    for group in _groups(leaves):
        down = sum(sum(_cables(hosts, options)) for (of, _), hosts in leaves.items() if of == group)
        share = down / options.core_taper / options.cores_per_plane
        gbps = _whole(share / options.nic_gbps) * options.nic_gbps
        edges += [
            _link(_spine_id(group, plane), f"{core}-{plane}-{place}", gbps)
            for plane in planes
            for place in places
        ]
    return nodes, edges


def _whole(wanted: float) -> int:
    """Round up to an integer of at least 1, after subtracting a small tolerance."""
    return max(1, ceil(wanted - 1e-9))


def _spine_count(options: ImportOptions) -> int:
    return options.spines_per_group or options.nics_per_host


def _groups(leaves: Leaves) -> list[str]:
    return list(dict.fromkeys(group for group, _ in leaves))


def _leaf_id(group: str, leaf: str) -> str:
    return f"{group}.{leaf}" if group else leaf


def _spine_id(group: str, place: int) -> str:
    return f"{group or 'spine'}-{place}"


def _link(source: str, target: str, gbps: float, key: int = 0) -> _Record:
    return {"source": source, "target": target, "key": key, "gbps": gbps}


LAYERS = 3
"""Most network layers of an instance: leaf, spine and core."""


def import_topograph(
    document: Mapping[str, object],
    name: str,
    origin: str,
    mapping: Mapping[str, str],
    options: ImportOptions,
) -> Fabric:
    """Return the fabric of a document of topograph's engine "graph".

    Raises:
        InputError: a mapping is given, which this form does not use; an instance has no id, or its
            layers are none, more than three, or not as many as the first has; or as
            ``fabric_of_rows``.
    """
    check_words(mapping, (), origin)
    instances = document.get("instances")
    if not isinstance(instances, list) or not instances:
        reason = f"is {short(instances)}; give a list with at least one instance"
        raise refuse(origin, "instances", reason)
    problems = list(_faults(instances))
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    rows = []
    for place, instance in enumerate(instances):
        layers = [*instance["network_layers"], *[""] * LAYERS]
        leaf, spine, core = layers[:LAYERS]
        rows.append(HostRow(f"instances[{place}]", instance["id"], leaf, spine, core))
    refuse_twice(rows, origin)
    return fabric_of_rows(name, rows, origin, options)


def _faults(instances: list[object]) -> Iterator[Problem]:
    depth: int | None = None
    for place, instance in enumerate(instances):
        where = f"instances[{place}]"
        if not isinstance(instance, dict):
            yield Problem(where, f"is {short(instance)}; give an object")
            continue
        name, layers = instance.get("id"), instance.get("network_layers")
        if not isinstance(name, str) or not name:
            yield Problem(where, f"id is {short(name)}; give the instance's name")
        elif (
            not isinstance(layers, list)
            or not 1 <= len(layers) <= LAYERS
            or not all(isinstance(layer, str) and layer for layer in layers)
        ):
            reason = f"network_layers is {short(layers)}; give 1 to {LAYERS} names, the leaf first"
            yield Problem(f"{where} ({short(name)})", reason)
        elif len(layers) != (depth := depth or len(layers)):
            reason = f"has {len(layers)} network_layers, others above {depth}"
            yield Problem(f"{where} ({short(name)})", f"{reason}; give all as many")
