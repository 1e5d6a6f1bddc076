"""Import node-link JSON of other systems, and write fabrics for Graphviz.

The document is translated to fabric.json, which ``parse_fabric`` then reads and checks.

Systems use different names: for attributes ("role" for kind, "bandwidth" for gbps), for their
values ("ToR" for leaf), and for the list of links. Common names are recognised. Others are given by
a mapping of our word to theirs, for fields (``gbps=capacity``) and for kinds (``leaf=ToR``). Other
differences are handled as follows:

- A node may be a whole *host*. Each of its links becomes a NIC, named "HOST-nic0" and so on, or
  like the host if there is only one.
- If no node has a kind, nodes with a single link are NICs, and all others are switches without a
  tier.
- A link may be listed once in each direction, in a document that is ``directed`` or not a
  multigraph. The two are then one link. Links with the same ends in the same order are parallel.
- Links may name their ends by id, by the attribute "name", or by position in the list of nodes.
- Speeds may have a unit ("400G", "1.6 Tbit/s").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.text import clean
from heddle_controller.importers.cabling import TIERS
from heddle_controller.importers.options import (
    EDGE_FIELDS,
    HOST,
    NODE_FIELDS,
    WORDS,
    ImportOptions,
    NodeRecord,
    attribute_names,
    check_words,
    gbps_of,
    kinds_by_word,
    plain,
    state_word_of,
)
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import NUMBERS, Fabric
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.files.records import short


@dataclass(frozen=True, slots=True)
class Edge:
    """A link between two nodes, given by row. If ``key`` is None, ``parse_fabric`` assigns one."""

    a: int
    b: int
    key: Any
    gbps: float
    state: object


class EndFinder:
    """Finds the node that a link names by id, by the attribute "name", or by position."""

    def __init__(self, nodes: Sequence[NodeRecord], attribute: str) -> None:
        self._by_id = {str(node.get(attribute)): row for row, node in enumerate(nodes)}
        self._by_name = {str(node["name"]): row for row, node in enumerate(nodes) if "name" in node}
        whole = any(isinstance(node.get(attribute), int) for node in nodes)
        self._places = 0 if whole else len(nodes)

    def find(self, value: object) -> int | None:
        """Return the row of the node, or None if there is no such node."""
        if isinstance(value, (dict, list)) or value is None:
            return None
        row = self._by_id.get(str(value), self._by_name.get(str(value)))
        by_place = row is None and type(value) is int and 0 <= value < self._places
        return value if by_place and type(value) is int else row


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What to import and how. Problems found while reading are added to ``problems``."""

    origin: str
    mapping: Mapping[str, str]
    options: ImportOptions
    problems: list[Problem] = field(default_factory=list)


def read_edges(
    links: list[NodeRecord], ends: EndFinder, request: ImportRequest, *, both_ways: bool
) -> list[Edge]:
    """Return every link once. Faulty links are added to the problems of the request instead.

    With ``both_ways``, two links with swapped ends are the two directions of one link.

    Raises:
        InputError: no link has a known attribute for one of its ends.
    """
    names = attribute_names(
        links, EDGE_FIELDS, request.mapping, request.origin, what="link", shared={"state"}
    )
    for end in ("source", "target"):
        if end not in names:
            reason = f"none has a {end}; map its attribute, such as {end}=NAME"
            raise refuse(request.origin, "edges", reason)
    reader = _EdgeReader(names, ends, request)
    edges = [edge for row, link in enumerate(links) if (edge := reader.edge(row, link))]
    return _once(edges, request.problems) if both_ways else edges


@dataclass(frozen=True, slots=True)
class _EdgeReader:
    names: Mapping[str, str]
    ends: EndFinder
    request: ImportRequest

    def edge(self, row: int, link: NodeRecord) -> Edge | None:
        """Return one link. If it cannot be read, add a problem and return None."""
        found = []
        for end in ("source", "target"):
            value = link.get(self.names[end])
            node = self.ends.find(value)
            if node is None:
                reason = f"{self.names[end]} is {short(value)}, which is not a node; name one"
                self.request.problems.append(Problem(f"edges[{row}]", reason))
                return None
            found.append(node)
        try:
            gbps = self._gbps(link)
        except ValueError as error:
            ends = "-".join(short(link[self.names[end]]) for end in ("source", "target"))
            self.request.problems.append(Problem(f"edges[{row}] ({ends})", str(error)))
            return None
        key = link.get(self.names["key"]) if "key" in self.names else None
        state = link.get(self.names["state"]) if "state" in self.names else None
        return Edge(found[0], found[1], key, gbps, "up" if state is None else state_word_of(state))

    def _gbps(self, link: NodeRecord) -> float:
        value = link.get(self.names["gbps"]) if "gbps" in self.names else None
        if value is not None:
            return gbps_of(value, self.request.options.speed_unit)
        if self.request.options.link_gbps is None:
            raise ValueError("has no speed; map its attribute (gbps=NAME) or give link_gbps")
        return self.request.options.link_gbps


