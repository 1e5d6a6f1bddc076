"""The slowest flow after any single loss, as QPs share links max-min fairly.

Every loss has its own fair rates, and to fill them all would take long. A floor is quick: no QP
gets less than its even part of the fullest arc on its way. Flows over the most suspect arcs are
looked at, until no other can have a lower floor. Most often that floor is what the flow gets, and
nothing is filled. Where it gets more, losses are filled in order of their floors, until the least
rate found is no more than the next floor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, among, distinct, numbered
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.solve.fairness.filling import Filling
from heddle_controller.solve.losses.moves import (
    APART,
    LOSS_KINDS,
    MOVED,
    STRANDED,
    UNTOUCHED,
    joined,
)
from heddle_controller.solve.losses.screen import LossScreen
from heddle_controller.solve.losses.suspects import (
    FIRST_ARCS,
    GROWTH,
    SLACK,
    Look,
    Suspects,
    looked,
    pairs_on,
)

_FIRST_BATCH = 2_000
"""Uses of full arcs that are filled together at first; then twice as many each time."""
_MOST = 600_000
"""Uses of full arcs that are filled at most; beyond that the floor is told."""


@dataclass(frozen=True, slots=True)
class Slowest:
    """The least part of its demand that a flow gets after any loss."""

    ratio: float
    loss: int


@dataclass(frozen=True, slots=True, eq=False)
class _Floors:
    """What flows get at least, each after the loss beside it, and why."""

    loss: Ints
    flow: Ints
    ratio: Floats
    """Part of its demand; infinite where the loss cuts it off from a NIC."""
    of: Ints
    """Which of these each path is of."""
    path: Ints
    rate: Floats
    """Of a QP of the path, Gbit/s."""
    owner: Ints
    """Which of these paths each arc is of."""
    arc: Ints
    level: Floats
    """The even part of a QP on the arc."""

    @classmethod
    def of_flows(cls, screen: LossScreen, loss: Ints, flow: Ints) -> _Floors:
        """Of some flows."""
        standing = screen.standing
        of, path = standing.rows(flow)
        fate = standing.fates(screen.losses, loss[of], path)
        owner, arc = _ways(screen, path, fate)
        level = _levels(screen, loss[of[owner]], arc)
        rate = np.where(fate <= MOVED, standing.unit(path), 0.0)
        np.minimum.at(rate, owner, level)
        got = np.bincount(of, rate * standing.qps(path), len(flow))
        ratio = got / standing.plan.flows.gbps[flow]
        ratio[of[fate == APART]] = np.inf
        return cls(loss, flow, ratio, of, path, rate, owner, arc, level)


def _ways(screen: LossScreen, path: Ints, fate: Ints) -> tuple[Ints, Ints]:
    """Place in ``path`` and arc of all that paths of these fates take."""
    plan = screen.standing.plan
    stays, moved = np.flatnonzero(fate == UNTOUCHED), np.flatnonzero(fate == MOVED)
    some, spare = plan.paths.take(path[stays]), plan.backups.take(path[moved])
    owner = np.append(stays[some.owner()], moved[spare.owner()])
    return owner, np.append(some.arcs, spare.arcs)


def _levels(screen: LossScreen, loss: Ints, arc: Ints) -> Floats:
    """The even part of a QP on each arc after the loss beside it; infinite where it has room."""
    width = len(screen.gbps)
    cell, first = numbered(loss * width + arc)
    return looked(screen, loss[first], arc[first]).level[cell]


def _are_exact(screen: LossScreen, floors: _Floors) -> Bools:
    """Whether flows get just their floor: nobody else could leave them more.

    So it is where each path is held by an arc on which no path is held more elsewhere: such an arc
    fills up first of all that its users cross. Where phases take turns, it holds back the greatest
    phase of each job alone.
    """
    standing, width = screen.standing, max(len(screen.standing.plan.paths), 1)
    slowed = floors.rate < standing.unit(floors.path)
    known = np.bincount(floors.owner, minlength=len(floors.path)) > 0
    tied = floors.level <= floors.rate[floors.owner] * (1 + SLACK)
    held = np.flatnonzero(tied & slowed[floors.owner])
    loss = floors.loss[floors.of[floors.owner[held]]]
    cell, first = numbered(loss * len(screen.gbps) + floors.arc[held])
    tight = held[first]
    place, others = standing.members(screen.losses, loss[first], floors.arc[tight])
    leads = _leads(
        standing.plan.flows, place, standing.plan.paths.flow[others], standing.qps(others)
    )
    met = cell * width + floors.path[floors.owner[held]]
    stops = among(met, np.sort((place * width + others)[leads]))
    stopped = np.zeros(len(floors.path), dtype=np.bool_)
    stopped[floors.owner[held[stops]]] = True
    of_place = loss[first][place]
    fate = standing.fates(screen.losses, of_place, others)
    owner, arc = _ways(screen, others, fate)
    lowest = standing.unit(others)
    np.minimum.at(lowest, owner, _levels(screen, of_place[owner], arc))
    more = lowest < floors.level[tight][place] * (1 - SLACK)
    wrong = ~known | (slowed & ~stopped)
    result = np.ones(len(floors.flow), dtype=np.bool_)
    result[floors.of[wrong]] = False
    result[floors.of[floors.owner[held[np.isin(cell, place[more])]]]] = False
    return result


def _leads(flows: Flows, place: Ints, flow: Ints, qps: Floats) -> Bools:
    """Whether uses of places are of the phase of their job that has most QPs there."""
    phase = flows.phase[flow]
    of_share, first = numbered(place * max(len(flows.job_names), 1) + flows.job[flow])
    slot, _ = numbered(of_share * (len(flows.phase_names) + 1) + phase + 1)
    count = np.bincount(slot, qps)[slot]
    always = phase == ANY_PHASE
    most = np.zeros(len(first))
    np.maximum.at(most, of_share[~always], count[~always])
    leads: Bools = always | (count >= most[of_share] * (1 - SLACK))
    return leads


class SlowFlows:
    """The flows with the lowest floors, as far as arcs were looked at."""

    def __init__(self, suspects: Suspects) -> None:
        self._suspects, self._screen = suspects, suspects.screen
        screen, plan = suspects.screen, suspects.screen.standing.plan
        none = np.empty(0, dtype=np.int64)
        self._loss, self._flow, self._ratio = none, none, np.empty(0)
        """Whose floors are known."""
        self._open: Bools = np.zeros(len(plan.flows), dtype=np.bool_)
        """Flows some of whose floors are not known, of those that may have low ones."""
        self._open[plan.paths.flow[screen.strands.any(axis=0)]] = True
        routed = np.bincount(plan.paths.flow, plan.paths.qp_count, len(plan.flows))
        self._open |= (routed > 0) & (routed < plan.flows.qps)
        self._known = np.zeros(len(plan.flows), dtype=np.bool_)

    def take(self, look: Look) -> None:
        """Take on what was looked at."""
        plan, standing = self._screen.standing.plan, self._screen.standing
        flow = plan.paths.flow[look.path]
        self._open[flow[~self._known[flow]]] = True
        # What the arc leaves to a flow of one path is no less than its floor.
        alone = standing.first[flow + 1] - standing.first[flow] == 1
        most = np.where(alone, look.level[look.place] / standing.unit(look.path), np.inf)
        kind = self._screen.losses.kind(look.loss)[look.place]
        some = [
            int(np.where(kind == one, most, np.inf).argmin())
            for one in range(len(LOSS_KINDS))
            if (most[kind == one] < self.least(one)).any()
        ]
        if some:
            self._note(look.loss[look.place[some]], flow[some])

    def least(self, kind: int) -> float:
        """The lowest floor of a kind that is known; 1 where none is lower."""
        return float(self._ratio[self._screen.losses.kind(self._loss) == kind].min(initial=1.0))

    def _note(self, loss: Ints, flow: Ints) -> None:
        floors = _Floors.of_flows(self._screen, loss, flow)
        self._loss, self._flow = np.append(self._loss, loss), np.append(self._flow, flow)
        self._ratio = np.append(self._ratio, floors.ratio)

    def _in_peace(self) -> float:
        """The lowest floor while nothing is lost: a loss that changes no way of a flow leaves that.

        So fair shares may be less even after such a loss.
        """
        flows = distinct(self._flow)
        none = np.full(len(flows), len(self._screen.losses.served))
        return float(_Floors.of_flows(self._screen, none, flows).ratio.min(initial=1.0))

    def find(self, limits: Floats | None = None) -> None:
        """Find all floors below the limits of each kind, or below the least there is."""
        kinds, batch = range(len(LOSS_KINDS)), FIRST_ARCS
        while True:
            most = [self.least(kind) for kind in kinds] if limits is None else limits.tolist()
            some = np.flatnonzero(self._open)
            least = self._least_of(some)
            limit = np.array(most)[:, None] * (1 - SLACK)
            low = np.flatnonzero((least < limit).any(axis=0))
            if len(low):
                # All of those that are looked at anyway take as long as the lowest alone.
                order = np.argsort((least - limit).min(axis=0)[low], kind="stable")[:batch]
                flows, batch = np.sort(some[low[order]]), batch * GROWTH
                self._open[flows], self._known[flows] = False, True
                self._note(*_changes_to(self._screen, flows))
                continue
            more = [
                kind for kind in kinds if self._suspects.slowest(kind) < most[kind] * (1 - SLACK)
            ]
            if not more:
                return
            self.take(self._suspects.look([], more))

    def _least_of(self, flow: Ints) -> Floats:
        """For each kind, no loss leaves less to some ascending flows; shape (kinds, flows)."""
        screen, standing, plan = self._screen, self._screen.standing, self._screen.standing.plan
        at, rows = standing.rows(flow)
        rate = np.tile(standing.unit(rows), (len(LOSS_KINDS), 1))
        rate[screen.strands[:, rows]] = 0.0
        capacity = self._suspects.capacity
        for paths in (plan.paths, plan.backups):
            some = paths.take(rows)
            load, qps = (
                one[some.arcs] + most[:, some.arcs]
                for one, most in ((screen.gbps, screen.most_gbps), (screen.qps, screen.most_qps))
            )
            kind, step = np.nonzero(load > capacity[some.arcs] * (1 + SLACK))
            level = capacity[some.arcs[step]] / qps[kind, step]
            np.minimum.at(rate, (kind, some.owner()[step]), level)
        got = [np.bincount(at, one * standing.qps(rows), len(flow)) for one in rate]
        return np.asarray(np.stack(got) / plan.flows.gbps[flow])

    def slowest(self) -> list[Slowest]:
        """The slowest flow after the loss of each kind that slows one most."""
        screen, kinds = self._screen, range(len(LOSS_KINDS))
        self.find()
        found = [Slowest(1.0, int(screen.losses.of_kind(kind)[0])) for kind in kinds]
        kind = screen.losses.kind(self._loss)
        low = [one for one in kinds if self.least(one) < 1 - SLACK]
        first = np.array(
            [np.where(kind == one, np.round(self._ratio, 12), np.inf).argmin() for one in low],
            dtype=np.int64,
        )
        exact = (
            _are_exact(screen, _Floors.of_flows(screen, self._loss[first], self._flow[first]))
            if low
            else ()
        )
        for one, at, done in zip(low, first.tolist(), exact, strict=True):
            told = Slowest(float(self._ratio[at]), int(self._loss[at]))
            found[one] = told if done else self._filled(one)
        return found

    def _filled(self, kind: int) -> Slowest:
        """The least of all rates, losses being filled in order of their floors."""
        screen = self._screen
        done = np.zeros(len(screen.losses.served), dtype=np.bool_)
        best, spent, batch = Slowest(1.0, int(screen.losses.of_kind(kind)[0])), 0, _FIRST_BATCH
        while True:
            mine = np.flatnonzero(screen.losses.kind(self._loss) == kind)
            lowest = np.full(len(done), np.inf)
            lowest[screen.losses.of_kind(kind)] = self._in_peace()
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
                size += 1 + len(screen.standing.uses(full).path)
                if size >= batch:
                    break
            spent, batch = spent + size, batch * 2
            for (loss, _), ratio in zip(chosen, _ratios(screen, chosen), strict=True):
                if ratio < best.ratio * (1 - SLACK):
                    best = Slowest(ratio, loss)


def _changes_to(screen: LossScreen, flow: Ints) -> tuple[Ints, Ints]:
    """Loss and flow: all losses that change anything on any way of some ascending flows.

    And for each way some that change nothing.
    """
    standing, width = screen.standing, len(screen.gbps)
    plan, count = standing.plan, len(standing.plan.flows)
    _, rows = standing.rows(flow)
    some, spare = plan.paths.take(rows), plan.backups.take(rows)
    of_path = some.flow[some.owner()]
    met = screen.losses.on(some.arcs)
    kind, own = np.nonzero(met != NONE)
    code = np.append(of_path * width + some.arcs, spare.flow[spare.owner()] * width + spare.arcs)
    code = distinct(code)
    of, arc = code // width, code % width
    arcs = distinct(arc)
    loss, on = pairs_on(screen, arcs)
    place, turned = joined(
        np.searchsorted(on, np.append(arcs, width)), loss, np.searchsorted(arcs, arc)
    )
    code = distinct(np.append(turned * count + of[place], met[kind, own] * count + of_path[own]))
    return code // count, code % count


def _full_arcs(screen: LossScreen, loss: int) -> Ints:
    """Arcs that are asked for more than they have after a loss, ascending."""
    plan, capacity = screen.standing.plan, screen.losses.fabric.structure.capacity
    _, path = screen.standing.broken(screen.losses, np.array([loss], dtype=np.int64))
    ways = plan.paths.take(path), plan.backups.take(path)
    changed = distinct(np.concatenate([one.arcs for one in ways]))
    full = screen.gbps > capacity * (1 + SLACK)
    full[changed] = np.isfinite(_levels(screen, np.full(len(changed), loss), changed))
    return np.flatnonzero(full)


def _ratios(screen: LossScreen, chosen: list[tuple[int, Ints]]) -> list[float]:
    """The slowest flow after each of some losses, told with their full arcs."""
    standing, flows = screen.standing, screen.standing.plan.flows
    flow, width = standing.plan.paths.flow, max(len(standing.plan.paths), 1)
    loss = np.concatenate([np.full(len(full), at) for at, full in chosen]).astype(np.int64)
    arc = np.concatenate([full for _, full in chosen]).astype(np.int64)
    place, path = standing.members(screen.losses, loss, arc)
    entity, first = numbered(loss[place] * width + path)
    at, path = loss[place[first]], path[first]
    order = np.argsort(entity, kind="stable")
    steps = np.split(place[order], np.cumsum(np.bincount(entity))[:-1]) if len(path) else []
    capacity = screen.losses.fabric.structure.capacity[arc]
    missing = standing.unit(path) - _fair(screen, steps, path, capacity)
    some = np.array([one for one, _ in chosen], dtype=np.int64)
    of, broken = standing.broken(screen.losses, some)
    fate = standing.fates(screen.losses, some[of], broken)
    lost, apart = fate == STRANDED, fate == APART
    short = np.append(missing, standing.unit(broken[lost]))
    short *= standing.qps(np.append(path, broken[lost]))
    who = np.append(at, some[of[lost]]) * len(flows) + flow[np.append(path, broken[lost])]
    away = np.isin(who, some[of[apart]] * len(flows) + flow[broken[apart]])
    row, first = numbered(who[~away])
    key = who[~away][first]
    ratio = 1 - np.bincount(row, short[~away], len(key)) / flows.gbps[key % max(len(flows), 1)]
    found = dict.fromkeys(some.tolist(), 1.0)
    for one, value in zip((key // max(len(flows), 1)).tolist(), ratio.tolist(), strict=True):
        found[one] = min(found[one], value)
    return [found[one] for one in some.tolist()]


def _fair(screen: LossScreen, steps: list[Ints], path: Ints, capacity: Floats) -> Floats:
    """Fair rate of a QP on each of some paths over places whose capacity is given."""
    if not steps:
        return np.empty(0)
    flows, flow = screen.standing.plan.flows, screen.standing.plan.paths.flow[path]
    phase = flows.phase[flow]
    job = np.where(phase == ANY_PHASE, -1, flows.job[flow])
    way = np.concatenate(steps), np.array([len(one) for one in steps], dtype=np.int64)
    filling = Filling(way, screen.standing.unit(path), job, phase, capacity)
    return np.asarray(filling.rates(screen.standing.qps(path)[None, :])[0])
