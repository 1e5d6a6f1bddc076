"""From one target to the next: what is held stays held, in whatever rows the next speaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heddle_controller.reconcile.records import Committed
from heddle_controller.reconcile.rollout.answers import unanswered
from heddle_controller.reconcile.rollout.columns import joined
from heddle_controller.reconcile.rollout.ledger import Ledger, begin, nothing_known
from heddle_controller.reconcile.rollout.steps import Step
from heddle_controller.reconcile.rollout.translate import translated


def first_ledger(committed: Committed, previous: Committed | None) -> Ledger:
    """The ledger of a leader that has just begun.

    Switches that acknowledged the plan hold it, as far as anyone knows. The others
    are taken to hold the plan before, until their agents say what is true: then the
    entries of it that have to go are known, and go in their turn.
    """
    structure = committed.plan.fabric.structure
    entries, knowledge = committed.program.entries, nothing_known(len(structure.nodes.ids))
    done = [
        structure.index[switch]
        for switch, fact in committed.programmed.items()
        if fact.generation >= committed.generation and switch in structure.index
    ]
    rows = np.array(done, dtype=np.int64)
    knowledge = knowledge.noted("generation", rows, committed.generation)
    knowledge = knowledge.noted("unknown", rows, value=False)
    held = [entries.take(np.flatnonzero(np.isin(entries.switch, done)))]
    if previous is not None:
        before, _ = translated(
            previous.program.entries,
            nothing_known(previous.plan.fabric.node_count),
            previous.plan.fabric.structure,
            structure,
        )
        held.append(before.take(np.flatnonzero(~np.isin(before.switch, done))))
    return begin(committed.plan, committed.generation, entries, joined(held), knowledge)


def next_ledger(ledger: Ledger, committed: Committed, under_way: Sequence[Step]) -> Ledger:
    """The ledger of a newer plan, while steps of the one before may be under way.

    Such a step may have been done or not. What it sets and what it deletes both may
    be held, so that they are taken away in their turn, and its switch is unknown, so
    that what is wanted there is sent again. Of other switches that are unknown an earlier
    leader may have set what was wanted: it is taken away in its turn likewise, and not
    left to the sweep at the end, when the rest of its way is gone already.
    """
    ledger = unanswered(ledger, under_way)
    unknown = ledger.knowledge.unknown[ledger.desired.switch]
    ledger = replace(ledger, maybe=ledger.maybe | (unknown & ~ledger.ok))
    structure = committed.plan.fabric.structure
    held, astray, knowledge = ledger.held(), ledger.detours(), ledger.knowledge
    if structure is not ledger.fabric.structure:
        before = ledger.fabric.structure
        astray, _ = translated(astray, knowledge, before, structure)
        held, knowledge = translated(held, knowledge, before, structure)
    wanted = committed.program.entries
    after = begin(committed.plan, committed.generation, wanted, held, knowledge, astray=astray)
    return _as_before(ledger, after)


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
