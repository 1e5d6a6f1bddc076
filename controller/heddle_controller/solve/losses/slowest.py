"""Finds the slowest flow after any single loss, where QPs share links max-min fairly.

Every loss has its own fair rates, and computing them for all losses would take long. A floor is
quick: no QP gets less than what the fullest arc on its path gives it alone (``FairShares``). Flows
over the most suspect arcs are looked at, until no other flow can have a lower floor. Mostly the
flow gets exactly its floor, and no fair rates are needed. Where it gets more, fair rates are
computed for losses in order of their floors, until the lowest rate found is no more than the next
floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    distinct,
    marked,
    numbered,
)
from heddle_controller.model.fair_rates import Filling
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve.losses.fair_shares import SLACK, FairShares
from heddle_controller.solve.losses.moves import APART, LOSS_KINDS, MOVED, STRANDED, joined
from heddle_controller.solve.losses.screen import LossScreen
from heddle_controller.solve.losses.standing import PathUses
from heddle_controller.solve.losses.suspects import (
    FIRST_ARCS,
    GROWTH,
    Look,
    Suspects,
    pairs_on,
)

_FIRST_BATCH = 2_000
"""Uses of full arcs in the first batch of fair rates. Each further batch has twice as many."""
_FIRST_CALM = 16
"""Losses in the first batch of those tried to find one that changes nothing for a flow."""
_MOST = 600_000
"""Uses of full arcs after which no more fair rates are computed and the floor is reported."""


@dataclass(frozen=True, slots=True)
class Slowest:
    """The smallest part of its demand that any flow gets after any loss of one kind."""

    ratio: float
    loss: int
    """The loss that causes it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Floors:
    """What flows get at least, each after the loss in the same position, and why.

    There are three tables: one row for each flow, then for each of their paths, then for each arc
    of these paths.
    """

    loss: Ints
    flow: Ints
    ratio: Floats
    """Part of the flow's demand that it gets; infinite where the loss cuts it off at a NIC."""
    of: Ints
    """Index of each path's flow in the first table."""
    slot: Ints
    """Slot of each path."""
    rate: Floats
    """Gbit/s of a QP of the path."""
    owner: Ints
    """Index of each arc's path in the second table."""
    arc: Ints
    level: Floats
    """What the arc alone gives to a QP of the path in Gbit/s; infinite where there is room."""

    @classmethod
    def of_flows(cls, screen: LossScreen, loss: Ints, flow: Ints) -> _Floors:
        """Compute the floors of some flows, each after the loss in the same position."""
        standing, routes = screen.standing, screen.standing.routes
        of, slot = standing.slots(flow)
        fate = standing.fates(loss[of], slot)
        owner, arc = _ways(screen, slot, fate)
        level = _levels(screen, loss[of[owner]], arc, slot[owner])
        rate = np.where(fate <= MOVED, routes.unit[slot], 0.0)
        np.minimum.at(rate, owner, level)
        got = np.bincount(of, rate * routes.qps[slot], len(flow))
        ratio = got / standing.plan.flows.gbps[flow]
        ratio[of[fate == APART]] = np.inf
        return cls(loss, flow, ratio, of, slot, rate, owner, arc, level)


def _ways(screen: LossScreen, slot: Ints, fate: Ints) -> tuple[Ints, Ints]:
    """Return the arcs that paths use after their fates, as pairs: index in ``slot``, and arc.

    Moved paths use their backup. Stranded and cut-off paths use no arcs.
    """
    routes = screen.standing.routes
    ways = np.where(
        (fate == MOVED)[:, None], routes.spares.take(slot, axis=0), routes.arcs.take(slot, axis=0)
    )
    owner, step = marked((ways != NONE) & (fate <= MOVED)[:, None])
    return owner, ways[owner, step]


