"""Which of its links the QPs of a NIC take, where it has several.

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

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.flows import Flows, TrafficClass
from heddle_controller.solve.colouring.balanced import equitable_colouring
from heddle_controller.solve.network import Network

_MOST_COLOURS = 64
"""Beyond so many the counts or speeds of links have no useful common measure."""


class NicLinks:
    """The links of NICs as colours."""

    def __init__(self, network: Network, part: Ints) -> None:
        """``part`` numbers leaves that can meet below the cores, shape (nodes,)."""
        self.network = network
        self._part = part
        self._part_of = np.append(part[network.head], NONE)
        """The part that each arc leads into."""
        self._arcs = network.nic_arc[:, None]
        """The usable arc out of each node by colour, ``NONE`` for none; shape (nodes, colours)."""
        self._place = network.terminal
        groups = self._slots()
        if groups:
            counts = [slots.shape[1] for _, slots in groups]
            width = math.lcm(*counts)
            if width > _MOST_COLOURS:
                width = max(counts)
            self._arcs = np.repeat(self._arcs, width, axis=1)
            self._place = self._place.copy()
            for nics, slots in groups:
                chosen = slots[:, np.arange(width) * slots.shape[1] // width]
                self._place[nics] = network.head[chosen[:, 0]]
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
        part, result = self._part_of, chosen.copy()
        for colour in np.flatnonzero(~usable[chosen]).tolist():
            others = own[usable[own] & (part[own] == part[chosen[colour]])]
            result[colour] = others[colour % len(others)] if len(others) else NONE
        return result

    def choose(self, flows: Flows, rounds: Ints) -> tuple[Ints, Ints]:
        """The arc out of each flow's source, and that out of its destination; shape (flows,).

        ``NONE`` for NICs without any, where the links that are left do not meet, and where
        a flow of the latency class would go a longer way than it has to.
        ``rounds`` says which flows run together.
        """
        ends = self._arcs[flows.source], self._arcs[flows.destination]
        width = self._arcs.shape[1]
        colour = np.zeros(len(flows), dtype=np.int64)
        if width > 1:
            several = self.network.several
            rows = np.flatnonzero(several[flows.source] | several[flows.destination])
            fits = self._fits(ends[0][rows], ends[1][rows])
            free = fits.all(axis=1)
            colour[rows] = fits.argmax(axis=1)
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

    def others(self, nics: Ints, arcs: Ints) -> Ints:
        """Another link of each NIC, to another leaf of the same part; ``NONE`` where there is none.

        ``arcs`` are those out of the NICs that the others are to stand in for.
        """
        head, part, own = self.network.head_or_none, self._part_of, self._arcs[nics]
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
        for label in (self._part_of, self.network.head_or_none):
            here = both & (label[first] == label[second])
            near = here.any(axis=1)
            fits[near] = here[near]
        return fits

    def _is_detour(self, nics: tuple[Ints, Ints], arcs: tuple[Ints, Ints]) -> Bools:
        """Whether other links of two NICs meet nearer than these, at a leaf or below the cores."""
        found = np.zeros(len(arcs[0]), dtype=np.bool_)
        first, second = (self._arcs[nic] for nic in nics)
        for label in (self._part_of, self.network.head_or_none):
            meet = label[first][:, :, None] == label[second][:, None, :]
            meet &= (first != NONE)[:, :, None]
            found |= meet.any(axis=(1, 2)) & (label[arcs[0]] != label[arcs[1]])
        return found

    def _coloured(self, source: Ints, destination: Ints) -> Ints:
        place = self._place
        across = place[source] != place[destination]
        left, right = ([end, 2 * place[end] + across, place[end]] for end in (source, destination))
        return equitable_colouring(source, destination, self._arcs.shape[1], (left[1:], right[1:]))


def _proportion(speed: Floats) -> Ints:
    """How often each of some links counts, by its speed."""
    milli = np.round(speed * 1000).astype(np.int64)
    times = milli // math.gcd(*milli.tolist())
    return times if times.sum() <= _MOST_COLOURS else np.ones(len(speed), dtype=np.int64)
