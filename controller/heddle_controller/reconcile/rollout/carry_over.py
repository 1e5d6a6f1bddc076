"""From one target to the next: what is held stays held, in whatever rows the next speaks.

When a fabric is put anew, its nodes and links get other rows, while switches go on
holding what they held. Entries are carried over by ids and keys; where one speaks
of something that is gone, its switch holds what nobody can name any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, distinct
from heddle_controller.model.fabric import Structure
from heddle_controller.model.program import Edit, Entries, no_entries
from heddle_controller.plan.entry_edits import known_edit
from heddle_controller.reconcile.rollout.answers import found_unknown, found_whole, unanswered
from heddle_controller.reconcile.rollout.ledger import Knowledge, Ledger, begin, nothing_known
from heddle_controller.reconcile.rollout.paths import (
    Groups,
    appended,
    joined_entries,
    pair_codes,
    rows_between,
)
from heddle_controller.reconcile.rollout.steps import Step
from heddle_controller.state.records import Committed

_FEW = 1024
"""Entries that are compared at once."""


def first_ledger(committed: Committed, before: Sequence[Committed] = ()) -> Ledger:
    """The ledger of a leader that has just begun.

    Switches that acknowledged the plan hold it, as far as anyone knows. Of any other may be
    left what it acknowledged last, and all that plans since then wanted: those that did not
    get to their end took nothing away. So these plans are gone through one after another,
    and what may be there of any of them goes in its turn, until agents say what is true.

    Args:
        committed: The newest plan.
        before: Older ones, ascending, as far back as there are and a switch may hold of them.
    """
    first, *others = *before, committed
    nodes = first.plan.fabric.node_count
    wanted = first.program.entries
    ledger = begin(first.plan, first.generation, wanted, no_entries(), nothing_known(nodes))
    ledger = _noted(ledger, committed)
    for one in others:
        ledger = next_ledger(_overtaken(ledger, committed, one.generation), one, (), left=True)
        ledger = _noted(ledger, committed)
    every = np.arange(ledger.fabric.node_count)
    return replace(ledger, knowledge=ledger.knowledge.noted("unsynced", every, value=True))


def may_hold(committed: Committed, generation: int) -> bool:
    """Whether a switch may hold entries of an older generation than the newest plan's."""
    return len(_behind(committed, committed.plan.fabric.structure, generation + 1)) > 0


def _noted(ledger: Ledger, newest: Committed) -> Ledger:
    """The ledger with switches that acknowledged a generation known to hold it."""
    structure = ledger.fabric.structure
    behind = set(_behind(newest, structure, ledger.generation))
    done = set(_switches(structure)) - behind
    return found_whole(ledger, dict.fromkeys(sorted(done), ledger.generation)) if done else ledger


def _overtaken(ledger: Ledger, newest: Committed, generation: int) -> Ledger:
    """With switches doubted that may have got some of the next generation, but not all."""
    return found_unknown(ledger, _behind(newest, ledger.fabric.structure, generation))


def _behind(newest: Committed, structure: Structure, generation: int) -> list[int]:
    """Switches not known to have come to a generation, by the newest facts."""
    ids, held = structure.nodes.ids, newest.programmed
    return [row for row in _switches(structure) if held.of(ids[row]) < generation]


def _switches(structure: Structure) -> list[int]:
    rows: list[int] = structure.programmed.tolist()
    return rows


def next_ledger(
    ledger: Ledger, committed: Committed, under_way: Sequence[Step], *, left: bool = False
) -> Ledger:
    """The ledger of a newer plan, while steps of the one before may be under way.

    Such a step may have been done or not. What it sets and what it deletes both may
    be held, so that they are taken away in their turn, and its switch is unknown, so
    that what is wanted there is sent again. Of other switches that are unknown an earlier
    leader may have set what was wanted: it is taken away in its turn likewise, and not
    left to the sweep at the end, when the rest of its way is gone already. ``left`` says
    that all of the ledger is such, as when a leader begins.
    """
    ledger = unanswered(ledger, under_way)
    unknown = ledger.knowledge.unknown[ledger.desired.switch]
    ledger = replace(ledger, maybe=ledger.maybe | (unknown & ~ledger.ok))
    structure = committed.plan.fabric.structure
    wanted, edit = committed.program.entries, None
    if structure is ledger.fabric.structure and not left:
        edit = known_edit(ledger.target, wanted)
    if edit is not None:
        return _as_before(ledger, _of_some(ledger, committed, edit))
    ledger = ledger.widened()
    held, known_detours, knowledge = ledger.held(left=left), ledger.detours(), ledger.knowledge
    if structure is not ledger.fabric.structure:
        before = ledger.fabric.structure
        known_detours, _ = translated(known_detours, knowledge, before, structure)
        held, knowledge = translated(held, knowledge, before, structure)
    after = begin(
        committed.plan, committed.generation, wanted, held, knowledge, known_detours=known_detours
    )
    return _as_before(ledger, after)


def is_small_step(ledger: Ledger, committed: Committed, under_way: Sequence[Step]) -> bool:
    """Whether the ledger of a newer plan is made sooner than a thread would begin with it."""
    edit = known_edit(ledger.target, committed.program.entries)
    if edit is None or under_way:
        return False
    return len(ledger.desired) + len(edit.gone) + len(edit.came) <= _FEW


def _of_some(ledger: Ledger, committed: Committed, edit: Edit) -> Ledger:
    """The ledger of a newer plan that speaks of the pairs that differ, or were not done."""
    plan, wanted = committed.plan, committed.program.entries
    nodes = plan.fabric.node_count
    changed = appended([ledger.target.take(edit.gone), wanted.take(edit.came)])
    codes = pair_codes(changed.source, changed.destination, nodes)
    pairs = Groups(distinct(np.append(codes, ledger.undone())))
    held = ledger.held()
    held = held.take(rows_between(held, pairs, nodes))
    return begin(
        plan,
        committed.generation,
        wanted.take(rows_between(wanted, pairs, nodes)),
        joined_entries([held, ledger.unspoken(pairs.keys)]),
        ledger.knowledge,
        known_detours=ledger.detours(),
        target=wanted,
    )


def _as_before(before: Ledger, after: Ledger) -> Ledger:
    """With the new generation noted where a switch held the whole plan before, and nothing differs.

    What it acknowledged then is what this plan wants, so it is not asked a second time: of some
    thousand switches a lost link concerns a few.
    """
    knowledge = after.knowledge
    whole = (knowledge.generation == before.generation) & ~knowledge.unknown & ~knowledge.unsynced
    whole[after.desired.switch[~after.ok]] = False
    whole[after.old.switch[after.present]] = False
    return replace(after, knowledge=knowledge.noted("generation", whole, after.generation))


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
