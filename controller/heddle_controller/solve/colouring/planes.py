"""First paths in a fabric of tiers: colour leaf pairs with spines, spine pairs with cores.

Flows of one round run together; they are coloured as one bipartite multigraph of
leaves, which balances every uplink and every downlink at once. A flow between
zones takes the same colour, hence the same plane, in both; which core of the
plane it takes is a second colouring, of spines. Jobs of several phases have one
round for each phase, since their phases never add up.

What a colour promises may be a hole (a dead link, an irregular zone): such flows
stay without a path here and are placed by search. Where NICs have several links, flows
within a zone are coloured around the holes: they are in parts already, and all parts of
all of them would have to be searched.

Which of its links the QPs of a NIC take, where it has several.

The links of a NIC are colours, as spines are colours to a leaf: flows are edges from
NIC to NIC, and an equitable colouring gives every link of every NIC the floor or the
ceiling of its fair share, at both ends at once. Edges that are left over at a NIC are
paired within its *place*, the NICs that share its first leaf, those that leave the place
first: so the leaves of a place have equal shares of what climbs from it, too.

A flow has one colour for both its ends. Where leaves are of several planes that do not
meet below the cores, colour i is plane i at every NIC; so no flow has to change planes,
and what stays within a place passes one leaf. Links of unlike speed are several colours.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, stable_order, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_controller.model.plan import Paths
from heddle_controller.solve.colouring.balanced import equitable_colouring
from heddle_controller.solve.colouring.exchange import Edges, colour_zones
from heddle_controller.solve.colouring.holes import colour_around_holes
from heddle_controller.solve.colouring.layers import Layer, ordinals
from heddle_controller.solve.network import Network

_MOST_COLOURS = 64
"""Beyond so many the counts or speeds of links have no useful common measure."""


class NicLinks:
    """The links of NICs as colours."""

    def __init__(self, network: Network, part: Ints) -> None:
        """``part`` numbers leaves that can meet below the cores, shape (nodes,)."""
        self.network = network
        self._part = part
        self.part_of = np.append(part[network.head], NONE)
        """The part that each arc leads into; ``NONE`` for no arc."""
        self._arcs = network.nic_arc[:, None]
        """The usable arc out of each node by colour, ``NONE`` for none; shape (nodes, colours)."""
        self._own: Bools = self._arcs != NONE
        """Whether that is the colour's own arc, and none that stands in for it."""
        self._place = network.terminal
        groups = self._slots()
        if groups:
            counts = [slots.shape[1] for _, slots in groups]
            width = math.lcm(*counts)
            if width > _MOST_COLOURS:
                width = max(counts)
            self._arcs = np.repeat(self._arcs, width, axis=1)
            self._own = np.repeat(self._own, width, axis=1)
            self._place = self._place.copy()
            for nics, slots in groups:
                chosen = slots[:, np.arange(width) * slots.shape[1] // width]
                self._place[nics] = network.head[chosen[:, 0]]
                self._own[nics] = network.usable[chosen]
                for row in np.flatnonzero(~network.usable[chosen].all(axis=1)).tolist():
                    chosen[row] = self._open(slots[row], chosen[row])
                self._arcs[nics] = chosen

    def _slots(self) -> list[tuple[Ints, Ints]]:
        """NICs of several links, and these links in order of parts, usable or not.

        Those of equally many together, shapes (NICs,) and (NICs, links). Links of unlike speed
        are repeated in proportion to it.
        """
        network, structure = self.network, self.network.fabric.structure
        arcs = np.flatnonzero(network.several[network.tail])
        leaf = network.head[arcs]
        arcs = arcs[np.lexsort((leaf, self._part[leaf], network.tail[arcs]))]
        nics, first, count = np.unique(network.tail[arcs], return_index=True, return_counts=True)
        speed = structure.capacity[arcs]
        even = np.ones(len(nics), dtype=np.bool_)
        if len(nics):
            even = np.minimum.reduceat(speed, first) == np.maximum.reduceat(speed, first)
        found: dict[int, tuple[list[Ints], list[Ints]]] = {}
        for links in np.unique(count[even]).tolist():
            rows = np.flatnonzero(even & (count == links))
            table = arcs[first[rows][:, None] + np.arange(links)]
            found[links] = [nics[rows]], [table]
        for row in np.flatnonzero(~even).tolist():
            own = slice(first[row], first[row] + count[row])
            slots = np.repeat(arcs[own], _proportion(speed[own]))
            group = found.setdefault(len(slots), ([], []))
            group[0].append(nics[row : row + 1])
            group[1].append(slots[None])
        return [(np.concatenate(rows), np.concatenate(table)) for rows, table in found.values()]

    def _open(self, own: Ints, chosen: Ints) -> Ints:
        """Arcs chosen, those unusable replaced by usable ones of the same part in turns."""
        usable = self.network.usable
        if usable[chosen].all():
            return chosen
        part, result = self.part_of, chosen.copy()
        for colour in np.flatnonzero(~usable[chosen]).tolist():
            others = own[usable[own] & (part[own] == part[chosen[colour]])]
            result[colour] = others[colour % len(others)] if len(others) else NONE
        return result

    def choose(self, flows: Flows, rounds: Ints, pieces: Ints | None = None) -> tuple[Ints, Ints]:
        """The arc out of each flow's source, and that out of its destination; shape (flows,).

        ``NONE`` for NICs without any, where the links that are left do not meet, and where
        a flow of the latency class would go a longer way than it has to.
        ``rounds`` says which flows run together. Given whose ``pieces`` they are, those of one
        take turns on the links that both its ends have left, and none stands in for another.
        """
        ends = self._arcs[flows.source], self._arcs[flows.destination]
        width = self._arcs.shape[1]
        colour = np.zeros(len(flows), dtype=np.int64)
        if width > 1:
            several = self.network.several
            rows = np.flatnonzero(several[flows.source] | several[flows.destination])
            fits = self._fits(ends[0][rows], ends[1][rows])
            if pieces is None:
                free = fits.all(axis=1)
                colour[rows] = fits.argmax(axis=1)
            else:
                nics, whose = (flows.source[rows], flows.destination[rows]), pieces[rows]
                own = fits & self._own[nics[0]] & self._own[nics[1]]
                some = own.any(axis=1)
                fits[some] = own[some]
                free = (np.bincount(whose)[whose] % width > 0) & fits.all(axis=1)
                colour[rows] = _in_turns(fits, ordinals(whose))
            rows = rows[free]
            for turn in np.unique(rounds[rows]).tolist():
                own = rows[rounds[rows] == turn]
                place = self._place
                within = place[flows.source[own]] == place[flows.destination[own]]
                own = own[np.lexsort((within, -flows.gbps[own]))]
                colour[own] = self._coloured(flows.source[own], flows.destination[own])
        every = np.arange(len(flows))
        first, second = (end[every, colour] for end in ends)
        if width > 1:
            rows = np.flatnonzero(flows.traffic_class == TrafficClass.LATENCY)
            nics, arcs = (flows.source[rows], flows.destination[rows]), (first[rows], second[rows])
            first[rows[self._is_detour(nics, arcs)]] = NONE
        return first, second

    def of(self, nics: Ints) -> Ints:
        """The usable arcs out of NICs by colour, ``NONE`` for none; shape (NICs, colours)."""
        return self._arcs[nics]

    def others(self, nics: Ints, arcs: Ints) -> Ints:
        """Another link of each NIC, to another leaf of the same part; ``NONE`` where there is none.

        ``arcs`` are those out of the NICs that the others are to stand in for.
        """
        head, part, own = self.network.head_or_none, self.part_of, self._arcs[nics]
        old = arcs[:, None]
        good = (own != NONE) & (head[own] != head[old]) & (part[own] == part[old])
        found: Ints = own[np.arange(len(nics)), good.argmax(axis=1)]
        return np.where(good.any(axis=1), found, NONE)

    def _fits(self, first: Ints, second: Ints) -> Bools:
        """Whether both ends have a link of each colour, and these meet; shape (flows, colours).

        At a leaf where any do, else below the cores, else, between zones, somewhere.
        """
        both = (first != NONE) & (second != NONE)
        fits: Bools = both.copy()
        for label in (self.part_of, self.network.head_or_none):
            here = both & (label[first] == label[second])
            near = here.any(axis=1)
            fits[near] = here[near]
        return fits

    def _is_detour(self, nics: tuple[Ints, Ints], arcs: tuple[Ints, Ints]) -> Bools:
        """Whether other links of two NICs meet nearer than these, at a leaf or below the cores."""
        found = np.zeros(len(arcs[0]), dtype=np.bool_)
        first, second = (self._arcs[nic] for nic in nics)
        for label in (self.part_of, self.network.head_or_none):
            meet = label[first][:, :, None] == label[second][:, None, :]
            meet &= (first != NONE)[:, :, None]
            found |= meet.any(axis=(1, 2)) & (label[arcs[0]] != label[arcs[1]])
        return found

    def _coloured(self, source: Ints, destination: Ints) -> Ints:
        place = self._place
        across = place[source] != place[destination]
        left, right = ([end, 2 * place[end] + across, place[end]] for end in (source, destination))
        return equitable_colouring(source, destination, self._arcs.shape[1], (left[1:], right[1:]))


def _in_turns(marked: Bools, turn: Ints) -> Ints:
    """The column of each row that is marked and so many marked ones after the first, round them."""
    count = np.cumsum(marked, axis=1)
    wanted = turn % np.maximum(count[:, -1], 1) + 1
    column: Ints = (marked & (count == wanted[:, None])).argmax(axis=1)
    return column


def _proportion(speed: Floats) -> Ints:
    """How often each of some links counts, by its speed."""
    milli = np.round(speed * 1000).astype(np.int64)
    times = milli // math.gcd(*milli.tolist())
    return times if times.sum() <= _MOST_COLOURS else np.ones(len(speed), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ColouredPaths:
    """Arcs of each flow that there is a choice about; -1 pads, and fills rows without a path."""

    arcs: Ints
    """Shape (flows, 6): between leaves, and before and after of NICs of several links."""
    placed: Bools


class Planes:
    """The tiers of one network, ready to colour."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.cores = Layer(network, NodeKind.SPINE)
        self.spines = Layer(network, NodeKind.LEAF, group=self.cores.part)
        self._core_links = _links_up(network, NodeKind.SPINE)
        self.nic_links = NicLinks(network, self.spines.part)
        self.around_holes = bool(network.several.any())
        """Whether flows within a zone are coloured around holes."""

    def leaving_holes(self) -> Planes:
        """The same, but flows whose colour has a hole stay without a path."""
        other = copy(self)
        other.around_holes = False
        return other

    def with_states(self, network: Network) -> Planes:
        """The planes of the same fabric after links changed."""
        changed = np.flatnonzero(network.usable != self.network.usable)
        other = copy(self)
        other.network = network
        if (network.level[network.tail[changed]] == NodeKind.NIC).any():
            other.nic_links = NicLinks(network, self.spines.part)
        other.cores = self.cores.with_states(network, changed)
        other.spines = self.spines.with_states(network, changed)
        return other

    def colour(self, flows: Flows, pieces: Ints | None = None) -> ColouredPaths:
        """Paths of flows, as far as colours give them; ``pieces`` as ``NicLinks.choose`` has it."""
        network, level, rounds = self.network, self.network.level, phase_rounds(flows)
        nic_links = self.nic_links.choose(flows, rounds, pieces)
        source, destination = (network.head_or_none[arc] for arc in nic_links)
        arcs = np.full((len(flows), 4), NONE, dtype=np.int64)
        here = (source != NONE) & (destination != NONE)
        here &= (level[source] == NodeKind.LEAF) & (level[destination] == NodeKind.LEAF)
        part = self.spines.part
        choice = np.flatnonzero(here & (source != destination) & (part[source] != NONE))
        for turn in np.unique(rounds[choice]).tolist():
            rows = choice[rounds[choice] == turn]
            rows = rows[np.lexsort((-flows.qps[rows], -flows.gbps[rows]))]
            for chosen in self._alike(source[rows], destination[rows]):
                self._colour_round(rows[chosen], flows, (source, destination), arcs)
        self._through_cores(choice, source, destination, arcs)
        placed = (arcs[:, 0] != NONE) | (here & (source == destination))
        out, into = (np.where(placed & network.choice[arc], arc, NONE) for arc in nic_links)
        ways = [out[:, None], arcs, np.where(into != NONE, into ^ 1, NONE)[:, None]]
        return ColouredPaths(np.concatenate(ways, axis=1), placed)

    def _alike(self, source: Ints, destination: Ints) -> list[Ints]:
        """Splits flows by the colours of their parts; those of unlike parts drop out."""
        part = self.spines.part
        signature: dict[int, tuple[bytes, bytes]] = {}
        for p in np.unique(np.concatenate([part[source], part[destination]])).tolist():
            if p != NONE:
                slots = self.spines.colours(p)
                signature[p] = (slots.tobytes(), self.spines.groups(p).tobytes())
        kinds = {s: i for i, s in enumerate(dict.fromkeys(c[0] for c in signature.values()))}
        code = np.full(len(part) + 1, NONE, dtype=np.int64)
        exact = {s: i for i, s in enumerate(dict.fromkeys(signature.values()))}
        plane = np.full(len(part) + 1, NONE, dtype=np.int64)
        for p, sign in signature.items():
            code[p], plane[p] = kinds[sign[0]], exact[sign]
        first, second = part[source], part[destination]
        fits = (first == second) | (plane[first] == plane[second])
        fits &= second != NONE
        return [np.flatnonzero(fits & (code[first] == kind)) for kind in range(len(kinds))]

    def _colour_round(self, rows: Ints, flows: Flows, ends: tuple[Ints, Ints], arcs: Ints) -> None:
        """Leaf-to-spine and spine-to-leaf arcs of flows whose parts are alike."""
        if not len(rows):
            return
        spines = self.spines
        left, right = (end[rows] for end in ends)
        slots = spines.colours(int(spines.part[left[0]]))
        edges = Edges(left, right, spines.part[left], spines.part[right])
        if self.around_holes and not len(edges.cross):
            leaves = np.flatnonzero(np.bincount(np.append(left, right)))
            if (spines.width_of(leaves, slots) < 1).any():
                self._colour_parts(rows, flows, ends, arcs)
                return
        group = spines.groups(int(spines.part[left[0]]))[slots]
        gbps = flows.gbps[rows]
        alike = bool((gbps == gbps[0]).all())
        rise, fall = colour_zones(edges, group, self._core_links if alike else 0)
        up, down = spines.in_turns(left, slots[rise]), spines.in_turns(right, slots[fall])
        whole = (up != NONE) & (down != NONE)
        arcs[rows[whole], 0] = up[whole]
        arcs[rows[whole], 3] = down[whole] ^ 1

    def _colour_parts(self, rows: Ints, flows: Flows, ends: tuple[Ints, Ints], arcs: Ints) -> None:
        """The same of flows within parts of the fabric, around holes, part by part."""
        spines = self.spines
        # What is too much for a leaf falls to the last: these should be of as many flows.
        nics = flows.source[rows] * self.network.fabric.node_count + flows.destination[rows]
        rows = rows[stable_order(ordinals(nics))]
        part = spines.part[ends[0][rows]]
        for one in np.unique(part).tolist():
            own = rows[part == one]
            slots = spines.colours(one)
            left, right = (end[own] for end in ends)
            vertices, place = np.unique(np.append(left, right), return_inverse=True)
            wide = spines.width_of(vertices, slots)
            if (wide == 1).all():
                colour = equitable_colouring(left, right, len(slots))
            else:
                rate = flows.gbps[own]
                line = spines.line(one) / rate[0] if (rate == rate[0]).all() else float(len(own))
                two = place[: len(own)], place[len(own) :]
                colour = colour_around_holes(*two, (wide, wide), line)
            found = np.flatnonzero(colour != NONE)
            slot = slots[colour[found]]
            arcs[own[found], 0] = spines.in_turns(left[found], slot)
            arcs[own[found], 3] = spines.in_turns(right[found], slot) ^ 1

    def _through_cores(self, choice: Ints, source: Ints, destination: Ints, arcs: Ints) -> None:
        """Fills in the core of flows between parts and closes the ranks of the others."""
        part = self.spines.part
        cross = part[source[choice]] != part[destination[choice]]
        inside = choice[~cross]
        arcs[inside, 1] = arcs[inside, 3]
        arcs[inside, 3] = NONE
        rows = choice[cross & (arcs[choice, 0] != NONE)]
        low, high = self.network.head[arcs[rows, 0]], self.network.tail[arcs[rows, 3]]
        plane = self.cores.part[low]
        joined = (plane == self.cores.part[high]) & (plane != NONE)
        for p in np.unique(plane[joined]).tolist():
            chosen = np.flatnonzero(joined & (plane == p))
            slots = self.cores.colours(p)
            ends = low[chosen], high[chosen]
            slot = slots[equitable_colouring(*ends, len(slots))]
            up, down = (self.cores.in_turns(end, slot) for end in ends)
            whole = (up != NONE) & (down != NONE)
            arcs[rows[chosen[whole]], 1] = up[whole]
            arcs[rows[chosen[whole]], 2] = down[whole] ^ 1
        arcs[rows[arcs[rows, 1] == NONE]] = NONE


def _links_up(network: Network, level: int) -> int:
    """Usable links upwards that every node of a tier with any has at least; 0 for none."""
    rising = network.usable & (network.level[network.tail] == level)
    rising &= network.level[network.head] == level + 1
    count = np.unique(network.tail[rising], return_counts=True)[1]
    return int(count.min()) if len(count) else 0


def coloured_paths(
    planes: Planes, flows: Flows, rows: Ints, *, on_links_left: bool = False
) -> Paths:
    """Paths between terminals as colours give them. A row named n times goes in n parts.

    ``rows`` name flows, in order, each at most as often as it has QPs; parts differ by
    one QP at most. Flows that colours do not place whole are left out. ``on_links_left`` gives
    the parts of a flow to links of its NICs in turns (``NicLinks.choose``).
    """
    parts = np.bincount(rows, minlength=len(flows))[rows]
    pieces = flows.take(rows)
    share = pieces.qps // parts + (ordinals(rows) < pieces.qps % parts)
    pieces = replace(pieces, gbps=pieces.gbps * share / pieces.qps, qps=share)
    coloured = planes.colour(pieces, rows if on_links_left else None)
    whole = np.bincount(rows[coloured.placed], minlength=len(flows))[rows] == parts
    rows, arcs, share = rows[whole], coloured.arcs[whole], share[whole]
    if parts.max(initial=1) > 1:
        order = np.lexsort((*arcs.T, rows))
        rows, arcs, share = rows[order], arcs[order], share[order]
    # Parts of one flow on the same path become one.
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (np.diff(rows) != 0) | (np.diff(arcs, axis=0) != 0).any(axis=1)
    first = np.flatnonzero(new)
    row, arcs = rows[first], arcs[first]
    ends = np.cumsum(np.add.reduceat(share, first)) if len(first) else first
    begin = np.append(0, ends[:-1])[: len(ends)]
    base = begin[np.searchsorted(row, row)]
    # Between leaves there are 0 arcs within one, 2 in a zone, 4 beyond it.
    lengths = (arcs != NONE).sum(axis=1)
    return Paths(row, begin - base, ends - base - 1, starts(lengths), arcs[arcs != NONE])


def phase_rounds(flows: Flows) -> Ints:
    """Which colouring each flow takes part in: 0, or the place of its phase in its job.

    A job's first phase is its most demanding one.
    """
    jobs, phases = len(flows.job_names), len(flows.phase_names)
    if not phases or not len(flows):
        return np.zeros(len(flows), dtype=np.int64)
    phased = flows.phase != ANY_PHASE
    code = flows.job * phases + np.where(phased, flows.phase, 0)
    demand = np.bincount(code[phased], weights=flows.gbps[phased], minlength=jobs * phases)
    place = np.argsort(np.argsort(-demand.reshape(jobs, phases), axis=1, kind="stable"), axis=1)
    return np.where(phased, place[flows.job, flows.phase], 0).astype(np.int64)
