"""From table to backend and back: what is pending, what has been confirmed, what was found."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from heddle_agent.fib import Batch, Choice, Group, Link, Match, Steering
from heddle_agent.table.groups import key_of, only
from heddle_agent.table.state import Table


def pending(table: Table) -> Batch:
    """Everything in which the backend differs from what is intended."""
    intended = table.intended
    return Batch(
        sets={match: intended[match] for match in table.dirty if match in intended},
        deletes=[match for match in table.dirty if match not in intended],
        diverted=table.diverted,
        addresses=table.addresses,
    )


def confirm(table: Table, failed: Collection[Match]) -> Table:
    """The table after the backend has taken ``pending(table)`` except some matches."""
    if not failed:
        whole = table.completing if table.completing and not table.rejected else table.whole
        done = replace(table, programmed=table.intended, dirty=frozenset(), whole=whole)
        return _pruned(done)
    programmed = dict(table.programmed)
    for match in table.dirty.difference(failed):
        if match in table.intended:
            programmed[match] = table.intended[match]
        else:
            programmed.pop(match, None)
    return replace(table, programmed=programmed, dirty=frozenset(failed))


def adopt(
    table: Table,
    found: Mapping[Match, Group],
    down: frozenset[Link],
    addresses: Mapping[str, str] | None = None,
) -> tuple[Table, Steering]:
    """An empty table takes over what the backend already forwards by, and where it may.

    ``addresses`` are those under which the entries were programmed: a push that gives a NIC
    another one makes its entries dirty.
    """
    unique = list(dict.fromkeys(found.values()))
    groups = only(table.groups, unique)
    own = {group: groups.by_key[key_of(group)] for group in unique}
    choices = {group: groups.choose(group, down) for group in unique}
    entries = {match: own[group] for match, group in found.items()}
    adopted = replace(
        table,
        groups=groups,
        intended=entries,
        programmed=entries,
        dirty=frozenset(match for match, group in found.items() if own[group] is not group),
        addresses=addresses or {},
        down=down,
        diverted={own[g]: choice for g, choice in choices.items() if choice is not Choice.PRIMARY},
    )
    return adopted, Steering(choices, down)


def withdraw(table: Table) -> Table:
    """Intend nothing: every flow goes back to the underlay."""
    return replace(
        table,
        intended={},
        dirty=frozenset(table.programmed),
        stale=frozenset(),
        rejected=frozenset(),
        completing=0,
        whole=0,
    )


def _pruned(table: Table) -> Table:
    """Drop groups without entries once they are the greater part."""
    if len(table.groups.by_key) <= 2 * len(table.intended) + 64:
        return table
    used = set(table.intended.values())
    diverted: Mapping[Group, Choice] = {
        group: choice for group, choice in table.diverted.items() if group in used
    }
    return replace(table, groups=only(table.groups, used), diverted=diverted)
