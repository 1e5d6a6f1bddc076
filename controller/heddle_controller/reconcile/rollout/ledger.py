"""What every switch is known to hold, against what it should.

Immutable: each change gives a new ledger that shares most arrays with the old one.
Knowledge comes from FIB acks and from digests, never from what was merely sent.

A ledger speaks of pairs of NICs. After a plan that differs little it speaks of those pairs alone
that differ or were not done: all others are held as they are wanted, and nothing else is held of
them. So a lost link costs what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries, no_entries
from heddle_controller.plan.diff import difference, partners
from heddle_controller.reconcile.ports import OperationFailure, PushMode
from heddle_controller.reconcile.rollout.paths import (
    Groups,
    NewPaths,
    appended,
    crossings_of,
    detours,
    joined_entries,
    new_paths,
    pair_codes,
    rows_between,
    with_stage,
)

NEVER = 1 << 40
"""Deeper than any path."""


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What is known of each switch as a whole; arrays have one element a node."""

    unknown: Bools
    """Whether it may hold entries that nobody knows of, and has to be swept."""
    unsynced: Bools
    """Whether its next push has to be a FULL_SYNC."""
    generation: Ints
    """The newest it acknowledged to hold whole."""
    full: Bools
    """Whether its table was full when it last answered."""

    def mode(self, switch: int) -> PushMode:
        """The mode of the next push to a switch."""
        return PushMode.FULL_SYNC if self.unsynced[switch] else PushMode.INCREMENTAL

    def doubted(self, switches: Ints) -> Knowledge:
        """The same with some switches unknown."""
        after = self.noted("unsynced", switches, value=True)
        after = after.noted("unknown", switches, value=True)
        after = after.noted("generation", switches, value=0)
        return after.noted("full", switches, value=False)

    def noted(self, column: str, switches: Ints | Bools | int, value: bool | int) -> Knowledge:  # noqa: FBT001 - a column's value
        """The same with another value in one column of some switches."""
        changed = getattr(self, column).copy()
        changed[switches] = value
        return replace(self, **{column: changed})


