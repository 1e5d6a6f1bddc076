"""What to send next: the pure heart of the rollout.

Pairs of NICs that lost their way need little of the order in which ways are exchanged. An order is
there for two reasons. One is that a flow stays on a whole way until the next is whole: but where a
link of the old way is down, switches turn its packets aside already. The other is that no packet
comes back to where it was. A detour needs that; an entry on a way that is a shortest one of the
whole fabric brings packets nearer, and so does the underlay, whatever the next switch holds (see
the package). So where there are no detours, all that is to be set and to be taken away for such a
pair goes at once, but for the first entry of the new way: the flow is on it when that is set, and
it is set when the rest is there. A lost link costs two rounds of pushes, not one for each hop; and
where a switch turns out not to answer, the flow is left to the underlay as ever.

Only what is plain is treated so: nothing in doubt, nobody away, nothing that failed, and no QPs
that part, of which one may be on its way still while another has lost its own.
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
    """What can be expected of each switch; arrays have one element a node."""

    ready: Bools
    """Connected, and nothing is under way to it."""
    stuck: Bools
    """Away, or silent, for so long that the others go on without it."""
    asked: Bools | None = None
    """Are about to say what they hold; None where nobody is."""

    def asking(self, more: Sequence[int]) -> Switches:
        """The same with some other switches about to be asked what they hold."""
        if not more:
            return self
        asked = np.zeros_like(self.ready) if self.asked is None else self.asked.copy()
        ready = self.ready.copy()
        ready[more], asked[more] = False, True
        return replace(self, ready=ready, asked=asked)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One push to one switch, and what it means for the ledger that it came from."""

    switch: int
    """Node row."""
    mode: PushMode
    sets: Ints
    """Rows of ``desired``."""
    adds_risk: Ints
    """Rows of ``old`` to be made guarded."""
    deletes: Ints
    """Rows of ``old``."""
    withdraws: Ints
    """Rows of ``desired`` that are held and have to go for now."""
    sweep: bool
    completes: bool

    @property
    def set_count(self) -> int:
        """Entries to set: the first operations of the push."""
        return len(self.sets) + len(self.adds_risk)


@dataclass(frozen=True, slots=True, eq=False)
class Agenda:
    """What could be done now if every switch were ready; rows as in ``Step``."""

    sets: Ints
    adds_risk: Ints
    deletes: Ints
    withdraws: Ints
    blocked: Ints
    """Pairs that wait for a stuck switch or a failed entry, ascending."""
    pending: Ints
    """All pairs that do not have their new way yet, ascending."""


def agenda(ledger: Ledger, stuck: Bools) -> Agenda:
    """What is to be done now; see the package for the rules."""
    if ledger.ok.all() and not ledger.present.any():  # as most often, once all is acknowledged
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
    """Detours beyond which something is going to change, so that they must be guarded first.

    One whose own turn comes before that of anything beyond it needs not, unless that is a
    detour to be made guarded, which is a change as well. Where QPs part, entries that lie beyond
    one another may have their turn at once. One at a switch that is away, or that could not be
    made guarded, is not waited for, nor is one that could only be taken away after such: it takes
    another failure, on the new way and before the next plan, for packets to come back to it.

    Args:
        ledger: What there is.
        stuck: As for ``agenda``.
        pending: The pairs that lack any, and the least depth of that.
        turn: Rows of ``desired`` and of ``old`` whose turn it is.
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
    """The least height, by pair, of what changes now: rows of ``desired``, and of ``old``.

    A new entry that takes no old one's place is below all: packets of any may come to it.
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
    """Entries off the new ways, of pairs that are on theirs; of pairs without, from the source.

    So go detours of the former: packets that the new way has lost meet them still. Both
    wait for a switch that is away as long as it takes: it still forwards, and what it
    sends must find the rest of the old way. One without a live link sends nothing. Nor
    do entries of the former that are dead, which therefore go at once.
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
    """Rows of ``old`` and of ``desired`` that pairs must give up, the topmost first.

    Asked of pairs that are blocked, of those without a new way, and of those with detours
    of which nobody knows whether they are held (``strange``): to make one guarded could set
    it where it had gone. Each gives up these, entries that send packets to their death, or
    that take the room another needs, and before them all that lie above. What is above at
    a switch that is away, or that could not delete it, cannot be had: room is not made
    below it, but packets are kept from their death all the same, as an agent by itself
    would do.
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
    """Rows of ``desired`` that some pairs hold, or may hold, above what they lack.

    ``low`` are the pairs that lack any, and the least depth of that.
    """
    pairs, least = low
    rows = ledger.rows_of(asked)
    rows = rows[ledger.ok[rows] | ledger.maybe[rows]]
    upper: Ints = rows[ledger.depth[rows] > pairs.of(least, ledger.pair[rows], NEVER)]
    return upper


def _pinned(ledger: Ledger, stuck: Bools, asked: Groups, upper: Ints) -> Bools:
    """Which of the pairs hold what cannot be had back: at a switch that is away, or refused.

    ``upper`` are rows as ``_upper`` gives them.
    """
    old = np.flatnonzero(ledger.present & asked.index(ledger.old_pair)[1])
    old = old[ledger.undeletable[old] | stuck[ledger.old.switch[old]]]
    upper = upper[ledger.failed[upper] | stuck[ledger.desired.switch[upper]]]
    return asked.marked(np.concatenate([ledger.old_pair[old], ledger.pair[upper]]))


def _awaited(ledger: Ledger, asked: Bools) -> Groups:
    """Pairs that may have entries at switches that are about to say what they hold."""
    asked = asked & ledger.knowledge.unknown
    wanted = ledger.maybe & asked[ledger.desired.switch]
    other = ledger.present & asked[ledger.old.switch]
    return Groups(distinct(np.append(ledger.pair[wanted], ledger.old_pair[other])))


def _without(due: Agenda, ledger: Ledger, awaited: Groups) -> Agenda:
    """An agenda with nothing to be done for some pairs."""

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
    """The pushes of an agenda.

    When no entry is left that could be set or deleted without waiting for a stuck
    switch, the closing pushes go out: they sweep what nobody knows of, which may
    carry flows until then, and tell the generation. Where switches are about to say what they
    hold, pairs wait for that: in which order theirs goes is known then.
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
    """The entries that each step sets, and deletes, in the order of the push's operations.

    Those of all steps are taken together: one by one it took most of the time of a look at a
    whole plan.
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
    """Entries of each switch that are not as they should be."""
    nodes = ledger.fabric.node_count
    standing = ledger.present & (ledger.partner == NONE)
    unmade = np.bincount(ledger.desired.switch[~ledger.ok], minlength=nodes)
    unbroken = np.bincount(ledger.old.switch[standing], minlength=nodes)
    return (unmade + unbroken).astype(np.int64)


_Part = tuple[int, Ints, Ints, Ints, Ints]
"""A switch, and its rows as in ``Step``."""


def _parts(due: Agenda, where: Sequence[Ints], ready: Bools) -> Iterator[_Part]:
    """The rows of an agenda, by ready switch."""
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
    """Pairs where everything but the first entry of the new way may go at once.

    ``stuck`` are switches that are away or silent, shape (nodes,).
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
