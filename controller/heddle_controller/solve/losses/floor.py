"""What no choice of backups can beat, the paths being those of the plan.

After a loss, at each switch whose NICs lose their first or last step with it:

- What the plan leaves untouched stays where it is.
- All that has to leave the switch shares the links that are left, however it is divided.
- Each path that was broken goes on whole: the next one fills some link that is left by its rate
  at least. With paths of ``m`` and the smallest rate among them, the worst link is at least the
  ``m``-th smallest load that adding such paths one by one to any of the links makes.

- In fabrics of tiers a path over one spine goes over another that both leaves are linked to, where
  its own leaf has no others: from there on the underlay carries, and has one way down. So both
  links of some spine take it on.

Phases of a job take turns, so paths that have one may cost nothing: the last three count paths
that may run at any time alone.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, among, numbered
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve.losses.moves import APART, joined
from heddle_controller.solve.losses.screen import LossScreen

_MOST_ALONE = 1_000
"""Losses together for which each path is looked at by itself."""
_MOST_ROUNDS = 64
"""Paths of one switch that are counted one by one."""


class Floors:
    """After losses of each kind the worst utilisation is at least so much.

    Whatever backups there are, as long as every path that has to move has one.
    """

    def __init__(self, screen: LossScreen, known: Floats) -> None:
        """``known`` are floors, shape (kinds,)."""
        self.floor = known
        self._screen, self._losses = screen, screen.losses
        self._plan = screen.standing.plan
        self._looked = 0
        self._beside: Ints | None = None

    def look_at(self, some: Ints, beside: Ints | None = None) -> None:
        """Raise the floors to what some losses, ascending, come to.

        ``beside`` are codes of losses and nodes, ascending, if no other switches are looked at.
        """
        standing = self._screen.standing
        at, path = standing.broken(self._losses, some)
        loss, self._beside = some[at], beside
        self._free(loss, path)
        kept = standing.fates(self._losses, loss, path) != APART
        kept &= self._plan.flows.phase[self._plan.paths.flow[path]] == ANY_PHASE
        loss, path = loss[kept], path[kept]
        for into in (False, True):
            self._at_switches(loss, path, into=into)
        self._looked += len(some)
        if self._looked <= _MOST_ALONE:
            self._of_each_path(loss, path)

    def _raise(self, loss: Ints, reached: Floats) -> None:
        np.maximum.at(self.floor, self._losses.kind(loss), reached)

    def _is_near(self, loss: Ints, switch: Ints) -> Bools:
        """Whether each switch is one that is looked at after the loss beside it."""
        if self._beside is None:
            return np.ones(len(loss), dtype=np.bool_)
        return among(loss * self._plan.fabric.node_count + switch, self._beside)

    def _free(self, loss: Ints, path: Ints) -> None:
        """Note what goes from arcs with all that is broken."""
        some, width = self._plan.paths.take(path), len(self._screen.gbps)
        owner = some.owner()
        cell, first = numbered(loss[owner] * width + some.arcs)
        self._keys = (loss[owner] * width + some.arcs)[first]
        self._freed = np.bincount(cell, self._screen.standing.gbps(path)[owner], len(first))

    def _stays(self, loss: Ints, arc: Ints) -> Floats:
        """What losses leave on arcs, Gbit/s, whatever turns to them; shapes go together."""
        loads = self._screen.gbps
        code = loss * len(loads) + arc
        at = np.minimum(np.searchsorted(self._keys, code), max(len(self._keys) - 1, 0))
        freed = np.where(self._keys[at] == code, self._freed[at], 0.0)
        return np.asarray(np.maximum(loads[arc] - freed, 0.0))

    def _ways_on(self, switch: Ints, *, into: bool) -> tuple[Ints, Bools]:
        """A row of live arcs between each of some switches and others; and which elements are."""
        structure = self._plan.fabric.structure
        first, out = structure.out
        place = np.arange(max(int((first[switch + 1] - first[switch]).max(initial=0)), 1))
        arcs = out[np.minimum(first[switch][:, None] + place, len(out) - 1)]
        there = place < (first[switch + 1] - first[switch])[:, None]
        there &= structure.inner[arcs] & self._plan.fabric.carries[arcs]
        width = max(int(there.sum(axis=1).max(initial=0)), 1)
        order = np.argsort(~there, axis=1, kind="stable")[:, :width]
        arcs, there = (np.take_along_axis(one, order, axis=1) for one in (arcs, there))
        return (arcs ^ 1 if into else arcs), there

    def _at_switches(self, loss: Ints, path: Ints, *, into: bool) -> None:
        """By the switches where paths lose their step."""
        plan, structure = self._plan, self._plan.fabric.structure
        paths, flow = plan.paths, plan.paths.flow[path]
        # A step at each NIC, and one between switches at least.
        long = paths.first[path + 1] - paths.first[path] > 2  # noqa: PLR2004
        loss, path, flow = loss[long], path[long], flow[long]
        # The second arc of a path leaves the switch of its source, the last but one enters the
        # switch of its destination; a NIC of several links may be reached by another switch.
        arc = paths.arcs[paths.first[path + 1] - 2 if into else paths.first[path] + 1]
        struck = self._losses.takes(loss, arc)
        ends = (structure.head if into else structure.tail)[arc]
        struck &= self._is_near(loss, ends)
        if into:
            place, beside = joined(*structure.out, plan.flows.destination[flow])
            struck &= np.bincount(place, plan.fabric.carries[beside], len(flow)) == 1
        rows = np.flatnonzero(struck)
        if not len(rows):
            return
        ends = ends[rows]
        rate, nodes = self._screen.standing.gbps(path[rows]), len(structure.nodes.kind)
        group, first = numbered(loss[rows] * nodes + ends)
        loss, switch = loss[rows[first]], ends[first]
        count = np.bincount(group)
        least = np.full(len(count), np.inf)
        np.minimum.at(least, group, rate)
        option, there = self._ways_on(switch, into=into)
        there &= ~self._losses.takes(loss[:, None], option)
        stays = np.where(there, self._stays(loss[:, None], option), np.inf)
        capacity = np.where(there, structure.capacity[option], 1.0)
        together = structure.capacity[option].sum(axis=1, where=there)
        total = stays.sum(axis=1, where=there)
        fluid = np.divide(
            total + np.bincount(group, weights=rate),
            together,
            out=np.zeros(len(count)),
            where=together > 0,
        )
        self._raise(loss, fluid)
        # The next path fills the emptiest link to no more than their mean and its own rate.
        most = total + least * (count - 1 + there.sum(axis=1))
        known = self.floor[self._losses.kind(loss)]
        open_ = np.flatnonzero((together > 0) & (most > known * together))
        loss, stays, capacity, least, count = (
            loss[open_],
            stays[open_],
            capacity[open_],
            least[open_],
            count[open_],
        )
        for _ in range(min(_MOST_ROUNDS, int(count.max(initial=0)))):
            filled = (stays + least[:, None]) / capacity
            best = filled.argmin(axis=1)
            rows = np.arange(len(best))
            self._raise(loss, filled[rows, best])
            stays[rows, best] += least
            count -= 1
            left = count > 0
            if not left.all():
                loss, stays, capacity, least, count = (
                    loss[left],
                    stays[left],
                    capacity[left],
                    least[left],
                    count[left],
                )

    def _of_each_path(self, loss: Ints, path: Ints) -> None:
        """By paths over one spine, each by itself."""
        plan, structure = self._plan, self._plan.fabric.structure
        keys = self._screen.single_ways
        if keys is None:
            return  # a spine might turn to another one, or to another link
        paths, flows = plan.paths, plan.flows
        first, out = structure.out
        # Two steps between switches, and one at each NIC.
        some = np.flatnonzero(paths.first[path + 1] - paths.first[path] == 4)  # noqa: PLR2004
        loss, path = loss[some], path[some]
        flow = paths.flow[path]
        up, down = paths.arcs[paths.first[path] + 1], paths.arcs[paths.first[path] + 2]
        held = self._losses.takes(loss, up) | self._losses.takes(loss, down)
        held &= ~plan.by_ports[flow]
        held &= np.diff(first)[flows.destination[flow]] == 1
        held &= self._is_near(loss, structure.tail[up]) | self._is_near(loss, structure.head[down])
        loss, path, up, down = loss[held], path[held], up[held], down[held]
        if not len(loss):
            return
        nodes, gone = len(structure.nodes.kind), loss[:, None]
        rise, there = self._ways_on(structure.tail[up], into=False)
        code = structure.head[down][:, None] * nodes + structure.head[rise]
        at = np.minimum(np.searchsorted(keys, code), len(keys) - 1)
        fall = out[at] ^ 1
        whole = ((keys[at] == code) | ~there).all(axis=1)
        there &= plan.fabric.carries[fall]
        there &= ~self._losses.takes(gone, rise) & ~self._losses.takes(gone, fall)
        rate = self._screen.standing.gbps(path)[:, None]
        ways = [self._stays(gone, way) + rate for way in (rise, fall)]
        used = np.maximum(
            *(load / structure.capacity[way] for load, way in zip(ways, (rise, fall), strict=True))
        )
        least = np.where(there, used, np.inf).min(axis=1)
        told = whole & np.isfinite(least)
        self._raise(loss[told], least[told])
