"""``--down``: links and switches that are to be lost, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.fabric import Fabric, State

_NAMES_TOLD = 5


@dataclass(frozen=True, slots=True)
class Losses:
    """Rows of links and of nodes that are down."""

    links: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()

    def applied(self, fabric: Fabric) -> Fabric:
        """The fabric without them."""
        lost = fabric.with_links(dict.fromkeys(self.links, State.DOWN))
        return lost.with_nodes(dict.fromkeys(self.nodes, State.DOWN))


def losses_of(fabric: Fabric, texts: Sequence[str], origin: str) -> Losses:
    """What ``A,B``, ``A,B,KEY`` and ``SWITCH`` name; ``A,B`` is every link between the two.

    Raises:
        InputError: with ``origin``, the fabric's file, as its source: an unknown node,
            link or key; close names are told.
    """
    links: list[int] = []
    nodes: list[int] = []
    problems: list[Problem] = []
    for text in texts:
        if text in fabric.structure.index:
            nodes.append(fabric.structure.index[text])
            continue
        reason = _fault(fabric, text)
        if reason:
            problems.append(Problem(f"--down {text}", reason))
            continue
        a, b, *key = text.split(",")
        links += fabric.find_links(a, b, key[0] if key else None)
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    return Losses(tuple(links), tuple(nodes))


def _fault(fabric: Fabric, text: str) -> str:
    """Why a text names no link; empty where it does."""
    parts = text.split(",")
    if len(parts) == 1:
        return _unknown(fabric, text)
    if len(parts) not in (2, 3) or not all(parts):
        return "write A,B or A,B,KEY for a link, or a switch's id"
    for node in parts[:2]:
        if node not in fabric.structure.index:
            return _unknown(fabric, node)
    a, b, *key = parts
    between = fabric.find_links(a, b)
    if not between:
        return f"no link joins {a} and {b}; {a} has links to {_some(_neighbours(fabric, a))}"
    if key and not fabric.find_links(a, b, key[0]):
        keys = [str(fabric.structure.links.key[row]) for row in between]
        return f"{a} and {b} have no link with key {key[0]}; there is {_some(keys)}"
    return ""


def _unknown(fabric: Fabric, node: str) -> str:
    close = get_close_matches(node, fabric.structure.nodes.ids, n=_NAMES_TOLD)
    hint = f"did you mean {_some(close)}?" if close else "no id is like it"
    return f"{node!r} is not a node of the fabric; {hint}"


def _neighbours(fabric: Fabric, node: str) -> list[str]:
    structure, row = fabric.structure, fabric.structure.index[node]
    first, arcs = structure.out
    heads = structure.head[arcs[first[row] : first[row + 1]]].tolist()
    return list(dict.fromkeys(structure.nodes.ids[head] for head in heads))


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_TOLD
    return ", ".join(names[:_NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")
