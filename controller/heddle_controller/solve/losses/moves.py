"""Which paths a single loss breaks, and what becomes of them before anybody plans.

Agents turn every path that crosses what was lost to its backup. A path whose backup is lost as
well, or that has none, is *stranded*: until routing has settled nobody can say where it goes. If
its source is cut off at its own NIC it is *apart*: switches never see its packets, and the host has
to move it, if it has another link. So it is if its destination is cut off altogether.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Paths

Kind: TypeAlias = Literal["link", "switch"]
LOSS_KINDS: tuple[Kind, ...] = get_args(Kind)
UNTOUCHED, MOVED, STRANDED, APART = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class SingleLosses:
    """All single losses: links between switches, and switches, that are in service.

    A loss is the row of a link, or the row of a switch behind all links.
    """

    fabric: Fabric
    served: Bools
    """What is in service, shape (links + nodes,)."""

    @classmethod
    def of(cls, fabric: Fabric) -> SingleLosses:
        """Those of a fabric as it stands."""
        inner = fabric.structure.inner & fabric.carries
        switches = np.zeros(fabric.node_count, dtype=np.bool_)
        switches[fabric.structure.head[inner]] = True
        return cls(fabric, np.append(inner[::2], switches))

    def kind(self, loss: Ints) -> Ints:
        """Place in ``LOSS_KINDS`` of each."""
        return (loss >= self.fabric.link_count).astype(np.int64)

    def of_kind(self, kind: int) -> Ints:
        """All in service of one kind, ascending."""
        links = self.fabric.link_count
        part = self.served[links:] if kind else self.served[:links]
        return np.flatnonzero(part) + kind * links

    def name(self, loss: int) -> str:
        """A loss as ``--down`` takes it."""
        links = self.fabric.link_count
        if loss < links:
            return self.fabric.link_name(loss)
        return self.fabric.structure.nodes.ids[loss - links]

    def takes(self, loss: Ints, arc: Ints) -> Bools:
        """Whether each loss takes each arc with it; shapes go together."""
        structure, node = self.fabric.structure, loss - self.fabric.link_count
        ends = (structure.tail[arc] == node) | (structure.head[arc] == node)
        return np.asarray(ends | (arc >> 1 == loss))

    def arcs_of(self, loss: Ints) -> tuple[Ints, Ints]:
        """Place in ``loss`` and arc of all that some losses take."""
        links = self.fabric.link_count
        one, many = np.flatnonzero(loss < links), np.flatnonzero(loss >= links)
        place, arcs = joined(*self.fabric.structure.out, loss[many] - links)
        arcs = np.append(2 * loss[one], arcs)
        place = np.append(one, many[place])
        return np.append(place, place), np.append(arcs, arcs ^ 1)

    def on(self, arcs: Ints) -> Ints:
        """The losses that break paths over each arc, shape (kinds, *shape of arcs).

        ``NONE`` of an arc that is ``NONE``, and where a NIC is entered. No two arcs of a path have
        the same: a path has no loops.
        """
        links, ends = self.fabric.link_count, self.fabric.structure.head[arcs]
        loss = np.stack([arcs >> 1, ends + links])
        loss[~self.served[loss] | (arcs == NONE)] = NONE
        return loss

    def breaks(self, loss: Ints, paths: Paths) -> Bools:
        """Whether each loss breaks the path beside it."""
        owner = paths.owner()
        hit = np.zeros(len(paths), dtype=np.bool_)
        hit[owner[self.takes(loss[owner], paths.arcs)]] = True
        return hit

    def cuts_off(self, loss: Ints, paths: Paths) -> Bools:
        """Whether each path's source, or all of its destination, is cut off with the loss."""
        if not len(paths):
            return np.zeros(0, dtype=np.bool_)
        structure, node = self.fabric.structure, loss - self.fabric.link_count
        source = structure.head[paths.arcs[paths.first[:-1]]]
        target = structure.head[paths.arcs[paths.first[1:] - 1]]
        place, beside = joined(*structure.out, target)
        left = self.fabric.carries[beside] & (structure.head[beside] != node[place])
        return np.asarray((source == node) | (np.bincount(place[left], minlength=len(target)) == 0))


def joined(first: Ints, values: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Place in ``rows`` and value of everything that some of compressed rows hold."""
    count = first[rows + 1] - first[rows]
    place = np.repeat(np.arange(len(rows), dtype=np.int64), count)
    within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
    return place, values[first[rows][place] + within]