def _levels(screen: LossScreen, loss: Ints, arc: Ints, slot: Ints) -> Floats:
    """Return what an arc alone gives to a QP of each path after a loss, in Gbit/s.

    It is infinite where there is room. ``loss``, ``arc`` and ``slot`` have one element for each.
    """
    standing, width = screen.standing, len(screen.gbps)
    # A loss that changes nothing on an arc leaves it as it is while nothing is lost.
    none = len(standing.losses.served)
    loss = np.where(standing.touches(loss, arc), loss, none)
    cell, first = numbered(loss * width + arc)
    capacity = standing.plan.fabric.structure.capacity[arc[first]]
    place, users = standing.members(loss[first], arc[first])
    uses = PathUses(standing, place, users, len(first))
    return FairShares(standing, capacity, uses).of(cell, slot)


def _are_exact(screen: LossScreen, floors: _Floors) -> Bools:
    """Whether each flow gets exactly its floor in max-min fair rates.

    It does if each of its slowed paths crosses an arc on which no path is slowed more elsewhere.
    Such an arc fills up first of all arcs that its users cross. Where phases take turns, the arc
    slows only the largest phase of each job.
    """
    standing, routes = screen.standing, screen.standing.routes
    slowed = floors.rate < routes.unit[floors.slot]
    known = np.bincount(floors.owner, minlength=len(floors.slot)) > 0
    tied = floors.level <= floors.rate[floors.owner] * (1 + SLACK)
    held = np.flatnonzero(tied & slowed[floors.owner])
    loss = floors.loss[floors.of[floors.owner[held]]]
    cell, first = numbered(loss * len(screen.gbps) + floors.arc[held])
    arc = floors.arc[held[first]]
    place, others = standing.members(loss[first], arc)
    uses = PathUses(standing, place, others, len(arc))
    shares = FairShares(standing, standing.plan.fabric.structure.capacity[arc], uses)
    level = shares.level
    stops = shares.exact[cell] & (floors.level[held] <= level[cell] * (1 + SLACK))
    stopped = np.zeros(len(floors.slot), dtype=np.bool_)
    stopped[floors.owner[held[stops]]] = True
    of_place = loss[first][place]
    owner, ways = _ways(screen, others, standing.fates(of_place, others))
    lowest = routes.unit[others]
    np.minimum.at(lowest, owner, _levels(screen, of_place[owner], ways, others[owner]))
    more = lowest < np.minimum(routes.unit[others], level[place]) * (1 - SLACK)
    wrong = ~known | (slowed & ~stopped)
    result = np.ones(len(floors.flow), dtype=np.bool_)
    result[floors.of[wrong]] = False
    result[floors.of[floors.owner[held[np.isin(cell, place[more])]]]] = False
    return result


