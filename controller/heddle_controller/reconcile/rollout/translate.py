"""What is held, in the rows of another structure.

When a fabric is put anew, its nodes and links get other rows, while switches go on
holding what they held. Entries are carried over by ids and keys; where one speaks
of something that is gone, its switch holds what nobody can name any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Structure
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.rollout.columns import joined_entries
from heddle_controller.reconcile.rollout.ledger import Knowledge, nothing_known

_LOST = np.iinfo(np.int64).min
"""Stands for a risk link that is gone; no link row, nor the complement of one."""


def translated(
    held: Entries, knowledge: Knowledge, old: Structure, new: Structure
) -> tuple[Entries, Knowledge]:
    """The same entries and knowledge in rows of ``new``; switches that are gone are left out."""
    node = _rows(old.nodes.ids, new.nodes.ids)
    arc = _rows(_arc_names(old), _arc_names(new))
    here = node[held.switch] != NONE
    named = here & (node[held.source] != NONE) & (node[held.destination] != NONE)
    named &= (arc[held.primary] != NONE) & ((held.backup == NONE) | (_of(arc, held.backup) != NONE))
    owner = np.repeat(np.arange(len(held)), np.diff(held.risk_first))
    risks = _links(arc, held.risk_links)
    named[owner[risks == _LOST]] = False
    kept = held.take(np.flatnonzero(named))
    carried = replace(
        kept,
        switch=node[kept.switch],
        source=node[kept.source],
        destination=node[kept.destination],
        primary=arc[kept.primary],
        backup=_of(arc, kept.backup),
        risk_links=_links(arc, kept.risk_links),
    )
    nameless = node[held.switch[here & ~named]]
    return joined_entries([carried]), _carried(knowledge, node, nameless, len(new.nodes.ids))


def _carried(knowledge: Knowledge, node: Ints, nameless: Ints, nodes: int) -> Knowledge:
    kept = np.flatnonzero(node != NONE)

    there = node[kept]
    after = nothing_known(nodes)
    for name in ("unknown", "unsynced", "generation", "full"):
        column = getattr(after, name).copy()
        column[there] = getattr(knowledge, name)[kept]
        after = replace(after, **{name: column})
    after = after.noted("unknown", nameless, value=True)
    return after.noted("unsynced", nameless, value=True)


def _of(arc: Ints, column: Ints) -> Ints:
    return np.where(column == NONE, NONE, arc[column])


def _links(arc: Ints, links: Ints) -> Ints:
    """Risk links in the rows of the other structure; ``_LOST`` for those that are gone."""
    spare = links < 0
    rows = arc[2 * np.where(spare, ~links, links)] >> 1
    return np.where(rows < 0, _LOST, np.where(spare, ~rows, rows))


def _rows(old: Sequence[object], new: Sequence[object]) -> Ints:
    """The row in ``new`` of each name in ``old``, or ``NONE``."""
    rows = {name: row for row, name in enumerate(new)}
    return np.array([rows.get(name, NONE) for name in old], dtype=np.int64)


def _arc_names(structure: Structure) -> list[tuple[str, str, str]]:
    ids, links = structure.nodes.ids, structure.links
    names = []
    for a, b, key in zip(links.a.tolist(), links.b.tolist(), links.key, strict=True):
        names += [(ids[a], ids[b], str(key)), (ids[b], ids[a], str(key))]
    return names
