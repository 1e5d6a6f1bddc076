"""The ledger: what every switch is known to hold, compared with what it should hold.

A ledger is immutable: each change returns a new one that shares most arrays with the old one.
Knowledge comes from FIB acks, digests and tables that agents list, never from what was merely sent.

A ledger covers pairs of NICs. After a plan that differs little, it covers only the pairs that
differ or were not done. Of all other pairs, switches hold the wanted entries and nothing else. So
a lost link costs only what it changes.
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
"""A depth or height above all others."""


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What is known of each switch as a whole; arrays of shape (nodes,)."""

    unknown: Bools
    """Whether the switch may hold entries that nobody knows of, and has to be swept."""
    unsynced: Bools
    """Whether its next push has to be a FULL_SYNC."""
    generation: Ints
    """Newest generation that it acknowledged to hold completely; 0 for none."""
    full: Bools
    """Whether its table was full when it last answered."""

    def mode(self, switch: int) -> PushMode:
        """Return the mode of the next push to a switch (node row)."""
        return PushMode.FULL_SYNC if self.unsynced[switch] else PushMode.INCREMENTAL

    def doubted(self, switches: Ints) -> Knowledge:
        """Return this with nothing known of some switches any more."""
        after = self.noted("unsynced", switches, value=True)
        after = after.noted("unknown", switches, value=True)
        after = after.noted("generation", switches, value=0)
        return after.noted("full", switches, value=False)

    def noted(self, column: str, switches: Ints | Bools | int, value: bool | int) -> Knowledge:  # noqa: FBT001 - a column's value
        """Return this with ``value`` in one column for some switches."""
        changed = getattr(self, column).copy()
        changed[switches] = value
        return replace(self, **{column: changed})


