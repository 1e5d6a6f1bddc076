"""A second path for every path, used the moment the first breaks.

A backup shares as few links between switches with its path as any way does, and no
switch but the two leaves wherever candidates or (in graphs without tiers) any way at
all allows it.

*In a fabric of tiers* backups take another slot, so another spine, and between zones
another core. Which other slot is an edge colouring (``spread``) of the arcs that paths
leave one leaf and enter the other by. So, as long as no cable of the zone is missing:
when a link between leaf and spine fails, or a whole spine, no arc takes on more than
its even share of the paths that any one arc lost, rounded up: of n paths on an arc, at
most ceil(n / (cables of the other spines)). Where paths have one rate, that is load.
Nothing is promised for links above spines, nor in plans of more paths than ``spread``
colours exactly. A backup begins with its path's own link of the NIC, since switches can
turn aside only what comes to them, and ends at another leaf of a NIC that has several.

*Elsewhere*, and where another slot is only a hole, it is the candidate that shares the
fewest links, then switches, and is then least full in the worst single failure of the
path's links, with all that falls on it then (``failure_loads``): one path after another,
with no promise but that no failure counts on room that its own flows have filled.

The load that falls on an arc when a link fails is kept for each link by itself, so
that flows of one link do not all fall back on the same way, which looked idle to each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, arc_loads
from heddle_controller.solve.assignment import concatenated, with_nics
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.layers import Layer, ordinals, spread
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.network import Network
from heddle_controller.solve.repair.carry_over import inner_paths

MOST_CELLS = 10_000_000
"""Links times arcs that are kept account of; the failures of more are not told apart."""

MOST_CORE_TURNS = 4
"""Cores tried for one slot of a backup between zones before the next slot."""


def backups_of(
    network: Network, candidates: Candidates, planes: Planes | None, flows: Flows, paths: Paths
) -> Paths:
    """A backup for each path, without arcs where there is none; parallel to ``paths``."""
    inner = _inner_arcs(network, paths)
    backup = np.full((len(paths), 6), NONE, dtype=np.int64)
    source = network.terminal[flows.source[paths.flow]]
    destination = network.terminal[flows.destination[paths.flow]]
    attached_ = (source != NONE) & (destination != NONE)
    if planes is not None:
        _by_slots(planes, flows, paths, np.where(attached_[:, None], inner, NONE), backup)
    lengths = (backup != NONE).sum(axis=1)
    bare = (lengths == 0) & (source != destination) & attached_
    pieces: list[Ints] = list(backup) if bare.any() else [backup.ravel()]
    if bare.any():
        failure_loads = _so_far(network, flows, paths, backup, bare)
        idle = np.zeros(network.arc_count + 1)
        only: dict[tuple[int, int, bytes], Ints] = {}
        ways = inner_paths(network, paths)
        for row in np.flatnonzero(bare).tolist():
            taken = ways.of(row)
            links = _risk(network, taken)
            ends = int(source[row]), int(destination[row])
            if len(candidates.between(*ends)) == 1:  # the same for every such path
                key = *ends, taken.tobytes()
                if key not in only:
                    only[key] = least_shared(candidates, ends, taken, idle)
                pieces[row] = only[key]
            else:
                used = failure_loads.utilization(links, row)
                pieces[row] = least_shared(candidates, ends, taken, used)
            lengths[row] = len(pieces[row])
            failure_loads.note(links, row, pieces[row])
    flat = concatenated(pieces)
    chosen = Paths(paths.flow, paths.first_qp, paths.last_qp, starts(lengths), flat[flat != NONE])
    return with_nics(network, flows, chosen, lengths > 0)


def _by_slots(planes: Planes, flows: Flows, paths: Paths, inner: Ints, backup: Ints) -> None:
    """Fills in backups over other slots, with the links of NICs of several before and after."""
    network = planes.network
    filled = np.diff(paths.first) > 0
    ends = paths.arcs[paths.first[:-1][filled]], paths.arcs[paths.first[1:][filled] - 1] ^ 1
    out, into = (np.full(len(paths), NONE, dtype=np.int64) for _ in ends)
    out[filled], into[filled] = (np.where(network.choice[arc], arc, NONE) for arc in ends)
    last = np.where(inner[:, 3] != NONE, inner[:, 3], inner[:, 1])
    last = np.where(last != NONE, last ^ 1, NONE)
    rows = np.flatnonzero((into != NONE) & (last != NONE))
    if len(rows):
        other = planes.nic_links.others(flows.destination[paths.flow[rows]], into[rows])
        leaf = network.head_or_none[other]
        # Where that leaf is the path's first, no spine is needed.
        direct = (other != NONE) & (leaf == network.tail[inner[rows, 0]])
        backup[rows[direct], 0], backup[rows[direct], 5] = out[rows[direct]], other[direct] ^ 1
        last[rows[direct]] = NONE
        found = (other != NONE) & ~direct
        rows, other, leaf = rows[found], other[found], leaf[found]
        cable = planes.spines.cables(leaf, planes.spines.slot_of_arc[last[rows]], rows)
        last[rows], into[rows] = cable, other
    hole = (last == NONE)[:, None]
    _rotate(planes, np.where(hole, NONE, inner), last, backup[:, 1:5])
    chosen = backup[:, 1] != NONE
    backup[chosen, 0], backup[chosen, 5] = (
        out[chosen],
        np.where(into != NONE, into ^ 1, NONE)[chosen],
    )


def _so_far(
    network: Network, flows: Flows, paths: Paths, backup: Ints, bare: Bools
) -> FailureLoads:
    """What falls where with the links of bare paths, as far as backups are known."""
    failure_loads = FailureLoads(network, flows, paths)
    at_risk = np.zeros(network.arc_count, dtype=np.bool_)
    arcs = paths.take(np.flatnonzero(bare)).arcs
    at_risk[arcs] = True
    at_risk[arcs ^ 1] = True
    for row in np.flatnonzero(paths.crosses(at_risk) & (backup[:, 1] != NONE)).tolist():
        links = _risk(network, paths.of(row))
        failure_loads.note(links[at_risk[2 * links]], row, backup[row][backup[row] != NONE])
    return failure_loads


def _risk(network: Network, arcs: Ints) -> Ints:
    """Links between switches that some arcs use."""
    ends = np.minimum(network.level[network.tail[arcs]], network.level[network.head[arcs]])
    links: Ints = arcs[ends != NodeKind.NIC] >> 1
    return links


def _inner_arcs(network: Network, paths: Paths) -> Ints:
    """The switch-to-switch arcs of each path, the first five, padded with ``NONE``."""
    inner = np.zeros(network.arc_count, dtype=np.bool_)
    inner[network.inner] = True
    owner, keep = paths.owner(), inner[paths.arcs]
    owner, arcs = owner[keep], paths.arcs[keep]
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    result = np.full((len(paths), 5), NONE, dtype=np.int64)
    fits = place < result.shape[1]
    result[owner[fits], place[fits]] = arcs[fits]
    return result


def _rotate(planes: Planes, inner: Ints, last: Ints, backup: Ints) -> None:
    """Fills in backups by rotating slots, for paths over one spine or one core.

    ``last`` is the arc, from the leaf upwards, that each would come down to its last leaf by.
    """
    network, layer = planes.network, planes.spines
    usual = (inner[:, 1] != NONE) & ((inner[:, 2] == NONE) | (inner[:, 3] != NONE))
    usual &= inner[:, 4] == NONE
    rows = np.flatnonzero(usual)
    first, last = inner[rows, 0], last[rows]
    inside = (layer.slot_of_arc[first] != NONE) & (layer.slot_of_arc[last] != NONE)
    rows, first, last = rows[inside], first[inside], last[inside]
    wide = [layer.width[layer.part[network.tail[arcs]]] for arcs in (first, last)]
    others = np.maximum(wide[0] - 1, 1)
    shift = spread(first, last, others * _most_parallel(network, layer))
    for step in range(int(wide[0].max(initial=1)) - 1):
        open_ = (backup[rows, 0] == NONE) & (wide[0] > step + 1) & (wide[1] > 1)
        open_ = np.flatnonzero(open_)
        turn, cable = shift[open_] + step, (shift // others)[open_]
        up, down = (
            layer.cables(
                network.tail[arcs[open_]],
                (layer.slot_of_arc[arcs[open_]] + 1 + turn % (width[open_] - 1)) % width[open_],
                cable,
            )
            for arcs, width in zip((first, last), wide, strict=True)
        )
        good = (up != NONE) & (down != NONE)
        fresh = _Spines(rows[open_[good]], up[good], down[good])
        _fill(planes, fresh, inner, backup)


def _most_parallel(network: Network, layer: Layer) -> int:
    """Cables between two switches of a layer, where there are most."""
    arcs = np.flatnonzero((layer.slot_of_arc != NONE) & network.usable)
    pairs = network.tail[arcs] * network.fabric.node_count + network.head[arcs]
    return int(np.unique(pairs, return_counts=True)[1].max(initial=1))


@dataclass(frozen=True, slots=True, eq=False)
class _Spines:
    """The outer arcs of backups, one row each."""

    rows: Ints
    """Rows of the paths they are for."""
    up: Ints
    """Arc from the source's leaf."""
    down: Ints
    """Arc from the destination's leaf, to be travelled backwards."""


