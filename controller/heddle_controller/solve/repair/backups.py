"""A backup for every path, which takes over the moment the path breaks.

A backup shares as few links between switches with its path as any way can. It shares no switch
except the two leaves, wherever the candidates allow it; in graphs without tiers, wherever any way
allows it.

*In a fabric of tiers* a backup uses another slot than its path, so another spine, and between zones
another core. An edge colouring (``spread``) of the arcs by which paths leave one leaf and enter the
other decides which slot. This gives a promise as long as no cable of the zone is missing. When a
link between leaf and spine fails, or a whole spine, no arc takes on more than its even share of the
paths that any one arc lost, rounded up: of n paths on an arc, at most ceil(n / (cables of the other
spines)). Where all paths have the same rate, the same holds for load. There is no promise for links
above spines, nor for plans of more paths than ``spread`` colours exactly. In a plan made anew,
backups that no link has room for are then moved (``backup_room``).

A backup begins with its path's own NIC link, since a switch can divert only what reaches it. If the
destination NIC has several links, the backup ends at another leaf. The same holds for a path within
one leaf, whose backups use all slots in turns. Where no switch joins the two leaves, the backup
also begins with another link.

*Elsewhere*, and where the other slot has no usable cable, the backup is the candidate that shares
the fewest links, then the fewest switches. Among equals it is the one that is least full after the
worst single failure of the path's links (``FailureLoads``). Paths are handled one after another.
The only promise is that no failure counts on room that its own flows have already filled.

The load that falls on an arc is kept for each failed link separately. Otherwise all flows of one
link could fall back on the same way, because it looked idle to each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan, arc_loads
from heddle_controller.solve.assignment import inner_paths, with_nics
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.layers import ordinals, spread
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.network import Network
from heddle_controller.solve.repair.backup_room import CLIMB, DOWN, FALL, UP, Turns, with_room

MOST_CELLS = 10_000_000
"""Most links times arcs to keep failure loads of. What falls after further failures is ignored."""

MOST_CORE_TURNS = 4
"""Cores to try with one slot of a backup between zones before trying the next slot."""


def backups_of(
    candidates: Candidates,
    planes: Planes | None,
    flows: Flows,
    paths: Paths,
    loads: Floats | None = None,
) -> Paths:
    """Return a backup for each path, row for row, without arcs where there is none.

    Args:
        candidates: Candidate ways between terminals.
        planes: The tiers of the fabric; None for a graph without tiers.
        flows: The flows of the paths.
        paths: Paths from NIC to NIC.
        loads: Gbit/s on each arc, shape (arcs,). If given, and in tiers, backups that would
            overfill a link are moved to where there is room.
    """
    network = candidates.network
    # Columns: link out of a NIC of several, up to four arcs between switches, link into such a NIC.
    backup = np.full((len(paths), 6), NONE, dtype=np.int64)
    source = network.terminal[flows.source[paths.flow]]
    destination = network.terminal[flows.destination[paths.flow]]
    bare = (source != destination) & (source != NONE) & (destination != NONE)
    if planes is not None:
        inner = _inner_arcs(network, paths)
        bare &= ~_by_slots(planes, (flows, paths, inner), bare, backup)
        if loads is not None:
            _give_room(planes, (loads, paths.gbps(flows)), inner, backup[:, 1:5])
    bare &= (backup == NONE).all(axis=1)
    found = _one_by_one(candidates, flows, (paths, backup), bare) if bare.any() else {}
    lengths = (backup != NONE).sum(axis=1)
    lengths[list(found)] = [len(way) for way in found.values()]
    first = starts(lengths)
    arcs = np.empty(int(first[-1]), dtype=np.int64)
    rest = np.ones(len(arcs), dtype=np.bool_)
    for row, way in found.items():
        own = slice(int(first[row]), int(first[row + 1]))
        arcs[own], rest[own] = way, False
    arcs[rest] = backup[backup != NONE]
    chosen = Paths(paths.flow, paths.first_qp, paths.last_qp, first, arcs)
    return with_nics(network, flows, chosen, lengths > 0)


def _one_by_one(
    candidates: Candidates, flows: Flows, ways: tuple[Paths, Ints], bare: Bools
) -> dict[int, Ints]:
    """Return, by row, a backup for each path marked by ``bare``: the way that shares least with it.

    ``ways`` are all paths and the backups known so far, padded, shape (paths, 6).
    """
    (paths, backup), network = ways, candidates.network
    found: dict[int, Ints] = {}
    failure_loads = _so_far(network, flows, paths, backup, bare)
    idle = np.zeros(network.arc_count + 1)
    only: dict[tuple[int, int, bytes], Ints] = {}
    inner = inner_paths(network, paths)
    for row in np.flatnonzero(bare).tolist():
        taken = inner.of(row)
        links = _risk(network, taken)
        ends = candidates.ends_of(flows, int(paths.flow[row]))
        if len(candidates.between(*ends)) == 1:  # the result is the same for all equal paths
            key = *ends, taken.tobytes()
            if key not in only:
                only[key] = least_shared(candidates, ends, taken, idle)
            found[row] = only[key]
        else:
            used = failure_loads.utilization(links, row)
            found[row] = least_shared(candidates, ends, taken, used)
        failure_loads.note(links, row, found[row])
    return found


def _by_slots(
    planes: Planes, ways: tuple[Flows, Paths, Ints], wanted: Bools, backup: Ints
) -> Bools:
    """Write backups over other slots into ``backup``, with the links of NICs that have several.

    Args:
        planes: The tiers.
        ways: Flows, all paths, and the arcs between switches of each path.
        wanted: Marks the paths that need a backup.
        backup: Arcs of all backups, padded, shape (paths, 6).

    Returns:
        Marks the paths for which no backup need be searched: those not ``wanted``, those without
        arcs, and those for which none can exist.
    """
    flows, paths, inner = ways
    ends = np.full((2, len(paths)), NONE, dtype=np.int64)
    wanted = wanted & (np.diff(paths.first) > 0)
    ends[0, wanted] = paths.arcs[paths.first[:-1][wanted]]
    ends[1, wanted] = paths.arcs[paths.first[1:][wanted] - 1] ^ 1
    climbing = inner[:, 0] != NONE
    rows = np.flatnonzero(wanted & climbing)
    if len(rows):
        destination = flows.destination[paths.flow[rows]]
        _lead(planes, _over_spines(planes, rows, destination, ends[:, rows], inner[rows]), backup)
    rows = np.flatnonzero(wanted & ~climbing)
    if len(rows):
        nics = np.stack([flows.source[paths.flow[rows]], flows.destination[paths.flow[rows]]])
        wanted[rows] = _within_leaf(planes, rows, nics, ends[:, rows], backup)
    return ~wanted


@dataclass(frozen=True, slots=True, eq=False)
class _Detours:
    """Backups to route over other slots than their paths; one element or column for each."""

    rows: Ints
    """Rows of their paths."""
    ends: Ints
    """Arcs that each backup uses out of the source and out of the destination, shape (2, rows)."""
    slots: Ints
    """Slots by which the path leaves its first leaf and enters its last, shape (2, rows).

    ``NONE`` for a path within one leaf.
    """
    spines: Ints
    """First and last spine of the path, shape (2, rows); ``NONE`` for none."""
    core: Ints
    """Slot of the path's core; ``NONE`` for none."""
    beside: Ints
    """Number of the group of paths that fail with this one, at each end, shape (2, rows).

    The backups of each group are spread over the other slots.
    """

    def take(self, chosen: Bools) -> _Detours:
        """Return the marked ones."""
        if chosen.all():
            return self
        columns = self.rows, self.ends, self.slots, self.spines, self.core, self.beside
        return _Detours(*(column[..., chosen] for column in columns))