class SlowFlows:
    """Collects the flows with the lowest floors, as more arcs are looked at."""

    def __init__(self, suspects: Suspects) -> None:
        self._suspects, self._screen = suspects, suspects.screen
        routes, flows = self._screen.standing.routes, self._screen.standing.plan.flows
        none = np.empty(0, dtype=np.int64)
        self._loss, self._flow, self._ratio = none, none, np.empty(0)
        """Losses and flows whose floors are known, and the floors, position by position."""
        self._open: Bools = np.zeros(len(flows), dtype=np.bool_)
        """Marks flows that may have low floors and whose floors are not all known."""
        self._open[routes.flow[routes.weak]] = True
        self._known = np.zeros(len(flows), dtype=np.bool_)
        self._bounds: Floats = np.full((len(LOSS_KINDS), len(flows)), np.nan)
        """Bounds on what any loss of a kind leaves to flows where phases take turns, if known."""
        self._newest: _Floors | None = None
        """The floors that were found last."""

    def take(self, look: Look) -> None:
        """Add the flows on arcs that were looked at."""
        standing, losses = self._screen.standing, self._suspects.losses
        routes, place, slot = standing.routes, look.uses.phased.place, look.uses.slot
        flow = routes.flow[slot]
        self._open[flow[~self._known[flow]]] = True
        # A flow of one path has a floor no higher than its share of the arc.
        alone = standing.path_count(flow) == 1
        shares = FairShares(standing, standing.plan.fabric.structure.capacity[look.arc], look.uses)
        most = np.where(alone, shares.of(place, slot) / routes.unit[slot], np.inf)
        kind = losses.kind(look.loss)[place]
        some = [
            int(np.where(kind == one, most, np.inf).argmin())
            for one in range(len(LOSS_KINDS))
            if (most[kind == one] < self.least(one)).any()
        ]
        if some:
            self._note(look.loss[place[some]], flow[some])

    def least(self, kind: int) -> float:
        """Return the lowest known floor after losses of a kind; 1 if none is lower."""
        mine = self._suspects.losses.kind(self._loss) == kind
        return float(self._ratio[mine].min(initial=1.0))

    def _note(self, loss: Ints, flow: Ints) -> None:
        self._newest = floors = _Floors.of_flows(self._screen, loss, flow)
        self._loss, self._flow = np.append(self._loss, loss), np.append(self._flow, flow)
        self._ratio = np.append(self._ratio, floors.ratio)

    def _floors(self, rows: Ints) -> _Floors:
        """Return some of the known floors in detail."""
        loss, flow, known = self._loss[rows], self._flow[rows], self._newest
        if known and np.array_equal(loss, known.loss) and np.array_equal(flow, known.flow):
            return known
        return _Floors.of_flows(self._screen, loss, flow)

    def _in_peace(self, flow: Ints) -> Floats:
        """Return the floors of some flows while nothing is lost.

        A loss that changes nothing for a flow leaves it this floor, so its fair rate may be that
        low even after such a loss.
        """
        none = np.full(len(flow), len(self._suspects.losses.served))
        return _Floors.of_flows(self._screen, none, flow).ratio

    def _note_calm(self, flow: Ints) -> None:
        """Also note losses that change nothing for some flows, if these are slow in peace.

        Losses that change nothing on one arc are noted already. If a flow has several paths, each
        of these losses may touch another path.
        """
        losses = self._suspects.losses
        flow = flow[self._screen.standing.path_count(flow) > 1]
        peace = self._in_peace(flow)
        order = np.argsort(peace, kind="stable").tolist()
        for kind in range(len(LOSS_KINDS)):
            every, least = losses.of_kind(kind), self.least(kind)
            for row in order:
                if peace[row] >= least * (1 - SLACK):
                    break
                begin, batch = 0, _FIRST_CALM
                while begin < len(every) and peace[row] < least * (1 - SLACK):
                    loss = every[begin : begin + batch]
                    self._note(loss, np.full(len(loss), flow[row]))
                    begin, batch, least = begin + batch, batch * GROWTH, self.least(kind)

    def find(self, limits: Floats | None = None) -> None:
        """Find all floors below a limit for each kind, shape (kinds,).

        Without ``limits``, search until no unknown floor can be below the lowest known one.
        """
        kinds, batch = range(len(LOSS_KINDS)), FIRST_ARCS
        while True:
            most = [self.least(kind) for kind in kinds] if limits is None else limits.tolist()
            low, above = self._open_below(np.array(most) * (1 - SLACK))
            if len(low):
                # A batch takes hardly longer than the flow with the lowest bound alone.
                order = np.argsort(above, kind="stable")[:batch]
                flows, batch = np.sort(low[order]), batch * GROWTH
                self._open[flows], self._known[flows] = False, True
                self._note(*_changes_to(self._screen, flows))
                if limits is None:
                    self._note_calm(flows)
                continue
            more = [
                kind for kind in kinds if self._suspects.slowest(kind) < most[kind] * (1 - SLACK)
            ]
            if not more:
                return
            self.take(self._suspects.look([], more))

    def _open_below(self, limits: Floats) -> tuple[Ints, Floats]:
        """Return open flows that may get less than a limit for each kind, and by how much.

        The second array has the least distance of each flow's bound to a limit, below 0.
        """
        screen, flow = self._screen, np.flatnonzero(self._open)
        above = (self._least_of(flow, _by_arc) - limits[:, None]).min(axis=0)
        low = above < 0
        flow, above = flow[low], above[low]
        if screen.standing.takes_turns and len(flow):
            new = flow[np.isnan(self._bounds[0, flow])]
            self._bounds[:, new] = self._least_of(new, LossScreen.shares_left)
            above = (self._bounds[:, flow] - limits[:, None]).min(axis=0)
            low = above < 0
            flow, above = flow[low], above[low]
        return flow, above

    def _least_of(self, flow: Ints, share: Callable[[LossScreen, Ints, Ints], Floats]) -> Floats:
        """Return a lower bound on what any loss of a kind leaves to some flows, ascending.

        It is a part of each flow's demand, shape (kinds, flows). ``share`` returns what an arc
        leaves to the QPs of the path in a slot.
        """
        screen, routes = self._screen, self._screen.standing.routes
        at, slot = screen.standing.slots(flow)
        rate = np.where(routes.strands[slot].T, 0.0, routes.unit[slot])
        ways = np.hstack([table.take(slot, axis=0) for table in (routes.arcs, routes.spares)])
        owner, step = marked(ways != NONE)
        for one, level in zip(rate, share(screen, ways[owner, step], slot[owner]), strict=True):
            np.minimum.at(one, owner, level)
        got = [np.bincount(at, one * routes.qps[slot], len(flow)) for one in rate]
        return np.asarray(np.stack(got) / screen.standing.plan.flows.gbps[flow])

    def slowest(self) -> list[Slowest]:
        """Return the slowest flow after the worst loss of each kind."""
        screen, losses, kinds = self._screen, self._suspects.losses, range(len(LOSS_KINDS))
        self.find()
        found = [Slowest(1.0, int(losses.of_kind(kind)[0])) for kind in kinds]
        kind = losses.kind(self._loss)
        low = [one for one in kinds if self.least(one) < 1 - SLACK]
        first = np.array(
            [np.where(kind == one, np.round(self._ratio, 12), np.inf).argmin() for one in low],
            dtype=np.int64,
        )
        exact = _are_exact(screen, self._floors(first)) if low else ()
        for one, at, done in zip(low, first.tolist(), exact, strict=True):
            told = Slowest(float(self._ratio[at]), int(self._loss[at]))
            found[one] = told if done else self._filled(one)
        return found

    def _filled(self, kind: int) -> Slowest:
        """Return the slowest flow after losses of a kind, from fair rates.

        Losses are tried in order of their floors. After a fixed effort the lowest floor left is
        returned, which is never too high.
        """
        screen, losses = self._screen, self._suspects.losses
        done = np.zeros(len(losses.served), dtype=np.bool_)
        best, spent, batch = Slowest(1.0, int(losses.of_kind(kind)[0])), 0, _FIRST_BATCH
        while True:
            mine = np.flatnonzero(losses.kind(self._loss) == kind)
            lowest = np.full(len(done), np.inf)
            lowest[losses.of_kind(kind)] = self._in_peace(distinct(self._flow)).min(initial=1.0)
            np.minimum.at(lowest, self._loss[mine], self._ratio[mine])
            lowest[done] = np.inf
            order = np.argsort(lowest, kind="stable")
            order = order[lowest[order] < best.ratio * (1 - SLACK)]
            if not len(order):
                limits = np.zeros(len(LOSS_KINDS))
                limits[kind] = best.ratio
                known = len(self._loss)
                self.find(limits)
                if len(self._loss) == known:
                    return best
                continue
            if spent > _MOST:
                return Slowest(float(lowest[order[0]]), int(order[0]))
            chosen: list[tuple[int, Ints]] = []
            size = 0
            for loss in order.tolist():
                full = _full_arcs(screen, loss)
                chosen.append((loss, full))
                done[loss] = True
                size += 1 + len(screen.standing.uses(full)[1])
                if size >= batch:
                    break
            spent, batch = spent + size, batch * 2
            for (loss, _), ratio in zip(chosen, _ratios(screen, chosen), strict=True):
                if ratio < best.ratio * (1 - SLACK):
                    best = Slowest(ratio, loss)