def nothing_known(nodes: int) -> Knowledge:
    """Return the knowledge of switches that never had a session."""
    on = np.ones(nodes, dtype=np.bool_)
    return Knowledge(on, on, np.zeros(nodes, dtype=np.int64), ~on)


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """One target, and how far each switch is from it."""

    plan: Plan
    generation: int
    target: Entries
    """All wanted entries."""
    desired: Entries
    """Wanted entries of the covered pairs. The columns up to ``failed`` are parallel.

    They are not always in the order of ``target``: rows keep their numbers (``widened``)."""
    pair: Ints
    """Code of the pair of NICs (``pair_codes``)."""
    depth: Ints
    """Twice the hops left on the new paths of the pair. Entries of less depth are set first."""
    height: Ints
    """Order in which packets meet all entries that are held: it falls along the path. An entry that
    was held before stays as high as it was until the new path behind it is whole."""
    ok: Bools
    """Whether its switch is known to hold it, with exactly this content."""
    maybe: Bools
    """Whether it is not known to be held but may be, because its switch is unknown."""
    failed: Bools
    """Whether it was refused. It is not tried again until ``retried``."""
    old: Entries
    """Other entries that are or were held. The columns up to ``guarded`` are parallel."""
    old_pair: Ints
    """Code of the pair of NICs."""
    old_depth: Ints
    """Depth at which the entry has to go, if it lies on the new paths of its pair and no wanted
    entry has its match; else ``NONE``."""
    old_height: Ints
    """Height of the entry, on the same scale as ``height``."""
    partner: Ints
    """Row of ``desired`` with the same match, which replaces it in one step; or ``NONE``."""
    alike: Bools
    """Whether it equals its partner, which only counts as set once the switch is known."""
    present: Bools
    """Whether it is held, or may be where the switch is unknown."""
    undeletable: Bools
    """Whether it could not be deleted or guarded. This is not tried again until ``retried``."""
    routed: Bools
    """Whether its pair has paths in the plan."""
    detour: Bools
    """Whether it may send packets away from their destination, unless it equals its partner."""
    guarded: Bools
    """Whether it is acknowledged to be at risk by the new paths of its pair as well."""
    ways: NewPaths
    """New paths of the pairs that have detours."""
    knowledge: Knowledge
    reasons: Mapping[int, OperationFailure] = field(default_factory=dict)
    """Why rows of ``desired`` failed, by row."""

    @property
    def fabric(self) -> Fabric:
        """The fabric that the rows in entries refer to."""
        return self.plan.fabric

    def held(self, *, left: bool = False) -> Entries:
        """Return all entries of the covered pairs that are or may be held, heights as stages.

        With ``left``, entries that may be held were set by earlier leaders, in an unknown order.
        They are then raised above all entries that their packets may go on to. Without it, this
        leader set them and keeps its own order.
        """
        here = self.ok | self.maybe
        doubled = self.present & np.append(here, False)[self.partner]
        other = self.present & ~doubled
        height = self.settled().height.copy()
        # Either of the two may be held, so an entry above one of them has to be above both.
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
        """Return rows of ``old`` that are also at risk by the new paths of their pairs."""
        return self.ways.guarded(self.old.take(rows), self.old_pair[rows])

    def detours(self) -> Entries:
        """Return the detours among the old entries that are or may be held."""
        return self.old.take(np.flatnonzero(self.present & self.detour))

    def settled(self) -> Ledger:
        """Return this with entries lowered to their depth where the new path behind is whole.

        Call it before a switch is doubted: entries have to keep this order when the path
        behind them is no longer known to be whole.
        """
        pairs, low = self.pending()
        near = self.rows_of(pairs)
        waits = near[self.depth[near] > pairs.of(low, self.pair[near], NEVER)]
        height = self.depth.copy()
        height[waits] = self.height[waits]
        return replace(self, height=height)

    def rows_of(self, pairs: Groups) -> Ints:
        """Rows of ``desired`` of some pairs, ascending."""
        return rows_between(self.desired, pairs, self.fabric.node_count)

    def undone(self) -> Ints:
        """Return the pairs that are not known to be as they should be, ascending."""
        doubtful = self.maybe | self.knowledge.unknown[self.desired.switch]
        make = self.pair[~self.ok | doubtful]
        return distinct(np.append(make, self.old_pair[self.present]))

    def unspoken(self, pairs: Ints | None = None) -> Entries:
        """Return entries of the target that the ledger does not cover, with heights as stages.

        Switches hold them as wanted. Twice the stage serves as the height, because it falls along
        the path too. With ``pairs`` (ascending), only entries of these pairs are returned.
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
        """Return this for all pairs. Rows keep their numbers, because pushes may be under way."""
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
        """Return the pairs without their new path yet, and the least depth that each lacks."""
        make = np.flatnonzero(~self.ok)
        unset = np.flatnonzero(self.present & (self.old_depth != NONE))
        pairs = Groups(distinct(np.concatenate([self.pair[make], self.old_pair[unset]])))
        low = np.minimum(
            pairs.least(self.pair[make], self.depth[make], NEVER),
            pairs.least(self.old_pair[unset], self.old_depth[unset], NEVER),
        )
        return pairs, low

    def retried(self) -> Ledger:
        """Return this with every failure forgotten, so that it is tried again."""
        return replace(
            self,
            failed=np.zeros_like(self.failed),
            undeletable=np.zeros_like(self.undeletable),
            reasons={},
        )


def _rising(ledger: Ledger, height: Ints) -> Ints:
    """Return heights with each entry that may be held raised above those further along its path.

    It may have been set when the rest of the path was whole. So its packets may go on to entries
    there that were held before and still have their old height.
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
    """Return a ledger for a new target.

    Args:
        plan: The plan of the target. All entries refer to rows of its fabric.
        generation: Generation of the target.
        desired: Wanted entries of the pairs to cover.
        held: Entries of these pairs that are or may be held, with heights as stages.
        knowledge: What is known of switches as a whole.
        known_detours: Entries of earlier ledgers that are detours. An entry held with the same
            match counts as a detour, whatever its content is by now.
        target: All wanted entries. Those of other pairs are known to be held. None for ``desired``.
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
    """The place of entries on the paths of their pairs; names as in ``Ledger``."""

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
    # Odd, so that it goes after entries are set at the same switch. If that fails, it stays.
    old_depth = crossings.lookup(old.switch, old_pair)
    old_depth = np.where((partner == NONE) & (old_depth != NONE), 2 * old_depth + 1, NONE)
    # Held entries lie above all that will be set, also entries that stay as they are.
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
    """Return ``Ledger.detour``; ``known_detours`` is as for ``begin``."""
    detour: Bools = detours(found.old, plan.fabric.structure) & ~found.alike
    if known_detours is not None and len(known_detours):
        detour |= partners(known_detours, found.old) != NONE
    return detour


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """Held entries compared with wanted ones; names as in ``Ledger``."""

    ok: Bools
    height: Ints
    """Height of the held entry with the match of each wanted one; 0 if there is none."""
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