def _over_spines(
    planes: Planes, rows: Ints, destination: Ints, ends: Ints, inner: Ints
) -> _Detours:
    """Return the backups to route for paths over one spine or one core.

    They end at another leaf if the destination NIC has one. All arrays have one element or column
    for each path: its row, destination NIC, arcs out of both NICs, and arcs between switches.
    """
    network, layer = planes.network, planes.spines
    across = inner[:, 2] != NONE
    core = np.where(across, planes.cores.slot_of_arc[inner[:, 1]], NONE)
    usual = (inner[:, 1] != NONE) & (inner[:, 4] == NONE)
    usual &= ~across | ((inner[:, 3] != NONE) & (core != NONE))
    first, last = inner[:, 0], np.where(across, inner[:, 3], inner[:, 1])
    slots = layer.slot_of_arc[np.stack([first, last ^ 1])]
    beside, enter = np.stack([first, last ^ 1]), ends[1].copy()
    several = np.flatnonzero(network.several[destination] & usual)
    if len(several):
        other = planes.nic_links.others(destination[several], enter[several])
        several, other = several[other != NONE], other[other != NONE]
        enter[several] = other
        # At that leaf, backups are spread over the cables beside the one from the path's own spine.
        leaf, slot = network.head[other], slots[1, several]
        cable = layer.cables(leaf, slot, rows[several])
        hole = network.arc_count + layer.places(leaf, slot)
        beside[1, several] = np.where(cable != NONE, cable, hole)
    detours = _Detours(
        rows,
        np.stack([ends[0], enter]),
        slots,
        np.stack([network.head[first], network.tail[last]]),
        core,
        beside,
    )
    return detours.take(usual & (slots != NONE).all(axis=0))


