"""What to send next: the pure heart of the rollout.

Pairs of NICs that lost their path need little of the order in which paths are exchanged. The order
has two purposes. First, a flow stays on a whole path until the next one is whole. But where a link
of the old path is down, switches turn its packets aside already. Second, no packet comes back to
where it was. Only detours need the order for that: an entry on a shortest path of the whole fabric
brings packets nearer, and so does the underlay, whatever the next switch holds (see the package).

So where there are no detours, everything for such a pair is set and deleted at once, except for the
first entry of the new path. That entry puts the flow on the new path, and is set when the rest is
there. A lost link then costs two rounds of pushes, not one for each hop. If a switch does not
answer, the flow is left to the underlay.

This holds for simple cases only: nothing is in doubt, no switch is away, nothing has failed, and no
QPs have entries of their own, since one QP may still have its path when another has lost its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct
from heddle_controller.model.program import ANY_PORT, Entries
from heddle_controller.reconcile.ports import PushMode
from heddle_controller.reconcile.rollout.ledger import NEVER, Ledger
from heddle_controller.reconcile.rollout.paths import Groups, appended, cut, dead, detours


@dataclass(frozen=True, slots=True, eq=False)
class Switches:
    """What can be expected of each switch; arrays of shape (nodes,)."""

    ready: Bools
    """Whether it is connected and no push is under way to it."""
    stuck: Bools
    """Whether it has no link left, or is away or silent for so long that nobody waits for it."""
    asked: Bools | None = None
    """Whether it is about to tell what it holds; None if no switch is."""

    def asking(self, more: Sequence[int]) -> Switches:
        """Return these with the switches ``more`` (node rows) marked as asked and not ready."""
        if not more:
            return self
        asked = np.zeros_like(self.ready) if self.asked is None else self.asked.copy()
        ready = self.ready.copy()
        ready[more], asked[more] = False, True
        return replace(self, ready=ready, asked=asked)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One push to one switch, in terms of the ledger that it was made from."""

    switch: int
    """Node row."""
    mode: PushMode
    sets: Ints
    """Rows of ``desired`` to set."""
    adds_risk: Ints
    """Rows of ``old`` to make guarded."""
    deletes: Ints
    """Rows of ``old`` to delete."""
    withdraws: Ints
    """Rows of ``desired`` that are, or may be, held and have to be deleted for now."""
    sweep: bool
    """Whether the switch deletes all entries that the leader has not named."""
    completes: bool
    """Whether the switch then holds the whole generation."""

    @property
    def set_count(self) -> int:
        """Number of entries to set, which are the first operations of the push."""
        return len(self.sets) + len(self.adds_risk)


@dataclass(frozen=True, slots=True, eq=False)
class Agenda:
    """What is due now, whether or not switches are ready; rows as in ``Step``."""

    sets: Ints
    adds_risk: Ints
    deletes: Ints
    withdraws: Ints
    blocked: Ints
    """Pairs that wait for a stuck switch or a failed entry, ascending."""
    pending: Ints
    """All pairs that do not have their new path yet, ascending."""