def _fill(planes: Planes, spines: _Spines, inner: Ints, backup: Ints) -> None:
    """Writes backups over the spines given, through a core where zones differ."""
    network, cores = planes.network, planes.cores
    rows, up, down = spines.rows, spines.up, spines.down
    within = inner[rows, 2] == NONE
    meet = within & (network.head[up] == network.head[down])
    backup[rows[meet], 0], backup[rows[meet], 1] = up[meet], down[meet] ^ 1
    low, high = network.head[up], network.head[down]
    between = ~within & (low != high)
    between &= (cores.part[low] == cores.part[high]) & (cores.part[low] != NONE)
    # A path between leaves of one zone may climb to a core by one spine and come down by another.
    between &= (low != network.tail[inner[rows, 3]]) & (high != network.head[inner[rows, 0]])
    between = np.flatnonzero(between)
    slot = cores.slot_of_arc[inner[rows[between], 1]]
    width = cores.width[cores.part[low[between]]]
    # What one spine loses and another takes on goes over all cores and cables in turns.
    ends = network.head[inner[rows[between], 0]], network.tail[inner[rows[between], 3]]
    nodes = network.fabric.node_count
    climbing, falling = ends[0] * nodes + low[between], ends[1] * nodes + high[between]
    turns = ordinals(climbing)
    # Where all spines share their cores, the same slot is the very core of the path.
    own = cores.part[ends[0]] == cores.part[low[between]]
    for step in range(MOST_CORE_TURNS):
        other = np.where(own, 1 + (turns + step) % np.maximum(width - 1, 1), turns + step)
        shifted = (slot + other) % width
        climb, fall = (
            cores.cables(node[between], shifted, ordinals(pair * nodes + shifted))
            for node, pair in ((low, climbing), (high, falling))
        )
        good = (climb != NONE) & (fall != NONE) & (backup[rows[between], 0] == NONE)
        chosen = between[good]
        backup[rows[chosen]] = np.stack(
            [up[chosen], climb[good], fall[good] ^ 1, down[chosen] ^ 1], axis=1
        )


