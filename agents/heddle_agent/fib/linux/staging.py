"""A long batch in short transactions, all of which takes effect in the last of them.

Entries do not forward by themselves but by the number of a group, and a number forwards by its
mark. So the entries of a long batch are given numbers that nobody else has, one for each group that
they join and each mark that they leave. Until all of them are there, these numbers have the marks
that are left: each packet goes on as it did, whether or not its entry has come yet. One short
transaction then gives them the marks of their groups. Entries that the batch removes go after that,
again a piece at a time, wider ones first: none comes to be forwarded by an entry that is to go too.

Should the agent die in the middle, the one after it finds each entry whole, and completes those
that had come.
"""

from __future__ import annotations

from collections.abc import Collection

from heddle_agent.fib.linux.entries import Change, Entries
from heddle_agent.fib.linux.next_hop_groups import NextHopGroups, Staged
from heddle_agent.fib.linux.schema import Shape

_CROSSING = {(True, False), (False, True)}


def groups_before(
    change: Change, entries: Entries, ways: NextHopGroups, shapes: Collection[Shape]
) -> list[Staged] | None:
    """The group of each entry to set, and the mark by which its packets forward now.

    None where there is no such mark: packets of one entry may be told apart by others if some
    entries fix one port alone and some the other.
    """
    if set(shapes) >= _CROSSING:
        return None
    marks = (ways.leads(entries.answering(match)) for match in change.sets)
    return list(zip(change.sets.values(), marks, strict=True))
