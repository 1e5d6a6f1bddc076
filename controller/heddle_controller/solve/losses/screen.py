"""Bounds by arc of what any single loss does there, kept from plan to plan.

Power grids screen contingencies so: cheap bounds of all pick the few that are looked at exactly.
No loss leaves more on an arc than what a plan has there and the most that any loss turns to it,
were nothing freed. That follows from the paths and backups over the arc alone. So after a change it
is worked out anew where a path or a backup differs, and nowhere else; at first, everywhere.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, numbered
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.model.plan import Paths, Plan, differing
from heddle_controller.solve.losses.entered import turning
from heddle_controller.solve.losses.moves import LOSS_KINDS, SingleLosses
from heddle_controller.solve.losses.standing import Standing, Turned, Users, arc_table, shared


class LossScreen:
    """What is known of one plan, and of the next by what differs."""

    def __init__(self, plan: Plan) -> None:
        """All bounds of a plan."""
        arcs = 2 * plan.fabric.link_count
        none = np.zeros(len(plan.paths), dtype=np.bool_)
        self.standing = Standing(plan, none, Users(arcs), Users(arcs))
        self.gbps: Floats = np.zeros(arcs)
        """Load of each arc while nothing is lost."""
        self.qps: Floats = np.zeros(arcs)
        """QPs there, by the rule of loads."""
        self.wants: Floats = np.zeros(arcs)
        """The most that a QP of a path there asks for, over the part of its flow's QPs that have a
        path."""
        self.spare_wants: Floats = np.zeros(arcs)
        """The same of backups there."""
        self.bare: Bools = none
        """Paths between switches that no switch can turn to a backup, shape (paths,)."""
        self.single_ways = _single_ways(plan.fabric.structure)
        """See there."""
        self.losses = SingleLosses.of(plan.fabric)
        self.most_gbps: Floats = np.zeros((len(LOSS_KINDS), arcs))
        """That any loss of a kind turns to each arc."""
        self.most_qps: Floats = np.zeros((len(LOSS_KINDS), arcs))
        """The same in QPs, by the rule of loads."""
        self.strands: Bools = np.zeros((len(LOSS_KINDS), len(plan.paths)), dtype=np.bool_)
        """Paths that a loss of a kind stops, and cuts off from neither end."""
        every = np.arange(arcs, dtype=np.int64)
        self._take(plan, np.ones(len(plan.flows), dtype=np.bool_), (every, every))

    def follow(self, plan: Plan) -> bool:
        """Be of another plan; False where that has little to do with this one."""
        before = self.standing.plan
        if plan is before:
            return True
        if not _comparable(before, plan):
            return False
        count = len(plan.flows)
        changed = differing(before.paths, plan.paths, count)
        changed |= differing(before.backups, plan.backups, count)
        changed[len(before.flows) :] = True
        changed |= self._restated(plan)
        on_paths = _arcs_of(changed, before.paths, plan.paths, len(self.gbps))
        on_backups = _arcs_of(changed, before.backups, plan.backups, len(self.gbps))
        self._take(plan, changed, (on_paths, on_backups))
        return True

    def _restated(self, plan: Plan) -> Bools:
        """Flows that pass by a link which went out of service or came back."""
        structure, before = plan.fabric.structure, self.standing.plan.fabric
        found = np.zeros(len(plan.flows), dtype=np.bool_)
        restated = before.carries != plan.fabric.carries
        if not restated.any():
            return found
        served, switches = SingleLosses.of(plan.fabric).served, slice(plan.fabric.link_count, None)
        ends = self.losses.served[switches] != served[switches]
        nics = structure.head[np.flatnonzero(restated)]
        ends[nics[structure.nodes.kind[nics] == NodeKind.NIC]] = True
        arcs = np.flatnonzero(restated | ends[structure.head] if ends.any() else restated)
        for users in (self.standing.of_paths, self.standing.of_backups):
            found[users.of(arcs)[1]] = True
        return found

    def _take(self, plan: Plan, changed: Bools, arcs: tuple[Ints, Ints]) -> None:
        """Take on a plan, some flows of which differ.

        ``arcs`` are those that paths of these flows are or were on, and those that backups are.
        """
        rows = np.flatnonzero(changed[plan.paths.flow])
        kept = _Kept(self.standing.plan.paths, plan.paths, changed, rows)
        fresh, bare = turning(plan, rows)
        turns = kept.with_new(self.standing.turns, fresh)
        self.bare = kept.with_new(self.bare, bare)
        on_paths, on_backups = arcs
        some, users = plan.paths.take(rows), (self.standing.of_paths, self.standing.of_backups)
        users[0].change(on_paths, changed, some)
        users[1].change(on_backups, changed, plan.backups.take(rows[turns[rows]]))
        self.standing = standing = Standing(plan, turns, *users)
        uses, spares = standing.uses(on_paths), standing.spares(on_backups)
        place, count = uses.place(), len(on_paths)
        for held, value in ((self.gbps, standing.gbps), (self.qps, standing.qps)):
            held[on_paths] = standing.total(value(uses.path), place, uses.path, count)
        routed = np.bincount(plan.paths.flow, plan.paths.qp_count, len(plan.flows))
        for wants, used in ((self.wants, uses), (self.spare_wants, spares)):
            asked = standing.unit(used.path) * plan.flows.qps[plan.paths.flow[used.path]]
            asked /= routed[plan.paths.flow[used.path]]
            most = np.zeros(len(used.arcs))
            np.maximum.at(most, used.place(), asked)
            wants[used.arcs] = most
        self.losses = SingleLosses.of(plan.fabric)
        gbps, qps = _most(standing, Turned.on(standing, spares), self.losses, len(on_backups))
        self.most_gbps[:, on_backups], self.most_qps[:, on_backups] = gbps, qps
        strands = _strands(standing, self.losses, rows)
        self.strands = np.stack(
            [kept.with_new(*both) for both in zip(self.strands, strands, strict=True)]
        )


def _single_ways(structure: Structure) -> Ints | None:
    """Ends of arcs in their order by tail, as one number each, ascending.

    None where spines may have several ways to a leaf: there are parallel links, or no tiers.
    """
    kind = structure.nodes.kind
    inner = np.flatnonzero(structure.inner)
    tiers = np.abs(kind[structure.tail[inner]] - kind[structure.head[inner]])
    if (kind == NodeKind.SWITCH).any() or (tiers != 1).any():
        return None
    _, out = structure.out
    ends = structure.tail[out] * len(kind) + structure.head[out]
    twice = np.flatnonzero(ends[1:] == ends[:-1])
    return None if structure.inner[out[twice]].any() else ends


class _Kept:
    """Which rows of a plan's paths are of the plan before, and which are new."""

    def __init__(self, old: Paths, new: Paths, changed: Bools, rows: Ints) -> None:
        """``changed`` are flows, ``rows`` their new paths."""
        self._rows, self._count = rows, len(new)
        self._now: Ints | None = None
        if not np.array_equal(old.flow, new.flow):
            self._now = np.flatnonzero(~changed[new.flow])
            self._then = np.flatnonzero(~changed[old.flow])

    def with_new(self, column: Bools, fresh: Bools) -> Bools:
        """A column of the paths before, with what the new ones have."""
        found = column.copy()
        if self._now is not None:
            found = np.zeros(self._count, dtype=np.bool_)
            found[self._now] = column[self._then]
        found[self._rows] = fresh
        return found