def agenda(ledger: Ledger, stuck: Bools) -> Agenda:
    """Return what is due now, given the stuck switches; see the package for the rules."""
    if ledger.ok.all() and not ledger.present.any():  # the usual case once all is acknowledged
        none = np.empty(0, dtype=np.int64)
        return Agenda(none, none, none, none, none, none)
    pairs, low = ledger.pending()
    lost = lost_paths(ledger, stuck)
    standing = ledger.present & (ledger.partner == NONE)
    make = np.flatnonzero(~ledger.ok)
    depth, pair = ledger.depth[make], ledger.pair[make]
    top = lost.greatest(pair, depth)
    turn = depth == pairs.of(low, pair, NEVER)
    make = make[turn | (depth < lost.of(top, pair, NONE))]
    unset = np.flatnonzero(ledger.present & (ledger.old_depth != NONE))
    turn = ledger.old_depth[unset] == pairs.of(low, ledger.old_pair[unset], NEVER)
    unset = unset[turn | lost.index(ledger.old_pair[unset])[1]]
    unguarded = _unguarded(ledger, stuck, (pairs, low), (make, unset))
    waiting = Groups(distinct(ledger.old_pair[unguarded]))
    held_up = ledger.failed[make] | stuck[ledger.desired.switch[make]]
    kept_up = ledger.undeletable[unset] | stuck[ledger.old.switch[unset]]
    blocked = distinct(
        np.concatenate([ledger.pair[make[held_up]], ledger.old_pair[unset[kept_up]]])
    )
    sets = make[~(ledger.failed[make] | waiting.index(ledger.pair[make])[1])]
    unset = unset[~(ledger.undeletable[unset] | waiting.index(ledger.old_pair[unset])[1])]
    wayless = ledger.old_pair[standing & ~ledger.routed]
    doubtful = ledger.knowledge.unknown[ledger.old.switch[unguarded]]
    strange, adds_risk = unguarded[doubtful], unguarded[~doubtful]
    giving_up = Groups(distinct(np.concatenate([blocked, wayless, ledger.old_pair[strange]])))
    old, withdraws = _withdrawals(ledger, stuck, giving_up, (pairs, low), strange)
    old = old[~Groups(sets).index(ledger.partner[old])[1]]
    highest = waiting.greatest(ledger.old_pair[unguarded], ledger.old_height[unguarded])
    first = ledger.old_height[adds_risk] >= waiting.of(highest, ledger.old_pair[adds_risk], NEVER)
    adds_risk = adds_risk[first & ~np.isin(adds_risk, old)]
    plain = _deletes(ledger, pairs, standing)
    useless = np.flatnonzero(standing & lost.index(ledger.old_pair)[1])
    deletes = distinct(np.concatenate([unset, plain, old, useless]))
    return Agenda(sets, adds_risk, deletes, withdraws, blocked, pairs.keys)


def _unguarded(
    ledger: Ledger, stuck: Bools, pending: tuple[Groups, Ints], turn: tuple[Ints, Ints]
) -> Ints:
    """Rows of ``old``: the detours to guard before something beyond them changes.

    A detour that is itself due before anything beyond it needs no guard, unless a detour beyond it
    has to be guarded, which is a change as well. Where QPs part, entries that lie beyond one
    another may be due at the same time. Some detours are not waited for: those at a switch that is
    away or silent, those that could not be guarded, and those that could only be removed after an
    entry that cannot be removed. Packets come back to these only if the new path fails as well
    before the next plan.

    Args:
        ledger: The state of the rollout.
        stuck: As for ``agenda``.
        pending: As ``Ledger.pending`` returns it.
        turn: Rows of ``desired`` and of ``old`` that are due now.
    """
    rows = np.flatnonzero(ledger.detour & ledger.present & ~ledger.guarded & ledger.routed)
    rows = rows[~ledger.undeletable[rows]]
    switch = ledger.old.switch[rows]
    rows = rows[ledger.fabric.connected[switch] & ~stuck[switch]]
    if not len(rows):
        return rows
    pairs, low = pending
    partner = ledger.partner[rows]
    depth = np.where(partner == NONE, ledger.old_depth[rows], np.append(ledger.depth, 0)[partner])
    depth = np.where(depth == NONE, NEVER, depth)
    pair, height = ledger.old_pair[rows], ledger.old_height[rows]
    now = pairs.of(low, pair, NEVER)
    lowest = pairs.of(_changing(ledger, pairs, turn), pair, NEVER)
    before = (now < depth) | ((now == depth) & (height > lowest))
    least = pairs.least(pair[before], height[before], NEVER)
    rows = rows[height >= pairs.of(least, pair, NEVER)]
    doubtful = ledger.knowledge.unknown[ledger.old.switch[rows]]
    groups = Groups(distinct(ledger.old_pair[rows[doubtful]]))
    pinned = _pinned(ledger, stuck, groups, _upper(ledger, groups, (pairs, low)))
    doubtful &= groups.of(pinned.astype(np.int64), ledger.old_pair[rows], 0) > 0
    unguarded: Ints = rows[~doubtful]
    return unguarded


