"""Lower bounds on the worst utilisation after a loss, for any choice of backups.

The paths are those of the plan. The bounds look at each switch where paths lose the step from their
first switch, or to their last one. They also look at each zone where paths lose the step out of it,
or into it, and at each NIC with several links where paths lose the step into it:

- What the loss does not break stays where it is.
- All that has to pass such a place shares the links that are left there, however it is divided.
- Each broken path moves as a whole and adds its rate to one of the links that are left. Let there
  be ``m`` such paths, and add paths of the smallest rate among them one by one, each to the link
  that stays least full with it. The worst link is at least as full as the last addition makes one.
- In fabrics of tiers, a path over one spine moves to another spine that both leaves are linked to.
  From that spine on the underlay carries it, and it has one way down. So both links of some spine
  take on the path.

Phases of a job take turns, so of many paths with a phase most may add nothing. The second and third
bound count only paths that may run at any time. The last counts every path: on its new links it
meets its own phase, not the fullest phase of its job.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    among,
    distinct,
    marked,
    numbered,
    stable_order,
)
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve.losses.moves import APART, joined
from heddle_controller.solve.losses.screen import LossScreen
from heddle_controller.solve.losses.standing import PathUses

_MOST_ALONE = 1_000
"""Number of losses looked at in all, up to which each path is also looked at by itself."""
_MOST_ROUNDS = 64
"""Most paths of one switch or zone that are added one by one."""
_MOST_CELLS = 1 << 20
"""Most elements of an array of losses and links out of zones."""


class _Broken(NamedTuple):
    """Pairs of a loss and a path that it breaks."""

    loss: Ints
    slot: Ints
    up: Ints
    """Second arc of the path."""
    down: Ints
    """Last arc but one."""
    steps: Ints
    """Number of its arcs."""

    def take(self, some: Bools) -> _Broken:
        """Return the marked pairs."""
        return _Broken(*(column[some] for column in self))


class _Groups(NamedTuple):
    """Broken paths that have to leave, or enter, one switch, zone or NIC after one loss."""

    loss: Ints
    place: Ints
    """Node row of the switch or NIC, or number of the zone."""
    paths: Ints
    """How many paths they are."""
    least: Floats
    """Smallest rate of one of them."""
    gbps: Floats
    """Sum of their rates."""

    @classmethod
    def of(cls, broken: _Broken, rows: Ints, place: Ints, gbps: Floats) -> _Groups:
        """Group some rows of broken paths by loss and ``place``.

        ``gbps`` gives the rate of each slot.
        """
        loss, rate = broken.loss[rows], gbps[broken.slot[rows]]
        group, first = numbered(loss * (int(place.max(initial=0)) + 1) + place)
        least = np.full(len(first), np.inf)
        np.minimum.at(least, group, rate)
        count = np.bincount(group, minlength=len(first))
        gbps = np.bincount(group, rate, len(first)).astype(np.float64)
        return cls(loss[first], place[first], count, least, gbps)

    def take(self, some: Ints) -> _Groups:
        """Return some of the groups."""
        loss, place, paths, least, gbps = self
        return _Groups(loss[some], place[some], paths[some], least[some], gbps[some])


class _Zones:
    """The working arcs between each zone and the rest of a fabric. What has no zone is one, too."""

    def __init__(self, fabric: Fabric, used: Floats) -> None:
        """Read a fabric whose arcs are ``used`` to these parts of their capacity."""
        structure, self._used = fabric.structure, used
        self.of = structure.zones - NONE
        """Number of each node's zone."""
        self._tail, self._head = self.of[structure.tail], self.of[structure.head]
        self._open = structure.inner & fabric.carries & (self._tail != self._head)
        arcs = np.flatnonzero(self._open)
        self._out = arcs[stable_order(self._tail[arcs])]
        zones = np.arange(int(self.of.max(initial=0)) + 2)
        self._begin = np.searchsorted(self._tail[self._out], zones)
        self.gates = int(np.diff(self._begin).max(initial=0))
        """Most arcs out of any zone."""
        self._capacity = structure.capacity

    def is_gate(self, arc: Ints, zone: Ints, *, into: bool) -> Bools:
        """Whether each arc is one of those into or out of the zone in the same position."""
        own = (self._head if into else self._tail)[arc]
        return np.asarray(self._open[arc] & (own == zone))

    def ways(self, zone: Ints, *, into: bool) -> tuple[Ints, Bools]:
        """Return the arcs into or out of zones, as ``Floors._ways_on`` does for switches."""
        begin, place = self._begin[zone][:, None], np.arange(self.gates)
        arcs = self._out[np.minimum(begin + place, len(self._out) - 1)]
        return arcs ^ 1 if into else arcs, place < self._begin[zone + 1][:, None] - begin

    def most(self, groups: _Groups, lost: Ints, *, into: bool) -> Floats:
        """Return how full groups need to make an arc at most; infinite if not easily known.

        No arc takes more than one path if each group takes the emptiest arcs. ``lost`` is the
        number of arcs that each group has lost.
        """
        most = np.full(len(groups.loss), np.inf)
        for zone in distinct(groups.place).tolist():
            arcs = self._out[self._begin[zone] : self._begin[zone + 1]]
            arcs = arcs ^ 1 if into else arcs
            rows = np.flatnonzero(groups.place == zone)
            taken = groups.paths[rows] + lost[rows]
            rows, taken = rows[taken <= len(arcs)], taken[taken <= len(arcs)]
            used = np.sort(self._used[arcs])[taken - 1]
            most[rows] = used + groups.least[rows] / self._capacity[arcs].min()
        return most