def _once(edges: list[Edge], problems: list[Problem]) -> list[Edge]:
    """Return the edges without those that are the opposite direction of another one."""
    waiting: dict[tuple[int, int, str], list[Edge]] = {}
    kept = []
    for edge in edges:
        key = str(edge.key)
        forth = waiting.get((edge.b, edge.a, key))
        if edge.a != edge.b and forth:
            other = forth.pop()
            if other.gbps != edge.gbps:
                reason = f"{other.gbps:g} Gbit/s one way and {edge.gbps:g} back; give one speed"
                problems.append(Problem(f"link of nodes[{edge.b}] and nodes[{edge.a}]", reason))
        else:
            waiting.setdefault((edge.a, edge.b, key), []).append(edge)
            kept.append(edge)
    return kept


def import_node_link(
    document: object, origin: str, mapping: Mapping[str, str], options: ImportOptions
) -> Fabric:
    """Return the fabric of a node-link document.

    Raises:
        InputError: with ``origin`` as its source: records cannot be understood, or the result is
            not a valid fabric.
    """
    check_words(mapping, WORDS, origin)
    if not isinstance(document, Mapping):
        raise refuse(origin, "", "not an object; give node-link data with nodes and edges")
    told = _listed(document, ("nodes",), origin)
    links = _listed(document, ("edges", "links"), origin)
    request = ImportRequest(origin, mapping, options)
    of_links = {"state"} if any(mapping.get("state") in link for link in links) else ()
    names = attribute_names(told, NODE_FIELDS, mapping, origin, what="node", shared=of_links)
    if "id" not in names:
        raise refuse(origin, "nodes", "none has an id; map its attribute, such as id=NAME")
    ids = [str(node.get(names["id"], "")) for node in told]
    both_ways = bool(document.get("directed")) or not document.get("multigraph")
    edges = read_edges(links, EndFinder(told, names["id"]), request, both_ways=both_ways)
    kinds = _kinds(told, names.get("kind"), edges, request)
    if request.problems:
        raise InputError(origin, *request.problems[:MAX_PROBLEMS])
    nodes = [
        _fields(node, names, node_id, mapping) for node, node_id in zip(told, ids, strict=True)
    ]
    graph = document.get("graph")
    name = graph.get("name", "") if isinstance(graph, Mapping) else ""
    ours = {"graph": {"name": str(name)}, **_joined(nodes, kinds, edges)}
    return parse_fabric(ours, origin)


def _listed(document: NodeRecord, names: tuple[str, ...], origin: str) -> list[NodeRecord]:
    """Return the list of records under the first of the names that the document has."""
    name = next((name for name in names if name in document), None)
    if name is None:
        raise refuse(origin, names[0], f"missing; node-link data has {' or '.join(names)}")
    records = document[name]
    if not isinstance(records, list) or not records:
        raise refuse(origin, name, f"is {short(records)}; give a list with at least one record")
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            raise refuse(origin, f"{name}[{row}]", f"is {short(record)}; give an object")
    return records


def _kinds(
    told: list[NodeRecord], attribute: str | None, edges: list[Edge], request: ImportRequest
) -> list[str]:
    """Return the kind of each node; "host" for a node that stands for all NICs of a host."""
    if attribute is None:
        degree = Counter(row for edge in edges for row in (edge.a, edge.b))
        return ["nic" if degree[row] == 1 else "switch" for row in range(len(told))]
    words = kinds_by_word(request.mapping)
    kinds = [words.get(plain(node.get(attribute)), "") for node in told]
    for row, kind in enumerate(kinds):
        if not kind:
            value = short(told[row].get(attribute))
            reason = (
                f"{attribute} is {value}, which is not a known kind; map it, such as leaf=VALUE"
            )
            request.problems.append(Problem(f"nodes[{row}]", reason))
    return kinds