def least_shared(candidates: Candidates, ends: tuple[int, int], taken: Ints, used: Floats) -> Ints:
    """The way that shares least with a path, as ``SharedLinks`` counts it.

    Among equal candidates the least full; ``used`` is by arc and padding. Where every candidate
    has a link in common (in graphs without tiers: or a switch), the best way over any apex, or any
    way at all, if it has less. None where there is no other way than the path.
    """
    network, choice = candidates.network, candidates.between(*ends)
    if not len(choice):
        return np.empty(0, dtype=np.int64)
    shared = SharedLinks(network, ends, taken)
    cost = shared.of_paths(choice)
    worst = used[choice].max(axis=1, initial=0.0)
    best = int(np.lexsort((worst, cost))[0])
    chosen, least = choice[best], int(cost[best])
    grain = OF_LINK if network.tiered else OF_SWITCH
    if least >= grain and network.tiered:
        wider = candidates.over_every_apex(*ends)
        cost = shared.of_paths(wider) // grain
        if (cost < least // grain).any():
            chosen, least = wider[cost.argmin()], int(cost.min()) * grain
    if least >= grain:  # seldom, and then all arcs are looked at
        chosen, least = _cheaper(candidates, ends, shared, (chosen, least), grain)
    way: Ints = chosen[chosen != network.pad]
    return way if least < OF_ALL else way[:0]


def _cheaper(
    candidates: Candidates,
    ends: tuple[int, int],
    shared: SharedLinks,
    known: tuple[Ints, int],
    grain: int,
) -> tuple[Ints, int]:
    """The cheapest way of all and its cost, where it has less in common than a known one."""
    chosen, least = known
    source, destination = (np.array([end]) for end in ends)
    for cost in shared.by_arc():
        if least < grain:
            break
        _, found = candidates.cheapest.paths(cost.astype(np.float64), source, destination, least)
        cheaper = int(shared.of_paths(found)[0]) if len(found[0]) else least
        if cheaper // grain < least // grain:
            chosen, least = found[0], cheaper
    return chosen, least


OF_SWITCH, OF_LINK, OF_FIRST, OF_BETWEEN, OF_ALL = (1 << bits for bits in (12, 24, 36, 37, 50))
"""What it costs a way to share a switch or a link with a path, not to share the first link of a
NIC of several, to share a link between switches, all links. A way has fewer hops, of 1 each, than
one switch costs, and shares fewer switches than one link costs, and so on."""


class SharedLinks:
    """What ways from terminal to terminal have in common with one path, as a number.

    No switch can repair the loss of a NIC's own link: those between switches come first. Nor can
    one turn aside what does not come to it: a way that does not begin with its path's link of a
    NIC of several is worse than one that does.
    """

    def __init__(self, network: Network, ends: tuple[int, int], taken: Ints) -> None:
        """``taken`` are the arcs of the path."""
        self._network, self._start, self._taken = network, ends[0], taken
        several = int(network.several[ends[0]])
        switches = network.head[taken[several:-1]]
        self._first = taken[:several]
        self._switches = switches[(switches != ends[0]) & (switches != ends[1])]
        self._between, self._links = _risk(network, taken), taken[several:] >> 1

    def of_paths(self, ways: Ints) -> Ints:
        """The same for rows of arcs, padded."""
        network = self._network
        heads, links = network.head_or_none[ways], ways >> 1
        cost = OF_SWITCH * _counted(heads, self._switches) + OF_LINK * _counted(links, self._links)
        cost += OF_BETWEEN * _counted(links, self._between)
        if len(self._first):
            cost[ways[:, 0] != self._first[0]] += OF_FIRST
        known = np.append(self._taken, network.pad)
        cost[(ways[:, :, None] == known).any(axis=2).all(axis=1)] = OF_ALL
        return cost

    def by_arc(self) -> Iterator[Ints]:
        """What each arc adds to a way, its hop included, shape (arcs,).

        And that for ways by other first links than that of the path alone, if there are any.
        """
        network = self._network
        cost = np.ones(network.arc_count, dtype=np.int64)
        first, arcs = network.fabric.structure.out
        for switch in self._switches.tolist():
            cost[arcs[first[switch] : first[switch + 1]] ^ 1] += OF_SWITCH
        for links, each in ((self._links, OF_LINK), (self._between, OF_BETWEEN)):
            cost[2 * links] += each
            cost[2 * links + 1] += each
        own = arcs[first[self._start] : first[self._start + 1]] if len(self._first) else self._first
        cost[np.setdiff1d(own, self._first)] += OF_FIRST
        yield cost
        if len(own) > 1:
            cost[self._first] = OF_ALL
            yield cost


def _counted(rows: Ints, some: Ints) -> Ints:
    """How many elements of each row are among some."""
    count: Ints = (rows[:, :, None] == some).any(axis=2).sum(axis=1).astype(np.int64)
    return count


class FailureLoads:
    """Loads after each single failure; arrays are by arc, the padding last."""

    def __init__(self, network: Network, flows: Flows, paths: Paths) -> None:
        self._network = network
        self._load: Floats = np.append(arc_loads(network.arc_count, flows, paths), 0.0)
        self._gbps = paths.gbps(flows)
        self._fallen: dict[int, Floats] = {}
        self._most = MOST_CELLS // len(self._load)

    def utilization(self, links: Ints, row: int) -> Floats:
        """The worst over failures of the links, if a path's rate were on every arc then.

        What the failure takes off an arc is not taken off: it may be too much, never too
        little.
        """
        fallen = [self._fallen[link] for link in links.tolist() if link in self._fallen]
        worst = np.max(fallen, axis=0) if fallen else 0.0
        after: Floats = (self._load + worst + self._gbps[row]) * self._network.per_gbps
        return after

    def note(self, links: Ints, row: int, backup: Ints) -> None:
        """A path that uses the links falls back on a backup."""
        for link in links.tolist():
            fallen = self._fallen.get(link)
            if fallen is None and len(self._fallen) < self._most:
                fallen = self._fallen[link] = np.zeros(len(self._load), dtype=np.float64)
            if fallen is not None:
                fallen[backup] += self._gbps[row]