class Floors:
    """Lower bounds on the worst utilisation after losses of each kind, for any backups.

    They hold as long as every path that has to move has a backup.
    """

    def __init__(self, screen: LossScreen, known: Floats) -> None:
        """Start from ``known`` lower bounds, shape (kinds,); the array is raised in place."""
        self.floor = known
        self._loads, self._standing = screen.gbps, screen.standing
        self._plan, self._losses = screen.standing.plan, screen.standing.losses
        self._routes, self._single_ways = screen.standing.routes, screen.single_ways
        self._looked = 0
        self._beside: Ints | None = None

    @cached_property
    def _zones(self) -> _Zones:
        fabric = self._plan.fabric
        return _Zones(fabric, self._loads / fabric.structure.capacity)

    def look_at(self, some: Ints, beside: Ints | None = None) -> None:
        """Raise the bounds by looking at some losses, given in ascending order.

        ``beside`` limits the look to some switches after some losses, as ascending codes
        ``loss * nodes + node``. None means all.
        """
        plan, structure = self._plan, self._plan.fabric.structure
        at, slot = self._standing.broken(some)
        loss, ways, self._beside = some[at], self._routes.arcs.take(slot, axis=0), beside
        self._free(loss, slot, ways)
        steps = np.count_nonzero(ways != NONE, axis=1)
        # Such paths have a step at each NIC, and at least one between switches.
        rows = np.flatnonzero(steps > 2)  # noqa: PLR2004
        # The second arc of a path leaves the switch of its source, the last but one enters the
        # switch of its destination. A NIC with several links may be reached by another switch.
        broken = _Broken(
            loss[rows], slot[rows], ways[rows, 1], ways[rows, steps[rows] - 2], steps[rows]
        )
        near = self._is_near(broken.loss, structure.tail[broken.up])
        broken = broken.take(near | self._is_near(broken.loss, structure.head[broken.down]))
        broken = broken.take(self._standing.fates(broken.loss, broken.slot) != APART)
        at_any_time = plan.flows.phase[self._routes.flow[broken.slot]] == ANY_PHASE
        always = broken.take(at_any_time)
        for into in (False, True):
            self._at_switches(always, into=into)
            if beside is None and self._zones.gates:
                self._at_zones(always, into=into)
        if beside is None:
            self._at_nics(always)
        self._looked += len(some)
        if self._looked <= _MOST_ALONE:
            self._of_each_path(broken)

    def _raise(self, loss: Ints, reached: Floats) -> None:
        np.maximum.at(self.floor, self._losses.kind(loss), reached)

    def _is_near(self, loss: Ints, switch: Ints) -> Bools:
        """Mark the switches to look at, each after the loss in the same position."""
        if self._beside is None:
            return np.ones(len(loss), dtype=np.bool_)
        return among(loss * self._plan.fabric.node_count + switch, self._beside)

    def _free(self, loss: Ints, slot: Ints, ways: Ints) -> None:
        """Compute how much load leaves each arc with the broken paths, for each loss."""
        owner, step = marked(ways != NONE)
        code = loss[owner] * len(self._loads) + ways[owner, step]
        cell, first = numbered(code)
        self._keys = code[first]
        self._freed = np.bincount(cell, self._routes.gbps[slot[owner]], len(first))

    def _stays(self, loss: Ints, arc: Ints) -> Floats:
        """Return the Gbit/s that losses leave on arcs, without backups. The shapes broadcast."""
        return self._without(self._loads[arc], loss, arc)

    def _without(self, gbps: Floats, loss: Ints, arc: Ints) -> Floats:
        """Return Gbit/s on arcs less what leaves them at most, without backups."""
        code = loss * len(self._loads) + arc
        at = np.minimum(np.searchsorted(self._keys, code), max(len(self._keys) - 1, 0))
        freed = np.where(self._keys[at] == code, self._freed[at], 0.0)
        return np.asarray(np.maximum(gbps - freed, 0.0))

    def _met(self, slot: Ints, arc: Ints) -> Floats:
        """Return the Gbit/s that paths meet on arcs, a row of arcs for each path."""
        standing = self._standing
        if not standing.takes_turns:
            return self._loads[arc]
        place, first = numbered(arc.ravel())
        used, slots = standing.uses(arc.ravel()[first])
        sums = PathUses(standing, used, slots, len(first)).phased.sums(self._routes.gbps[slots])
        who = standing.turn(np.repeat(slot, arc.shape[1]))
        return sums.met_by(place, *who)[0].reshape(arc.shape)

    def _ways_on(self, switch: Ints, *, into: bool) -> tuple[Ints, Bools]:
        """Return the working arcs between each switch and other switches, a padded row for each.

        The second array marks the elements that are not padding. With ``into``, arcs lead to the
        given switches, otherwise away from them.
        """
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

    def _at_switches(self, broken: _Broken, *, into: bool) -> None:
        """Raise the bounds at switches where paths lose the step from or ``into`` them.

        A path that loses its last switch has to enter the only other one of its NIC, if there is
        one.
        """
        structure = self._plan.fabric.structure
        broken = broken.take(self._losses.takes(broken.loss, broken.down if into else broken.up))
        rise = structure.tail[broken.up]
        ends = self._last_switch(broken) if into else rise
        has_to = (ends != NONE) & (ends != rise) if into else np.ones(len(ends), dtype=np.bool_)
        rows = np.flatnonzero(has_to & self._is_near(broken.loss, ends))
        if not len(rows):
            return
        groups = _Groups.of(broken, rows, ends[rows], self._routes.gbps)
        option, there = self._ways_on(groups.place, into=into)
        there &= ~self._losses.takes(groups.loss[:, None], option)
        self._share(groups, option, there)

    def _last_switch(self, broken: _Broken) -> Ints:
        """Return the switch that each path has to end at; ``NONE`` if there are several or none."""
        plan, structure = self._plan, self._plan.fabric.structure
        target = plan.flows.destination[self._routes.flow[broken.slot]]
        place, out = joined(*structure.out, target)
        left = plan.fabric.carries[out] & ~self._losses.takes(broken.loss[place], out)
        switch = np.full(len(target), NONE)
        switch[place[left]] = structure.head[out[left]]
        switch[np.bincount(place, left, len(target)) != 1] = NONE
        return switch

    def _at_zones(self, broken: _Broken, *, into: bool) -> None:
        """Raise the bounds at zones where paths lose the step out of or ``into`` them."""
        plan, structure, zones = self._plan, self._plan.fabric.structure, self._zones
        target = plan.flows.destination[self._routes.flow[broken.slot]]
        place, beside = joined(*structure.out, target)
        single = np.bincount(place, plan.fabric.carries[beside], len(target)) == 1
        own = zones.of[structure.head[broken.down] if into else structure.tail[broken.up]]
        other = zones.of[structure.tail[broken.up] if into else structure.head[broken.down]]
        far = single & (own != other)
        broken, own = broken.take(far), own[far]
        arcs = self._routes.arcs.take(broken.slot, axis=0)
        step = (arcs != NONE) & zones.is_gate(arcs, own[:, None], into=into)
        arc = arcs[np.arange(len(arcs)), step.argmax(axis=1)]
        rows = np.flatnonzero((step.sum(axis=1) == 1) & self._losses.takes(broken.loss, arc))
        groups = _Groups.of(broken, rows, own[rows], self._routes.gbps)
        at, arc = self._losses.arcs_of(groups.loss)
        lost = np.bincount(at, zones.is_gate(arc, groups.place[at], into=into), len(groups.loss))
        most = zones.most(groups, lost.astype(np.int64), into=into)
        rows = np.flatnonzero(most > self.floor[self._losses.kind(groups.loss)])
        rows = rows[np.argsort(-most[rows], kind="stable")]
        batch = max(_MOST_CELLS // zones.gates, 1)
        while len(rows):
            first = groups.take(rows[:batch])
            option, there = zones.ways(first.place, into=into)
            there &= ~self._losses.takes(first.loss[:, None], option)
            self._share(first, option, there)
            rows = rows[batch:]
            rows = rows[most[rows] > self.floor[self._losses.kind(groups.loss[rows])]]

    def _at_nics(self, broken: _Broken) -> None:
        """Raise the bounds at NICs with several links where paths lose the step into the NIC."""
        plan, structure = self._plan, self._plan.fabric.structure
        arcs = self._routes.arcs.take(broken.slot, axis=0)
        rows = np.arange(len(arcs))
        lost = self._losses.takes(broken.loss, arcs[rows, broken.steps - 1])
        target = plan.flows.destination[self._routes.flow[broken.slot]]
        groups = _Groups.of(broken, np.flatnonzero(lost), target[lost], self._routes.gbps)
        first, out = structure.out
        place = np.arange(int(np.diff(first)[groups.place].max(initial=1)))
        option = out[np.minimum(first[groups.place][:, None] + place, len(out) - 1)] ^ 1
        there = place < (first[groups.place + 1] - first[groups.place])[:, None]
        there &= plan.fabric.carries[option]
        there &= ~self._losses.takes(groups.loss[:, None], option)
        self._share(groups, option, there)

    def _share(self, groups: _Groups, option: Ints, there: Bools) -> None:
        """Raise the bounds by what paths do that share the links that are left to them.

        Args:
            groups: Paths that have to leave, or enter, one place after one loss.
            option: The arcs that are left to each group, a padded row for each.
            there: Marks the elements of ``option`` that are not padding.
        """
        structure, loss, count, least = (
            self._plan.fabric.structure,
            groups.loss,
            groups.paths.copy(),
            groups.least,
        )
        stays = np.where(there, self._stays(loss[:, None], option), np.inf)
        capacity = np.where(there, structure.capacity[option], 1.0)
        together = structure.capacity[option].sum(axis=1, where=there)
        total = stays.sum(axis=1, where=there)
        fluid = np.divide(
            total + groups.gbps, together, out=np.zeros(len(count)), where=together > 0
        )
        self._raise(loss, fluid)
        # Adding a path to the emptiest link makes it no fuller than the mean plus the path's rate.
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

    def _of_each_path(self, broken: _Broken) -> None:
        """Raise the bounds by looking at each path over one spine by itself."""
        plan, structure, keys = self._plan, self._plan.fabric.structure, self._single_ways
        if keys is None:
            return  # a spine might pass the path to another spine, or to another link
        first, out = structure.out
        # Such paths have two steps between switches, and one at each NIC.
        loss, slot, up, down, _ = broken.take(broken.steps == 4)  # noqa: PLR2004
        flow = self._routes.flow[slot]
        held = self._losses.takes(loss, up) | self._losses.takes(loss, down)
        held &= ~plan.by_ports[flow]
        held &= np.diff(first)[plan.flows.destination[flow]] == 1
        loss, slot, up, down = loss[held], slot[held], up[held], down[held]
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
        rate = self._routes.gbps[slot][:, None]
        used = np.zeros(rise.shape)
        for way in (rise, fall):
            with_it = self._without(self._met(slot, way), gone, way) + rate
            np.maximum(used, with_it / structure.capacity[way], out=used)
        least = np.where(there, used, np.inf).min(axis=1)
        told = whole & np.isfinite(least)
        self._raise(loss[told], least[told])
