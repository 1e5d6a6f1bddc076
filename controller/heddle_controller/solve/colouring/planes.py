"""First paths in a fabric with tiers: colour pairs of leaves by spine, pairs of spines by core.

Flows of one round run at the same time. They are coloured as one bipartite multigraph of leaves,
which balances every uplink and every downlink at once. A flow between zones takes the same colour,
and hence the same plane, in both. A second colouring, of spines, picks the core within the plane.
Jobs with several phases have a round for each phase, since their phases never add up.

A colour may be a hole at a switch (a dead link, an irregular zone). Flows with such a colour get no
path here and are placed by search. Where NICs have several links, flows within a zone are coloured
around the holes instead: they are split into parts already, and search would have to handle all
parts of all of them.

``NicLinks`` decides which of its links the QPs of a NIC with several links take. The links of a NIC
are colours, as spines are colours for a leaf. Flows are edges from NIC to NIC, and an equitable
colouring gives every link of every NIC the floor or the ceiling of its fair share, at both ends at
once. Edges left over at a NIC are paired within its *place*, the NICs with the same first leaf, and
those that leave the place come first. So the leaves of a place get equal shares of the traffic that
goes up from it, too.

A flow has one colour for both its ends. Where leaves belong to several planes that do not meet
below the cores, colour i is plane i at every NIC. So no flow has to change planes, and traffic
within a place passes one leaf. Links of unlike speed count as several colours.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, distinct, stable_order, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_controller.model.plan import Paths
from heddle_controller.solve.colouring.balanced import equitable_colouring, striped_colouring
from heddle_controller.solve.colouring.exchange import Edges, colour_zones
from heddle_controller.solve.colouring.holes import colour_around_holes
from heddle_controller.solve.colouring.layers import Layer, ordinals
from heddle_controller.solve.network import Network

_MOST_COLOURS = 64
"""Most colours. Where numbers or speeds of links would need more, colours are not in exact
proportion to them."""


class NicLinks:
    """The links of NICs as colours."""

    def __init__(self, network: Network, part: Ints) -> None:
        """Build the table. ``part`` numbers leaves that meet below the cores, shape (nodes,)."""
        self.network = network
        self._part = part
        self.part_of = np.append(part[network.head], NONE)
        """The part that each arc leads into; ``NONE`` for no arc."""
        self._arcs = network.nic_arc[:, None]
        """The usable arc out of each node by colour, ``NONE`` for none; shape (nodes, colours)."""
        self._own: Bools = self._arcs != NONE
        """Whether that is the colour's own arc and not a substitute."""
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
        """Return NICs with several links, and these links in order of parts, usable or not.

        NICs with equally many are grouped, shapes (NICs,) and (NICs, links). Links of unlike speed
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
        for links in distinct(count[even]).tolist():
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
        """Replace unusable arcs by usable ones of the same part in turns, else by ``NONE``."""
        usable = self.network.usable
        if usable[chosen].all():
            return chosen
        part, result = self.part_of, chosen.copy()
        for colour in np.flatnonzero(~usable[chosen]).tolist():
            others = own[usable[own] & (part[own] == part[chosen[colour]])]
            result[colour] = others[colour % len(others)] if len(others) else NONE
        return result

    def choose(self, flows: Flows, rounds: Ints, pieces: Ints | None = None) -> tuple[Ints, Ints]:
        """Return the arc out of each flow's source and that out of its destination, shape (flows,).

        ``NONE`` for NICs without a usable link, where the usable links of both do not meet, and, as
        the source's arc, where a flow of the latency class would take a longer path than necessary.

        Args:
            flows: The flows.
            rounds: Round of each flow; flows of one round run at the same time.
            pieces: The flow that each row is a piece of, if rows are pieces. Pieces of a flow then
                take turns on the links that are usable at both ends, and use no substitutes where
                they can avoid them.
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
            for turn in distinct(rounds[rows]).tolist():
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
        """Return the usable arcs out of NICs, shape (NICs, colours), ``NONE`` for none."""
        return self._arcs[nics]

    def others(self, nics: Ints, arcs: Ints) -> Ints:
        """Return another link of each NIC, to another leaf of the same part; ``NONE`` if none.

        ``arcs`` are the arcs out of the NICs that the result is to replace.
        """
        head, part, own = self.network.head_or_none, self.part_of, self._arcs[nics]
        old = arcs[:, None]
        good = (own != NONE) & (head[own] != head[old]) & (part[own] == part[old])
        found: Ints = own[np.arange(len(nics)), good.argmax(axis=1)]
        return np.where(good.any(axis=1), found, NONE)

    def _fits(self, first: Ints, second: Ints) -> Bools:
        """Return which colours have a link at both ends that meet; shape (flows, colours).

        Only colours that meet at a leaf count if there are any, else those that meet below the
        cores. If there are none of these either, all colours with links at both ends count.
        """
        both = (first != NONE) & (second != NONE)
        fits: Bools = both.copy()
        for label in (self.part_of, self.network.head_or_none):
            here = both & (label[first] == label[second])
            near = here.any(axis=1)
            fits[near] = here[near]
        return fits

    def _is_detour(self, nics: tuple[Ints, Ints], arcs: tuple[Ints, Ints]) -> Bools:
        """Return whether other links of two NICs meet nearer: at a leaf, or below the cores."""
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
    """Return a marked column of each row: number ``turn``, counted from 0 and cyclically."""
    count = np.cumsum(marked, axis=1)
    wanted = turn % np.maximum(count[:, -1], 1) + 1
    column: Ints = (marked & (count == wanted[:, None])).argmax(axis=1)
    return column


