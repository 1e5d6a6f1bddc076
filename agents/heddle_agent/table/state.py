"""What a switch should hold, what it holds, and which links are down, as one frozen value.

Intended and programmed entries are two separate facts. They differ in the dirty matches and nowhere
else, so once the backend has taken all of those, the programmed entries become the intended ones.
Mappings are never changed in place once they are part of a table. The table is a tuple because that
is fast to make, and a push makes three.
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
    """Links of this switch, as neighbour and key. Next hops may name only these."""
    capabilities: frozenset[Capability] = frozenset(Capability)
    table_size: int = 0
    """Number of entries it may hold; 0 is unlimited."""
    fence: Fence = NO_FENCE
    intended: Mapping[Match, Group] = NOTHING
    programmed: Mapping[Match, Group] = NOTHING
    dirty: Mapping[Match, Group | None] = NOTHING
    """Entries that the backend must set to the intended group, or delete (None)."""
    stale: frozenset[Match] = frozenset()
    """Intended entries that the last full sync did not name; they forward until they are swept."""
    rejected: frozenset[Match] = frozenset()
    """Matches whose last operation in a push could not be carried out."""
    completing: int = 0
    """Generation that is held whole once nothing is dirty or rejected; 0 for none."""
    whole: int = 0
    """Generation that the switch holds whole; 0 for none."""
    addresses: Mapping[str, str] = NOTHING
    down: frozenset[Link] = frozenset()
    diverted: Mapping[Group, Choice] = NOTHING
    """Groups that are not on their primary, with their current choice."""
