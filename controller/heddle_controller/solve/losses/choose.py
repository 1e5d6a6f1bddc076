"""Chooses backups so that the worst single loss does the least damage.

Backups were already moved to links that have room, many at a time (``repair.backup_room``). This
search takes the fullest link after any loss and gives one of the paths that fell on it another
backup. The new backup has as many hops and shares no link and no switch with the path. After every
loss that breaks the path, each of its links must stay less full than the relieved one was. The
search ends when nothing helps or the bound is met. Paths do not change, so the plan stays as good
as it was while nothing is lost.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, distinct, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import AfterLoss, Paths, Plan, differing
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.losses.moves import LOSS_KINDS, MOVED, Kind
from heddle_controller.solve.losses.screen import LossScreen, screen_of
from heddle_controller.solve.losses.standing import PathUses
from heddle_controller.solve.losses.survey import told_by
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Options
from heddle_controller.solve.repair.backups import backups_of, moved_backups

MOST_PATHS = 5_000
"""With more paths, backups are not searched one by one: it would take longer than all the rest."""
MOST_STEPS = 5_000
"""Most pairs of a loss and an arc that the search tries to relieve."""
_EQUAL = 1e-9
_CLEARLY = 0.02
"""Share by which the worst link after a loss must become less full to change backups for it."""


def without_backups(plan: Plan) -> Plan:
    """Return the plan without any backups."""
    paths, none = plan.paths, np.empty(0, dtype=np.int64)
    empty = np.zeros(len(paths) + 1, dtype=np.int64)
    backups = Paths(paths.flow, paths.first_qp, paths.last_qp, empty, none)
    certificate = replace(plan.certificate, after_loss=())
    ports = plan.nic_ports
    if ports is not None:
        ports = replace(ports, backup=np.full_like(ports.backup, NONE))
    return replace(plan, backups=backups, certificate=certificate, nic_ports=ports)


def protected(plan: Plan, kind: Kind) -> Plan:
    """Return the plan with its N-1 certificate, and with better backups if a search finds some.

    The search optimises for losses of one kind. It is left out in fabrics without tiers, in plans
    by ports of NICs, and where the bound is already met.
    """
    screen = LossScreen(plan)
    known = told_by(screen, thorough=True)
    best = replace(plan, certificate=replace(plan.certificate, after_loss=known))
    network = Network(plan.fabric)
    loose = any(_is_loose(one) for one in known if one.kind == kind)
    fixed = not network.tiered or plan.nic_ports is not None
    if fixed or not loose:
        return best
    if len(plan.paths) > MOST_PATHS:
        return better_backups(plan, screen) or best
    candidates = Candidates(network, Options().candidate_limit)
    floor = min(one.lower_bound for one in known if one.kind == kind)
    other = replace(plan, backups=_Search(screen, kind, candidates, floor).run())
    screen.follow(other)
    told = told_by(screen, thorough=True)
    if _value(told, kind) <= _value(known, kind):
        return best
    return replace(other, certificate=replace(plan.certificate, after_loss=told))


def better_backups(plan: Plan, screen: LossScreen | None = None) -> Plan | None:
    """Return the plan with other backups, or None if single losses do not do clearly less then.

    This is worth trying after repairs, which put paths on links that backups of others had counted
    on, and keep backups that were chosen beside flows that have ended. Backups are moved to links
    that have room, or all are chosen anew, whichever is better. ``screen`` may belong to any plan.
    It is brought to ``plan`` if possible, and may belong to another plan afterwards.
    """
    network = Network(plan.fabric)
    if not network.tiered or plan.nic_ports is not None:
        return None
    planes, count = Planes(network), len(plan.flows)
    options = [choose(planes, plan) for choose in (moved_backups, _backups_anew)]
    options = [one for one in options if differing(plan.backups, one, count).any()]
    if not options:
        return None
    screen, best = screen_of(plan, screen), None
    known = told_by(screen, thorough=True)
    for backups in options:
        other = replace(plan, backups=backups)
        screen = screen_of(other, screen)
        told = told_by(screen, thorough=True)
        if _does_less(told, known):
            best = replace(other, certificate=replace(plan.certificate, after_loss=told))
            known = told
    return best


def _backups_anew(planes: Planes, plan: Plan) -> Paths:
    candidates = Candidates(planes.network, Options().candidate_limit)
    return backups_of(candidates, planes, plan.flows, plan.paths, plan.loads)


def _does_less(told: tuple[AfterLoss, ...], known: tuple[AfterLoss, ...]) -> bool:
    """Return whether losses clearly do less to some link or flow than known, and no more to any."""
    pairs = [*zip(known, told, strict=True)]
    values = [(was.worst_utilization, now.worst_utilization) for was, now in pairs]
    values += [(now.slowest_flow, was.slowest_flow) for was, now in pairs]
    return all(now <= was * (1 + _EQUAL) for was, now in values) and any(
        now < was * (1 - _CLEARLY) for was, now in values
    )


def _is_loose(one: AfterLoss) -> bool:
    return one.worst_utilization > one.lower_bound * (1 + _EQUAL)


def _value(told: tuple[AfterLoss, ...], kind: Kind) -> list[tuple[float, float]]:
    """Return a key by which to compare certificates, greater is better. ``kind`` counts first."""
    own_first = sorted(told, key=lambda one: one.kind != kind)
    return [(-round(one.worst_utilization, 9), round(one.slowest_flow, 9)) for one in own_first]


class _Search:
    """Changes one backup after another and keeps the loads after losses up to date.

    A cell is a pair of a loss and an arc, coded as ``loss * arcs + arc``.
    """

    def __init__(
        self, screen: LossScreen, kind: Kind, candidates: Candidates, floor: float
    ) -> None:
        """Start from the screen's plan. ``floor`` is a utilisation that no backups can beat."""
        standing = screen.standing
        self._plan = plan = standing.plan
        self._candidates, self._network, self._floor = candidates, candidates.network, floor
        self._capacity = plan.fabric.structure.capacity
        self._base = plan.loads
        self._arcs = len(self._base)
        losses, routes = standing.losses, standing.routes
        served = losses.of_kind(LOSS_KINDS.index(kind))
        at, slot = standing.broken(served)
        loss = served[at]
        ways = np.append(routes.arcs[slot], routes.spares[slot], axis=1)
        cell = distinct((loss[:, None] * self._arcs + ways)[ways != NONE])
        place, user = standing.members(cell // self._arcs, cell % self._arcs)
        load = PathUses(standing, place, user, len(cell)).load
        self._load = dict(zip(cell.tolist(), load.tolist(), strict=True))
        self._rate, path = plan.paths.gbps(plan.flows), routes.row[slot]
        self._backup = {row: plan.backups.of(row).tolist() for row in distinct(path).tolist()}
        self._losses_of: dict[int, list[int]] = {}
        self._on: dict[int, set[int]] = {}
        moved = standing.fates(loss, slot) == MOVED
        for one, row in zip(loss[moved].tolist(), path[moved].tolist(), strict=True):
            self._losses_of.setdefault(row, []).append(one)
            for arc in self._backup[row]:
                self._on.setdefault(one * self._arcs + arc, set()).add(row)

    def run(self) -> Paths:
        """Search, and return a backup for each path, row for row."""
        full = [(-self._used(cell), cell) for cell in self._on]
        heapify(full)
        for _ in range(MOST_STEPS):
            if not full or -full[0][0] <= self._floor * (1 + _EQUAL):
                break
            used, cell = heappop(full)
            if abs(used + self._used(cell)) > _EQUAL:
                continue  # the load of the cell has changed since
            for changed in self._relieved(cell):
                heappush(full, (-self._used(changed), changed))
        rows = [self._backup.get(row, None) for row in range(len(self._plan.paths))]
        ways = [
            self._plan.backups.of(at).tolist() if row is None else row
            for at, row in enumerate(rows)
        ]
        first = starts(np.array([len(way) for way in ways], dtype=np.int64))
        arcs = np.array([arc for way in ways for arc in way], dtype=np.int64)
        paths = self._plan.paths
        return Paths(paths.flow, paths.first_qp, paths.last_qp, first, arcs)

    def _used(self, cell: int) -> float:
        arc = cell % self._arcs
        return float(self._load.get(cell, self._base[arc]) / self._capacity[arc])

    def _relieved(self, cell: int) -> list[int]:
        """Give another backup to the path that gains most; return the cells whose load changed."""
        best: tuple[float, int, list[int]] | None = None
        limit = self._used(cell) * (1 - _EQUAL)
        for path in sorted(self._on[cell]):
            for way in self._others(path):
                worst = self._after(path, way)
                if worst < (limit if best is None else best[0]):
                    best = worst, path, way
        return [] if best is None else self._change(best[1], best[2])

    def _after(self, path: int, way: list[int]) -> float:
        """Return the utilisation of the fullest link of a way, with the path on it.

        The worst loss that breaks the path counts.
        """
        rate, known = float(self._rate[path]), set(self._backup[path])
        return max(
            self._used(loss * self._arcs + arc)
            + (0.0 if arc in known else rate / float(self._capacity[arc]))
            for loss in self._losses_of[path]
            for arc in way[1:-1]
        )

    def _change(self, path: int, way: list[int]) -> list[int]:
        rate, old, changed = float(self._rate[path]), self._backup[path], []
        for loss in self._losses_of[path]:
            for arcs, sign in ((old, -1.0), (way, 1.0)):
                for arc in arcs:
                    cell = loss * self._arcs + arc
                    load = self._load.get(cell, float(self._base[arc]))
                    self._load[cell] = load + sign * rate
                    if sign > 0:
                        self._on.setdefault(cell, set()).add(path)
                    else:
                        self._on[cell].discard(path)
                    changed.append(cell)
        self._backup[path] = way
        return changed

    def _others(self, path: int) -> list[list[int]]:
        """Return other backups of as many hops that share no link and no switch with the path.

        They begin and end with the same links of NICs. There are none if the present backup shares
        a switch, or begins with another link than the path.
        """
        network = self._network
        way, spare = self._plan.paths.of(path), self._backup[path]
        passed = self._switches(way)
        if spare[0] != way[0] or passed & self._switches(np.array(spare)):
            return []
        ends = int(network.head[spare[0]]), int(network.tail[spare[-1]])
        found = self._candidates.between(*ends)
        ways = [[spare[0], *row[row != network.pad].tolist(), spare[-1]] for row in found]
        return [
            one
            for one in ways
            if len(one) == len(spare)
            and one != spare
            and not passed & self._switches(np.array(one))
        ]

    def _switches(self, way: Ints) -> set[int]:
        """Return the switches of a way without the first and the last."""
        heads = self._network.head[way[:-1]]
        kind = self._plan.fabric.structure.nodes.kind
        inner = {int(one) for one in heads if kind[one] != NodeKind.NIC}
        return inner - {int(heads[0]), int(heads[-1])}