def _within_leaf(planes: Planes, rows: Ints, nics: Ints, ends: Ints, backup: Ints) -> Bools:
    """Write the backups of paths within one leaf into ``backup``.

    A backup begins with its path's NIC link and ends with another one, as near as possible. Where
    no switch joins the path's leaf with another leaf of the destination, the backup also begins
    with another link.

    Args:
        planes: The tiers.
        rows: Rows of the paths in ``backup``.
        nics: Source and destination NIC of each path, shape (2, rows).
        ends: The arcs that the path uses out of these NICs, shape (2, rows).
        backup: Arcs of all backups, padded, shape (paths, 6).

    Returns:
        Marks the rows for which another way may exist, because a NIC has another link.
    """
    network, head, part = planes.network, planes.network.head_or_none, planes.nic_links.part_of
    links = [planes.nic_links.of(nic) for nic in nics]
    other = [(own != NONE) & (own != arc[:, None]) for own, arc in zip(links, ends, strict=True)]
    leaf = head[ends[0]]
    here = head[links[1]] == leaf[:, None]
    near = [part[own] == part[arc][:, None] for own, arc in zip(links, ends, strict=True)]
    # All paths within the leaf to this destination fail together with its link.
    beside = np.stack([ends[1], network.arc_count + planes.spines.places(leaf, 0)])
    none = np.full((2, len(rows)), NONE, dtype=np.int64)

    def lead(leave: Ints, enter: Ints, where: Bools) -> None:
        bare = (backup[rows] == NONE).all(axis=1) & (leave != NONE) & (enter != NONE)
        detours = _Detours(rows, np.stack([leave, enter]), none, none, none[0], beside)
        _lead(planes, detours.take(bare & where), backup)

    for good in (here, near[1] & ~here, ~near[1]):
        lead(ends[0], _first_marked(links[1], other[1] & good), np.ones_like(leaf, dtype=np.bool_))
    if (backup[rows] == NONE).all(axis=1).any():
        joined = np.append(network.switch_parts(), NONE)
        apart = (joined[leaf][:, None] != joined[head[links[1]]]) | ~other[1]
        apart = apart.all(axis=1)
        for leave in links[0].T:
            meets = head[links[1]] == head[leave][:, None]
            lead(leave, _first_marked(links[1], other[1] & meets), apart & (leave != ends[0]))
        lead(_first_marked(links[0], other[0] & near[0]), ends[1], apart)
    found: Bools = other[0].any(axis=1) | other[1].any(axis=1)
    return found


def _first_marked(values: Ints, marked: Bools) -> Ints:
    """Return the first marked value of each row, or ``NONE`` if none is marked."""
    first: Ints = values[np.arange(len(values)), marked.argmax(axis=1)]
    return np.where(marked.any(axis=1), first, NONE)


def _so_far(
    network: Network, flows: Flows, paths: Paths, backup: Ints, bare: Bools
) -> FailureLoads:
    """Return failure loads of the links under paths marked by ``bare``, from the known backups."""
    failure_loads = FailureLoads(network, flows, paths)
    at_risk = np.zeros(network.arc_count, dtype=np.bool_)
    links = _risk(network, paths.take(np.flatnonzero(bare)).arcs)
    at_risk[2 * links] = at_risk[2 * links + 1] = True
    for row in np.flatnonzero(paths.crosses(at_risk) & (backup[:, 1] != NONE)).tolist():
        links = _risk(network, paths.of(row))
        failure_loads.note(links[at_risk[2 * links]], row, backup[row][backup[row] != NONE])
    return failure_loads


