"""What no choice of backups can beat, the paths being those of the plan.

After a loss, at each switch whose NICs lose their first or last step with it:

- What the plan leaves untouched stays where it is.
- All that has to leave the switch shares the links that are left, however it is divided.
- Each path that was broken goes on whole: the next one fills some link that is left by its rate
  at least. With paths of ``m`` and the smallest rate among them, the worst link is at least the
  ``m``-th smallest load that adding such paths one by one to any of the links makes.

- In fabrics of tiers a path over one spine goes over another that both leaves are linked to, where
  its own leaf has no others: from there on the underlay carries, and has one way down. So both
  links of some spine take it on. Only the fullest losses are looked at for this.

Phases of a job take turns, so paths that have one may cost nothing: the last three count paths
that may run at any time alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan
from heddle_controller.solve.losses.loads import Survey, left_of, ranked
from heddle_controller.solve.losses.moves import APART

_TOLERANCE = 1e-9
_FIRST_BATCH = 4
"""Losses that are looked at together at first."""
_GROWTH = 16
"""How many times as many each time after that."""
_MOST_ALONE = 1_000
"""Losses for which each path is looked at by itself."""
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
    options = {way: _Options.of(survey.plan, into=way) for way in (False, True)}
    batch, at = _FIRST_BATCH, 0
    while at < len(order) and worst[order[at]] > floor * (1 + _TOLERANCE):
        chosen = np.zeros(len(losses), dtype=np.bool_)
        chosen[order[at : at + batch]] = True
        rows = np.flatnonzero(chosen[loss])
        for way, ends in options.items():
            some = rows[into[rows] == way]
            broken = loss[some], switch[some], rate[some]
            floor = _at_switches(survey, broken, ends, floor)
        if at + batch <= _MOST_ALONE:
            floor = max(floor, _of_each_path(survey, np.flatnonzero(chosen[survey.moves.loss])))
        at, batch = at + batch, batch * _GROWTH
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


def _of_each_path(survey: Survey, rows: Ints) -> float:
    """A floor of the worst link after any loss by paths over one spine, each by itself.

    ``rows`` are moves that are looked at.
    """
    plan, losses, moves = survey.plan, survey.losses, survey.moves
    structure, paths, flows = plan.fabric.structure, plan.paths, plan.flows
    nodes = len(structure.nodes.kind)
    kind = structure.nodes.kind
    is_nic = kind == NodeKind.NIC
    inner = np.flatnonzero(~is_nic[structure.tail] & ~is_nic[structure.head])
    tiers = np.abs(kind[structure.tail[inner]] - kind[structure.head[inner]])
    if (kind == NodeKind.SWITCH).any() or (tiers != 1).any():
        return 0.0  # a spine might turn to another one
    # Two steps between switches, and one at each NIC.
    rows = rows[np.diff(paths.first)[moves.path[rows]] == 4]  # noqa: PLR2004
    rows = rows[moves.fate[rows] != APART]
    loss, path = moves.loss[rows], moves.path[rows]
    flow = paths.flow[path]
    links = np.bincount(structure.head, minlength=nodes)
    up, down = paths.arcs[paths.first[path] + 1], paths.arcs[paths.first[path] + 2]
    held = (losses.takes(loss, up) | losses.takes(loss, down)) & ~plan.by_ports[flow]
    held &= (flows.phase[flow] == ANY_PHASE) & (links[flows.destination[flow]] == 1)
    loss, path, up, down = loss[held], path[held], up[held], down[held]
    pairs = structure.tail[inner] * nodes + structure.head[inner]
    order = np.argsort(pairs, kind="stable")
    pairs, inner = pairs[order], inner[order]
    if not len(loss) or (pairs[1:] == pairs[:-1]).any():
        return 0.0
    first, arcs = structure.out
    leaf = structure.tail[up]
    place = np.arange(int(np.diff(first)[leaf].max()))
    row = np.minimum(first[leaf][:, None] + place, len(arcs) - 1)
    rise = arcs[row]
    there = (place < np.diff(first)[leaf][:, None]) & ~is_nic[structure.head[rise]]
    code = structure.head[rise] * nodes + structure.head[down][:, None]
    at = np.minimum(np.searchsorted(pairs, code), len(pairs) - 1)
    fall = inner[at]
    whole = ((pairs[at] == code) | ~there).all(axis=1)
    live, gone = plan.fabric.carries, loss[:, None]
    there &= live[rise] & live[fall] & ~losses.takes(gone, rise) & ~losses.takes(gone, fall)
    rate = paths.gbps(flows)[path][:, None]
    ways = [_stays(survey, gone, way) + rate for way in (rise, fall)]
    used = np.maximum(
        *(load / structure.capacity[way] for load, way in zip(ways, (rise, fall), strict=True))
    )
    least = np.where(there, used, np.inf).min(axis=1)
    return float(least[whole & np.isfinite(least)].max(initial=0.0))


def _stays(survey: Survey, loss: Ints, arc: Ints) -> Floats:
    """What a loss leaves on arcs, Gbit/s, whatever turns to them; shapes go together."""
    loads, cells = survey.plan.loads, survey.cells
    keys = cells.loss * len(loads) + cells.arc
    code = loss * len(loads) + arc
    at = np.minimum(np.searchsorted(keys, code), max(len(keys) - 1, 0))
    freed = np.where(keys[at] == code, cells.freed[at], 0.0)
    return np.asarray(np.maximum(loads[arc] - freed, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Options:
    """Live arcs of each switch to other switches, or from them."""

    end: Ints
    """The switch at this end of each arc of the fabric."""
    first: Ints
    """Where the arcs of each node begin, shape (nodes + 1,)."""
    arcs: Ints
    place: Ints
    """Of each arc among those of its switch; ``NONE`` for all others."""

    @classmethod
    def of(cls, plan: Plan, *, into: bool) -> _Options:
        """Those into switches, or out of them."""
        structure, fabric = plan.fabric.structure, plan.fabric
        is_nic = structure.nodes.kind == NodeKind.NIC
        end = structure.head if into else structure.tail
        arcs = np.flatnonzero(fabric.carries & ~is_nic[structure.tail] & ~is_nic[structure.head])
        arcs = arcs[np.argsort(end[arcs], kind="stable")]
        first = starts(np.bincount(end[arcs], minlength=len(is_nic)))
        place = np.full(len(end), NONE)
        place[arcs] = np.arange(len(arcs)) - first[end[arcs]]
        return cls(end, first, arcs, place)

    def of_switches(self, switch: Ints) -> tuple[Ints, Bools]:
        """A row of arcs for each of some switches, and which elements of it are arcs."""
        width = self.first[switch + 1] - self.first[switch]
        place = np.arange(max(int(width.max(initial=0)), 1))
        there = place < width[:, None]
        row = np.minimum(self.first[switch][:, None] + place, max(len(self.arcs) - 1, 0))
        return self.arcs[row], there


def _at_switches(
    survey: Survey, broken: tuple[Ints, Ints, Floats], options: _Options, floor: float
) -> float:
    """A floor of the worst link after any loss by the switches where paths lose their step.

    Or ``floor``, if that is more. ``broken`` are the loss, the switch and the rate of each such
    path; ``options`` what they may take at the switch.
    """
    plan, losses, cells = survey.plan, survey.losses, survey.cells
    structure = plan.fabric.structure
    nodes = len(structure.nodes.kind)
    loss, switch, rate = broken
    keys, group = ranked(loss * nodes + switch)
    if not len(keys):
        return floor
    loss, switch = keys // nodes, keys % nodes
    count = np.bincount(group)
    least = np.full(len(keys), np.inf)
    np.minimum.at(least, group, rate)
    option, there = options.of_switches(switch)
    there &= ~losses.takes(loss[:, None], option)
    looked = np.zeros(len(losses), dtype=np.bool_)
    looked[loss] = True
    freed = np.zeros(option.shape)
    cell = np.flatnonzero(looked[cells.loss] & (options.place[cells.arc] >= 0))
    code = cells.loss[cell] * nodes + options.end[cells.arc[cell]]
    row = np.minimum(np.searchsorted(keys, code), len(keys) - 1)
    met = keys[row] == code
    freed[row[met], options.place[cells.arc[cell[met]]]] = cells.freed[cell[met]]
    stays = np.where(there, np.maximum(plan.loads[option] - freed, 0.0), np.inf)
    capacity = np.where(there, structure.capacity[option], 1.0)
    together = structure.capacity[option].sum(axis=1, where=there)
    total = stays.sum(axis=1, where=there)
    fluid = np.divide(
        total + np.bincount(group, weights=rate),
        together,
        out=np.zeros(len(keys)),
        where=together > 0,
    )
    floor = max(floor, float(fluid.max()))
    # The next path fills the emptiest link to no more than their mean and its own rate.
    most = total + least * (count - 1 + there.sum(axis=1))
    open_ = np.flatnonzero((together > 0) & (most > floor * together))
    stays, capacity, least, count = stays[open_], capacity[open_], least[open_], count[open_]
    for _ in range(min(_MOST_ROUNDS, int(count.max(initial=0)))):
        filled = (stays + least[:, None]) / capacity
        best = filled.argmin(axis=1)
        rows = np.arange(len(best))
        floor = max(floor, float(filled[rows, best].max()))
        stays[rows, best] += least
        count -= 1
        left = count > 0
        if not left.all():
            stays, capacity, least, count = stays[left], capacity[left], least[left], count[left]
    return floor
