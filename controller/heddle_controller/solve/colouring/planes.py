"""First paths in a fabric of tiers: colour leaf pairs with spines, spine pairs with cores.

Flows of one round run together; they are coloured as one bipartite multigraph of
leaves, which balances every uplink and every downlink at once. A flow between
zones takes the same colour, hence the same plane, in both; which core of the
plane it takes is a second colouring, of spines. Jobs of several phases have one
round for each phase, since their phases never add up.

What a colour promises may be a hole (a dead link, an irregular zone): such flows
stay without a path here and are placed by search.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths
from heddle_controller.solve.colouring.balanced import equitable_colouring
from heddle_controller.solve.colouring.exchange import Edges
from heddle_controller.solve.colouring.layers import Layer, ordinals
from heddle_controller.solve.colouring.nic_links import NicLinks
from heddle_controller.solve.colouring.zones import colour_zones
from heddle_controller.solve.network import Network


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

    def colour(self, flows: Flows) -> ColouredPaths:
        """Paths of flows, as far as colours give them."""
        network, level, rounds = self.network, self.network.level, phase_rounds(flows)
        nic_links = self.nic_links.choose(flows, rounds)
        source, destination = (network.head_or_none[arc] for arc in nic_links)
        arcs = np.full((len(flows), 4), NONE, dtype=np.int64)
        here = (source != NONE) & (destination != NONE)
        here &= (level[source] == NodeKind.LEAF) & (level[destination] == NodeKind.LEAF)
        part = self.spines.part
        choice = np.flatnonzero(here & (source != destination) & (part[source] != NONE))
        for turn in np.unique(rounds[choice]).tolist():
            rows = choice[rounds[choice] == turn]
            rows = rows[np.argsort(-flows.gbps[rows], kind="stable")]
            for chosen in self._alike(source[rows], destination[rows]):
                self._colour_round(rows[chosen], flows.gbps, (source, destination), arcs)
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

    def _colour_round(self, rows: Ints, gbps: Floats, ends: tuple[Ints, Ints], arcs: Ints) -> None:
        """Leaf-to-spine and spine-to-leaf arcs of flows whose parts are alike."""
        if not len(rows):
            return
        spines = self.spines
        left, right = (end[rows] for end in ends)
        slots = spines.colours(int(spines.part[left[0]]))
        edges = Edges(left, right, spines.part[left], spines.part[right])
        group = spines.groups(int(spines.part[left[0]]))[slots]
        alike = bool((gbps[rows] == gbps[rows[0]]).all())
        rise, fall = colour_zones(edges, group, self._core_links if alike else 0)
        up, down = spines.in_turns(left, slots[rise]), spines.in_turns(right, slots[fall])
        whole = (up != NONE) & (down != NONE)
        arcs[rows[whole], 0] = up[whole]
        arcs[rows[whole], 3] = down[whole] ^ 1

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


def coloured_paths(planes: Planes, flows: Flows, rows: Ints) -> Paths:
    """Paths between terminals as colours give them. A row named n times goes in n parts.

    ``rows`` name flows, in order, each at most as often as it has QPs; parts differ by
    one QP at most. Flows that colours do not place whole are left out.
    """
    parts = np.bincount(rows, minlength=len(flows))[rows]
    pieces = flows.take(rows)
    share = pieces.qps // parts + (ordinals(rows) < pieces.qps % parts)
    coloured = planes.colour(replace(pieces, gbps=pieces.gbps * share / pieces.qps))
    whole = np.bincount(rows[coloured.placed], minlength=len(flows))[rows] == parts
    rows, arcs, share = rows[whole], coloured.arcs[whole], share[whole]
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