def _risk(network: Network, arcs: Ints) -> Ints:
    """Return the links between switches among the links of some arcs."""
    ends = np.minimum(network.level[network.tail[arcs]], network.level[network.head[arcs]])
    links: Ints = arcs[ends != NodeKind.NIC] >> 1
    return links


def _inner_arcs(network: Network, paths: Paths) -> Ints:
    """Return the first five switch-to-switch arcs of each path, padded, shape (paths, 5)."""
    inner = np.zeros(network.arc_count, dtype=np.bool_)
    inner[network.inner] = True
    owner, keep = paths.owner(), inner[paths.arcs]
    owner, arcs = owner[keep], paths.arcs[keep]
    place = np.arange(len(owner)) - starts(np.bincount(owner, minlength=len(paths)))[owner]
    result = np.full((len(paths), 5), NONE, dtype=np.int64)
    fits = place < result.shape[1]
    result[owner[fits], place[fits]] = arcs[fits]
    return result


def _lead(planes: Planes, detours: _Detours, backup: Ints) -> None:
    """Write backups into ``backup``: over other slots in turns, or direct within one leaf."""
    network, layer = planes.network, planes.spines
    leaves = network.head[detours.ends]
    direct = leaves[0] == leaves[1]
    if direct.any():
        _close(network, detours, direct, backup)
    part = layer.part[leaves]
    width = np.where(part != NONE, layer.width[part], 0)
    others = width - (detours.slots != NONE)
    open_ = ~direct & (others > 0).all(axis=0)
    if not planes.cores.width.any():
        open_ &= part[0] == part[1]
    shift = np.zeros(len(detours.rows), dtype=np.int64)
    shift[open_] = spread(
        detours.beside[0, open_], detours.beside[1, open_], others[0, open_] * layer.parallel
    )
    step = 0
    while open_.any():
        detours, shift = detours.take(open_), shift[open_]
        leaves, width, others = leaves[:, open_], width[:, open_], others[:, open_]
        own = np.where(detours.slots != NONE, detours.slots, width - 1)
        slots = (own + 1 + (shift + step) % others) % width
        up, down = (
            layer.cables(leaf, slot, shift // others[0])
            for leaf, slot in zip(leaves, slots, strict=True)
        )
        good = (up != NONE) & (down != NONE)
        _fill(planes, detours.take(good), (up[good], down[good]), backup)
        step += 1
        open_ = (backup[detours.rows, 1] == NONE) & (others[0] > step)


def _close(network: Network, detours: _Detours, marked: Bools, backup: Ints) -> None:
    """Write the first and last arc of marked backups at NICs that have several links."""
    ends = detours.ends[:, marked]
    chosen = network.choice[ends]
    if chosen.any():
        rows, (out, into) = detours.rows[marked], np.where(chosen, ends, NONE)
        backup[rows, 0], backup[rows, 5] = (
            out,
            np.where(into != NONE, into ^ 1, NONE),
        )


def _give_room(planes: Planes, amounts: tuple[Floats, Floats], inner: Ints, backup: Ints) -> None:
    """Move backups to where links have room, if both path and backup use one spine or one core.

    Args:
        planes: The tiers.
        amounts: Gbit/s on each arc while nothing is lost, and the rate of each path.
        inner: Arcs between switches of each path, padded, shape (paths, 5).
        backup: Arcs between switches of each backup, padded, shape (paths, 4); changed in place.
    """
    network, layer = planes.network, planes.spines
    over = inner[:, 2] != NONE
    turned = (inner[:, 4] == NONE) & (over == (inner[:, 3] != NONE))
    turned &= (over == (backup[:, 2] != NONE)) & (over == (backup[:, 3] != NONE))
    turned &= (inner[:, 1] != NONE) & (backup[:, 1] != NONE)
    rows = np.flatnonzero(turned)
    over = over[rows]
    own, spare = (
        _lanes(way if len(rows) == len(way) else way[rows], over) for way in (inner, backup)
    )
    # A backup that ends at another leaf falls on the cables beside the one from the path's spine.
    leaf, slot = network.tail[spare[DOWN]], layer.slot_of_arc[own[DOWN]]
    moved = np.flatnonzero((leaf != network.tail[own[DOWN]]) & (slot != NONE))
    own[DOWN, moved] = layer.cables(leaf[moved], slot[moved], rows[moved])
    ends = own[UP], own[DOWN], spare[UP], spare[DOWN]
    held = (own[DOWN] != NONE) & (network.tail[own[UP]] == network.tail[spare[UP]])
    held &= np.logical_and.reduce([layer.slot_of_arc[cables] != NONE for cables in ends])
    across = np.flatnonzero(over)
    for cables in (own[CLIMB], own[FALL], spare[CLIMB], spare[FALL]):
        held[across] &= planes.cores.slot_of_arc[cables[across]] != NONE
    if not held.all():
        rows, over, own, spare = rows[held], over[held], own[:, held], spare[:, held]
    moved, to = with_room(planes, amounts[0], Turns(own, spare, amounts[1][rows]))
    rows, over, down = rows[moved], over[moved], to[DOWN] ^ 1
    backup[rows, 0], backup[rows, 1] = to[UP], np.where(over, to[CLIMB], down)
    backup[rows[over], 2], backup[rows[over], 3] = to[FALL, over] ^ 1, down[over]


def moved_backups(planes: Planes, plan: Plan) -> Paths:
    """Return the backups of a plan, with those moved that would overfill a link after a loss."""
    network, backups = planes.network, plan.backups
    known = _inner_arcs(network, backups)
    usual = known[:, 4] == NONE
    after = np.where(usual[:, None], known[:, :4], NONE)
    amounts = plan.loads, plan.paths.gbps(plan.flows)
    _give_room(planes, amounts, _inner_arcs(network, plan.paths), after)
    rows, lane = np.nonzero(usual[:, None] & (after != known[:, :4]))
    # A backup begins with the arc of a NIC, and moving it does not change its length.
    arcs = backups.arcs.copy()
    arcs[backups.first[rows] + 1 + lane] = after[rows, lane]
    return replace(backups, arcs=arcs) if len(rows) else backups


def _lanes(ways: Ints, over: Bools) -> Ints:
    """Return the cables, as upward arcs, of ways over one spine, shape (4, ways).

    Ways marked by ``over`` pass a core. The rows are ``UP``, ``CLIMB``, ``FALL`` and ``DOWN``.
    """
    lanes = np.full((4, len(ways)), NONE, dtype=np.int64)
    lanes[UP], lanes[DOWN] = ways[:, 0], np.where(over, ways[:, 3], ways[:, 1]) ^ 1
    lanes[CLIMB, over], lanes[FALL, over] = ways[over, 1], ways[over, 2] ^ 1
    return lanes


def _fill(planes: Planes, detours: _Detours, arcs: tuple[Ints, Ints], backup: Ints) -> None:
    """Write backups over the spines that ``arcs`` lead to, through a core where zones differ.

    ``arcs`` lead upwards, from the source's leaf and from the destination's leaf.
    """
    network, cores = planes.network, planes.cores
    up, down = arcs
    low, high = network.head[up], network.head[down]
    part = planes.nic_links.part_of[detours.ends]
    within = (detours.core == NONE) & (part[0] == part[1])
    meet = within & (low == high)
    backup[detours.rows[meet], 1], backup[detours.rows[meet], 2] = up[meet], down[meet] ^ 1
    _close(network, detours, meet, backup)
    between = ~within & (low != high)
    between &= (cores.part[low] == cores.part[high]) & (cores.part[low] != NONE)
    # A path within a zone may use a core, by two spines. Its backup avoids both.
    between &= (low != detours.spines[1]) & (high != detours.spines[0])
    if not between.any():
        return
    detours, up, down = detours.take(between), up[between], down[between]
    low, high = low[between], high[between]
    slot = np.maximum(detours.core, 0)
    width = cores.width[cores.part[low]]
    # Backups that leave one spine for the same other spine use all cores and cables in turns.
    ends = np.where(detours.spines != NONE, detours.spines, network.head[detours.ends])
    nodes = network.fabric.node_count
    climbing, falling = ends[0] * nodes + low, ends[1] * nodes + high
    turn = ordinals(climbing)
    # Where both spines lead to the same cores, the path's core slot is its own core: skip it.
    own = (detours.core != NONE) & (cores.part[ends[0]] == cores.part[low])
    for step in range(MOST_CORE_TURNS):
        other = np.where(own, 1 + (turn + step) % np.maximum(width - 1, 1), turn + step)
        shifted = (slot + other) % width
        climb, fall = (
            cores.cables(node, shifted, ordinals(pair * nodes + shifted))
            for node, pair in ((low, climbing), (high, falling))
        )
        good = (climb != NONE) & (fall != NONE) & (backup[detours.rows, 1] == NONE)
        backup[detours.rows[good], 1:5] = np.stack(
            [up[good], climb[good], fall[good] ^ 1, down[good] ^ 1], axis=1
        )
        _close(network, detours, good, backup)


def least_shared(candidates: Candidates, ends: tuple[int, int], taken: Ints, used: Floats) -> Ints:
    """Return the arcs of the way that shares least with a path, as ``SharedLinks`` counts it.

    Among equal candidates it is the least full. If every candidate shares a link (in graphs
    without tiers: a link or a switch), other ways count too if they share less: first those over
    any apex, then any way at all.

    Args:
        candidates: Candidate ways between terminals.
        ends: Terminals of the path.
        taken: Arcs of the path between them.
        used: Utilisation of each arc and of the padding, shape (arcs + 1,).

    Returns:
        Arcs between the terminals; empty if the path is the only way.
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
    if least >= grain:
        out, into = taken[:1], taken[-1:] ^ 1
        direct = np.array([not len(_risk(network, taken))])
        floor = int(floors(network, np.array(ends)[:, None], np.stack([out, into]), direct)[0])
        if least // grain > floor // grain:
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
    """Return the cheapest of all ways and its cost; the known one if none shares less.

    Costs are compared in units of ``grain``.
    """
    network, (chosen, least) = candidates.network, known
    if network.tiered:
        wider = candidates.over_every_apex(*ends)
        cost = shared.of_paths(wider) // grain
        if (cost < least // grain).any():
            chosen, least = wider[cost.argmin()], int(cost.min()) * grain
    source, destination = (np.array([end]) for end in ends)
    for cost in shared.by_arc():  # rare, and slow: this looks at all arcs
        if least < grain:
            break
        _, found = candidates.cheapest.paths(cost.astype(np.float64), source, destination, least)
        cheaper = int(shared.of_paths(found)[0]) if len(found[0]) else least
        if cheaper // grain < least // grain:
            chosen, least = found[0], cheaper
    return chosen, least


OF_SWITCH, OF_LINK, OF_FIRST, OF_BETWEEN, OF_ALL = (1 << bits for bits in (12, 24, 36, 37, 50))
"""Costs of a way compared with a path. A hop costs 1.

``OF_SWITCH`` is for each shared switch and ``OF_LINK`` for each shared link. ``OF_FIRST`` is for
not beginning with the path's link of a NIC that has several. ``OF_BETWEEN`` is added for each
shared link between switches. ``OF_ALL`` stands for a way that shares everything. The steps between
the costs keep the order: no way has as many hops as one switch costs, and so on.
"""


def floors(network: Network, ends: Ints, own: Ints, direct: Bools) -> Ints:
    """Return a cost that no way between terminals is below, whatever switches are up.

    It is what ways must share with the path because the terminals have few links, shape (paths,).

    Args:
        network: The network.
        ends: Source and destination terminal of each path, shape (2, paths).
        own: The arcs by which the path leaves the source and, backwards, the destination, likewise.
        direct: Marks the paths without links between switches.
    """
    several = network.several[ends]
    if not several.any():
        return np.zeros(ends.shape[1], dtype=np.int64)
    (leave, first, out), (enter, last, into) = (_links_at(network, nodes) for nodes in ends)
    alike = [
        (arcs == arc[:, None]) & many[:, None]
        for arcs, arc, many in zip((leave, enter), own, several, strict=True)
    ]
    begins = OF_FIRST * (several[0][:, None] & ~alike[0])
    cost = begins[:, :, None] + OF_LINK * alike[1][:, None, :]
    # The path's last switch, if a way passes another one before it.
    shared = several[1] & ~direct
    shared = (last == network.head[own[1]][:, None]) & shared[:, None]
    cost += OF_SWITCH * (shared[:, None, :] & (first[:, :, None] != last[:, None, :]))
    alone = [same | ~many[:, None] for same, many in zip(alike, several, strict=True)]
    cost[direct[:, None, None] & alone[0][:, :, None] & alone[1][:, None, :]] = OF_ALL
    parts = network.wired_parts
    joined = out[:, :, None] & into[:, None, :]
    joined &= parts[first][:, :, None] == parts[last][:, None, :]
    least: Ints = np.where(joined, cost, OF_ALL).min(axis=(1, 2), initial=OF_ALL)
    return least


def _links_at(network: Network, terminals: Ints) -> tuple[Ints, Ints, Bools]:
    """Return the arcs out of terminals that are NICs, their switches, and which of them exist.

    Each has shape (terminals, links). A switch has one element: the padding, and the switch itself.
    """
    begin, arcs = network.fabric.structure.out
    several = network.several[terminals]
    count = np.where(several, begin[terminals + 1] - begin[terminals], 1)
    link = np.arange(int(count.max(initial=1)))
    there, several = link < count[:, None], several[:, None]
    place = np.minimum(begin[terminals][:, None] + link, len(arcs) - 1)
    leave = np.where(there & several, arcs[place], network.pad)
    there &= np.append(network.usable, True)[leave]
    return leave, np.where(several, network.head_or_none[leave], terminals[:, None]), there


class SharedLinks:
    """Counts what ways between terminals share with one path, as one number: a cost.

    Links between switches cost most, since no switch can repair the loss of a NIC's own link. A
    switch can divert only what reaches it. So at a NIC with several links, a way that begins with
    the path's link costs less than one that does not.
    """

    def __init__(self, network: Network, ends: tuple[int, int], taken: Ints) -> None:
        """Take the terminals and the arcs of the path."""
        self._network, self._start, self._taken = network, ends[0], taken
        several = int(network.several[ends[0]])
        switches = network.head[taken[several:-1]]
        self._first = taken[:several]
        self._switches = switches[(switches != ends[0]) & (switches != ends[1])]
        self._between, self._links = _risk(network, taken), taken[several:] >> 1

    def of_paths(self, ways: Ints) -> Ints:
        """Return the cost of each way, without hops. ``ways`` are rows of arcs, padded."""
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
        """Yield what each arc adds to the cost of a way, its hop included, shape (arcs,).

        If the source NIC has other links than the path's, a second array follows, which rules out
        the path's first link.
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
    """Return how many elements of each row occur in ``some``."""
    count: Ints = (rows[:, :, None] == some).any(axis=2).sum(axis=1).astype(np.int64)
    return count


class FailureLoads:
    """Loads after each single link failure. Arrays are by arc, with the padding last."""

    def __init__(self, network: Network, flows: Flows, paths: Paths) -> None:
        self._network = network
        self._load: Floats = np.append(arc_loads(network.arc_count, flows, paths), 0.0)
        self._gbps = paths.gbps(flows)
        self._fallen: dict[int, Floats] = {}
        self._most = MOST_CELLS // len(self._load)

    def utilization(self, links: Ints, row: int) -> Floats:
        """Return each arc's utilisation after the worst failure of the links, shape (arcs + 1,).

        The rate of path ``row`` is added to every arc. Load that the failure removes from an arc
        is not subtracted, so the result may be too high but never too low.
        """
        fallen = [self._fallen[link] for link in links.tolist() if link in self._fallen]
        worst = np.max(fallen, axis=0) if fallen else 0.0
        after: Floats = (self._load + worst + self._gbps[row]) * self._network.per_gbps
        return after

    def note(self, links: Ints, row: int, backup: Ints) -> None:
        """Record that path ``row`` falls back on arcs ``backup`` when one of ``links`` fails."""
        for link in links.tolist():
            fallen = self._fallen.get(link)
            if fallen is None and len(self._fallen) < self._most:
                fallen = self._fallen[link] = np.zeros(len(self._load), dtype=np.float64)
            if fallen is not None:
                fallen[backup] += self._gbps[row]