def _fields(
    node: NodeRecord, names: Mapping[str, str], node_id: str, mapping: Mapping[str, str]
) -> dict[str, Any]:
    """Return the other fields of a node, with our names."""
    found = {ours: node.get(theirs) for ours, theirs in names.items()}
    for number in NUMBERS:
        value = found.get(number)
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            found[number] = int(value)
    if "gpu" not in mapping and not isinstance(found.get("gpu"), int):
        found.pop("gpu", None)  # usually the name of a model
    if found.get("state") is not None:
        found["state"] = state_word_of(found["state"])
    return found | {"id": node_id}


def _joined(
    nodes: list[dict[str, Any]], kinds: list[str], edges: list[Edge]
) -> dict[str, list[dict[str, Any]]]:
    """Return nodes and edges as in fabric.json, with hosts split into NICs."""
    ends = Counter(row for edge in edges for row in (edge.a, edge.b))
    met: Counter[int] = Counter()

    def end(row: int) -> str:
        name: str = nodes[row]["id"]
        if kinds[row] != HOST or ends[row] == 1:
            return name
        met[row] += 1
        return _nic(name, met[row] - 1, ends[row])

    links = [
        {"source": end(edge.a), "target": end(edge.b), "gbps": edge.gbps, "state": edge.state}
        | ({} if edge.key is None else {"key": edge.key})
        for edge in edges
    ]
    ours = []
    for row, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        if kind != HOST:
            # In other nodes, "gpu" is a number of GPUs or a model.
            ours.append(node | {"kind": kind} | ({} if kind == "nic" else {"gpu": None}))
            continue
        nic = {**node, "kind": "nic", "host": node["id"], "gpu": None}
        names = [_nic(node["id"], n, ends[row]) for n in range(ends[row])] if ends[row] > 1 else []
        ours += [nic | {"id": name} for name in names or [node["id"]]]
    return {"nodes": ours, "edges": links}


def _nic(host: str, number: int, count: int) -> str:
    """Return the id of a NIC. Numbers have equal length, so that NICs sort by number."""
    return f"{host}-nic{number:0{len(str(count - 1))}}"


_COLOUR = {"down": "red", "drained": "orange"}


def dot_text(fabric: Fabric) -> str:
    """Return a fabric as text for Graphviz (``dot -Tsvg``).

    Tiers become ranks, and hosts become boxes around their NICs.
    """
    return "\n".join([*_lines(fabric), ""])


def _lines(fabric: Fabric) -> Iterator[str]:
    document = fabric_document(fabric)
    names = {record["id"]: f"n{row}" for row, record in enumerate(document["nodes"])}
    hosts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    ranks: dict[str, list[str]] = defaultdict(list)
    yield f"graph {_quoted(fabric.name)} {{"
    yield "  rankdir=BT; node [shape=box];"
    for record in document["nodes"]:
        if record["kind"] == "nic" and "host" in record:
            hosts[record["host"]].append(record)
        else:
            yield f"  {_node(record, names)}"
        ranks[record["kind"]].append(names[record["id"]])
    for row, (host, nics) in enumerate(hosts.items()):
        yield f"  subgraph cluster_{row} {{ label={_label(host)};"
        for nic in nics:
            yield f"    {_node(nic, names)}"
        yield "  }"
    for kind in TIERS:
        if ranks[kind]:
            yield f"  {{ rank=same; {'; '.join(ranks[kind])}; }}"
    for edge in document["edges"]:
        told = [f'label="{edge["gbps"]:g}"', *_state(edge)]
        yield f"  {names[edge['source']]} -- {names[edge['target']]} [{', '.join(told)}];"
    yield "}"


def _node(record: dict[str, Any], names: dict[str, str]) -> str:
    told = [f"label={_label(record['id'])}", f"class={_quoted(record['kind'])}", *_state(record)]
    return f"{names[record['id']]} [{', '.join(told)}];"


def _state(record: dict[str, Any]) -> list[str]:
    return [f"color={_COLOUR[record['state']]}"] if record.get("state") in _COLOUR else []


def _quoted(text: str) -> str:
    r"""Return a quoted name, with each ``\`` replaced so that none escapes the closing quote."""
    return '"' + clean(text).replace("\\", "/").replace('"', '\\"') + '"'


def _label(text: str) -> str:
    r"""Return a quoted label, with each ``\`` doubled, because it would begin an escape."""
    return '"' + clean(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