def _changing(ledger: Ledger, pairs: Groups, turn: tuple[Ints, Ints]) -> Ints:
    """Return the least height of what changes now, for each of ``pairs``.

    ``turn`` are the rows of ``desired`` and of ``old`` that change. A new entry that replaces no
    old one counts as below all others, because packets of any entry may come to it.
    """
    make, unset = turn
    replaces = np.flatnonzero(ledger.present & (ledger.partner != NONE))
    height = np.full(len(ledger.ok), NONE, dtype=np.int64)
    height[ledger.partner[replaces]] = ledger.old_height[replaces]
    return np.minimum(
        pairs.least(ledger.old_pair[unset], ledger.old_height[unset], NEVER),
        pairs.least(ledger.pair[make], height[make], NEVER),
    )


def _deletes(ledger: Ledger, pending: Groups, standing: Bools) -> Ints:
    """Rows of ``old`` off the new paths that can go now, of pairs that do not wait for their path.

    If the pair has no new path, they go from the source on. If it has one, they go at once, but
    none goes before a detour above it: packets that the new path has lost may still meet it. In
    both cases the rest waits for a switch that is away as long as it takes. Such a switch still
    forwards, and its packets need the rest of the old path. A switch without a live link sends
    nothing. Dead entries of a pair with a new path send nothing either and go at once.
    """
    rows = np.flatnonzero(standing & (ledger.old_depth == NONE))
    rows = rows[~pending.index(ledger.old_pair[rows])[1]]
    above = rows[ledger.fabric.connected[ledger.old.switch[rows]]]
    above = above[~ledger.routed[above] | (ledger.detour[above] & ~ledger.undeletable[above])]
    groups = Groups(distinct(ledger.old_pair[rows]))
    top = groups.greatest(ledger.old_pair[above], ledger.old_height[above])
    first = ledger.old_height[rows] >= groups.of(top, ledger.old_pair[rows], NEVER)
    first |= ledger.routed[rows] & dead(ledger.old.take(rows), ledger.fabric)
    kept: Ints = rows[first & ~ledger.undeletable[rows]]
    return kept


def _withdrawals(
    ledger: Ledger, stuck: Bools, asked: Groups, low: tuple[Groups, Ints], strange: Ints
) -> tuple[Ints, Ints]:
    """Rows of ``old`` and of ``desired`` that pairs must give up now, the topmost first.

    A pair in ``asked`` is blocked, has no new path, or has detours that may or may not be held
    (``strange``, rows of ``old``): to guard such a detour could set it again where it was gone. The
    pair gives up its strange detours, its dead entries, and entries that take room which others
    need, but before them every entry above them. An entry above at a stuck switch, or one that
    could not be deleted, stays. No room is then made below it, but dead entries are removed all
    the same, as an agent would stop using them anyway. ``low`` is as for ``_upper``.
    """
    if not len(asked.keys):
        return asked.keys, asked.keys
    old = np.flatnonzero(ledger.present & asked.index(ledger.old_pair)[1])
    upper = _upper(ledger, asked, low)
    crowded = ledger.knowledge.full[ledger.old.switch[old]] & (ledger.partner[old] == NONE)
    crowded &= ~_pinned(ledger, stuck, asked, upper)[asked.index(ledger.old_pair[old])[0]]
    cause = old[dead(ledger.old.take(old), ledger.fabric) | crowded | np.isin(old, strange)]
    least = asked.least(ledger.old_pair[cause], ledger.old_height[cause], NEVER)
    old = old[ledger.old_height[old] >= asked.of(least, ledger.old_pair[old], NEVER)]
    old = old[~(ledger.undeletable[old] | stuck[ledger.old.switch[old]])]
    upper = upper[ledger.height[upper] >= asked.of(least, ledger.pair[upper], NEVER)]
    upper = upper[~(ledger.failed[upper] | stuck[ledger.desired.switch[upper]])]
    top = np.maximum(
        asked.greatest(ledger.old_pair[old], ledger.old_height[old]),
        asked.greatest(ledger.pair[upper], ledger.height[upper]),
    )
    return (
        old[ledger.old_height[old] >= asked.of(top, ledger.old_pair[old], NEVER)],
        upper[ledger.height[upper] >= asked.of(top, ledger.pair[upper], NEVER)],
    )


def _upper(ledger: Ledger, asked: Groups, low: tuple[Groups, Ints]) -> Ints:
    """Rows of ``desired`` that the pairs in ``asked`` hold, or may hold, above what they lack.

    ``low`` is the result of ``Ledger.pending``.
    """
    pairs, least = low
    rows = ledger.rows_of(asked)
    rows = rows[ledger.ok[rows] | ledger.maybe[rows]]
    upper: Ints = rows[ledger.depth[rows] > pairs.of(least, ledger.pair[rows], NEVER)]
    return upper


