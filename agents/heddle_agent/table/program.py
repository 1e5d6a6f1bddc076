"""From the table to the backend and back: pending changes, confirmed changes, adopted entries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import repeat
from operator import is_
from typing import cast

from heddle_agent.fib import Batch, Choice, Group, Link, Match, Steering
from heddle_agent.table.groups import key_of, only
from heddle_agent.table.push import GroupKey
from heddle_agent.table.state import NOTHING, Table


def pending(table: Table) -> Batch:
    """Return everything in which the backend differs from the intended entries."""
    dirty = table.dirty
    deletes: Collection[Match] = ()
    if any(map(is_, dirty.values(), repeat(None))):
        deletes = [match for match, group in dirty.items() if group is None]
        sets: Mapping[Match, Group] = {m: group for m, group in dirty.items() if group is not None}
    else:
        sets = cast("Mapping[Match, Group]", dirty)
    return Batch(sets, deletes, diverted=table.diverted, addresses=table.addresses)


def confirm(table: Table, failed: Collection[Match]) -> Table:
    """Return the table after the backend took ``pending(table)``, except the failed matches."""
    if not failed:
        whole = table.completing if table.completing and not table.rejected else table.whole
        done = table._replace(programmed=table.intended, dirty=NOTHING, whole=whole)
        return _pruned(done)
    programmed = dict(table.programmed)
    for match in table.dirty.keys() - failed:
        if match in table.intended:
            programmed[match] = table.intended[match]
        else:
            programmed.pop(match, None)
    dirty = {match: table.intended.get(match) for match in failed}
    return table._replace(programmed=programmed, dirty=dirty)


def adopt(
    table: Table,
    found: Mapping[Match, Group],
    down: frozenset[Link],
    addresses: Mapping[str, str] | None = None,
) -> tuple[Table, Steering]:
    """Let an empty table take over the entries that the backend already forwards by.

    Returns the table, and the steering that moves groups off the links in ``down``. ``addresses``
    are those with which the entries were programmed, by NIC. A later push that gives a NIC another
    address makes its entries dirty.
    """
    unique = list(dict.fromkeys(found.values()))
    firsts: dict[GroupKey, Group] = {}
    own = {group: firsts.setdefault(key_of(group), group) for group in unique}
    groups = only(table.groups, firsts.values())
    choices = {group: groups.choose(group, down) for group in unique}
    entries = {match: own[group] for match, group in found.items()}
    adopted = table._replace(
        groups=groups,
        intended=entries,
        programmed=entries,
        dirty={match: own[group] for match, group in found.items() if own[group] is not group},
        addresses=addresses or {},
        down=down,
        diverted={own[g]: choice for g, choice in choices.items() if choice is not Choice.PRIMARY},
    )
    return adopted, Steering(choices, down)


def withdraw(table: Table) -> Table:
    """Return a table that intends no entries, so that every flow returns to the underlay."""
    return table._replace(
        intended=NOTHING,
        dirty=dict.fromkeys(table.programmed),
        stale=frozenset(),
        rejected=frozenset(),
        completing=0,
        whole=0,
    )


def _pruned(table: Table) -> Table:
    """Drop groups that no entry uses, once there are many of them."""
    groups, entries = table.groups, len(table.intended)
    if len(groups.by_key) <= 3 * entries + 64 and len(groups.new) < entries + 64:
        return table
    used = set(table.intended.values())
    diverted: Mapping[Group, Choice] = {
        group: choice for group, choice in table.diverted.items() if group in used
    }
    return table._replace(groups=only(table.groups, used), diverted=diverted)