def _proportion(speed: Floats) -> Ints:
    """Return how often each link of a NIC counts, by its speed."""
    milli = np.round(speed * 1000).astype(np.int64)
    times = milli // math.gcd(*milli.tolist())
    return times if times.sum() <= _MOST_COLOURS else np.ones(len(speed), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ColouredPaths:
    """The arcs that colours give to flows."""

    arcs: Ints
    """Shape (flows, 6): up to four arcs between leaves, and before and after them those of NICs
    with several links. -1 pads, and fills rows without a path."""
    placed: Bools


class Planes:
    """The tiers of one network, prepared for colouring."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.cores = Layer(network, NodeKind.SPINE)
        self.spines = Layer(network, NodeKind.LEAF, group=self.cores.part)
        self._core_links = _links_up(network, NodeKind.SPINE)
        self.nic_links = NicLinks(network, self.spines.part)
        self.around_holes = bool(network.several.any())
        """Whether flows within a zone are coloured around holes."""

    def leaving_holes(self) -> Planes:
        """Return the same planes, but flows whose colour has a hole get no path."""
        other = copy(self)
        other.around_holes = False
        return other

    def with_states(self, network: Network) -> Planes:
        """Return the planes of the same fabric after links changed."""
        changed = np.flatnonzero(network.usable != self.network.usable)
        other = copy(self)
        other.network = network
        if (network.level[network.tail[changed]] == NodeKind.NIC).any():
            other.nic_links = NicLinks(network, self.spines.part)
        other.cores = self.cores.with_states(network, changed)
        other.spines = self.spines.with_states(network, changed)
        return other

    def colour(self, flows: Flows, pieces: Ints | None = None) -> ColouredPaths:
        """Return paths of flows as far as colours give them.

        ``pieces`` is as in ``NicLinks.choose``.
        """
        network, level, rounds = self.network, self.network.level, phase_rounds(flows)
        nic_links = self.nic_links.choose(flows, rounds, pieces)
        source, destination = (network.head_or_none[arc] for arc in nic_links)
        arcs = np.full((len(flows), 4), NONE, dtype=np.int64)
        here = (source != NONE) & (destination != NONE)
        here &= (level[source] == NodeKind.LEAF) & (level[destination] == NodeKind.LEAF)
        part = self.spines.part
        choice = np.flatnonzero(here & (source != destination) & (part[source] != NONE))
        # Only phases make it matter whose a flow is: those of a job share no time.
        job = np.where(flows.phase == ANY_PHASE, NONE, flows.job)
        kinds = job[choice], -flows.qps[choice], -flows.gbps[choice], rounds[choice]
        choice = choice[np.lexsort(kinds)]
        for turn in distinct(rounds[choice]).tolist():
            rows = choice[rounds[choice] == turn]
            for chosen in self._alike(source[rows], destination[rows]):
                self._colour_round(rows[chosen], flows, (source, destination), arcs)
        self._through_cores(choice, source, destination, arcs)
        placed = (arcs[:, 0] != NONE) | (here & (source == destination))
        out, into = (np.where(placed & network.choice[arc], arc, NONE) for arc in nic_links)
        ways = [out[:, None], arcs, np.where(into != NONE, into ^ 1, NONE)[:, None]]
        return ColouredPaths(np.concatenate(ways, axis=1), placed)

    def _alike(self, source: Ints, destination: Ints) -> list[Ints]:
        """Group flows by the colours of their parts. Flows between unlike parts are left out."""
        part = self.spines.part
        signature: dict[int, tuple[bytes, bytes]] = {}
        for p in distinct(np.concatenate([part[source], part[destination]])).tolist():
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
        """Fill in leaf-to-spine and spine-to-leaf arcs of flows whose parts are alike."""
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
        """Do the same for flows within parts of the fabric, around holes, part by part."""
        spines = self.spines
        # What is too much for a leaf falls to its last edges, which should belong to different
        # flows.
        nics = flows.source[rows] * self.network.fabric.node_count + flows.destination[rows]
        rows = rows[stable_order(ordinals(nics))]
        part = spines.part[ends[0][rows]]
        for one in distinct(part).tolist():
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
        """Fill in the core of flows between parts, and close the gap in the rows of other flows."""
        part = self.spines.part
        cross = part[source[choice]] != part[destination[choice]]
        inside = choice[~cross]
        arcs[inside, 1] = arcs[inside, 3]
        arcs[inside, 3] = NONE
        rows = choice[cross & (arcs[choice, 0] != NONE)]
        low, high = self.network.head[arcs[rows, 0]], self.network.tail[arcs[rows, 3]]
        plane = self.cores.part[low]
        joined = (plane == self.cores.part[high]) & (plane != NONE)
        for p in distinct(plane[joined]).tolist():
            chosen = np.flatnonzero(joined & (plane == p))
            slots = self.cores.colours(p)
            ends = low[chosen], high[chosen]
            slot = slots[striped_colouring(*ends, len(slots))]
            up, down = (self.cores.in_turns(end, slot) for end in ends)
            whole = (up != NONE) & (down != NONE)
            arcs[rows[chosen[whole]], 1] = up[whole]
            arcs[rows[chosen[whole]], 2] = down[whole] ^ 1
        arcs[rows[arcs[rows, 1] == NONE]] = NONE


def _links_up(network: Network, level: int) -> int:
    """Return the fewest usable links up of any node of a tier that has some; 0 if none has."""
    rising = network.usable & (network.level[network.tail] == level)
    rising &= network.level[network.head] == level + 1
    count = np.unique(network.tail[rising], return_counts=True)[1]
    return int(count.min()) if len(count) else 0


def coloured_paths(
    planes: Planes, flows: Flows, rows: Ints, *, on_links_left: bool = False
) -> Paths:
    """Return paths between terminals as colours give them.

    A row that occurs n times is split into n parts. Flows that colours do not place completely are
    left out.

    Args:
        planes: The tiers.
        flows: All flows.
        rows: Flow rows, ascending, each at most as often as the flow has QPs. Parts of a flow
            differ by at most one QP.
        on_links_left: Whether the parts of a flow take the links of its NICs in turns
            (``NicLinks.choose``).
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
    # Join parts of one flow on the same path.
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (np.diff(rows) != 0) | (np.diff(arcs, axis=0) != 0).any(axis=1)
    first = np.flatnonzero(new)
    row, arcs = rows[first], arcs[first]
    ends = np.cumsum(np.add.reduceat(share, first)) if len(first) else first
    begin = np.append(0, ends[:-1])[: len(ends)]
    base = begin[np.searchsorted(row, row)]
    # Between leaves there are 0 arcs within a leaf, 2 in a zone, 4 between zones.
    lengths = (arcs != NONE).sum(axis=1)
    return Paths(row, begin - base, ends - base - 1, starts(lengths), arcs[arcs != NONE])


def phase_rounds(flows: Flows) -> Ints:
    """Return the round of colouring for each flow: 0, or the rank of its phase in its job.

    The most demanding phase of a job has rank 0; of equals, the one with the largest flow.
    """
    jobs, phases = len(flows.job_names), len(flows.phase_names)
    if not phases or not len(flows):
        return np.zeros(len(flows), dtype=np.int64)
    phased = flows.phase != ANY_PHASE
    code = flows.job * phases + np.where(phased, flows.phase, 0)
    demand = np.bincount(code[phased], weights=flows.gbps[phased], minlength=jobs * phases)
    most = np.zeros(jobs * phases)
    np.maximum.at(most, code[phased], flows.gbps[phased])
    # Sums of many small rates differ from that of few large ones by rounding alone.
    keys = -most.reshape(jobs, phases), -demand.astype(np.float32).reshape(jobs, phases)
    place = np.argsort(np.lexsort(keys, axis=1), axis=1)
    return np.where(phased, place[flows.job, flows.phase], 0).astype(np.int64)