def _pinned(ledger: Ledger, stuck: Bools, asked: Groups, upper: Ints) -> Bools:
    """Which pairs hold entries that cannot be removed: at a stuck switch, or removal failed.

    ``upper`` is the result of ``_upper``; the result is parallel with the keys of ``asked``.
    """
    old = np.flatnonzero(ledger.present & asked.index(ledger.old_pair)[1])
    old = old[ledger.undeletable[old] | stuck[ledger.old.switch[old]]]
    upper = upper[ledger.failed[upper] | stuck[ledger.desired.switch[upper]]]
    return asked.marked(np.concatenate([ledger.old_pair[old], ledger.pair[upper]]))


def _awaited(ledger: Ledger, asked: Bools) -> Groups:
    """Pairs that may have entries at switches that are about to tell what they hold."""
    asked = asked & ledger.knowledge.unknown
    wanted = ledger.maybe & asked[ledger.desired.switch]
    other = ledger.present & asked[ledger.old.switch]
    return Groups(distinct(np.append(ledger.pair[wanted], ledger.old_pair[other])))


def _without(due: Agenda, ledger: Ledger, awaited: Groups) -> Agenda:
    """Return an agenda without anything to do for the pairs in ``awaited``."""

    def others(rows: Ints, pair: Ints) -> Ints:
        return rows[~awaited.index(pair[rows])[1]]

    return replace(
        due,
        sets=others(due.sets, ledger.pair),
        adds_risk=others(due.adds_risk, ledger.old_pair),
        deletes=others(due.deletes, ledger.old_pair),
        withdraws=others(due.withdraws, ledger.pair),
    )


def steps_of(ledger: Ledger, due: Agenda, switches: Switches) -> list[Step]:
    """Return the pushes of an agenda, for switches that are ready.

    When everything that is left waits for a stuck switch, or nothing is left, the closing pushes
    go out. They sweep entries that nobody knows of, which may carry flows until then, and
    complete the generation. Pairs with entries at switches that are about to tell what they hold
    wait for that, because only then is the order of their entries known.
    """
    awaited = Groups(np.empty(0, dtype=np.int64))
    if switches.asked is not None and switches.asked.any():
        awaited = _awaited(ledger, switches.asked)
        due = _without(due, ledger, awaited)
    where = (
        ledger.desired.switch[due.sets],
        ledger.old.switch[due.adds_risk],
        ledger.old.switch[due.deletes],
        ledger.desired.switch[due.withdraws],
    )
    left = _left(ledger)
    if len(awaited.keys) or not switches.stuck[np.concatenate(where)].all():
        return [_step(ledger, part, left) for part in _parts(due, where, switches.ready)]
    return list(_closing(ledger, switches.ready, left))


def operations_of(ledger: Ledger, steps: Sequence[Step]) -> list[tuple[Entries, Entries]]:
    """Return the entries that each step sets and deletes, in the order of the push's operations.

    The entries of all steps are taken together, because to take them one by one took most of the
    time of evaluating a whole plan.
    """
    none = np.empty(0, dtype=np.int64)

    def all_of(rows_of: Callable[[Step], Ints], take: Callable[[Ints], Entries]) -> list[Entries]:
        rows = [rows_of(step) for step in steps]
        lengths = np.array([len(part) for part in rows], dtype=np.int64)
        return cut(take(np.concatenate([none, *rows])), lengths)

    made = all_of(lambda step: step.sets, ledger.desired.take)
    guarded_now = all_of(lambda step: step.adds_risk, ledger.with_guards)
    gone = all_of(lambda step: step.deletes, ledger.old.take)
    back = all_of(lambda step: step.withdraws, ledger.desired.take)
    sets = map(appended, zip(made, guarded_now, strict=True))
    deletes = map(appended, zip(gone, back, strict=True))
    return list(zip(sets, deletes, strict=True))


def _left(ledger: Ledger) -> Ints:
    """Number of entries of each switch that are still to be set or deleted, shape (nodes,)."""
    nodes = ledger.fabric.node_count
    standing = ledger.present & (ledger.partner == NONE)
    unmade = np.bincount(ledger.desired.switch[~ledger.ok], minlength=nodes)
    unbroken = np.bincount(ledger.old.switch[standing], minlength=nodes)
    return (unmade + unbroken).astype(np.int64)