def _arcs_of(changed: Bools, old: Paths, new: Paths, size: int) -> Ints:
    """Arcs that paths of some flows are on, or were."""
    mark = np.zeros(size, dtype=np.bool_)
    for paths in (old, new):
        mark[paths.take(np.flatnonzero(changed[paths.flow])).arcs] = True
    return np.flatnonzero(mark)


def _most(
    standing: Standing, made: Turned, losses: SingleLosses, count: int
) -> tuple[Floats, Floats]:
    """Gbit/s and QPs that any loss of a kind turns to each of so many places, at most."""
    turn, loss = made.after(losses)
    place, path = made.place[turn], made.path[turn]
    cell, first = numbered(place * len(losses.served) + loss)
    at = losses.kind(loss[first]) * count + place[first]
    found = []
    for value in (standing.gbps, standing.qps):
        most = np.zeros(len(LOSS_KINDS) * count)
        np.maximum.at(most, at, standing.total(value(made.path)[turn], cell, path, len(first)))
        found.append(most.reshape(len(LOSS_KINDS), count))
    return found[0], found[1]


def _strands(standing: Standing, losses: SingleLosses, rows: Ints) -> Bools:
    """Whether a loss of a kind stops each of some paths, and cuts it off from neither end."""
    plan = standing.plan
    ways, spares = (arc_table(paths.take(rows)) for paths in (plan.paths, plan.backups))
    loss = losses.on(ways)
    held = ~shared(loss, losses.on(spares)) & standing.turns[rows][:, None]
    kind, row, step = np.nonzero((loss != NONE) & ~held)
    apart = losses.cuts_off(loss[kind, row, step], plan.paths.take(rows[row]))
    found = np.zeros((len(LOSS_KINDS), len(rows)), dtype=np.bool_)
    found[kind[~apart], row[~apart]] = True
    return found


def screen_of(plan: Plan, known: LossScreen | None = None) -> LossScreen:
    """The screen of a plan: one that is known, brought to it, or a new one."""
    return known if known is not None and known.follow(plan) else LossScreen(plan)


def _comparable(before: Plan, plan: Plan) -> bool:
    """Whether rows and arcs of two plans mean the same, and entries carry all flows of both."""
    return (
        before.fabric.structure is plan.fabric.structure
        and before.nic_ports is None
        and plan.nic_ports is None
        and (plan.flows is before.flows or plan.flows.begins_with(before.flows))
    )
