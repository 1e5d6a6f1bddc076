"""The links of a node-link document: whom they join, how fast they are, one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle_controller.importers.node_words import (
    EDGE_FIELDS,
    NodeRecord,
    attribute_names,
    state_word_of,
)
from heddle_controller.importers.options import ImportOptions
from heddle_controller.importers.speeds import gbps_of
from heddle_controller.model.errors import Problem, refuse
from heddle_controller.model.files.records import short


@dataclass(frozen=True, slots=True)
class Edge:
    """A link between two rows of the nodes; ``key`` None is "give it one"."""

    a: int
    b: int
    key: Any
    gbps: float
    state: object


class EndFinder:
    """Finds the node that a link names: by id, by the attribute "name", or by place."""

    def __init__(self, nodes: Sequence[NodeRecord], attribute: str) -> None:
        self._by_id = {str(node.get(attribute)): row for row, node in enumerate(nodes)}
        self._by_name = {str(node["name"]): row for row, node in enumerate(nodes) if "name" in node}
        whole = any(isinstance(node.get(attribute), int) for node in nodes)
        self._places = 0 if whole else len(nodes)

    def find(self, value: object) -> int | None:
        """Row of the node, or None."""
        if isinstance(value, (dict, list)) or value is None:
            return None
        row = self._by_id.get(str(value), self._by_name.get(str(value)))
        by_place = row is None and type(value) is int and 0 <= value < self._places
        return value if by_place and type(value) is int else row


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What is to be imported and how; ``problems`` grows while it is read."""

    origin: str
    mapping: Mapping[str, str]
    options: ImportOptions
    problems: list[Problem] = field(default_factory=list)


def read_edges(
    links: list[NodeRecord], ends: EndFinder, request: ImportRequest, *, both_ways: bool
) -> list[Edge]:
    """Every link once; what is wrong with some goes to the request's problems.

    With ``both_ways`` two links with swapped ends are the two directions of one.

    Raises:
        InputError: no link names its ends by words that are known.
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
        """One link; None, and a problem, if it cannot be read."""
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
    """The edges without those that are another's way back."""
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
