"""Upper bounds on the load of each arc after any single loss, kept from plan to plan.

Power grids screen contingencies in this way: cheap bounds for all cases pick the few that are
examined exactly. The load of an arc after a loss is at most its present load plus the most that any
loss moves to it. This bound depends only on the paths and backups over the arc. So after a change
it is computed again only for arcs where a path or a backup differs.
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
    """Bounds for one plan, which ``follow`` updates to the next plan."""

    def __init__(self, plan: Plan) -> None:
        """Compute all bounds of a plan."""
        arcs = 2 * plan.fabric.link_count
        none = np.zeros(len(plan.paths), dtype=np.bool_)
        self.standing = Standing(plan, none, Users(arcs), Users(arcs))
        self.gbps: Floats = np.zeros(arcs)
        """Load of each arc while nothing is lost, shape (arcs,)."""
        self.qps: Floats = np.zeros(arcs)
        """QPs on each arc, counted as load is: of each job's phases only the largest counts."""
        self.wants: Floats = np.zeros(arcs)
        """The most Gbit/s that a QP on each arc asks for, among paths.

        It is divided by the share of the flow's QPs that have a path.
        """
        self.spare_wants: Floats = np.zeros(arcs)
        """The same among backups."""
        self.bare: Bools = none
        """Marks unprotected paths (``entered.turning``), shape (paths,)."""
        self.single_ways = _single_ways(plan.fabric.structure)
        """Codes of the ends of arcs (``_single_ways``); None if a spine may have several ways."""
        self.losses = SingleLosses.of(plan.fabric)
        self.most_gbps: Floats = np.zeros((len(LOSS_KINDS), arcs))
        """The most that any loss of a kind moves to each arc."""
        self.most_qps: Floats = np.zeros((len(LOSS_KINDS), arcs))
        """The same in QPs, counted as load is."""
        self.strands: Bools = np.zeros((len(LOSS_KINDS), len(plan.paths)), dtype=np.bool_)
        """Marks paths that some loss of a kind strands, without cutting off either end."""
        every = np.arange(arcs, dtype=np.int64)
        self._take(plan, np.ones(len(plan.flows), dtype=np.bool_), (every, every))

    def follow(self, plan: Plan) -> bool:
        """Update the bounds to another plan.

        Returns False and changes nothing if rows or arcs of the plans do not correspond, or if one
        of them is a plan by ports of NICs.
        """
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
        """Mark flows near a link that went out of service or came back, shape (flows,).

        These are flows with a path or backup over the link, or into a NIC at its end, or into a
        switch that went out of service or came back with it.
        """
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
        """Adopt a plan in which the flows marked by ``changed`` differ.

        ``arcs`` are the arcs, ascending, that paths of these flows use or used, and the same for
        their backups.
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
    """Return codes ``tail * nodes + head`` of all arcs, ascending, in order of ``structure.out``.

    Returns None where a spine may have several ways to a leaf: with parallel links, or no tiers.
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
    """Knows which rows of a plan's paths are taken from the plan before, and which are new."""

    def __init__(self, old: Paths, new: Paths, changed: Bools, rows: Ints) -> None:
        """Compare two sets of paths. ``changed`` marks flows, ``rows`` are their new paths."""
        self._rows, self._count = rows, len(new)
        self._now: Ints | None = None
        if not np.array_equal(old.flow, new.flow):
            self._now = np.flatnonzero(~changed[new.flow])
            self._then = np.flatnonzero(~changed[old.flow])

    def with_new(self, column: Bools, fresh: Bools) -> Bools:
        """Return a column for the new paths: kept rows from ``column``, new ones from ``fresh``."""
        found = column.copy()
        if self._now is not None:
            found = np.zeros(self._count, dtype=np.bool_)
            found[self._now] = column[self._then]
        found[self._rows] = fresh
        return found


def _arcs_of(changed: Bools, old: Paths, new: Paths, size: int) -> Ints:
    """Return the arcs, ascending, that old or new paths of the marked flows use."""
    mark = np.zeros(size, dtype=np.bool_)
    for paths in (old, new):
        mark[paths.take(np.flatnonzero(changed[paths.flow])).arcs] = True
    return np.flatnonzero(mark)


def _most(
    standing: Standing, made: Turned, losses: SingleLosses, count: int
) -> tuple[Floats, Floats]:
    """Return the most Gbit/s and QPs that a loss moves to each arc, each of shape (kinds, count).

    ``made`` are the turns to backups on to ``count`` arcs.
    """
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
    """Mark paths that some loss of a kind strands, without cutting off either end.

    The shape is (kinds, rows).
    """
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
    """Return a screen of a plan: the known one, updated if possible, or a new one."""
    return known if known is not None and known.follow(plan) else LossScreen(plan)


def _comparable(before: Plan, plan: Plan) -> bool:
    """Whether rows and arcs of two plans correspond, and neither is a plan by ports of NICs."""
    return (
        before.fabric.structure is plan.fabric.structure
        and before.nic_ports is None
        and plan.nic_ports is None
        and (plan.flows is before.flows or plan.flows.begins_with(before.flows))
    )
