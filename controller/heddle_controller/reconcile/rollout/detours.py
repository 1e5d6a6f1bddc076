"""Entries that lead packets round, and what keeps packets from coming back to them.

Once routing has settled the underlay brings packets nearer to their destination with every
hop. So do entries on a way that is a shortest one of the whole fabric: it is as short on any
part of the fabric that has all its links. An entry on a longer way, a *detour*, may send them
further off first, and is right only as long as they go on that way to its end. Should a switch
beyond it turn them aside instead, because it has its entry of a newer plan already and the way
of that is lost, they may come back.

So before anything changes beyond a detour it is made *guarded*: the same next hop, but at risk by
every link of the new ways of its pair, too. Then it leads on only while all that packets can
meet there carries, whether it is old or new. See the package for the whole argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.model.underlay import underlay
from heddle_controller.reconcile.rollout.columns import Groups, distinct
from heddle_controller.reconcile.rollout.order import LONGEST, paths_between


def detours(entries: Entries, structure: Structure) -> Bools:
    """Which entries send packets on a way longer than the shortest of the whole fabric.

    An entry's risk is every link between switches of its way, or of its ways where QPs part
    further on. They are shortest ways if each link can be come to from its end that is
    further away, by nothing but steps towards the destination.
    """
    reach = underlay(structure).reach
    result = np.zeros(len(entries), dtype=np.bool_)
    if not len(entries) or not reach.distance.size:
        return result
    place = reach.place[entries.destination]
    owner, links = _risks(entries)
    shortest = reach.distance[reach.row[entries.switch], place]
    result[:] = np.bincount(owner, minlength=len(entries)) != shortest
    some = result[owner]  # one way of so many links is a shortest: seldom is there more to ask
    owner, links = owner[some], links[some]
    ends = np.stack([structure.links.a[links], structure.links.b[links]])
    far = reach.distance[reach.row[ends], place[owner]].astype(np.int64)
    upper = np.where(far[0] > far[1], ends[0], ends[1])
    lower = np.where(far[0] > far[1], ends[1], ends[0])
    off_path = ~_met(entries, owner, upper, lower) | (abs(far[0] - far[1]) != 1)
    result[result] = np.bincount(owner[off_path], minlength=len(entries))[result] > 0
    return result


def _met(entries: Entries, owner: Ints, upper: Ints, lower: Ints) -> Bools:
    """Whether the upper end of each link is come to from its entry's switch by going down."""
    nodes = 1 + max(int(column.max(initial=0)) for column in (entries.switch, upper, lower))
    begin, end = owner * nodes + upper, owner * nodes + lower
    found = np.arange(len(entries)) * nodes + entries.switch
    met = np.zeros(len(owner), dtype=np.bool_)
    for _ in range(LONGEST):
        fresh = ~met & np.isin(begin, found)
        if not fresh.any():
            break
        met |= fresh
        found = end[fresh]
    return met


def _risks(entries: Entries) -> tuple[Ints, Ints]:
    """Row of the entry and link, of every risk of a primary."""
    owner = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
    mine = entries.risk_links >= 0
    return owner[mine], entries.risk_links[mine]


@dataclass(frozen=True, slots=True, eq=False)
class NewPaths:
    """Links between switches that the paths of some pairs have in a plan."""

    pairs: Ints
    """Ascending, each once."""
    first: Ints
    """Where the links of each pair begin, shape (pairs + 1,)."""
    links: Ints

    def guarded(self, entries: Entries, pair: Ints) -> Entries:
        """The same entries, at risk by the links of their pairs' ways as well."""
        if not len(entries):
            return entries
        row = Groups(self.pairs).index(pair)[0]
        length = np.diff(self.first)[row]
        owner = np.repeat(np.arange(len(entries)), length)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        more = self.links[np.repeat(self.first[row], length) + within]
        before = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
        codes = np.unique(
            np.stack([np.append(before, owner), np.append(entries.risk_links, more)]), axis=1
        )
        # Of each entry the risks of the primary first, ascending, then those of the backup.
        order = np.lexsort([np.where(codes[1] < 0, ~codes[1], codes[1]), codes[1] < 0, codes[0]])
        first = np.searchsorted(codes[0], np.arange(len(entries) + 1))
        return replace(entries, risk_first=first.astype(np.int64), risk_links=codes[1, order])


def new_paths(plan: Plan, pairs: Ints) -> NewPaths:
    """The ways of some pairs of NICs, by their codes."""
    structure, pairs = plan.fabric.structure, distinct(pairs)
    if not len(pairs):
        return NewPaths(pairs, np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64))
    paths, place = paths_between(plan, pairs)
    switch = structure.nodes.kind != NodeKind.NIC
    inner = switch[structure.tail[paths.arcs]] & switch[structure.head[paths.arcs]]
    codes = distinct(
        place[paths.owner()[inner]] * plan.fabric.link_count + (paths.arcs[inner] >> 1)
    )
    first = np.searchsorted(codes // plan.fabric.link_count, np.arange(len(pairs) + 1))
    return NewPaths(pairs, first.astype(np.int64), codes % plan.fabric.link_count)
