"""The slowest flow after any single loss, as QPs share links max-min fairly.

Every loss has its own fair rates, and to fill them all would take long. A floor is quick: no QP
gets less than its even part of the fullest arc on its way. Losses are filled in order of their
floors, many at a time, until the least rate found is no more than the next floor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, among
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve.fairness.filling import Filling
from heddle_controller.solve.losses.loads import Standing, Survey, members, ranked
from heddle_controller.solve.losses.moves import APART, MOVED, STRANDED

_TOLERANCE = 1e-9
_FIRST_LOSSES = 64
"""Losses whose floors are looked at together at first."""
_GROWTH = 8
"""How many times as many each time after that."""
_FIRST_BATCH = 2_000
"""Uses of full arcs that are filled together at first; then twice as many each time."""
_MOST = 600_000
"""Uses of full arcs that are filled at most; beyond that the floor is told."""


@dataclass(frozen=True, slots=True)
class Slowest:
    """The least part of its demand that a flow gets."""

    ratio: float
    loss: int


class FairShares:
    """What QPs and flows get at least while nothing is lost."""

    def __init__(self, standing: Standing) -> None:
        self.standing, plan = standing, standing.plan
        flows, flow = plan.flows, plan.paths.flow
        self.capacity = plan.fabric.structure.capacity
        self.full: Bools = plan.loads > self.capacity * (1 + _TOLERANCE)
        self.unit = (flows.gbps / flows.qps)[flow]
        """What a QP of each path asks for."""
        arcs, qps = np.flatnonzero(self.full), standing.qps.each
        level = np.full(len(self.full), np.inf)
        level[arcs] = self.levels(arcs, *standing.uses.on(arcs))
        self.base = np.minimum(_least(plan.paths.first, level[plan.paths.arcs]), self.unit)
        """What it gets, at least."""
        spare = np.minimum(_least(plan.backups.first, level[plan.backups.arcs]), self.unit)
        self.either = np.minimum(self.base, spare)
        """On its path or its backup, if that stays as full as it is."""
        self.whole = np.bincount(flow, weights=self.base * qps, minlength=len(flows))
        """What each flow gets, at least."""
        routed = np.bincount(flow, weights=qps, minlength=len(flows)) / flows.qps
        self.ratio = np.where(routed > 0, self.whole / flows.gbps, 1.0)
        """The part of its demand."""
        least = np.ones(len(flows))
        np.minimum.at(least, flow, self.either / self.unit)
        self.flow_least = (least * routed)[flow]
        """The least that its flow gets by any path or backup, as a part of its demand."""
        self.wants, self.lowest = np.zeros(len(level)), np.full(len(level), np.inf)
        for paths in (plan.paths, plan.backups):
            owner = paths.owner()
            np.maximum.at(self.wants, paths.arcs, self.unit[owner])
            np.minimum.at(self.lowest, paths.arcs, self.flow_least[owner])
        # A flow whose QPs are not all routed gets no more than the others bring.
        self.wants /= float(routed[routed > 0].min(initial=1.0))

    def levels(self, arc: Ints, place: Ints, path: Ints) -> Floats:
        """The even part of a QP on each of some arcs, whose uses are given."""
        count = self.standing.qps.total(place, path, np.ones(len(path)), len(arc))
        level: Floats = np.full(len(arc), np.inf)
        np.divide(self.capacity[arc], count, out=level, where=count > 0)
        return level


class _RatesAfterLosses:
    """What flows get after losses of one kind."""

    def __init__(self, survey: Survey, shares: FairShares) -> None:
        self.survey, self.shares, cells = survey, shares, survey.cells
        self.amounts, self.qps = survey.standing.qps, survey.standing.qps.each
        self.capacity, self.full, self.unit = shares.capacity, shares.full, shares.unit
        over = cells.load > self.capacity[cells.arc] * (1 + _TOLERANCE)
        self.over = cells.loss[over], cells.arc[over]
        self.over_level = self.capacity[self.over[1]] / cells.qps[over]
        self.changed = cells.loss * len(self.full) + cells.arc
        self.begins = np.searchsorted(self.over[0], np.arange(len(survey.losses) + 1))

    def lowest(self) -> Floats:
        """What ``floors`` tells is at least this, after each loss; found in less time.

        An arc leaves each QP its even part. Of all QPs that may come to use it, the one that asks
        for most, and the one whose flow gets least elsewhere, say what that is worth.
        """
        shares, moves = self.shares, self.survey.moves
        loss, arc = self.over
        found = np.full(len(self.survey.losses), float(shares.ratio.min(initial=1.0)))
        level = np.minimum(self.over_level / shares.wants[arc], shares.lowest[arc])
        np.minimum.at(found, loss, level)
        least = np.where(moves.fate == MOVED, shares.flow_least[moves.path], 0.0)
        told = moves.fate != APART
        np.minimum.at(found, moves.loss[told], least[told])
        return found

    def floors(self, some: Ints) -> tuple[Floats, Ints]:
        """No flow gets less than this part of its demand after each of some losses; and which one.

        ``some`` are ascending.
        """
        plan, moves = self.survey.plan, self.survey.moves
        flows, flow = plan.flows, plan.paths.flow
        shares, whole = self.shares, self.shares.whole
        first = int(shares.ratio.argmin()) if len(flows) else 0
        chosen = np.zeros(len(self.survey.losses), dtype=np.bool_)
        chosen[some] = True
        over, struck = np.flatnonzero(chosen[self.over[0]]), np.flatnonzero(chosen[moves.loss])
        loss, arc = self.over[0][over], self.over[1][over]
        place, path = members(self.survey, loss, arc)
        here = self.over_level[over][place]
        width = max(len(plan.paths), 1)
        broken, fate = moves.loss[struck] * width + moves.path[struck], moves.fate[struck]
        rate = np.where(fate == STRANDED, 0.0, shares.either[moves.path[struck]])
        code = np.concatenate([loss[place] * width + path, broken])
        got = np.concatenate([np.minimum(here, shares.either[path]), rate])
        apart = among(code, broken[fate == APART])
        code, got = code[~apart], got[~apart]
        codes, entity = ranked(code)
        least = np.full(len(codes), np.inf)
        np.minimum.at(least, entity, got)
        loss, path = codes // width, codes % width
        short = np.maximum(shares.base[path] - least, 0.0) * self.qps[path]
        of_flow, row = ranked(loss * len(flows) + flow[path])
        missing = np.bincount(row, weights=short)
        at = of_flow % max(len(flows), 1)
        ratios = (whole[at] - missing) / flows.gbps[at]
        floors = np.full(len(chosen), float(shares.ratio.min(initial=1.0)))
        who = np.full(len(floors), first)
        loss = of_flow // max(len(flows), 1)
        np.minimum.at(floors, loss, ratios)
        lower = ratios <= floors[loss]
        who[loss[lower]] = at[lower]
        return floors[some], who[some]

    def full_arcs(self, loss: int) -> Ints:
        """Arcs that are asked for more than they have, after one loss."""
        mine = self.over[1][self.begins[loss] : self.begins[loss + 1]]
        stood = np.flatnonzero(self.full)
        at = np.full(len(stood), loss)
        stood = stood[~self.survey.losses.takes(at, stood)]
        code = loss * len(self.full) + stood
        stood = stood[~among(code, self.changed)]
        return np.sort(np.concatenate([mine, stood]))

    def is_exact(self, loss: int, flow: int, ratio: float) -> bool:
        """Whether a flow gets just its floor after a loss: nobody else could leave it more.

        So it is where each of its paths is held by an arc on which no path is held more elsewhere:
        such an arc fills up first of all that its users cross. Where phases take turns, it holds
        back the greatest phase of each job alone.
        """
        mine = np.flatnonzero(self.survey.plan.paths.flow == flow)
        arcs, owner = self._ways(loss, mine)
        full = self.full_arcs(loss)
        level = self._levels_after(loss, full, arcs)
        least = np.full(len(mine), np.inf)
        np.minimum.at(least, owner, level)
        rate = np.minimum(least, self.unit[mine])
        if len(np.unique(owner)) < len(mine) or ratio < self._ratio_of(flow, mine, rate):
            return False
        held = (level <= rate[owner] * (1 + _TOLERANCE)) & (rate < self.unit[mine])[owner]
        tight, first = np.unique(arcs[held], return_index=True)
        place, others = members(self.survey, np.full(len(tight), loss), tight)
        leads = self._leads(place, others)
        met = np.searchsorted(tight, arcs[held]) * len(self.unit) + mine[owner[held]]
        stops = among(met, np.sort((place * len(self.unit) + others)[leads]))
        if not among(np.flatnonzero(rate < self.unit[mine]), np.unique(owner[held][stops])).all():
            return False
        arcs, owner = self._ways(loss, others)
        lowest = self.unit[others]
        np.minimum.at(lowest, owner, self._levels_after(loss, full, arcs))
        return bool((lowest >= level[held][first][place] * (1 - _TOLERANCE)).all())

    def _leads(self, place: Ints, path: Ints) -> Bools:
        """Whether uses of places by paths are of the phase of their job that has most QPs there."""
        job, phase = self.amounts.job[path], self.amounts.phase[path]
        share, of_share = ranked(place * self.amounts.jobs + job)
        _, slot = ranked(of_share * (self.amounts.phases + 1) + phase + 1)
        count = np.bincount(slot, weights=self.qps[path])[slot]
        always = phase == ANY_PHASE
        most = np.zeros(len(share))
        np.maximum.at(most, of_share[~always], count[~always])
        leads: Bools = always | (count >= most[of_share] * (1 - _TOLERANCE))
        return leads

    def _ratio_of(self, flow: int, paths: Ints, rate: Floats) -> float:
        """Part of its demand that a flow gets at these rates of a QP, less what rounding does."""
        total = float((rate * self.qps[paths]).sum()) / float(self.survey.plan.flows.gbps[flow])
        return total * (1 - _TOLERANCE)

    def _ways(self, loss: int, paths: Ints) -> tuple[Ints, Ints]:
        """Arcs that some paths take after a loss, and the place of each arc's path among them."""
        plan, moves = self.survey.plan, self.survey.moves
        begin, end = np.searchsorted(moves.loss, [loss, loss + 1])
        known, fate = moves.path[begin:end], moves.fate[begin:end]
        moved = among(paths, known[fate == MOVED])
        stays = np.flatnonzero(~among(paths, known))
        some, spare = plan.paths.take(paths[stays]), plan.backups.take(paths[moved])
        owner = np.append(stays[some.owner()], np.flatnonzero(moved)[spare.owner()])
        return np.append(some.arcs, spare.arcs), owner

    def _levels_after(self, loss: int, full: Ints, arcs: Ints) -> Floats:
        """The even part of a QP on arcs after a loss, infinite on those that are not ``full``."""
        looked = full[among(full, np.unique(arcs))]
        level = np.full(len(self.full), np.inf)
        place, path = members(self.survey, np.full(len(looked), loss), looked)
        level[looked] = self.shares.levels(looked, place, path)
        return level[arcs]

    def ratios(self, chosen: list[tuple[int, Ints]]) -> list[float]:
        """The slowest flow after each of some losses, ascending, told with their full arcs."""
        plan, moves = self.survey.plan, self.survey.moves
        flows, flow = plan.flows, plan.paths.flow
        width = max(len(plan.paths), 1)
        loss = np.concatenate([np.full(len(full), at) for at, full in chosen]).astype(np.int64)
        arc = np.concatenate([full for _, full in chosen]).astype(np.int64)
        place, path = members(self.survey, loss, arc)
        codes, entity = np.unique(loss[place] * width + path, return_inverse=True)
        order = np.argsort(entity, kind="stable")
        steps = np.split(place[order], np.cumsum(np.bincount(entity))[:-1]) if len(codes) else []
        got = self._filled(steps, codes % width, arc)
        missing = (self.unit[codes % width] - got) * self.qps[codes % width]
        stranded = moves.rows(STRANDED)
        stranded = stranded[np.isin(moves.loss[stranded], [at for at, _ in chosen])]
        lost = moves.loss[stranded], moves.path[stranded]
        at = np.concatenate([codes // width, lost[0]])
        who = np.concatenate([flow[codes % width], flow[lost[1]]])
        short = np.concatenate([missing, self.unit[lost[1]] * self.qps[lost[1]]])
        apart = moves.rows(APART)
        away = np.isin(
            at * len(flows) + who, moves.loss[apart] * len(flows) + flow[moves.path[apart]]
        )
        found = dict.fromkeys((one for one, _ in chosen), 1.0)
        keys, row = np.unique((at * len(flows) + who)[~away], return_inverse=True)
        ratio = 1 - np.bincount(row, weights=short[~away]) / flows.gbps[keys % max(len(flows), 1)]
        for key, value in zip((keys // max(len(flows), 1)).tolist(), ratio.tolist(), strict=True):
            found[key] = min(found[key], value)
        return [found[one] for one, _ in chosen]

    def _filled(self, steps: list[Ints], path: Ints, arc: Ints) -> Floats:
        """Fair rate of a QP on each of some paths over places whose arcs are given."""
        if not steps:
            return np.empty(0)
        phase = self.amounts.phase[path]
        job = np.where(phase == ANY_PHASE, -1, self.amounts.job[path])
        way = np.concatenate(steps), np.array([len(one) for one in steps], dtype=np.int64)
        filling = Filling(way, self.unit[path], job, phase, self.capacity[arc])
        return np.asarray(filling.rates(self.qps[path][None, :])[0])


def _least_floor(rates: _RatesAfterLosses, worst: Floats) -> tuple[Floats, Ints, Ints]:
    """Floors of losses, one of which is the least of all, and whose they are; losses left out.

    Floors of those are infinite.
    """
    lowest = rates.lowest()
    order = np.lexsort((-worst, np.round(lowest, 12)))
    floors, who = np.full(len(order), np.inf), np.zeros(len(order), dtype=np.int64)
    at, batch, least = 0, _FIRST_LOSSES, 0
    while at < len(order):
        some = np.sort(order[at : at + batch])
        floors[some], who[some] = rates.floors(some)
        known = np.append(some, least)
        least = int(known[np.lexsort((-worst[known], floors[known]))[0]])
        at, batch = at + batch, batch * _GROWTH
        # Of equals the fullest is told.
        after = order[min(at, len(order) - 1)]
        spare = _TOLERANCE if worst[after] > worst[least] else -_TOLERANCE
        if lowest[after] > floors[least] * (1 + spare):
            break
    return floors, who, np.sort(order[at:])


def slowest_of(survey: Survey, shares: FairShares, worst: Floats) -> Slowest:
    """The slowest flow after the loss that slows one most; of equals the fullest by ``worst``."""
    rates = _RatesAfterLosses(survey, shares)
    floors, who, rest = _least_floor(rates, worst)
    first = int(np.lexsort((-worst, floors))[0])
    floor = float(floors[first])
    if floor >= 1:  # nobody is slowed, or there is nobody
        return Slowest(floor, first)
    if rates.is_exact(first, int(who[first]), floor):
        return Slowest(floor, first)
    floors[rest] = rates.floors(rest)[0]
    order = np.lexsort((-worst, floors)).tolist()
    best, spent, at, batch = Slowest(np.inf, order[0]), 0, 0, _FIRST_BATCH
    while at < len(order) and floors[order[at]] < best.ratio * (1 - _TOLERANCE):
        if spent > _MOST:
            return Slowest(float(floors[order[at]]), order[at])
        chosen: list[tuple[int, Ints]] = []
        size = 0
        while at < len(order) and size < batch:
            full = rates.full_arcs(order[at])
            chosen.append((order[at], full))
            size += 1 + int(np.diff(survey.standing.uses.first)[full].sum())
            at += 1
        spent, batch = spent + size, batch * 2
        chosen.sort(key=lambda one: one[0])
        for (loss, _), ratio in zip(chosen, rates.ratios(chosen), strict=True):
            equal = abs(ratio - best.ratio) <= _TOLERANCE
            if (equal and worst[loss] > worst[best.loss]) or (not equal and ratio < best.ratio):
                best = Slowest(ratio, loss)
    return best


def _least(first: Ints, values: Floats) -> Floats:
    """The least value of each compressed row, infinite where it has none."""
    lengths = np.diff(first)
    found = np.full(len(lengths), np.inf)
    rows = np.flatnonzero(lengths)
    if len(rows):
        found[rows] = np.minimum.reduceat(values, first[:-1][rows])
    return found
