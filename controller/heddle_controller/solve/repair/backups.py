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
colours exactly. In a plan made anew, backups that no link has room for then turn elsewhere
(``backup_room``). A backup begins with its path's own link of the NIC, since switches can
turn aside only what comes to them, and ends at another leaf of a NIC that has several.
So does that of a path within one leaf, over all slots in turns; where no switch joins the
two leaves, it begins with another link, too.

*Elsewhere*, and where another slot is only a hole, it is the candidate that shares the
fewest links, then switches, and is then least full in the worst single failure of the
path's links, with all that falls on it then (``failure_loads``): one path after another,
with no promise but that no failure counts on room that its own flows have filled.

The load that falls on an arc when a link fails is kept for each link by itself, so
that flows of one link do not all fall back on the same way, which looked idle to each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan, arc_loads
from heddle_controller.solve.assignment import with_nics
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.layers import ordinals, spread
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.network import Network
from heddle_controller.solve.repair.backup_room import CLIMB, DOWN, FALL, UP, Turns, with_room
from heddle_controller.solve.repair.carry_over import inner_paths

MOST_CELLS = 10_000_000
"""Links times arcs that are kept account of; the failures of more are not told apart."""

MOST_CORE_TURNS = 4
"""Cores tried for one slot of a backup between zones before the next slot."""


def backups_of(
    candidates: Candidates,
    planes: Planes | None,
    flows: Flows,
    paths: Paths,
    loads: Floats | None = None,
) -> Paths:
    """A backup for each path, without arcs where there is none; parallel to ``paths``.

    Given the ``loads`` of arcs, backups turn to where there is room.
    """
    network = candidates.network
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
    """Backups of the paths marked, by what each shares with its path, and their rows.

    ``ways`` are all paths and, padded, the backups that are known.
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
        if len(candidates.between(*ends)) == 1:  # the same for every such path
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
    """Fills in backups over other slots, with the links of NICs of several before and after.

    ``ways`` are paths, with their flows and the arcs between switches.
    Marks paths that no backup is to be looked for: those not ``wanted``, and those that there
    can be none for.
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
    """Backups to be led over other slots than their paths; one element, or column, for each."""

    rows: Ints
    """Rows of the paths they are for."""
    ends: Ints
    """Arcs out of the source and out of the destination that each takes, shape (2, rows)."""
    slots: Ints
    """Slots of the path, where it leaves the one and enters the other leaf; ``NONE`` for none."""
    spines: Ints
    """The spines in them; ``NONE`` for none."""
    core: Ints
    """Slot of the path's core; ``NONE`` for none."""
    beside: Ints
    """Names of what falls with each path at either end: of these all turn to other slots."""

    def take(self, chosen: Bools) -> _Detours:
        """Those that are marked."""
        if chosen.all():
            return self
        columns = self.rows, self.ends, self.slots, self.spines, self.core, self.beside
        return _Detours(*(column[..., chosen] for column in columns))