_Part = tuple[int, Ints, Ints, Ints, Ints]
"""A switch (node row), and its rows of each kind as in ``Step``."""


def _parts(due: Agenda, where: Sequence[Ints], ready: Bools) -> Iterator[_Part]:
    """Yield the rows of an agenda by switch, for ready switches only."""
    columns = []
    kinds = (due.sets, due.adds_risk, due.deletes, due.withdraws)
    for rows, of in zip(kinds, where, strict=True):
        kept = np.flatnonzero(ready[of])
        order = kept[np.argsort(of[kept], kind="stable")]
        columns.append((rows[order], of[order]))
    switches = distinct(np.concatenate([of for _, of in columns]))
    split = []
    for rows, of in columns:
        bounds = [*np.searchsorted(of, switches).tolist(), len(rows)]
        split.append([rows[begin:end] for begin, end in pairwise(bounds)])
    yield from zip(switches.tolist(), *split, strict=True)


def _step(ledger: Ledger, part: _Part, left: Ints) -> Step:
    switch, sets, adds_risk, deletes, withdraws = part
    gone = int(np.count_nonzero(ledger.partner[deletes] == NONE))
    whole = not len(withdraws) and int(left[switch]) == len(sets) + gone
    return Step(
        switch,
        ledger.knowledge.mode(switch),
        sets,
        adds_risk,
        deletes,
        withdraws,
        sweep=False,
        completes=whole and not ledger.knowledge.unknown[switch],
    )


def _closing(ledger: Ledger, ready: Bools, left: Ints) -> Iterator[Step]:
    knowledge = ledger.knowledge
    none = np.empty(0, dtype=np.int64)
    done = (left == 0) & (knowledge.unknown | (knowledge.generation != ledger.generation))
    crowded = knowledge.unknown & knowledge.full
    for switch in np.flatnonzero(ready & (done | crowded)).tolist():
        sweep, completes = bool(knowledge.unknown[switch]), bool(left[switch] == 0)
        yield Step(switch, knowledge.mode(switch), none, none, none, none, sweep, completes)


def lost_paths(ledger: Ledger, stuck: Bools) -> Groups:
    """Return the pairs for which everything but the first entry of the new path may go at once.

    ``stuck`` marks the switches that nobody waits for, shape (nodes,).
    """
    held = np.flatnonzero(ledger.present & ledger.routed)
    lost = held[dead(ledger.old.take(held), ledger.fabric)]
    pairs = Groups(distinct(ledger.old_pair[lost]))
    if not len(pairs.keys):
        return pairs
    old, new = held[pairs.index(ledger.old_pair[held])[1]], ledger.rows_of(pairs)
    top = pairs.greatest(ledger.old_pair[old], ledger.old_height[old])
    first = ledger.old_height[old] == pairs.of(top, ledger.old_pair[old], NONE)
    above = ledger.ok[new] & (ledger.height[new] >= pairs.of(top, ledger.pair[new], NONE))
    old = old[(first & ~np.isin(old, lost)) | _old_needs_order(ledger, stuck, old)]
    new = new[above | _new_needs_order(ledger, stuck, new)]
    ordered = np.append(ledger.old_pair[old], ledger.pair[new])
    return Groups(pairs.keys[~pairs.marked(ordered)])


def _old_needs_order(ledger: Ledger, stuck: Bools, rows: Ints) -> Bools:
    switch = ledger.old.switch[rows]
    result: Bools = ledger.detour[rows] | ledger.undeletable[rows]
    result |= stuck[switch] | ledger.knowledge.unknown[switch]
    result |= ledger.old.source_port[rows] != ANY_PORT
    return result


def _new_needs_order(ledger: Ledger, stuck: Bools, rows: Ints) -> Bools:
    switch = ledger.desired.switch[rows]
    result: Bools = ledger.failed[rows] | stuck[switch] | ledger.knowledge.unknown[switch]
    result |= ledger.desired.source_port[rows] != ANY_PORT
    result |= detours(ledger.desired.take(rows), ledger.fabric.structure)
    return result
