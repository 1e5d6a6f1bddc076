"""Carries what is known to be held from the ledger of one target over to that of the next.

When a fabric is replaced, its nodes and links get other rows, while switches keep their
entries. Entries are carried over by ids and keys. Where an entry refers to something that
is gone, it can no longer be named, and its switch has to be swept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, distinct
from heddle_controller.model.fabric import Structure
from heddle_controller.model.program import Edit, Entries, known_edit, no_entries
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
"""The most entries that are compared on the event loop instead of in a thread."""


def first_ledger(committed: Committed, before: Sequence[Committed] = ()) -> Ledger:
    """Return the ledger of a leader that has just begun.

    Switches that acknowledged the newest plan are taken to hold it. Any other switch may hold
    what it acknowledged last and everything that plans since then wanted, because rollouts that
    did not finish deleted nothing. So these plans are gone through one after another. Whatever
    may be left of them is deleted in its turn, unless agents say what they really hold.

    Args:
        committed: The newest plan.
        before: Older plans, ascending, as far back as the store has them and switches may hold
            entries of them.
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
    """Return whether any switch may still hold entries of this older generation."""
    return len(_behind(committed, committed.plan.fabric.structure, generation + 1)) > 0


def _noted(ledger: Ledger, newest: Committed) -> Ledger:
    """Return the ledger with the switches that acknowledged its generation known to hold it."""
    structure = ledger.fabric.structure
    behind = set(_behind(newest, structure, ledger.generation))
    done = set(_switches(structure)) - behind
    return found_whole(ledger, dict.fromkeys(sorted(done), ledger.generation)) if done else ledger


def _overtaken(ledger: Ledger, newest: Committed, generation: int) -> Ledger:
    """Return the ledger with the switches doubted that may hold only a part of ``generation``."""
    return found_unknown(ledger, _behind(newest, ledger.fabric.structure, generation))


def _behind(newest: Committed, structure: Structure, generation: int) -> list[int]:
    """Return the switches (node rows) not known to have reached a generation."""
    ids, held = structure.nodes.ids, newest.programmed
    return [row for row in _switches(structure) if held.of(ids[row]) < generation]


def _switches(structure: Structure) -> list[int]:
    rows: list[int] = structure.programmed.tolist()
    return rows


def next_ledger(
    ledger: Ledger, committed: Committed, under_way: Sequence[Step], *, left: bool = False
) -> Ledger:
    """Return the ledger of a newer plan, while steps of the current one may be under way.

    Such a step may have been done or not. So what it sets and what it deletes may both be held
    and is deleted in its turn. Its switch is unknown, so that wanted entries are sent there again.
    At other unknown switches, an earlier leader may have set what was wanted. These entries are
    deleted in their turn too, and not left to the sweep at the end, when the rest of their path
    is gone already.

    Args:
        ledger: The ledger of the current plan.
        committed: The newer plan.
        under_way: Steps of ``ledger`` that were sent and not answered.
        left: Whether earlier leaders set everything that may be held, as when a leader begins.
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
    """Return whether the ledger of a newer plan is made so quickly that no thread is needed."""
    edit = known_edit(ledger.target, committed.program.entries)
    if edit is None or under_way:
        return False
    return len(ledger.desired) + len(edit.gone) + len(edit.came) <= _FEW


def _of_some(ledger: Ledger, committed: Committed, edit: Edit) -> Ledger:
    """Return a ledger of a newer plan that covers only pairs that differ or were not done."""
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
    """Return ``after`` with the new generation noted for switches that held all of the last plan.

    That is done where nothing differs for the switch: it has acknowledged already what the new
    plan wants. A lost link concerns a few of some thousand switches.
    """
    knowledge = after.knowledge
    whole = (knowledge.generation == before.generation) & ~knowledge.unknown & ~knowledge.unsynced
    whole[after.desired.switch[~after.ok]] = False
    whole[after.old.switch[after.present]] = False
    return replace(after, knowledge=knowledge.noted("generation", whole, after.generation))


_LOST = np.iinfo(np.int64).min
"""Marks a risk link that is gone. It is neither a link row nor the complement of one."""


def translated(
    held: Entries, knowledge: Knowledge, old: Structure, new: Structure
) -> tuple[Entries, Knowledge]:
    """Return the entries and knowledge in rows of ``new``, without switches that are gone.

    A switch with an entry that cannot be expressed in these rows is unknown and unsynced.
    """
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
    """Return risk links in rows of the other structure; ``_LOST`` for those that are gone."""
    spare = links < 0
    rows = arc[2 * np.where(spare, ~links, links)] >> 1
    return np.where(rows < 0, _LOST, np.where(spare, ~rows, rows))


def _rows(old: Sequence[object], new: Sequence[object]) -> Ints:
    """Return the row in ``new`` of each name in ``old``, or ``NONE``."""
    rows = {name: row for row, name in enumerate(new)}
    return np.array([rows.get(name, NONE) for name in old], dtype=np.int64)


def _arc_names(structure: Structure) -> list[tuple[str, str, str]]:
    ids, links = structure.nodes.ids, structure.links
    names = []
    for a, b, key in zip(links.a.tolist(), links.b.tolist(), links.key, strict=True):
        names += [(ids[a], ids[b], str(key)), (ids[b], ids[a], str(key))]
    return names
