"""A second path for every path, used the moment the first breaks.

A backup shares no link between switches with its path, and no switch but the two
leaves, wherever candidates or (in graphs without tiers) any way at all allows it.

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
path's links, with all that falls on it then (``aftermath``): one path after another,
with no promise but that no failure counts on room that its own flows have filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, starts
from heddle_controller.solve.aftermath import Aftermath
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.detour import shortest_way
from heddle_controller.solve.export import joined, with_nics
from heddle_controller.solve.layers import Layer
from heddle_controller.solve.network import Network
from heddle_controller.solve.planes import Planes
from heddle_controller.solve.spread import spread

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
        aftermath = _so_far(network, flows, paths, backup, bare)
        idle = np.zeros(network.arc_count + 1)
        only: dict[tuple[int, int, bytes], Ints] = {}
        for row in np.flatnonzero(bare).tolist():
            taken = paths.of(row)
            links = _risk(network, taken)
            ends = int(source[row]), int(destination[row])
            choice = candidates.between(*ends)
            if len(choice) == 1:  # no choice, however full links are: the same for every such path
                key = *ends, links.tobytes()
                if key not in only:
                    only[key] = least_shared(network, choice, taken, idle)
                pieces[row] = only[key]
            else:
                used = aftermath.utilization(links, row)
                pieces[row] = least_shared(network, choice, taken, used)
            lengths[row] = len(pieces[row])
            aftermath.note(links, row, pieces[row])
    flat = joined(pieces)
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
        other = planes.homes.others(flows.destination[paths.flow[rows]], into[rows])
        leaf = network.head_or_none[other]
        found = (other != NONE) & (leaf != network.tail[inner[rows, 0]])
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


def _so_far(network: Network, flows: Flows, paths: Paths, backup: Ints, bare: Bools) -> Aftermath:
    """What falls where with the links of bare paths, as far as backups are known."""
    aftermath = Aftermath(network, flows, paths)
    at_risk = np.zeros(network.arc_count, dtype=np.bool_)
    arcs = paths.take(np.flatnonzero(bare)).arcs
    at_risk[arcs] = True
    at_risk[arcs ^ 1] = True
    for row in np.flatnonzero(paths.crosses(at_risk) & (backup[:, 1] != NONE)).tolist():
        links = _risk(network, paths.of(row))
        aftermath.note(links[at_risk[2 * links]], row, backup[row][backup[row] != NONE])
    return aftermath


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
        fresh = _Spines(rows[open_[good]], up[good], down[good], shift[open_[good]])
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
    turn: Ints
    """How far to rotate cores."""


def _fill(planes: Planes, spines: _Spines, inner: Ints, backup: Ints) -> None:
    """Writes backups over the spines given, through a core where zones differ."""
    network, cores = planes.network, planes.cores
    rows, up, down = spines.rows, spines.up, spines.down
    within = inner[rows, 2] == NONE
    meet = within & (network.head[up] == network.head[down])
    backup[rows[meet], 0], backup[rows[meet], 1] = up[meet], down[meet] ^ 1
    low, high = network.head[up], network.head[down]
    between = np.flatnonzero(
        ~within & (low != high) & (cores.part[low] == cores.part[high]) & (cores.part[low] != NONE)
    )
    slot = cores.slot_of_arc[inner[rows[between], 1]]
    width = cores.width[cores.part[low[between]]]
    # Where all spines share their cores, the same slot is the very core of the path.
    own = cores.part[network.head[inner[rows[between], 0]]] == cores.part[low[between]]
    turns = spines.turn[between]
    for step in range(MOST_CORE_TURNS):
        other = np.where(own, 1 + (turns + step) % np.maximum(width - 1, 1), turns + step)
        shifted = (slot + other) % width
        climb = cores.cables(low[between], shifted, turns)
        fall = cores.cables(high[between], shifted, turns)
        good = (climb != NONE) & (fall != NONE) & (backup[rows[between], 0] == NONE)
        chosen = between[good]
        backup[rows[chosen]] = np.stack(
            [up[chosen], climb[good], fall[good] ^ 1, down[chosen] ^ 1], axis=1
        )


def least_shared(network: Network, choice: Ints, taken: Ints, used: Floats) -> Ints:
    """The candidate with the fewest links between switches in common with a path.

    Among equals one by the same first link of a NIC, since switches turn aside only what
    comes to them; then that of the fewest links and switches in common, then the least
    full; ``used`` is by arc and padding. Where every candidate has something in common a
    way round, if there is one; none if all are the path.
    """
    if not len(choice):
        return np.empty(0, dtype=np.int64)
    heads = network.head_or_none[choice]
    ends = (int(network.tail[choice[0, 0]]), int(heads[0][heads[0] != NONE][-1]))
    risk = _risk(network, taken)
    same = (choice[:, :, None] == np.append(taken, network.pad)).any(axis=2).all(axis=1)
    switches = network.head[taken[:-1]]
    other_link = np.zeros(len(choice), dtype=np.bool_)
    if network.several[ends[0]]:
        other_link, switches = choice[:, 0] != taken[0], switches[1:]
    switches = switches[(switches != ends[0]) & (switches != ends[1])]
    between, switches_shared = _shared(choice >> 1, risk), _shared(heads, switches)
    links_shared = _shared(choice >> 1, taken >> 1)
    worst = used[choice].max(axis=1, initial=0.0)
    keys = (worst, switches_shared, links_shared, other_link, between, same)
    best = int(np.lexsort(keys)[0])
    if switches_shared[best] and not network.tiered:
        apart = ~np.isin(network.tail, switches) & ~np.isin(network.head, switches)
        if len(detour := _detour(network, ends, risk, apart)):
            return detour
    if between[best] and len(detour := _detour(network, ends, risk, network.usable)):
        return detour
    chosen: Ints = choice[best][choice[best] != network.pad]
    return chosen[:0] if same[best] else chosen


def _detour(network: Network, ends: tuple[int, int], risk: Ints, allowed: Bools) -> Ints:
    """The shortest way between two terminals over arcs allowed, not over links at risk.

    Empty where there is none.
    """
    usable = network.usable & allowed
    usable[2 * risk] = False
    usable[2 * risk + 1] = False
    return shortest_way(network, *ends, usable)


def _shared(rows: Ints, taken: Ints) -> Ints:
    """How many elements of each row are among those taken."""
    count: Ints = (rows[:, :, None] == taken).any(axis=2).sum(axis=1)
    return count
