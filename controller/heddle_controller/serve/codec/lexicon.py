"""What a fabric's nodes, keys and addresses are called in pushes: numbered once for a structure.

Columns of pushes speak of names by these numbers, so that entries need no search for them; an agent
is told what a number stands for when it first meets it in a session (``told``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints, NodeKind, Structure


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """The texts of one structure, each with a number."""

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


_KNOWN: WeakKeyDictionary[Structure, Lexicon] = WeakKeyDictionary()


def lexicon(structure: Structure) -> Lexicon:
    """The lexicon of a structure, made when first asked for."""
    known = _KNOWN.get(structure)
    if known is None:
        known = _KNOWN[structure] = _made(structure)
    return known


def _made(structure: Structure) -> Lexicon:
    nodes, links = structure.nodes, structure.links
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
    return Lexicon(
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
