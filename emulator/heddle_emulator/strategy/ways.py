"""Equal-cost next hops by number: what each strategy chooses from.

The baselines of this package use only what the underlay knows, the shortest paths of the fabric in
its current state. They differ only in which of these paths they take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, ranges
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.underlay import Underlay


@dataclass(frozen=True, eq=False)
class EqualCostHops:
    """The equal-cost next hops of every switch, in the order of the nodes they enter."""

    underlay: Underlay

    def nth(self, switch: Ints, destination: Ints, number: Ints) -> Ints:
        """Return the arc with the given number among those that each packet may take.

        Numbers wrap round. The result is ``NONE`` if there is no path. All shapes are (packets,).
        """
        result = self._down(switch, destination, number)
        for row, at in by_value(np.where(result == NONE, switch, NONE)):
            if row != NONE:
                arcs, usable = self.towards(row, destination[at])
                result[at] = _picked(arcs, usable, number[at])
        return result

    def all(self, switch: Ints, destination: Ints) -> tuple[Ints, Ints]:
        """Return every arc that each packet might take: packet rows, ascending, and arcs."""
        first, count = self._down_range(switch, destination)
        place = np.repeat(np.arange(len(switch)), count)
        places, taken = [place], [self._attached[1][ranges(first, first + count)]]
        for row, at in by_value(np.where(count > 0, NONE, switch)):
            if row != NONE:
                arcs, usable = self.towards(row, destination[at])
                column, which = np.nonzero(usable.T)
                places.append(at[column])
                taken.append(arcs[which])
        order = np.argsort(np.concatenate(places), kind="stable")
        return np.concatenate(places)[order], np.concatenate(taken)[order]

    def towards(self, switch: int, destination: Ints) -> tuple[Ints, Bools]:
        """Return the arcs of a switch to other switches, and which serve each NIC: (arcs, NICs)."""
        arcs, ways = self._ways_of(switch)
        group = self.underlay.group[destination]
        return arcs, ways[:, group] & (group >= 0)

    def _ways_of(self, switch: int) -> tuple[Ints, Bools]:
        found = self._known.get(switch)
        if found is None:
            found = self._known[switch] = self.underlay.ways(switch)
        return found

    @cached_property
    def _known(self) -> dict[int, tuple[Ints, Bools]]:
        return {}

    def _down(self, switch: Ints, destination: Ints, number: Ints) -> Ints:
        """Return the arc to a NIC attached to the switch itself; ``NONE`` for all other NICs."""
        first, count = self._down_range(switch, destination)
        place = first + number % np.maximum(count, 1)
        return np.append(self._attached[1], NONE)[np.where(count > 0, place, -1)]

    def _down_range(self, switch: Ints, destination: Ints) -> tuple[Ints, Ints]:
        """Return where each switch's arcs to each NIC begin in ``_attached``, and their number."""
        codes, _ = self._attached
        code = switch * self.underlay.fabric.node_count + destination
        first = np.searchsorted(codes, code, side="left")
        return first, np.searchsorted(codes, code, side="right") - first

    @cached_property
    def _attached(self) -> tuple[Ints, Ints]:
        """Codes of switch and NIC, ascending, and live arcs from switch to NIC in that order."""
        fabric = self.underlay.fabric
        structure = fabric.structure
        is_nic = structure.nodes.kind == NodeKind.NIC
        arcs = np.flatnonzero(fabric.carries & is_nic[structure.head] & ~is_nic[structure.tail])
        codes = structure.tail[arcs] * fabric.node_count + structure.head[arcs]
        order = np.argsort(codes, kind="stable")
        return codes[order], arcs[order]


def by_value(values: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each distinct value and the rows that have it."""
    if not len(values):
        return
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, starts[1:]), strict=True)


def _picked(arcs: Ints, usable: Bools, number: Ints) -> Ints:
    """Return, for each column, its marked arc with the given number, which wraps round."""
    if not len(arcs):
        return np.full(len(number), NONE, dtype=np.int64)
    rank = np.cumsum(usable, axis=0)
    count = rank[-1]
    chosen = usable & (rank == number % np.maximum(count, 1) + 1)
    return np.where(count > 0, arcs[chosen.argmax(axis=0)], NONE)


def place_of_nics(fabric: Fabric) -> tuple[Ints, Ints]:
    """Return two numbers of each NIC as it is wired, by node row; -1 for switches.

    The first counts NICs through the whole fabric, switch by switch. The second counts the NICs of
    the NIC's own switch. A NIC on several switches is counted at the first of them.
    """
    structure = fabric.structure
    is_nic = structure.nodes.kind == NodeKind.NIC
    arcs = np.flatnonzero(is_nic[structure.tail] & ~is_nic[structure.head])
    home = np.full(fabric.node_count, fabric.node_count, dtype=np.int64)
    np.minimum.at(home, structure.tail[arcs], structure.head[arcs])
    nics = np.flatnonzero(is_nic)
    nics = nics[np.argsort(home[nics], kind="stable")]
    overall = np.full(fabric.node_count, -1, dtype=np.int64)
    overall[nics] = np.arange(len(nics))
    own = overall.copy()
    own[nics] -= np.searchsorted(home[nics], home[nics])
    return overall, own
