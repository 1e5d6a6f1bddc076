"""A fabric for Graphviz: ``dot -Tsvg``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from heddle.text import clean
from heddle_controller.importers.cabling import TIERS
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import fabric_document

_COLOUR = {"down": "red", "drained": "orange"}


def dot_text(fabric: Fabric) -> str:
    """The fabric as text of Graphviz, tiers as ranks, hosts as boxes around their NICs."""
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
    r"""A quoted name, in which no ``\`` at the end can open what the quote closes."""
    return '"' + clean(text).replace("\\", "/").replace('"', '\\"') + '"'


def _label(text: str) -> str:
    r"""A quoted label, in which ``\`` would begin an escape."""
    return '"' + clean(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
