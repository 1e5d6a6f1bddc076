"""What a fabric's nodes, keys and addresses are called in pushes: numbered once for a structure.

A push names what it speaks of by its own small numbers. To give those out by arrays, each text
that a fabric could ever send has a number to begin with: node ids first, by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from heddle_controller.model.fabric import NONE, Ints, Structure


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """The texts of one structure, each with a number."""

    texts: list[str]
    """Node ids by row, then link keys and addresses."""
    address: Ints
    """Number of each node's address; ``NONE`` where it has none."""
    key: Ints
    """Of each link, the row of its key in ``keys``."""
    keys: Ints
    """Number of each key that any link has."""
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
    ids, links = structure.nodes.ids, structure.links
    numbers: dict[str, int] = {}
    texts = list(ids)
    for text in (*map(str, links.key), *filter(None, structure.nodes.address)):
        if text not in numbers:
            numbers[text] = len(texts)
            texts.append(text)
    ends = zip(links.a.tolist(), links.b.tolist(), strict=True)
    swapped = np.array([ids[a] > ids[b] for a, b in ends], dtype=np.bool_)
    keys, key = np.unique([numbers[str(key)] for key in links.key], return_inverse=True)
    addresses = [numbers[text] if text else NONE for text in structure.nodes.address]
    return Lexicon(
        texts,
        address=np.array(addresses, dtype=np.int64),
        key=key.astype(np.int64),
        keys=keys.astype(np.int64),
        low=np.where(swapped, links.b, links.a),
        high=np.where(swapped, links.a, links.b),
    )
