"""The ledger after switches have listed every entry that they hold.

A digest only says whether a table is one that was expected. It often is not if leaders died half
way through a plan. Then everything that stored plans wanted there may or may not be held. After one
more question every entry is known: wanted ones count as set, and all others go in their turn.

Once nothing is in doubt about a pair of NICs, the order of its entries is found from the entries
themselves. They may come from several plans, so that no plan has their order. Packets are followed:
from a switch with an entry to where the entry leads, and from a switch without one to where the
underlay leads, until the next entry. An entry lies one level above the highest that its packets
go on to. So it is removed before anything that it leads to, "from the source on" (see the package).

An entry whose path is lost may leave its packets to the underlay, and these may come to entries
above it. If that makes a circle, entries and underlay are followed as if no link were lost. That
order stays right when the link comes back. Of two entries that do not lead to each other, the one
nearer to the destination goes first.

No such order exists if entries lead to one another in a circle even then. That can happen with
entries that no packet meets, and with entries for any source port if entries for one port lie in
between. The entries of such a pair of NICs are then the higher the nearer they are to the
destination. The nearest goes first. From its switch, the underlay then comes nearer with every hop
and meets no other entry, whatever else is held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct, ranges
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.program import ANY_PORT, Entries
from heddle_controller.model.underlay import Underlay, underlay
from heddle_controller.plan.diff import difference, partners
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.paths import (
    LONGEST,
    Groups,
    appended,
    crossings_of,
    dead,
    detours,
    lifted,
    longest,
    new_paths,
    pair_codes,
)


def found_holding(ledger: Ledger, told: Entries, switches: Ints) -> Ledger:
    """Return the ledger after ``switches`` (node rows) listed all entries that they hold.

    Rows of the ledger keep their numbers, because pushes may be under way to other switches.
    """
    ledger = ledger.settled()
    here = np.isin(ledger.desired.switch, switches)
    twin = partners(told, ledger.desired)
    differs, _ = difference(told, ledger.desired, twin)
    same = twin != NONE
    same[differs] = False
    strange = np.ones(len(told), dtype=np.bool_)
    strange[twin[same]] = False
    knowledge = ledger.knowledge.doubted(switches).noted("unknown", switches, value=False)
    after = replace(
        ledger,
        ok=np.where(here, same, ledger.ok),
        maybe=ledger.maybe & ~here,
        failed=ledger.failed & ~here,
        present=ledger.present & ~np.isin(ledger.old.switch, switches),
        knowledge=knowledge.noted("unsynced", switches, value=False),
    )
    more = told.take(np.flatnonzero(strange))
    return _with_old(after, more, _heights(ledger, more)) if len(more) else after


def _heights(ledger: Ledger, told: Entries) -> Ints:
    """Return the heights of unwanted entries that switches turned out to hold.

    An entry gets the height of the one that was expected with its match. Without such an entry, it
    lies above all others.
    """
    highest = int(max(ledger.height.max(initial=0), ledger.old_height.max(initial=0))) + 1
    result = np.full(len(told), NONE, dtype=np.int64)
    for rows, entries, height in (
        (ledger.ok | ledger.maybe, ledger.desired, ledger.height),
        (ledger.present, ledger.old, ledger.old_height),
    ):
        some = np.flatnonzero(rows & np.isin(entries.switch, told.switch))
        at = partners(entries.take(some), told)
        found = np.append(height[some], NONE)[at]
        result = np.maximum(result, found)
    return np.where(result == NONE, highest, result)


def _with_old(ledger: Ledger, more: Entries, height: Ints) -> Ledger:
    """Return the ledger with more entries in ``old`` that are held but not wanted."""
    plan, none = ledger.plan, np.zeros(len(more), dtype=np.bool_)
    pair = pair_codes(more.source, more.destination, ledger.fabric.node_count)
    crossings = crossings_of(plan, pair)
    mine = Groups(crossings.pairs)
    near = np.flatnonzero(mine.index(ledger.pair)[1])
    depth = ledger.depth.copy()
    found = crossings.lookup(ledger.desired.switch[near], ledger.pair[near])
    depth[near] = np.where(found == NONE, 2 * ledger.desired.stage[near], 2 * found)
    partner = partners(ledger.desired, more)
    lies = crossings.lookup(more.switch, pair)
    detour = np.append(ledger.detour, detours(more, plan.fabric.structure))
    old_pair = np.append(ledger.old_pair, pair)
    return replace(
        ledger,
        depth=depth,
        old=appended([ledger.old, more]),
        old_pair=old_pair,
        old_depth=np.append(
            ledger.old_depth, np.where((partner == NONE) & (lies != NONE), 2 * lies + 1, NONE)
        ),
        old_height=np.append(ledger.old_height, height),
        partner=np.append(ledger.partner, partner),
        alike=np.append(ledger.alike, none),
        present=np.append(ledger.present, ~none),
        undeletable=np.append(ledger.undeletable, none),
        routed=np.append(ledger.routed, Groups(crossings.crossed()).index(pair)[1]),
        detour=detour,
        guarded=np.append(ledger.guarded, none),
        ways=new_paths(plan, old_pair[detour]),
    )


def in_order(ledger: Ledger, switches: Ints) -> Ledger:
    """Return the ledger with heights in the order in which packets meet the held entries.

    Only pairs that have entries at ``switches``, or were thought to, are changed, and only those
    of which nothing is in doubt any more.
    """
    pairs = _known(ledger, switches)
    rows = np.flatnonzero(ledger.present & pairs.index(ledger.old_pair)[1])
    mine = np.flatnonzero(ledger.ok & pairs.index(ledger.pair)[1])
    several = _several(ledger, rows, mine)
    rows, mine = rows[several[: len(rows)]], mine[several[len(rows) :]]
    if not len(rows):
        return ledger
    together = appended([ledger.old.take(rows), ledger.desired.take(mine)])
    level = levels(together, ledger.fabric)
    lift = pairs.greatest(ledger.pair, ledger.depth) + 1  # above all that is to be made
    height, old_height = ledger.height.copy(), ledger.old_height.copy()
    old_height[rows] = level[: len(rows)] + pairs.of(lift, ledger.old_pair[rows], 0)
    height[mine] = level[len(rows) :] + pairs.of(lift, ledger.pair[mine], 0)
    return replace(ledger, height=height, old_height=old_height)


def _known(ledger: Ledger, switches: Ints) -> Groups:
    """Return the pairs with entries to delete of which nothing is in doubt.

    Only pairs that have, or were thought to have, entries at ``switches`` are considered.
    """
    here, there = (np.isin(one.switch, switches) for one in (ledger.old, ledger.desired))
    touched = Groups(distinct(np.append(ledger.old_pair[here], ledger.pair[there])))
    pairs = distinct(ledger.old_pair[ledger.present & touched.index(ledger.old_pair)[1]])
    unknown = ledger.knowledge.unknown
    wanted = ledger.maybe | (ledger.ok & unknown[ledger.desired.switch])
    other = ledger.present & unknown[ledger.old.switch]
    doubtful = Groups(distinct(np.append(ledger.pair[wanted], ledger.old_pair[other])))
    return Groups(pairs[~doubtful.index(pairs)[1]])


def _several(ledger: Ledger, rows: Ints, mine: Ints) -> Bools:
    """Return for rows of ``old``, then of ``desired``, if their pair spans several switches."""
    pair = np.append(ledger.old_pair[rows], ledger.pair[mine])
    switch = np.append(ledger.old.switch[rows], ledger.desired.switch[mine])
    nodes = ledger.fabric.node_count
    group, count = np.unique(distinct(pair * nodes + switch) // nodes, return_counts=True)
    result: Bools = count[np.searchsorted(group, pair)] > 1
    return result


def levels(entries: Entries, fabric: Fabric) -> Ints:
    """Return the level of each entry: higher than all entries that its packets go on to.

    The levels begin at 0. The entries must contain everything that is held for their pairs of NICs,
    with at most one entry for each switch and match.
    """
    lost = dead(entries, fabric)
    below = underlay(fabric.structure, fabric.carries)
    far, round_ = _along(entries, lost, below, fabric)
    circular = np.flatnonzero(round_)
    if not len(circular):
        return far
    some = entries.take(circular)
    none, near = np.zeros(len(some), dtype=np.bool_), _nearness(some, fabric)
    unlost, round_ = _along(some, none, underlay(fabric.structure), fabric, near)
    far[circular] = np.where(round_, near, unlost)
    return far


def _along(
    entries: Entries, lost: Bools, below: Underlay, fabric: Fabric, least: Ints | None = None
) -> tuple[Ints, Bools]:
    """Return the level of each entry, and whether entries of its pair lead in a circle.

    Args:
        entries: All that is held for their pairs.
        lost: Which entries may leave their packets to their backup or to the underlay.
        below: The underlay.
        fabric: The fabric of the entries.
        least: A lower limit for the level of each entry, or None.
    """
    kinds = _Kinds.of(entries, fabric.node_count)
    states, tail, head = _followed(kinds, entries, lost, below)
    met = kinds.met_at(states)
    # An entry is one row for all kinds of packets that meet it. Other states have their own.
    row = np.where(met != NONE, met, len(entries) + np.arange(len(states)))
    pair = pair_codes(entries.source, entries.destination, fabric.node_count)
    every, one = _beneath(pair * fabric.node_count + entries.switch, entries.source_port)
    upstream, downstream = np.append(row[tail], every), np.append(row[head], one)
    far, endless = longest(len(entries) + len(states), upstream, downstream)
    if least is not None:
        far = lifted(np.append(least, np.zeros_like(states)), upstream, downstream)
    return far[: len(entries)], np.isin(pair, pair[endless[: len(entries)]])


def _beneath(where: Ints, port: Ints) -> tuple[Ints, Ints]:
    """Return rows of entries for any port, and of entries for one port that must go after them.

    The two are of the same pair at the same switch (``where``). If the entry for one port went
    first, its packets would follow the other one, which they did not meet before, and might come
    back.
    """
    every = np.flatnonzero(port == ANY_PORT)
    every = every[np.argsort(where[every], kind="stable")]
    one = np.flatnonzero(port != ANY_PORT)
    at, beside = Groups(where[every]).index(where[one])
    return every[at[beside]], one[beside]


def _nearness(entries: Entries, fabric: Fabric) -> Ints:
    """Return how near each entry's switch is to the destination: greater is nearer.

    It counts hops of the underlay. Of two entries at one switch, the one for any port is greater.
    """
    reach = underlay(fabric.structure, fabric.carries).reach
    if not reach.distance.size:
        return np.zeros(len(entries), dtype=np.int64)
    hops = reach.distance[reach.row[entries.switch], reach.place[entries.destination]]
    every = entries.source_port == ANY_PORT
    near: Ints = 2 * np.maximum(LONGEST - hops.astype(np.int64), 0) + every
    return near


@dataclass(frozen=True, slots=True, eq=False)
class _Kinds:
    """Kinds of packets: those of one pair of NICs and one source port follow the same entries.

    A *state* is a kind together with the switch where a packet of that kind is, as one number.
    """

    destination: Ints
    """Node row of the destination NIC of each kind."""
    nodes: int
    """The fabric's node count."""
    states: Ints
    """The states in which packets meet an entry, ascending."""
    row: Ints
    """The row of that entry, for each state."""

    @classmethod
    def of(cls, entries: Entries, nodes: int) -> _Kinds:
        """Return the kinds of packets that the entries tell apart, and the entries they follow."""
        pair = pair_codes(entries.source, entries.destination, nodes)
        ports = int(entries.source_port.max(initial=0)) + 1
        kind = distinct(np.append(pair * ports + entries.source_port, pair * ports + ANY_PORT))
        first, last = np.searchsorted(kind, [pair * ports, (pair + 1) * ports])
        exact = np.searchsorted(kind, pair * ports + entries.source_port)
        every = entries.source_port == ANY_PORT
        count = np.where(every, last - first, 1)
        row = np.repeat(np.arange(len(entries)), count)
        low = np.where(every, first, exact)
        state = ranges(low, low + count) * nodes + entries.switch[row]
        order = np.lexsort([every[row], state])  # an exact port takes precedence
        states, at = np.unique(state[order], return_index=True)
        return cls(kind // ports % nodes, nodes, states, row[order][at])

    def met_at(self, states: Ints) -> Ints:
        """Return the row of the entry that packets meet in each state, or ``NONE``."""
        at = np.minimum(np.searchsorted(self.states, states), len(self.states) - 1)
        return np.where(self.states[at] == states, self.row[at], NONE)


def _followed(
    kinds: _Kinds, entries: Entries, lost: Bools, below: Underlay
) -> tuple[Ints, Ints, Ints]:
    """Return the states that packets come to from any entry on, and the steps between them.

    Returns:
        The states, ascending, and for each step the row of the state before it and after it.
    """
    fresh = states = kinds.states
    steps: list[Ints] = []
    while len(fresh):
        found = _next(kinds, fresh, entries, lost, below)
        steps.append(found)
        fresh = np.setdiff1d(found[1], states)
        states = distinct(np.append(states, fresh))
    tail, head = np.concatenate(steps, axis=1) if steps else np.zeros((2, 0), dtype=np.int64)
    return states, np.searchsorted(states, tail), np.searchsorted(states, head)


def _next(kinds: _Kinds, states: Ints, entries: Entries, lost: Bools, below: Underlay) -> Ints:
    """Return the steps from some states, shape (2, steps): each state and one that follows it.

    Packets of an entry whose path is lost may follow its primary, its backup or the underlay.
    """
    structure = below.structure
    row = kinds.met_at(states)
    has = row != NONE
    strayed = has & np.append(lost, False)[row]
    spare = strayed & (np.append(entries.backup, NONE)[row] != NONE)
    which, arcs = _out(states[strayed | ~has], kinds, below)
    state = np.concatenate([states[has], states[spare], which])
    arc = np.concatenate([entries.primary[row[has]], entries.backup[row[spare]], arcs])
    head = structure.head[arc]
    on = structure.nodes.kind[head] != NodeKind.NIC
    return np.stack([state, state - state % kinds.nodes + head])[:, on]


def _out(states: Ints, kinds: _Kinds, below: Underlay) -> tuple[Ints, Ints]:
    """Return every next hop of the underlay in some states: the state, and the arc."""
    first, arcs = below.structure.out
    node = states % kinds.nodes
    which = np.repeat(states, first[node + 1] - first[node])
    arc = arcs[ranges(first[node], first[node + 1])]
    leads = below.forwards(arc, kinds.destination[which // kinds.nodes])
    return which[leads], arc[leads]
