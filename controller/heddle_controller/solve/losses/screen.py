"""Upper bounds on the load of each arc after any single loss, kept from plan to plan.

Power grids screen contingencies in this way: cheap bounds for all cases pick the few that are
examined exactly. The load of an arc after a loss is at most its present load plus the most that any
loss moves to it. This bound depends only on the paths and backups over the arc. So after a change
it is computed again only for arcs where a path or a backup differs, and the greatest bounds are
found without a pass over all arcs.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, distinct, numbered, stable_order
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.model.kept import kept_flows, plan_with_kept
from heddle_controller.model.plan import Plan, differing
from heddle_controller.solve.losses.fair_shares import SLACK, FairShares
from heddle_controller.solve.losses.moves import LOSS_KINDS, SingleLosses
from heddle_controller.solve.losses.standing import PathUses, Standing

_RUN = 256
"""Number of arcs in a row of which the greatest value is kept."""


class Peaks:
    """Some columns, and the greatest value of each run of arcs. All values are at least 0."""

    def __init__(self, columns: int, arcs: int) -> None:
        """Begin with zeros."""
        runs = -(-max(arcs, 1) // _RUN)
        padded: Floats = np.zeros((columns, runs * _RUN))
        self.values = padded[:, :arcs]
        """The values, shape (columns, arcs). ``put`` changes them."""
        self._runs = padded.reshape(columns, runs, _RUN)
        self._peaks: Floats = np.zeros((columns, runs))
        self._begin = np.arange(0, runs * _RUN, _RUN)
        self._hidden: list[tuple[Ints, Floats]] = []

    def put(self, arcs: Ints, values: Floats) -> None:
        """Change the values of some arcs, given in ascending order; shape (columns, arcs)."""
        for column, some in zip(self.values, values, strict=True):
            column[arcs] = some
        if len(arcs) > self._peaks.shape[1]:
            for peaks, column in zip(self._peaks, self._runs, strict=True):
                np.maximum.reduceat(column.ravel(), self._begin, out=peaks)
            return
        runs = distinct(arcs // _RUN)
        for peaks, column in zip(self._peaks, self._runs, strict=True):
            peaks[runs] = column[runs].max(axis=1)

    def hide(self, arcs: Ints) -> Floats:
        """Set the values of some arcs to 0 until ``show``, and return them; arcs ascend."""
        values = self.values[:, arcs]
        self._hidden.append((arcs, values))
        self.put(arcs, np.zeros_like(values))
        return values

    def show(self) -> None:
        """Give all hidden arcs their values back."""
        while self._hidden:
            self.put(*self._hidden.pop())

    def most(self, column: int) -> float:
        """Return the greatest value of a column."""
        return float(self._peaks[column].max())

    def greatest(self, column: int, count: int) -> Ints:
        """Return the arcs of the ``count`` greatest values above 0, in no order.

        If at least ``count`` values are equal to the greatest, return the first of these.
        """
        peaks = self._peaks[column]
        least = peaks.max() * (1 - SLACK)
        runs = np.flatnonzero(peaks >= least)[:count]
        if len(runs) < count:
            runs = np.sort(np.argsort(-peaks, kind="stable")[:count])
        values = self._runs[column, runs].ravel()
        found = np.flatnonzero(values >= least)[:count]
        if len(found) < count:
            found = np.argpartition(values, -min(count, len(values)))[-count:]
        found = found[values[found] > 0]
        return np.asarray(runs[found // _RUN] * _RUN + found % _RUN)


class LossScreen:
    """Bounds for one plan, which ``follow`` updates to the next plan."""

    def __init__(self, plan: Plan) -> None:
        """Compute all bounds of a plan."""
        arcs = 2 * plan.fabric.link_count
        self.gbps: Floats = np.zeros(arcs)
        """Load of each arc while nothing is lost, shape (arcs,)."""
        self.now = Peaks(1, arcs)
        """Utilisation of each arc then, in one column."""
        self.used = Peaks(len(LOSS_KINDS), arcs)
        """Utilisation that the arc does not exceed after a loss of each kind."""
        self.level: Floats = np.full((len(LOSS_KINDS), arcs), np.inf)
        """What the arc alone gives to a QP at least in Gbit/s; infinite where it has room."""
        self._turned: Floats = np.zeros((2, len(LOSS_KINDS), arcs))
        """The most Gbit/s and the most QPs that a loss of each kind moves to the arc."""
        self.slow = Peaks(len(LOSS_KINDS), arcs)
        """Demand divided by rate that no flow exceeds for an arc after a loss of a kind; 0 where
        the arc has room for all."""
        self.single_ways = _single_ways(plan.fabric.structure)
        """Codes of the ends of arcs (``_single_ways``); None if a spine may have several ways."""
        self.standing = Standing(plan)
        self._bound(np.arange(arcs, dtype=np.int64))

    def follow(self, plan: Plan) -> bool:
        """Update the bounds to another plan, in which flows may have come, changed or gone.

        Returns False and changes nothing if no flow is kept (``model.kept``), if arcs of the plans
        do not correspond, or if one of them is a plan by ports of NICs.
        """
        before = self.standing.plan
        left = altered = np.empty(0, dtype=np.int64)
        if plan is before:
            return True
        if not _comparable(before, plan):
            return False
        if not plan.flows.begins_with(before.flows):
            kept = kept_flows(before.flows, plan.flows)
            if kept is None:
                return False
            before, altered = plan_with_kept(before, kept), kept.altered
            left = self.standing.keep(before, kept.row)
        count, losses = len(plan.flows), SingleLosses.of(plan.fabric)
        changed = differing(before.paths, plan.paths, count)
        changed |= differing(before.backups, plan.backups, count)
        changed[len(before.flows) :] = True
        changed[altered] = True
        self._mark_restated(plan, losses, changed)
        self._bound(distinct(np.append(left, self.standing.follow(plan, losses, changed))))
        return True

    def shares_left(self, arc: Ints, slot: Ints) -> Floats:
        """Return what an arc alone gives to a QP of a path at least, in Gbit/s.

        It is that after any loss of a kind, infinite where there is room, shape (kinds, paths).
        Where phases take turns it is often more than ``level`` and takes longer. ``arc`` and
        ``slot`` have one element for each path.
        """
        standing, kinds = self.standing, len(LOSS_KINDS)
        place, first = numbered(arc)
        count, arcs = len(first), np.tile(arc[first], kinds)
        uses = PathUses(standing, *standing.uses(arcs), len(arcs))
        capacity = standing.plan.fabric.structure.capacity[arcs]
        extra = self._turned[..., arc[first]].reshape(2, -1)
        at = (np.arange(kinds)[:, None] * count + place).ravel()
        shares = FairShares(standing, capacity, uses, extra).of(at, np.tile(slot, kinds))
        return shares.reshape(kinds, -1)

    def _mark_restated(self, plan: Plan, losses: SingleLosses, changed: Bools) -> None:
        """Mark flows near a link that went out of service or came back, shape (flows,).

        These are flows with a path or backup over the link, or into a NIC at its end, or into a
        switch that went out of service or came back with it.
        """
        standing, structure = self.standing, plan.fabric.structure
        restated = standing.plan.fabric.carries != plan.fabric.carries
        if not restated.any():
            return
        switches = slice(plan.fabric.link_count, None)
        ends = standing.losses.served[switches] != losses.served[switches]
        nics = structure.head[np.flatnonzero(restated)]
        ends[nics[structure.nodes.kind[nics] == NodeKind.NIC]] = True
        arcs = np.flatnonzero(restated | ends[structure.head] if ends.any() else restated)
        for _, slot in (standing.uses(arcs), standing.spares(arcs)):
            changed[standing.routes.flow[slot]] = True

    def _bound(self, arcs: Ints) -> None:
        """Compute the bounds of some arcs, given in ascending order."""
        standing, routes, count = self.standing, self.standing.routes, len(arcs)
        losses, capacity = standing.losses, standing.plan.fabric.structure.capacity[arcs]
        place, slot = standing.uses(arcs)
        onto, moved, loss = standing.turns(arcs)
        code = onto * len(losses.served) + loss
        order = stable_order(code)
        code, moved = code[order], moved[order]
        begins = np.diff(code, prepend=-1) > 0
        cell, first = np.cumsum(begins) - 1, order[begins]
        of_kind = losses.kind(loss[first]) * count + onto[first]
        uses = PathUses(standing, place, slot, count)
        turned = PathUses(standing, cell, moved, len(first)).asked
        more = np.zeros((2, len(LOSS_KINDS), count))
        for most, total in zip(more.reshape(2, -1), turned.totals, strict=True):
            np.maximum.at(most, of_kind, total)
        gbps = uses.asked.totals[0]
        self.gbps[arcs], used = gbps, (gbps + more[0]) / capacity
        self.now.put(arcs, (gbps / capacity)[None])
        self.used.put(arcs, used)
        self._turned[..., arcs] = more
        onto, spare = standing.spares(arcs)
        at, user = np.append(place, onto), np.append(slot, spare)
        wants, slow = np.zeros(count), np.zeros(used.shape)
        np.maximum.at(wants, at, routes.wants[user])
        for kind, one in enumerate(slow):
            shares = FairShares(standing, capacity, uses, more[:, kind])
            self.level[kind, arcs] = shares.level
            if uses.phased.simple:  # all users of an arc get the same
                np.divide(wants, shares.level, out=one)
            else:
                np.maximum.at(one, at, routes.wants[user] / shares.of(at, user))
        self.slow.put(arcs, slow)


def _single_ways(structure: Structure) -> Ints | None:
    """Return codes ``tail * nodes + head`` of all arcs, ascending, in order of ``structure.out``.

    Returns None where a spine may have several ways to a leaf: with parallel links between them, or
    no tiers.
    """
    kind = structure.nodes.kind
    inner = np.flatnonzero(structure.inner)
    tiers = np.abs(kind[structure.tail[inner]] - kind[structure.head[inner]])
    if (kind == NodeKind.SWITCH).any() or (tiers != 1).any():
        return None
    _, out = structure.out
    ends = structure.tail[out] * len(kind) + structure.head[out]
    twice = out[np.flatnonzero(ends[1:] == ends[:-1])]
    lower = np.minimum(kind[structure.tail[twice]], kind[structure.head[twice]])
    return None if (lower == NodeKind.LEAF).any() else ends


def screen_of(plan: Plan, known: LossScreen | None = None) -> LossScreen:
    """Return a screen of a plan: the known one, updated if possible, or a new one."""
    return known if known is not None and known.follow(plan) else LossScreen(plan)


def _comparable(before: Plan, plan: Plan) -> bool:
    """Whether arcs of two plans correspond, and neither is a plan by ports of NICs."""
    return (
        before.fabric.structure is plan.fabric.structure
        and before.nic_ports is None
        and plan.nic_ports is None
    )