def nothing_known(nodes: int) -> Knowledge:
    """Knowledge of switches that never had a session."""
    on = np.ones(nodes, dtype=np.bool_)
    return Knowledge(on, on, np.zeros(nodes, dtype=np.int64), ~on)


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """One target, and how far each switch is from it."""

    plan: Plan
    generation: int
    target: Entries
    """All that is wanted."""
    desired: Entries
    """What is wanted of the pairs that this speaks of; the columns up to ``failed`` are parallel.

    Not always in the order of ``target``: rows keep their numbers, see ``widened``."""
    pair: Ints
    depth: Ints
    """Twice the hops left on the new paths of its pair: less is made first."""
    height: Ints
    """Where a packet meets it: falls along the way, over all that is held. Where it was
    held before, it stays as high as it was until the new way behind it is whole."""
    ok: Bools
    """Acknowledged from the FIB, with just this content."""
    maybe: Bools
    """Not known to be held, but perhaps it is: at a switch that is unknown."""
    failed: Bools
    """Refused; not tried again until ``retried``."""
    old: Entries
    """What else is, or was, held; the columns up to ``routed`` are parallel."""
    old_pair: Ints
    old_depth: Ints
    """Where it lies on the new paths of its pair and no wanted entry has its match:
    the depth at which it has to go; else ``NONE``."""
    old_height: Ints
    partner: Ints
    """Row of ``desired`` that takes its place in one step, or ``NONE``."""
    alike: Bools
    """Whether it has a partner of the same content: made, were it known for certain."""
    present: Bools
    """Held, or may be held where the switch is unknown."""
    undeletable: Bools
    """Could not be deleted; not tried again until ``retried``."""
    routed: Bools
    """Whether its pair has paths in the plan."""
    detour: Bools
    """Whether it may send packets away from their destination, other than the new way does."""
    guarded: Bools
    """Acknowledged to be at risk by the new ways of its pair as well, see ``detours``."""
    ways: NewPaths
    """Of the pairs that have detours."""
    knowledge: Knowledge
    reasons: Mapping[int, OperationFailure] = field(default_factory=dict)
    """Why a row of ``desired`` failed."""

    @property
    def fabric(self) -> Fabric:
        """What the rows of entries speak of."""
        return self.plan.fabric

    def held(self, *, left: bool = False) -> Entries:
        """All that is held, or may be where a switch is unknown; the height as the stage.

        Of the pairs that this speaks of.

        What leaders before may have ``left`` lies above all that its packets may go on to. A
        leader that lost sight of its own knows in which order it set them, and keeps to that.
        """
        here = self.ok | self.maybe
        doubled = self.present & np.append(here, False)[self.partner]
        other = self.present & ~doubled
        height = self.settled().height.copy()
        # Which of the two it is, nobody knows: what lies above the one lies above both.
        np.maximum.at(height, self.partner[doubled], self.old_height[doubled])
        height = _rising(self, height) if left else height
        wanted = with_stage(self.desired, height).take(np.flatnonzero(here))
        if not other.any():
            return joined_entries([wanted])
        old = with_stage(self.old, self.old_height)
        plain, guarded = np.flatnonzero(other & ~self.guarded), np.flatnonzero(other & self.guarded)
        return joined_entries(
            [wanted, old.take(plain), self.ways.guarded(old.take(guarded), self.old_pair[guarded])]
        )

    def with_guards(self, rows: Ints) -> Entries:
        """Rows of ``old``, at risk by the new ways of their pairs as well."""
        return self.ways.guarded(self.old.take(rows), self.old_pair[rows])

    def detours(self) -> Entries:
        """Entries held before that may still send packets away from their destination."""
        return self.old.take(np.flatnonzero(self.present & self.detour))

    def settled(self) -> Ledger:
        """The same with the height of entries that the new way has reached brought down.

        To be asked for before a switch is doubted: what is whole until then has to
        keep its order when the new way behind it is no longer known to be.
        """
        pairs, low = self.pending()
        near = self.rows_of(pairs)
        waits = near[self.depth[near] > pairs.of(low, self.pair[near], NEVER)]
        height = self.depth.copy()
        height[waits] = self.height[waits]
        return replace(self, height=height)

    def rows_of(self, pairs: Groups) -> Ints:
        """Rows of ``desired`` of some pairs, in little more time than there are such."""
        return rows_between(self.desired, pairs, self.fabric.node_count)

    def undone(self) -> Ints:
        """Pairs where something is not known to be as it should be, ascending."""
        doubtful = self.maybe | self.knowledge.unknown[self.desired.switch]
        make = self.pair[~self.ok | doubtful]
        return distinct(np.append(make, self.old_pair[self.present]))

    def unspoken(self, pairs: Ints | None = None) -> Entries:
        """Entries of the target that this does not speak of, or those of some pairs (ascending).

        They are held as they are wanted. The height as the stage: it falls along the way, too.
        """
        if len(self.desired) == len(self.target):
            return no_entries()
        nodes, spoken = self.fabric.node_count, Groups(distinct(self.pair))
        if pairs is None:
            rest = np.ones(len(self.target), dtype=np.bool_)
            rest[rows_between(self.target, spoken, nodes)] = False
            rows = np.flatnonzero(rest)
        else:
            others = Groups(pairs[~spoken.index(pairs)[1]])
            rows = rows_between(self.target, others, nodes)
        some = self.target.take(rows)
        return with_stage(some, 2 * some.stage)

    def widened(self) -> Ledger:
        """The same, of all pairs. Rows keep their numbers: pushes may be under way."""
        rest = self.unspoken()
        if not len(rest):
            return self
        none, height = np.zeros(len(rest), dtype=np.bool_), rest.stage
        pair = pair_codes(rest.source, rest.destination, self.fabric.node_count)
        return replace(
            self,
            desired=appended([self.desired, with_stage(rest, height // 2)]),
            pair=np.append(self.pair, pair),
            depth=np.append(self.depth, height),
            height=np.append(self.height, height),
            ok=np.append(self.ok, ~none),
            maybe=np.append(self.maybe, none),
            failed=np.append(self.failed, none),
        )

    def pending(self) -> tuple[Groups, Ints]:
        """Pairs that do not have their new way yet, and the least depth that each lacks."""
        make = np.flatnonzero(~self.ok)
        unset = np.flatnonzero(self.present & (self.old_depth != NONE))
        pairs = Groups(distinct(np.concatenate([self.pair[make], self.old_pair[unset]])))
        low = np.minimum(
            pairs.least(self.pair[make], self.depth[make], NEVER),
            pairs.least(self.old_pair[unset], self.old_depth[unset], NEVER),
        )
        return pairs, low

    def retried(self) -> Ledger:
        """The same with every failure forgotten, so that it is tried again."""
        return replace(
            self,
            failed=np.zeros_like(self.failed),
            undeletable=np.zeros_like(self.undeletable),
            reasons={},
        )


def _rising(ledger: Ledger, height: Ints) -> Ints:
    """Heights with entries that may be held above all that lie further on, on the same new way.

    They were set when the rest of it was whole, so what stood there before and lies as high
    as it did may be what their packets go on to.
    """
    pairs = Groups(distinct(ledger.pair[ledger.maybe]))
    here = np.flatnonzero((ledger.ok | ledger.maybe) & pairs.index(ledger.pair)[1])
    if not len(here):
        return height
    here = here[np.lexsort([ledger.depth[here], ledger.pair[here]])]
    first = np.diff(ledger.pair[here], prepend=NONE) != 0
    rank = np.cumsum(first | (np.diff(ledger.depth[here], prepend=NONE) != 0))
    apart = np.cumsum(first) * 2 * (int(height[here].max()) + len(here) + 1)
    least = np.maximum.accumulate(height[here] - rank + apart) - apart + rank
    result = height.copy()
    raised = ledger.maybe[here]
    result[here[raised]] = least[raised]
    return result


def begin(
    plan: Plan,
    generation: int,
    desired: Entries,
    held: Entries,
    knowledge: Knowledge,
    *,
    known_detours: Entries | None = None,
    target: Entries | None = None,
) -> Ledger:
    """A ledger for a new target, or on new knowledge of what is held.

    Args:
        plan: Its fabric's rows are those of all entries.
        generation: Of the target.
        desired: What is wanted of the pairs to speak of.
        held: What switches are known to hold of them, with heights as stages.
        knowledge: Of switches as a whole.
        target: All that is wanted; what is not of these pairs is held just so. None: ``desired``.
        known_detours: Matches of entries known to be detours, whatever is held with them by now.
    """
    found, nodes = _compared(held, desired, knowledge), plan.fabric.node_count
    ok, old, partner = found.ok, found.old, found.partner
    pair = pair_codes(desired.source, desired.destination, nodes)
    old_pair = pair_codes(old.source, old.destination, nodes)
    order = _ordered(plan, desired, found, pair, old_pair)
    detour = _detours(found, plan, known_detours)
    none_of_desired, none_of_old = (np.zeros(len(one), dtype=np.bool_) for one in (desired, old))
    return Ledger(
        plan=plan,
        generation=generation,
        target=desired if target is None else target,
        desired=desired,
        pair=pair,
        depth=order.depth,
        height=order.height,
        ok=ok,
        maybe=none_of_desired,
        failed=none_of_desired,
        old=old,
        old_pair=old_pair,
        old_depth=order.old_depth,
        old_height=order.old_height,
        partner=partner,
        alike=found.alike,
        present=~none_of_old,
        undeletable=none_of_old,
        routed=order.routed,
        detour=detour,
        guarded=none_of_old,
        ways=new_paths(plan, old_pair[detour]),
        knowledge=knowledge,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """The place of entries on the ways of their pairs; names as in ``Ledger``."""

    depth: Ints
    height: Ints
    old_depth: Ints
    old_height: Ints
    routed: Bools


def _ordered(plan: Plan, desired: Entries, found: _Compared, pair: Ints, old_pair: Ints) -> _Order:
    ok, old, partner = found.ok, found.old, found.partner
    crossings = crossings_of(plan, np.concatenate([pair[~ok], old_pair]))
    touched = Groups(crossings.pairs)
    near = rows_between(desired, touched, plan.fabric.node_count)
    found_depth = crossings.lookup(desired.switch[near], pair[near])
    depth = 2 * desired.stage
    depth[near] = np.where(found_depth == NONE, depth[near], 2 * found_depth)
    # Odd, so after what is set at the same switch: if that fails, the old entry stays.
    old_depth = crossings.lookup(old.switch, old_pair)
    old_depth = np.where((partner == NONE) & (old_depth != NONE), 2 * old_depth + 1, NONE)
    # What is held lies above all that will be made, an entry that stays as it is as well.
    lift = touched.greatest(pair[near], depth[near]) + 1
    raised = found.height.copy()
    raised[near] += touched.of(lift, pair[near], 0)
    return _Order(
        depth=depth,
        height=np.where(ok, raised, depth),
        old_depth=old_depth,
        old_height=old.stage + touched.of(lift, old_pair, 0),
        routed=Groups(crossings.crossed()).index(old_pair)[1],
    )


def _detours(found: _Compared, plan: Plan, known_detours: Entries | None) -> Bools:
    """See ``Ledger``; ``known_detours`` as for ``begin``."""
    detour: Bools = detours(found.old, plan.fabric.structure) & ~found.alike
    if known_detours is not None and len(known_detours):
        detour |= partners(known_detours, found.old) != NONE
    return detour


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """What is held beside what is wanted; names as in ``Ledger``."""

    ok: Bools
    height: Ints
    """Of what is held with the match of each wanted entry; nothing where there is none."""
    old: Entries
    partner: Ints
    alike: Bools


def _compared(held: Entries, desired: Entries, knowledge: Knowledge) -> _Compared:
    of_desired = partners(held, desired)
    differs, to_delete = difference(held, desired, of_desired)
    like = np.ones(len(desired), dtype=np.bool_)
    like[differs] = False
    ok = like & ~knowledge.unknown[desired.switch]
    replaced = np.flatnonzero(~ok & (of_desired != NONE))
    partner = np.concatenate([np.full(len(to_delete), NONE, dtype=np.int64), replaced])
    return _Compared(
        ok=ok,
        height=np.append(held.stage, 0)[of_desired],
        old=held.take(np.concatenate([to_delete, of_desired[replaced]])),
        partner=partner,
        alike=(partner != NONE) & np.append(like, False)[partner],
    )
