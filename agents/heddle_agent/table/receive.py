"""From push to table: fence, checks of single operations, intent.

Nothing here depends on order within a batch, except that a later operation on the same match
replaces an earlier one: deletes and sweeps make room for sets wherever they stand, and a push that
is repeated changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import eq, itemgetter
from typing import Any, NamedTuple

from heddle_agent.fib import Choice, Group, Match, Reason
from heddle_agent.table.checks import impossible
from heddle_agent.table.groups import Groups, intern
from heddle_agent.table.push import (
    DELETE,
    Fence,
    Mode,
    OperationFailure,
    Operations,
    Push,
    Receipt,
    Status,
)
from heddle_agent.table.state import Table

_FIRST: Callable[[Any], object] = itemgetter(0)


class Updates(NamedTuple):
    """The last word on each match that can be carried out; no match is in both."""

    sets: dict[Match, Group]
    deletes: set[Match]


def receive(table: Table, push: Push) -> tuple[Table, Receipt]:
    """Take a push into the table; what the backend must do for it is dirty afterwards."""
    if (late := outdated(push.version, table.fence)) is not None:
        return table, late
    operations = push.operations
    groups, found, new = intern(table.groups, operations.keys)
    failures = impossible(table, operations)
    updates = _updates(operations, found, {failure.operation for failure in failures})
    full = push.mode is Mode.FULL_SYNC
    unnamed = table.intended.keys() if full else table.stale
    stale = frozenset(unnamed - set(operations.matches)) if unnamed else frozenset()
    gone = updates.deletes | stale if push.sweep_stale else updates.deletes
    kept = _without(table.intended, gone)
    if table.table_size and len(kept) + len(updates.sets) > table.table_size:
        failures += _overflow(table.table_size, kept, operations, updates)
    before = list(map(table.programmed.get, updates.sets))
    changed = _changed(before, updates.sets)
    intended = _merged(kept, updates.sets, all_known=kept is table.programmed and all(before))
    dirty = _dirty(table, changed, gone, intended)
    known = operations.addresses.items() <= table.addresses.items()  # as after a first push
    if not known:
        dirty = _moved(table, dirty, operations.addresses)
    rejected = _rejected(frozenset() if full else table.rejected, operations, failures)
    taken = table._replace(
        groups=groups,
        fence=push.version,
        intended=intended,
        dirty=dirty,
        stale=frozenset() if push.sweep_stale else stale - updates.deletes,
        rejected=rejected,
        completing=_completing(table, push),
        whole=0 if dirty or rejected else table.whole,
        addresses=table.addresses if known else {**table.addresses, **operations.addresses},
        diverted=_diverted(table, groups, new),
    )
    return taken, Receipt(Status.APPLIED, tuple(failures))


def outdated(version: Fence, fence: Fence) -> Receipt | None:
    """The refusal of a push that is older than one accepted; None for others."""
    if version >= fence:
        return None
    message = (
        f"epoch {version.epoch} generation {version.generation} is older than"
        f" epoch {fence.epoch} generation {fence.generation}, which this agent has accepted"
    )
    return Receipt(Status.STALE_EPOCH, message=message)


def _updates(operations: Operations, found: list[Group], failed: Collection[int]) -> Updates:
    if DELETE not in operations.groups and not failed:  # the usual push, at the speed of C
        groups = map(found.__getitem__, operations.groups)
        return Updates(dict(zip(operations.matches, groups, strict=True)), set())
    last: dict[Match, int] = {}
    for operation, (match, row) in enumerate(
        zip(operations.matches, operations.groups, strict=True)
    ):
        if operation not in failed:
            last[match] = row
    sets = {match: found[row] for match, row in last.items() if row != DELETE}
    return Updates(sets, last.keys() - sets.keys())


def _without(entries: Mapping[Match, Group], matches: AbstractSet[Match]) -> Mapping[Match, Group]:
    if entries.keys().isdisjoint(matches):
        return entries
    return {match: group for match, group in entries.items() if match not in matches}


def _overflow(
    size: int, kept: Mapping[Match, Group], operations: Operations, updates: Updates
) -> list[OperationFailure]:
    """Take sets that find no room out of ``updates``: the first ones stay."""
    new = [match for match in updates.sets if match not in kept]
    last = {match: operation for operation, match in enumerate(operations.matches)}
    message = f"the table holds {size} entries and is full; remove some first"
    failures = []
    for match in new[max(0, size - len(kept)) :]:
        del updates.sets[match]
        failures.append(OperationFailure(last[match], Reason.TABLE_FULL, message))
    return failures


def _merged(
    kept: Mapping[Match, Group], sets: dict[Match, Group], *, all_known: bool
) -> Mapping[Match, Group]:
    """Entries that stay and those to set; ``all_known`` if each of these takes one's place."""
    if not sets:
        return kept
    return sets if all_known and len(sets) == len(kept) else {**kept, **sets}


def _changed(
    before: Sequence[Group | None], sets: dict[Match, Group]
) -> Mapping[Match, Group | None]:
    """Those sets that change something; all others become what is programmed ``before``."""
    if all(before) and not any(map(eq, map(_FIRST, before), map(_FIRST, sets.values()))):
        return sets  # all leave by another next hop: seen at the speed of C
    rows = zip(sets, sets.values(), before, strict=True)
    same = {
        match: old
        for match, new, old in rows
        if old is not None
        and (old is new or (old[0] == new[0] and old[1] == new[1] and old.like(new)))
    }
    if not same:
        return sets
    sets.update(same)
    return {match: group for match, group in sets.items() if match not in same}


def _dirty(
    table: Table,
    changed: Mapping[Match, Group | None],
    gone: AbstractSet[Match],
    intended: Mapping[Match, Group],
) -> Mapping[Match, Group | None]:
    """Matches in which intended and programmed may differ."""
    dirty = changed
    if gone:
        dirty = {**dirty, **dict.fromkeys(gone & table.programmed.keys())}
    if table.dirty:
        dirty = {**{match: intended.get(match) for match in table.dirty}, **dirty}
    return dirty


def _moved(
    table: Table, dirty: Mapping[Match, Group | None], addresses: Mapping[str, str]
) -> Mapping[Match, Group | None]:
    """These and the programmed matches whose NICs have a new address."""
    known = table.addresses
    moved = {nic for nic, address in addresses.items() if known.get(nic, address) != address}
    if not moved:
        return dirty
    old = table.programmed.items()
    return {**{m: group for m, group in old if m[0] in moved or m[1] in moved}, **dirty}


def _rejected(
    before: frozenset[Match], operations: Operations, failures: list[OperationFailure]
) -> frozenset[Match]:
    """Matches whose last operation failed, in this push or in one before it."""
    if not before and not failures:
        return before
    last = {match: operation for operation, match in enumerate(operations.matches)}
    failed = {failure.operation for failure in failures}
    return before - last.keys() | {match for match, row in last.items() if row in failed}


def _completing(table: Table, push: Push) -> int:
    """The generation that is whole once all is well; a retry of its failures may complete it."""
    if push.completes_generation:
        return push.version.generation
    return table.completing if push.version == table.fence else 0


def _diverted(table: Table, groups: Groups, new: list[Group]) -> Mapping[Group, Choice]:
    """New groups that have lost their primary already join those that did before."""
    if not table.down or not new:
        return table.diverted
    choices = {group: groups.choose(group, table.down) for group in new}
    lost = {group: choice for group, choice in choices.items() if choice is not Choice.PRIMARY}
    return {**table.diverted, **lost}
