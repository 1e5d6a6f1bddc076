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
from heddle_controller.solve.losses.loads import Amounts, Survey, members, ranked
from heddle_controller.solve.losses.moves import APART, MOVED, STRANDED

_TOLERANCE = 1e-9
_FIRST_BATCH = 2_000
"""Uses of full arcs that are filled together at first; then twice as many each time."""
_MOST = 600_000
"""Uses of full arcs that are filled at most; beyond that the floor is told."""


@dataclass(frozen=True, slots=True)
class Slowest:
    """The least part of its demand that a flow gets."""

    ratio: float
    loss: int


class _RatesAfterLosses:
    """What flows get after losses."""

    def __init__(self, survey: Survey) -> None:
        self.survey, plan, cells = survey, survey.plan, survey.cells
        self.capacity = plan.fabric.structure.capacity
        self.qps = plan.paths.qp_count.astype(np.float64)
        self.unit = (plan.flows.gbps / plan.flows.qps)[plan.paths.flow]
        self.amounts = Amounts.of(plan, self.qps)
        self.full: Bools = plan.loads > self.capacity * (1 + _TOLERANCE)
        over = cells.load > self.capacity[cells.arc] * (1 + _TOLERANCE)
        self.over = cells.loss[over], cells.arc[over]
        self.changed = cells.loss * len(self.full) + cells.arc
        self.begins = np.searchsorted(self.over[0], np.arange(len(survey.losses) + 1))

    def floors(self) -> tuple[Floats, Ints]:
        """No flow gets less than this part of its demand after each loss; and which one that is."""
        plan, moves = self.survey.plan, self.survey.moves
        flows, flow = plan.flows, plan.paths.flow
        arcs = np.flatnonzero(self.full)
        level = np.full(len(self.full), np.inf)
        level[arcs] = self._levels(arcs, *self.survey.uses.on(arcs))
        base = np.minimum(_least(plan.paths.first, level[plan.paths.arcs]), self.unit)
        spare = np.minimum(_least(plan.backups.first, level[plan.backups.arcs]), self.unit)
        whole = np.bincount(flow, weights=base * self.qps, minlength=len(flows))
        routed = np.bincount(flow, minlength=len(flows)) > 0
        ratio = np.where(routed, whole / flows.gbps, 1.0)
        first = int(ratio.argmin()) if len(ratio) else 0
        lowest = float(ratio.min(initial=1.0))
        loss, arc = self.over
        place, path = members(self.survey, loss, arc)
        here = self._levels(arc, place, path)[place]
        width = max(len(plan.paths), 1)
        broken = moves.loss * width + moves.path
        rate = np.where(moves.fate == STRANDED, 0.0, np.minimum(spare, base)[moves.path])
        code = np.concatenate([loss[place] * width + path, broken])
        got = np.concatenate([np.minimum(here, np.minimum(base[path], spare[path])), rate])
        apart = among(code, broken[moves.fate == APART])
        code, got = code[~apart], got[~apart]
        codes, entity = ranked(code)
        least = np.full(len(codes), np.inf)
        np.minimum.at(least, entity, got)
        loss, path = codes // width, codes % width
        short = np.maximum(base[path] - least, 0.0) * self.qps[path]
        of_flow, row = ranked(loss * len(flows) + flow[path])
        missing = np.bincount(row, weights=short)
        at = of_flow % max(len(flows), 1)
        ratio = (whole[at] - missing) / flows.gbps[at]
        floors = np.full(len(self.survey.losses), lowest)
        who = np.full(len(floors), first)
        loss = of_flow // max(len(flows), 1)
        np.minimum.at(floors, loss, ratio)
        lower = ratio <= floors[loss]
        who[loss[lower]] = at[lower]
        return floors, who

    def _levels(self, arc: Ints, place: Ints, path: Ints) -> Floats:
        """The even part of a QP on each of some arcs, whose uses are given."""
        count = self.amounts.total(place, path, np.ones(len(path)), len(arc))
        level: Floats = np.full(len(arc), np.inf)
        np.divide(self.capacity[arc], count, out=level, where=count > 0)
        return level

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
        level = self._levels_after(loss, arcs)
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
        np.minimum.at(lowest, owner, self._levels_after(loss, arcs))
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

    def _levels_after(self, loss: int, arcs: Ints) -> Floats:
        """The even part of a QP on arcs after a loss, infinite on those that are not over-full."""
        full = self.full_arcs(loss)
        looked = full[among(full, np.unique(arcs))]
        level = np.full(len(self.full), np.inf)
        place, path = members(self.survey, np.full(len(looked), loss), looked)
        level[looked] = self._levels(looked, place, path)
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


def slowest_of(survey: Survey, worst: Floats) -> Slowest:
    """The slowest flow after the loss that slows one most; of equals the fullest by ``worst``."""
    shares = _RatesAfterLosses(survey)
    floors, who = shares.floors()
    order = np.lexsort((-worst, floors)).tolist()
    lowest = float(floors[order[0]])
    if lowest >= 1:  # nobody is slowed, or there is nobody
        return Slowest(lowest, order[0])
    if shares.is_exact(order[0], int(who[order[0]]), lowest):
        return Slowest(lowest, order[0])
    best, spent, at, batch = Slowest(np.inf, order[0]), 0, 0, _FIRST_BATCH
    while at < len(order) and floors[order[at]] < best.ratio * (1 - _TOLERANCE):
        if spent > _MOST:
            return Slowest(float(floors[order[at]]), order[at])
        chosen: list[tuple[int, Ints]] = []
        size = 0
        while at < len(order) and size < batch:
            full = shares.full_arcs(order[at])
            chosen.append((order[at], full))
            size += 1 + int(np.diff(survey.uses.first)[full].sum())
            at += 1
        spent, batch = spent + size, batch * 2
        chosen.sort(key=lambda one: one[0])
        for (loss, _), ratio in zip(chosen, shares.ratios(chosen), strict=True):
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
