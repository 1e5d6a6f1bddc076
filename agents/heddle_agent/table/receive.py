"""From a push to the table: check the fence, check single operations, change the intended entries.

The order within a batch does not matter, except that a later operation on a match replaces an
earlier one. Deletes and sweeps make room for sets wherever they are in the batch. Receiving the
same push twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import eq, itemgetter
from typing import Any, NamedTuple

from heddle_agent.fib import ANY_PORT, Capability, Choice, Group, Match, Reason
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
    """The last valid operation on each match; no match is in both fields."""

    sets: dict[Match, Group]
    deletes: set[Match]


def receive(table: Table, push: Push) -> tuple[Table, Receipt]:
    """Take a push into the table. Afterwards, ``dirty`` holds what the backend must do for it."""
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
    known = operations.addresses.items() <= table.addresses.items()  # usual after the first push
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
    """Return the refusal of a version that is older than the fence; None for other versions."""
    if version >= fence:
        return None
    message = (
        f"epoch {version.epoch} generation {version.generation} is older than"
        f" epoch {fence.epoch} generation {fence.generation}, which this agent has accepted"
    )
    return Receipt(Status.STALE_EPOCH, message=message)


def _updates(operations: Operations, found: list[Group], failed: Collection[int]) -> Updates:
    if DELETE not in operations.groups and not failed:  # the usual push, done in C
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
    """Remove sets that do not fit from ``updates`` and return their failures; first sets stay."""
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
    """Return ``kept`` with ``sets`` merged in; ``all_known`` if each set replaces a kept entry."""
    if not sets:
        return kept
    return sets if all_known and len(sets) == len(kept) else {**kept, **sets}


def _changed(
    before: Sequence[Group | None], sets: dict[Match, Group]
) -> Mapping[Match, Group | None]:
    """Return the sets that change something; in ``sets``, all others become their old group.

    ``before`` holds the programmed group of each set, None for a new match.
    """
    if all(before) and not any(map(eq, map(_FIRST, before), map(_FIRST, sets.values()))):
        return sets  # all get another next hop: this check runs in C
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
    """Return the matches in which intended and programmed entries may differ."""
    dirty = changed
    if gone:
        dirty = {**dirty, **dict.fromkeys(gone & table.programmed.keys())}
    if table.dirty:
        dirty = {**{match: intended.get(match) for match in table.dirty}, **dirty}
    return dirty


def _moved(
    table: Table, dirty: Mapping[Match, Group | None], addresses: Mapping[str, str]
) -> Mapping[Match, Group | None]:
    """Return ``dirty`` and all programmed matches whose NICs have a new address."""
    known = table.addresses
    moved = {nic for nic, address in addresses.items() if known.get(nic, address) != address}
    if not moved:
        return dirty
    old = table.programmed.items()
    return {**{m: group for m, group in old if m[0] in moved or m[1] in moved}, **dirty}


def _rejected(
    before: frozenset[Match], operations: Operations, failures: list[OperationFailure]
) -> frozenset[Match]:
    """Return the matches whose last operation failed, in this push or in an earlier one."""
    if not before and not failures:
        return before
    last = {match: operation for operation, match in enumerate(operations.matches)}
    failed = {failure.operation for failure in failures}
    return before - last.keys() | {match for match, row in last.items() if row in failed}


def _completing(table: Table, push: Push) -> int:
    """Return the generation that will be whole once nothing is dirty or rejected; 0 for none.

    A later push of the same version, such as a retry of failed operations, may complete it.
    """
    if push.completes_generation:
        return push.version.generation
    return table.completing if push.version == table.fence else 0


def _diverted(table: Table, groups: Groups, new: list[Group]) -> Mapping[Group, Choice]:
    """Return ``table.diverted``, and new groups whose primary is already lost."""
    if not table.down or not new:
        return table.diverted
    choices = {group: groups.choose(group, table.down) for group in new}
    lost = {group: choice for group, choice in choices.items() if choice is not Choice.PRIMARY}
    return {**table.diverted, **lost}


def impossible(table: Table, operations: Operations) -> list[OperationFailure]:
    """Return failures of sets over unknown links or with matches that the backend lacks."""
    failures = [*_without_link(table, operations)]
    if not {Capability.MATCH_PORTS, Capability.MATCH_PAIR} <= table.capabilities:
        seen = {failure.operation for failure in failures}
        failures += (f for f in _unsupported(table, operations) if f.operation not in seen)
    return failures


def _without_link(table: Table, operations: Operations) -> Iterator[OperationFailure]:
    hops = operations.hops
    if hops is None:
        hops = {hop for key in operations.keys for hop in key[:2] if hop is not None}
    if table.local.issuperset([hop[:2] for hop in hops]):
        return
    lost = {
        row: f"no link to {hop.node} key {hop.key}; give the agent that link or mend the fabric"
        for row, key in enumerate(operations.keys)
        for hop in key[:2]
        if hop is not None and hop.port not in table.local
    }
    for operation, row in enumerate(operations.groups):
        if row in lost:
            yield OperationFailure(operation, Reason.UNKNOWN_NEXT_HOP, lost[row])


def _unsupported(table: Table, operations: Operations) -> Iterator[OperationFailure]:
    rows = zip(operations.matches, operations.groups, strict=True)
    for operation, ((_, _, source_port, destination_port), row) in enumerate(rows):
        pair = source_port == destination_port == ANY_PORT
        needed = Capability.MATCH_PAIR if pair else Capability.MATCH_PORTS
        if row != DELETE and needed not in table.capabilities:
            message = f"the backend lacks {needed.name}: {needed.value}"
            yield OperationFailure(operation, Reason.UNSUPPORTED_MATCH, message)