def _over_spines(
    planes: Planes, rows: Ints, destination: Ints, ends: Ints, inner: Ints
) -> _Detours:
    """Those of paths over one spine or one core: they end at another leaf where there is one.

    All but ``planes`` is by path.
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
        # There it falls on what is beside the cable from the path's own spine.
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
    """Fills in backups of paths that pass one leaf; marks those that there may be others for.

    They begin with their path's link and end with another, as near as may be. Where no switch
    joins the path's leaf with another of the destination, they begin with another one, too.

    Args:
        planes: The tiers.
        rows: Rows of the paths in ``backup``.
        nics: Source and destination of each, shape (2, rows).
        ends: The arcs out of them that it takes.
        backup: Arcs of all backups, padded.
    """
    network, head, part = planes.network, planes.network.head_or_none, planes.nic_links.part_of
    links = [planes.nic_links.of(nic) for nic in nics]
    other = [(own != NONE) & (own != arc[:, None]) for own, arc in zip(links, ends, strict=True)]
    leaf = head[ends[0]]
    here = head[links[1]] == leaf[:, None]
    near = [part[own] == part[arc][:, None] for own, arc in zip(links, ends, strict=True)]
    # With the link to the destination falls all that comes to it from within the leaf.
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
    """The first value of each row that is marked; ``NONE`` where none is."""
    first: Ints = values[np.arange(len(values)), marked.argmax(axis=1)]
    return np.where(marked.any(axis=1), first, NONE)


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
    place = np.arange(len(owner)) - starts(np.bincount(owner, minlength=len(paths)))[owner]
    result = np.full((len(paths), 5), NONE, dtype=np.int64)
    fits = place < result.shape[1]
    result[owner[fits], place[fits]] = arcs[fits]
    return result


def _lead(planes: Planes, detours: _Detours, backup: Ints) -> None:
    """Fills in backups: over other slots in turns, or over none where both leaves are one."""
    network, layer = planes.network, planes.spines
    leaves = network.head[detours.ends]
    direct = leaves[0] == leaves[1]
    if direct.any():
        _close(network, detours.take(direct), backup)
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


def _close(network: Network, detours: _Detours, backup: Ints) -> None:
    """Puts the links of NICs of several before and after backups."""
    chosen = network.choice[detours.ends]
    if chosen.any():
        out, into = np.where(chosen, detours.ends, NONE)
        backup[detours.rows, 0], backup[detours.rows, 5] = (
            out,
            np.where(into != NONE, into ^ 1, NONE),
        )


def _give_room(planes: Planes, amounts: tuple[Floats, Floats], inner: Ints, backup: Ints) -> None:
    """Moves backups over one spine or one core, of paths over such, to where links have room.

    ``amounts`` are what arcs carry while nothing is lost, and the rates of paths; ``inner`` and
    ``backup`` the arcs between switches.
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
    # A backup may end at another leaf: there it falls on what is beside the path's own spine.
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
    """The backups of a plan, those that links have no room for moved to where there is room."""
    network, backups = planes.network, plan.backups
    known = _inner_arcs(network, backups)
    usual = known[:, 4] == NONE
    after = np.where(usual[:, None], known[:, :4], NONE)
    amounts = plan.loads, plan.paths.gbps(plan.flows)
    _give_room(planes, amounts, _inner_arcs(network, plan.paths), after)
    rows, lane = np.nonzero(usual[:, None] & (after != known[:, :4]))
    # Backups begin with the arc of a NIC, and stay as long as they were.
    arcs = backups.arcs.copy()
    arcs[backups.first[rows] + 1 + lane] = after[rows, lane]
    return replace(backups, arcs=arcs) if len(rows) else backups


def _lanes(ways: Ints, over: Bools) -> Ints:
    """Cables upwards of ways over one spine or, where so marked, over one core."""
    lanes = np.full((4, len(ways)), NONE, dtype=np.int64)
    lanes[UP], lanes[DOWN] = ways[:, 0], np.where(over, ways[:, 3], ways[:, 1]) ^ 1
    lanes[CLIMB, over], lanes[FALL, over] = ways[over, 1], ways[over, 2] ^ 1
    return lanes


def _fill(planes: Planes, detours: _Detours, arcs: tuple[Ints, Ints], backup: Ints) -> None:
    """Writes backups over the spines that arcs lead to, through a core where zones differ.

    ``arcs`` lead upwards, from the source's leaf and from the destination's.
    """
    network, cores = planes.network, planes.cores
    up, down = arcs
    low, high = network.head[up], network.head[down]
    part = planes.nic_links.part_of[detours.ends]
    within = (detours.core == NONE) & (part[0] == part[1])
    meet = within & (low == high)
    backup[detours.rows[meet], 1], backup[detours.rows[meet], 2] = up[meet], down[meet] ^ 1
    _close(network, detours.take(meet), backup)
    between = ~within & (low != high)
    between &= (cores.part[low] == cores.part[high]) & (cores.part[low] != NONE)
    # A path between leaves of one zone may climb to a core by one spine and come down by another.
    between &= (low != detours.spines[1]) & (high != detours.spines[0])
    if not between.any():
        return
    detours, up, down = detours.take(between), up[between], down[between]
    low, high = low[between], high[between]
    slot = np.maximum(detours.core, 0)
    width = cores.width[cores.part[low]]
    # What one spine loses and another takes on goes over all cores and cables in turns.
    ends = np.where(detours.spines != NONE, detours.spines, network.head[detours.ends])
    nodes = network.fabric.node_count
    climbing, falling = ends[0] * nodes + low, ends[1] * nodes + high
    turn = ordinals(climbing)
    # Where all spines share their cores, the same slot is the very core of the path.
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
        _close(network, detours.take(good), backup)


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