def _by_arc(screen: LossScreen, arc: Ints, _slot: Ints) -> Floats:
    """Return what arcs leave to a QP of any path; see ``LossScreen.shares_left``."""
    return screen.level[:, arc]


def _changes_to(screen: LossScreen, flow: Ints) -> tuple[Ints, Ints]:
    """Return pairs of loss and flow, for the losses that change anything on a flow's arcs.

    For each arc, losses that change nothing there are included, too. ``flow`` is ascending.
    """
    routes, width = screen.standing.routes, len(screen.gbps)
    of, slot = screen.standing.slots(flow)
    met = routes.losses.take(slot, axis=0)
    hit, step = marked(met != NONE)
    ways = np.concatenate(
        [routes.arcs.take(slot, axis=0), routes.spares.take(slot, axis=0)], axis=1
    )
    code = distinct((of[:, None] * width + ways)[ways != NONE])
    arcs = distinct(code % width)
    loss, on = pairs_on(screen, arcs)
    place, turned = joined(
        np.searchsorted(on, np.append(arcs, width)), loss, np.searchsorted(arcs, code % width)
    )
    count = len(flow)
    code = distinct(
        np.append(turned * count + (code // width)[place], met[hit, step] * count + of[hit])
    )
    return code // count, flow[code % count]


def _full_arcs(screen: LossScreen, loss: int) -> Ints:
    """Return the arcs, ascending, whose load after a loss is above their capacity."""
    standing, capacity = screen.standing, screen.standing.plan.fabric.structure.capacity
    _, slot = standing.broken(np.array([loss], dtype=np.int64))
    changed = distinct(
        np.append(
            standing.routes.arcs.take(slot, axis=0), standing.routes.spares.take(slot, axis=0)
        )
    )
    changed = changed[changed != NONE]
    full = screen.gbps > capacity * (1 + SLACK)
    place, slot = standing.members(np.full(len(changed), loss), changed)
    load = PathUses(standing, place, slot, len(changed)).load
    full[changed] = load > capacity[changed] * (1 + SLACK)
    return np.flatnonzero(full)


def _ratios(screen: LossScreen, chosen: list[tuple[int, Ints]]) -> list[float]:
    """Return the part of its demand that the slowest flow gets after each of some losses.

    ``chosen`` are the losses, each with its full arcs.
    """
    standing, routes, flows = screen.standing, screen.standing.routes, screen.standing.plan.flows
    width = max(len(standing.plan.paths), 1)
    loss = np.concatenate([np.full(len(full), at) for at, full in chosen]).astype(np.int64)
    arc = np.concatenate([full for _, full in chosen]).astype(np.int64)
    place, slot = standing.members(loss, arc)
    entity, first = numbered(loss[place] * width + routes.row[slot])
    at, slot = loss[place[first]], slot[first]
    order = np.argsort(entity, kind="stable")
    capacity = standing.plan.fabric.structure.capacity[arc]
    missing = routes.unit[slot] - _fair(screen, (place[order], np.bincount(entity)), slot, capacity)
    some = np.array([one for one, _ in chosen], dtype=np.int64)
    of, broken = standing.broken(some)
    fate = standing.fates(some[of], broken)
    lost, apart = fate == STRANDED, fate == APART
    short = np.append(missing, routes.unit[broken[lost]])
    short *= routes.qps[np.append(slot, broken[lost])]
    who = np.append(at, some[of[lost]]) * len(flows) + routes.flow[np.append(slot, broken[lost])]
    away = np.isin(who, some[of[apart]] * len(flows) + routes.flow[broken[apart]])
    row, first = numbered(who[~away])
    key = who[~away][first]
    ratio = 1 - np.bincount(row, short[~away], len(key)) / flows.gbps[key % max(len(flows), 1)]
    found = dict.fromkeys(some.tolist(), 1.0)
    for one, value in zip((key // max(len(flows), 1)).tolist(), ratio.tolist(), strict=True):
        found[one] = min(found[one], value)
    return [found[one] for one in some.tolist()]


def _fair(screen: LossScreen, way: tuple[Ints, Ints], slot: Ints, capacity: Floats) -> Floats:
    """Return the fair rate in Gbit/s of a QP on each of some paths.

    Args:
        screen: The screen of the plan.
        way: The places that the paths use, one path after another, and how many each path uses.
        slot: Slots of the paths.
        capacity: Gbit/s of each place.
    """
    if not len(slot):
        return np.empty(0)
    routes, flows = screen.standing.routes, screen.standing.plan.flows
    flow = routes.flow[slot]
    phase = flows.phase[flow]
    job = np.where(phase == ANY_PHASE, -1, flows.job[flow])
    filling = Filling(way, routes.unit[slot], job, phase, capacity)
    return np.asarray(filling.rates(routes.qps[slot][None, :])[0])
