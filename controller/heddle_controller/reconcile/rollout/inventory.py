"""Switches told what they hold, entry by entry: the ledger starts from that.

A digest only says whether a table is one that was expected. Where leaders died half way through a
plan it often is not, and then all that stored plans wanted there may be held or not. One question
more, and every entry is known: those that are wanted are made, all others go in their turn.

Once nothing is in doubt about a pair of NICs, the order of what is held for it is read off the
entries themselves: see ``levels``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.program import Entries
from heddle_controller.plan.diff import difference
from heddle_controller.reconcile.rollout.columns import Groups, appended, distinct, partners
from heddle_controller.reconcile.rollout.detours import detours, new_paths
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.levels import levels
from heddle_controller.reconcile.rollout.order import crossings_of, pair_codes


def found_holding(ledger: Ledger, told: Entries, switches: Ints) -> Ledger:
    """After some switches told all the entries that they hold.

    Rows of the ledger stay what they are, as pushes may be under way to other switches.
    """
    ledger = ledger.settled()
    here = np.isin(ledger.desired.switch, switches)
    twin = partners(told, ledger.desired)
    differs, _ = difference(told, ledger.desired, twin)
    same = twin != NONE
    same[differs] = False
    strange = np.ones(len(told), dtype=np.bool_)
    strange[twin[same]] = False
    knowledge = ledger.knowledge.doubted(switches).noted("unknown", switches, value=False)
    after = replace(
        ledger,
        ok=np.where(here, same, ledger.ok),
        maybe=ledger.maybe & ~here,
        failed=ledger.failed & ~here,
        present=ledger.present & ~np.isin(ledger.old.switch, switches),
        knowledge=knowledge.noted("unsynced", switches, value=False),
    )
    more = told.take(np.flatnonzero(strange))
    return _with_old(after, more, _heights(ledger, more)) if len(more) else after


def _heights(ledger: Ledger, told: Entries) -> Ints:
    """How high entries lie that switches turned out to hold: as those do that were expected there.

    What nobody expected lies above all.
    """
    highest = int(max(ledger.height.max(initial=0), ledger.old_height.max(initial=0))) + 1
    result = np.full(len(told), NONE, dtype=np.int64)
    for rows, entries, height in (
        (ledger.ok | ledger.maybe, ledger.desired, ledger.height),
        (ledger.present, ledger.old, ledger.old_height),
    ):
        some = np.flatnonzero(rows & np.isin(entries.switch, told.switch))
        at = partners(entries.take(some), told)
        found = np.append(height[some], NONE)[at]
        result = np.maximum(result, found)
    return np.where(result == NONE, highest, result)


def _with_old(ledger: Ledger, more: Entries, height: Ints) -> Ledger:
    """The ledger with more entries known to be held that are not wanted."""
    plan, none = ledger.plan, np.zeros(len(more), dtype=np.bool_)
    pair = pair_codes(more.source, more.destination, ledger.fabric.node_count)
    crossings = crossings_of(plan, pair)
    mine = Groups(crossings.pairs)
    near = np.flatnonzero(mine.index(ledger.pair)[1])
    depth = ledger.depth.copy()
    found = crossings.lookup(ledger.desired.switch[near], ledger.pair[near])
    depth[near] = np.where(found == NONE, 2 * ledger.desired.stage[near], 2 * found)
    partner = partners(ledger.desired, more)
    lies = crossings.lookup(more.switch, pair)
    detour = np.append(ledger.detour, detours(more, plan.fabric.structure))
    old_pair = np.append(ledger.old_pair, pair)
    return replace(
        ledger,
        depth=depth,
        old=appended([ledger.old, more]),
        old_pair=old_pair,
        old_depth=np.append(
            ledger.old_depth, np.where((partner == NONE) & (lies != NONE), 2 * lies + 1, NONE)
        ),
        old_height=np.append(ledger.old_height, height),
        partner=np.append(ledger.partner, partner),
        alike=np.append(ledger.alike, none),
        present=np.append(ledger.present, ~none),
        undeletable=np.append(ledger.undeletable, none),
        routed=np.append(ledger.routed, Groups(crossings.crossed()).index(pair)[1]),
        detour=detour,
        guarded=np.append(ledger.guarded, none),
        ways=new_paths(plan, old_pair[detour]),
    )


def in_order(ledger: Ledger, switches: Ints) -> Ledger:
    """The ledger with what is held in the order in which packets meet it, as far as that is known.

    That is for pairs that some of ``switches`` held something for, or was thought to, and that
    nothing is in doubt about any more.
    """
    pairs = _known(ledger, switches)
    rows = np.flatnonzero(ledger.present & pairs.index(ledger.old_pair)[1])
    mine = np.flatnonzero(ledger.ok & pairs.index(ledger.pair)[1])
    several = _several(ledger, rows, mine)
    rows, mine = rows[several[: len(rows)]], mine[several[len(rows) :]]
    if not len(rows):
        return ledger
    together = appended([ledger.old.take(rows), ledger.desired.take(mine)])
    level = levels(together, ledger.fabric)
    lift = pairs.greatest(ledger.pair, ledger.depth) + 1  # above all that is to be made
    height, old_height = ledger.height.copy(), ledger.old_height.copy()
    old_height[rows] = level[: len(rows)] + pairs.of(lift, ledger.old_pair[rows], 0)
    height[mine] = level[len(rows) :] + pairs.of(lift, ledger.pair[mine], 0)
    return replace(ledger, height=height, old_height=old_height)


def _known(ledger: Ledger, switches: Ints) -> Groups:
    """Pairs that have entries to be taken away, where all that is held is known.

    Of those that may have had some at these switches.
    """
    here, there = (np.isin(one.switch, switches) for one in (ledger.old, ledger.desired))
    touched = Groups(distinct(np.append(ledger.old_pair[here], ledger.pair[there])))
    pairs = distinct(ledger.old_pair[ledger.present & touched.index(ledger.old_pair)[1]])
    unknown = ledger.knowledge.unknown
    wanted = ledger.maybe | (ledger.ok & unknown[ledger.desired.switch])
    other = ledger.present & unknown[ledger.old.switch]
    doubtful = Groups(distinct(np.append(ledger.pair[wanted], ledger.old_pair[other])))
    return Groups(pairs[~doubtful.index(pairs)[1]])


def _several(ledger: Ledger, rows: Ints, mine: Ints) -> Bools:
    """For rows of ``old``, then of ``desired``: does their pair have entries elsewhere?"""
    pair = np.append(ledger.old_pair[rows], ledger.pair[mine])
    switch = np.append(ledger.old.switch[rows], ledger.desired.switch[mine])
    nodes = ledger.fabric.node_count
    group, count = np.unique(distinct(pair * nodes + switch) // nodes, return_counts=True)
    result: Bools = count[np.searchsorted(group, pair)] > 1
    return result
