"""What no choice of backups can beat, the paths being those of the plan.

After a loss, at each switch whose NICs lose their first or last step with it:

- What the plan leaves untouched stays where it is.
- All that has to leave the switch shares the links that are left, however it is divided.
- Each path that was broken goes on whole: the next one fills some link that is left by its rate
  at least. With paths of ``m`` and the smallest rate among them, the worst link is at least the
  ``m``-th smallest load that adding such paths one by one to any of the links makes.

Phases of a job take turns, so paths that have one may cost nothing: the last two count paths
that may run at any time alone.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan
from heddle_controller.solve.losses.loads import Survey, left_of, ranked
from heddle_controller.solve.losses.moves import APART

_TOLERANCE = 1e-9
_FIRST_BATCH = 4
"""Losses that are looked at together at first; then twice as many each time."""
_MOST_ROUNDS = 64
"""Paths of one switch that are counted one by one."""


def least_worst(survey: Survey, worst: Floats) -> float:
    """After some loss the worst utilisation is at least this.

    Whatever backups there are, as long as every path that has to move has one. ``worst`` is what
    was reached after each loss: losses are looked at from the worst on, until the next has reached
    no more than what is proven.
    """
    losses = survey.losses
    floor = float(left_of(survey).max(initial=0.0))
    loss, switch, rate, into = _broken_ends(survey)
    order = np.argsort(-worst, kind="stable")
    batch, at = _FIRST_BATCH, 0
    while at < len(order) and worst[order[at]] > floor * (1 + _TOLERANCE):
        chosen = np.zeros(len(losses), dtype=np.bool_)
        chosen[order[at : at + batch]] = True
        rows = np.flatnonzero(chosen[loss])
        for way in (False, True):
            some = rows[into[rows] == way]
            broken = loss[some], switch[some], rate[some]
            found = _at_switches(survey, broken, into=way)
            floor = max(floor, float(found.max(initial=0.0)))
        at, batch = at + batch, batch * 2
    return floor


def _broken_ends(survey: Survey) -> tuple[Ints, Ints, Floats, Bools]:
    """Loss, switch and rate of each path that has to leave, or come to, its switch otherwise.

    And whether it comes to it.
    """
    plan, losses, moves = survey.plan, survey.losses, survey.moves
    structure, paths = plan.fabric.structure, plan.paths
    is_nic = structure.nodes.kind == NodeKind.NIC
    inner = ~is_nic[structure.tail] & ~is_nic[structure.head]
    sole = np.bincount(structure.head[plan.fabric.carries], minlength=len(is_nic)) == 1
    always = plan.flows.phase[paths.flow] == ANY_PHASE
    kept = np.flatnonzero((moves.fate != APART) & always[moves.path])
    # A step at each NIC, and one between switches at least.
    kept = kept[np.diff(paths.first)[moves.path[kept]] > 2]  # noqa: PLR2004
    loss, path = moves.loss[kept], moves.path[kept]
    parts = []
    for into in (False, True):
        # The second arc of a path leaves the switch of its source, the last but one enters the
        # switch of its destination; a NIC of several links may be reached by another switch.
        arc = paths.arcs[paths.first[path + 1] - 2 if into else paths.first[path] + 1]
        struck = losses.takes(loss, arc) & inner[arc]
        if into:
            struck &= sole[plan.flows.destination[paths.flow[path]]]
        rows = np.flatnonzero(struck)
        ends = (structure.head if into else structure.tail)[arc[rows]]
        parts.append((loss[rows], ends, path[rows], np.full(len(rows), into)))
    found = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return found[0], found[1], paths.gbps(plan.flows)[found[2]], found[3]


def _at_switches(survey: Survey, broken: tuple[Ints, Ints, Floats], *, into: bool) -> Floats:
    """A floor of the worst link for each loss and switch where paths lose their step.

    ``broken`` are the loss, the switch and the rate of each such path.
    """
    plan, losses, cells = survey.plan, survey.losses, survey.cells
    structure = plan.fabric.structure
    nodes, arcs = len(structure.nodes.kind), len(structure.tail)
    loss, switch, rate = broken
    keys, group = ranked(loss * nodes + switch)
    if not len(keys):
        return np.empty(0)
    loss, switch = keys // nodes, keys % nodes
    count = np.bincount(group)
    least = np.full(len(keys), np.inf)
    np.minimum.at(least, group, rate)
    options = _inner_arcs(plan, switch, into=into)
    there = options < arcs
    option = np.where(there, options, 0)
    there &= ~losses.takes(np.repeat(loss, option.shape[1]).reshape(option.shape), option)
    known = cells.loss * arcs + cells.arc
    code = loss[:, None] * arcs + option
    place = np.minimum(np.searchsorted(known, code), len(known) - 1)
    freed = np.where(known[place] == code, cells.freed[place], 0.0)
    stays = np.maximum(plan.loads[option] - freed, 0.0)
    capacity = np.where(there, structure.capacity[option], np.inf)
    stays = np.where(there, stays, np.inf)
    together = np.where(there, capacity, 0.0).sum(axis=1)
    total = np.where(there, stays, 0.0).sum(axis=1) + np.bincount(group, weights=rate)
    fluid = np.divide(total, together, out=np.zeros(len(keys)), where=together > 0)
    worst = np.where(there.any(axis=1), fluid, 0.0)
    open_ = np.flatnonzero(there.any(axis=1))
    for round_ in range(min(_MOST_ROUNDS, int(count.max()))):
        open_ = open_[count[open_] > round_]
        if not len(open_):
            break
        filled = (stays[open_] + least[open_, None]) / np.where(there[open_], capacity[open_], 1.0)
        best = filled.argmin(axis=1)
        worst[open_] = np.maximum(worst[open_], filled[np.arange(len(open_)), best])
        stays[open_, best] += least[open_]
    return worst


def _inner_arcs(plan: Plan, switch: Ints, *, into: bool) -> Ints:
    """Live arcs of each switch to, or from, other switches; padded with the number of arcs."""
    structure, fabric = plan.fabric.structure, plan.fabric
    is_nic = structure.nodes.kind == NodeKind.NIC
    arcs = np.flatnonzero(fabric.carries & ~is_nic[structure.tail] & ~is_nic[structure.head])
    ends = (structure.head if into else structure.tail)[arcs]
    arcs = arcs[np.argsort(ends, kind="stable")]
    count = np.bincount(ends, minlength=len(is_nic))
    first, width = (np.cumsum(count) - count)[switch], count[switch]
    place = np.arange(max(int(width.max(initial=0)), 1))
    padded = np.append(arcs, np.full(len(place), len(structure.tail)))
    table = padded[first[:, None] + place]
    return np.where(place < width[:, None], table, len(structure.tail))
