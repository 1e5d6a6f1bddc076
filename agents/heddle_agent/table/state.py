"""What one switch shall hold, what it holds, and what it knows to be down: one frozen value.

Intended and programmed are two facts. They differ in the dirty matches and nowhere else, so once
the backend has taken all of those, programmed simply becomes intended. Mappings are never changed
in place once they are part of a table. A tuple, because a push makes three of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from heddle_agent.fib import Capability, Choice, Group, Link, Match
from heddle_agent.table.groups import Groups
from heddle_agent.table.push import NO_FENCE, Fence

NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Table(NamedTuple):
    """The table of one switch at one moment."""

    groups: Groups
    local: frozenset[tuple[str, str]] = frozenset()
    """Links of this switch, as neighbour and key: what next hops may name."""
    capabilities: frozenset[Capability] = frozenset(Capability)
    table_size: int = 0
    """Entries it may hold; 0 is unlimited."""
    fence: Fence = NO_FENCE
    intended: Mapping[Match, Group] = NOTHING
    programmed: Mapping[Match, Group] = NOTHING
    dirty: Mapping[Match, Group | None] = NOTHING
    """What the backend must set, as it is intended, and (None) delete."""
    stale: frozenset[Match] = frozenset()
    """Intended entries that the last full sync did not name; they forward until swept."""
    rejected: frozenset[Match] = frozenset()
    """Matches that a push named and that could not be taken."""
    completing: int = 0
    """Generation that is whole once nothing is dirty or rejected; 0 for none."""
    whole: int = 0
    """Generation that is held whole; 0 for none."""
    addresses: Mapping[str, str] = NOTHING
    down: frozenset[Link] = frozenset()
    diverted: Mapping[Group, Choice] = NOTHING
    """Groups that are not on their primary."""
