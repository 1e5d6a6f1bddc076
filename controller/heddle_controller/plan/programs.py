"""Turns a plan into entries of switches.

*Units.* Where all QPs between two NICs leave a switch by the same link, one entry for the pair is
enough. Where they part, each QP that needs an entry has its own, matched by its UDP source port. A
*unit* is what one decision covers: a pair of NICs at a switch, or a single hop of a path. Which
hops need an entry depends on the underlay (``model.underlay``).

*Risk.* The risk of an entry is every link between switches from here to the destination. When an
agent hears that one of them is lost, it can switch the flow to the backup without asking anybody,
unless a link of the backup's own path is lost as well. A pair whose QPs part further down shares
the risk of all of them, and takes a backup only if it avoids all of it. An entry also takes no
backup from which the underlay may send packets back. If another entry of the pair follows there,
and has a backup that leads no nearer either, the first backup depends on the risk of that entry.

*Detours.* An entry on a detour, a way longer than the shortest, first leads packets further away.
This can cause loops in two ways. An entry for a whole pair of NICs also catches QPs of other paths,
which may reach it by the underlay after they lost their own way. It would send them to where their
own entries, further down, divert them back to it. And when one QP loses its way further down, such
an entry diverts all QPs of the pair, including those that reach it on a detour, which may lead them
back. So where the QPs of a pair part and some entry is for the whole pair, all its entries on
detours watch all its ways. As soon as one is lost, they all fall back to backups and the underlay.

*Changes.* The entries of a pair of NICs depend on the paths and backups of its flows and on the
ports of its QPs, and on no state of any link. So ``entries_after`` compares two plans on the same
structure, of which the later has the flows of the earlier and perhaps more after them. It makes
entries only for pairs where any of these differs, and keeps all others. The result equals that of
``entries_of``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Ints,
    among,
    cut_rows,
    distinct,
    numbered,
    ranges,
    stable_order,
)
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ROCE_PORT, SOURCE_PORT_COUNT, Flows, qp_ports
from heddle_controller.model.kept import KeptFlows
from heddle_controller.model.plan import Paths, Plan, differing
from heddle_controller.model.program import ANY_PORT, Entries, no_entries, splice_entries
from heddle_controller.model.underlay import needs_entry, underlay


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Hops of paths at switches, as parallel columns in order of paths and of travel."""

    path: Ints
    """Row in the plan's paths."""
    place: Ints
    """Position of the hop in the paths' arcs."""
    arc: Ints
    switch: Ints
    source: Ints
    destination: Ints
    needed: Bools
    """Whether the hop needs an entry."""
    backup: Ints
    """Position in the backups' arcs where the backup leaves this switch by another arc.

    ``NONE`` if it does not.
    """

    def __len__(self) -> int:
        return len(self.path)


def hops_of(plan: Plan) -> Hops:
    """Return every hop of a plan's paths that leaves a switch."""
    paths, structure = plan.paths, plan.fabric.structure
    tails = structure.tail[paths.arcs]
    place = np.flatnonzero(structure.nodes.kind[tails] != NodeKind.NIC)
    path = paths.owner()[place]
    arc = paths.arcs[place]
    flow = paths.flow[path]
    destination = plan.flows.destination[flow]
    return Hops(
        path=path,
        place=place,
        arc=arc,
        switch=tails[place],
        source=plan.flows.source[flow],
        destination=destination,
        needed=needs_entry(structure, arc, destination, paths.first[path + 1] - place)
        & ~plan.by_ports[flow],
        backup=_backup_hops(plan, path, arc),
    )


def _backup_hops(plan: Plan, path: Ints, arc: Ints) -> Ints:
    """Return the column ``Hops.backup`` of hops, given their path and arc."""
    backups, structure = plan.backups, plan.fabric.structure
    if not len(backups.arcs):
        return np.full(len(path), NONE, dtype=np.int64)
    nodes = len(structure.nodes.ids)
    codes = backups.owner() * nodes + structure.tail[backups.arcs]
    order = np.argsort(codes)
    sought = path * nodes + structure.tail[arc]
    found = order[np.minimum(np.searchsorted(codes, sought, sorter=order), len(codes) - 1)]
    leaves = (codes[found] == sought) & (backups.arcs[found] != arc)
    return np.where(leaves, found, NONE)


def links_ahead(plan: Plan, paths: Paths, path: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Return the links between switches that paths use from some positions on.

    Args:
        plan: A plan.
        paths: The plan's paths or backups.
        path: Rows of ``paths``.
        place: For each of them, a position in ``paths.arcs``.

    Returns:
        For each use of a link, the index in ``place`` that it belongs to, and the link.
    """
    rows, arcs = arcs_ahead(plan, paths, path, place)
    return rows, arcs >> 1


def arcs_ahead(plan: Plan, paths: Paths, path: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Do the same as ``links_ahead``, but return arcs. They are in order of travel."""
    structure = plan.fabric.structure
    end = paths.first[path + 1]
    rows = np.repeat(np.arange(len(place)), end - place)
    arcs = paths.arcs[ranges(place, end)]
    switch = structure.nodes.kind != NodeKind.NIC
    inner = switch[structure.tail[arcs]] & switch[structure.head[arcs]]
    return rows[inner], arcs[inner]


MOST_STAGES = 32
"""Limit on stages, far above the number of switches with a choice on any path."""


def entries_of(plan: Plan) -> Entries:
    """Return the entries that switches must hold so that packets take the paths of the plan."""
    hops = hops_of(plan)
    if not hops.needed.any():
        return no_entries()
    units = _units(plan, hops)
    risk_unit, risk_link = _risks(plan, hops, units)
    backup, spare_unit, spare_link = _backups(plan, hops, units, risk_unit, risk_link)
    unit, link = np.append(risk_unit, spare_unit), np.append(risk_link, ~spare_link)
    order = np.argsort(unit, kind="stable")  # in each unit, the risk of the primary comes first
    return _expanded(plan, hops, units, backup, (unit[order], link[order]))


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """All units. ``member`` and ``of`` are parallel; the rest has one element a unit."""

    member: Ints
    """Rows of hops that need an entry."""
    of: Ints
    """Unit of each of these hops."""
    lead: Ints
    """The first hop of each unit."""
    whole: Bools
    """Whether the unit is a pair of NICs, and not a single hop."""
    stage: Ints
    """Stage in which the unit's entries are written. Stages count from the destination, from 0."""

    def __len__(self) -> int:
        return len(self.lead)


def _units(plan: Plan, hops: Hops) -> _Units:
    nodes = plan.fabric.node_count
    code = (hops.switch * nodes + hops.source) * nodes + hops.destination
    group = numbered(code)[0]
    groups = int(group.max()) + 1
    low = np.full(groups, len(plan.fabric.structure.tail), dtype=np.int64)
    high = np.full(groups, NONE, dtype=np.int64)
    np.minimum.at(low, group, hops.arc)
    np.maximum.at(high, group, hops.arc)
    alike = (low == high)[group]
    needed = hops.needed | (alike & (np.bincount(group, hops.needed) > 0)[group])
    member = np.flatnonzero(needed)
    key = np.where(alike[member], group[member], groups + member)
    of, lead = numbered(key)
    lead = member[lead]
    return _Units(member, of, lead, alike[lead], _stages(hops.path[member], of))


def _stages(path: Ints, of: Ints) -> Ints:
    """Return the stage of each unit: above that of the next unit on each of its paths.

    Two paths of one pair could meet two switches in opposite order. Then no order is right, and
    ``MOST_STAGES`` ends the loop.
    """
    before = np.flatnonzero(path[1:] == path[:-1])
    stage = np.zeros(int(of.max()) + 1, dtype=np.int64)
    for _ in range(MOST_STAGES):
        least = stage[of[before + 1]] + 1
        if (stage[of[before]] >= least).all():
            break
        np.maximum.at(stage, of[before], least)
    return stage


def _risks(plan: Plan, hops: Hops, units: _Units) -> tuple[Ints, Ints]:
    """Return the risk links of units as pairs of unit and link, sorted by both, each once."""
    rows, links = links_ahead(plan, plan.paths, hops.path[units.member], hops.place[units.member])
    others, more = detour_risks(plan, hops, units.member, units.of, units.whole)
    unit, link = np.append(units.of[rows], others), np.append(links, more)
    codes = distinct(unit * plan.fabric.link_count + link)
    return codes // plan.fabric.link_count, codes % plan.fabric.link_count


def _backups(
    plan: Plan, hops: Hops, units: _Units, risk_unit: Ints, risk_link: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the backup arc of each unit, or ``NONE``: the first that avoids the unit's risk.

    Also returns the risk of these backups, as pairs of unit and link like those of ``_risks``. If
    an entry further on takes over the packets and may send them back, its risk is included.
    """
    spare = np.flatnonzero(hops.backup[units.member] != NONE)
    unit, place = units.of[spare], hops.backup[units.member[spare]]
    rows, arcs = arcs_ahead(plan, plan.backups, hops.path[units.member[spare]], place)
    links = arcs >> 1
    risk = risk_unit * plan.fabric.link_count + risk_link
    shared = among(unit[rows] * plan.fabric.link_count + links, risk)
    destination = hops.destination[units.member[spare]]
    good = ~_turns_back(plan, plan.backups.arcs[place], destination)
    good[_wrong_ways(plan, rows, arcs, destination)] = False
    good[rows[shared]] = False
    backup = np.full(len(units), NONE, dtype=np.int64)
    chosen, first = np.unique(unit[good], return_index=True)
    taken = np.flatnonzero(good)[first]
    backup[chosen] = plan.backups.arcs[place[taken]]
    mine = among(rows, np.sort(taken))
    caught, by = _caught(plan, hops, units, backup)
    first, places = cut_rows(np.searchsorted(risk_unit, np.arange(len(units) + 1)), by)
    risks = np.repeat(caught, np.diff(first)) * plan.fabric.link_count + risk_link[places]
    codes = distinct(np.append(unit[rows[mine]] * plan.fabric.link_count + links[mine], risks))
    return backup, codes // plan.fabric.link_count, codes % plan.fabric.link_count


def _caught(plan: Plan, hops: Hops, units: _Units, backup: Ints) -> tuple[Ints, Ints]:
    """Return pairs of units: one with a backup, and one that has the packets after this backup.

    Both backups lead sideways, to a switch that is no nearer to the destination. So if one loss
    moved both units to their backups, packets might come back.
    """
    structure, nodes = plan.fabric.structure, plan.fabric.node_count
    unit = np.flatnonzero(backup != NONE)
    destination = hops.destination[units.lead[unit]]
    aside = ~underlay(structure).forwards(backup[unit], destination)
    unit, destination = unit[aside], destination[aside]
    pair = hops.source[units.lead[unit]] * nodes + destination
    here = hops.switch[units.lead[unit]] * nodes * nodes + pair
    there = structure.head[backup[unit]] * nodes * nodes + pair
    order = stable_order(here)
    low, high = (np.searchsorted(here[order], there, side) for side in ("left", "right"))
    one, other = np.repeat(unit, high - low), unit[order[ranges(low, high)]]
    path = hops.path[units.lead]
    meet = units.whole[one] | units.whole[other] | (path[one] == path[other])
    return one[meet], other[meet]


def _turns_back(plan: Plan, arcs: Ints, destinations: Ints) -> Bools:
    """Whether packets may come back to the switch where a backup diverted them.

    Only the first hop of a backup is an entry, and the underlay does the rest. So a detour by a
    switch that is further away works only by luck. The question is asked of the whole fabric, as in
    ``needs_entry``. If the underlay follows the rest of a backup by itself (``_wrong_ways``), the
    answer also holds after losses: the backup then leads no further away than the switch itself is.
    """
    return underlay(plan.fabric.structure).may_loop(arcs, destinations)


def _wrong_ways(plan: Plan, rows: Ints, arcs: Ints, destinations: Ints) -> Ints:
    """Return the rows of backups with a hop, after the first, that the underlay does not take.

    ``rows`` and ``arcs`` are parallel: the hops of each backup in order of travel. On a detour by a
    switch further away, packets would meet the very link that the backup is meant to avoid. The
    question is asked of the whole fabric, as in ``needs_entry``. A hop that the underlay takes
    there it also takes in whatever part of the fabric is left.
    """
    later = np.zeros(len(rows), dtype=np.bool_)
    later[1:] = rows[1:] == rows[:-1]
    taken = underlay(plan.fabric.structure).forwards(arcs, destinations[rows])
    return rows[later & ~taken]


def _expanded(
    plan: Plan, hops: Hops, units: _Units, backup: Ints, risks: tuple[Ints, Ints]
) -> Entries:
    """Return the entries of units: one for a whole pair, one for each QP of a single hop."""
    unit, port = _ports(plan, hops, units)
    lead = units.lead[unit]
    columns = (hops.switch[lead], hops.source[lead], hops.destination[lead], port)
    order = np.lexsort(columns[::-1])
    # Port numbers wrap around, so a pair with very many QPs may have the same match twice. A switch
    # holds it once, for the first flow.
    first = np.ones(len(order), dtype=np.bool_)
    ordered = np.stack([column[order] for column in columns])
    first[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    order = order[first]
    unit, lead, port = unit[order], lead[order], port[order]
    risk_unit, risk_links = risks
    bounds = np.searchsorted(risk_unit, np.arange(len(units) + 1))
    risk_first, places = cut_rows(bounds, unit)
    return Entries(
        switch=hops.switch[lead],
        source=hops.source[lead],
        destination=hops.destination[lead],
        source_port=port,
        destination_port=np.where(port == ANY_PORT, ANY_PORT, ROCE_PORT),
        primary=hops.arc[lead],
        backup=backup[unit],
        stage=units.stage[unit],
        risk_first=risk_first,
        risk_links=risk_links[places],
    )


def _ports(plan: Plan, hops: Hops, units: _Units) -> tuple[Ints, Ints]:
    """Return unit and source port of each entry; ``ANY_PORT`` for a whole pair."""
    whole, single = np.flatnonzero(units.whole), np.flatnonzero(~units.whole)
    path = hops.path[units.lead[single]]
    # Port numbers wrap around: QPs beyond the number of ports have no port of their own.
    count = np.minimum(plan.paths.qp_count[path], SOURCE_PORT_COUNT)
    first, first_qp = plan.flows.source_ports()[plan.paths.flow[path]], plan.paths.first_qp[path]
    port = qp_ports(np.repeat(first, count), ranges(first_qp, first_qp + count))
    unit = np.concatenate([whole, np.repeat(single, count)])
    return unit, np.concatenate([np.full(len(whole), ANY_PORT, dtype=np.int64), port])


def detour_risks(
    plan: Plan, hops: Hops, member: Ints, unit: Ints, whole: Bools
) -> tuple[Ints, Ints]:
    """Return the further links that entries on detours have to watch, for the sake of other paths.

    Args:
        plan: A plan.
        hops: Its hops.
        member: Rows of hops.
        unit: Unit of each of these hops.
        whole: Whether each unit is a whole pair at a switch.

    Returns:
        Pairs of unit and link. A pair may occur more than once.
    """
    none = np.empty(0, dtype=np.int64)
    left = plan.paths.first[hops.path[member] + 1] - hops.place[member]
    longer = underlay(plan.fabric.structure).is_detour(
        hops.switch[member], hops.destination[member], left
    )
    if not longer.any():
        return none, none
    flow = plan.paths.flow[hops.path[member]]
    code = plan.flows.source[flow] * plan.fabric.node_count + plan.flows.destination[flow]
    rows = np.flatnonzero(longer)
    pair, ways = _ways_of_pairs(plan, hops.path[member[rows]])
    several = np.array([len(way) > 1 for way in ways])
    concerned = several[pair] & np.isin(code[rows], code[whole[unit]])
    units, at = np.unique(unit[rows[concerned]], return_index=True)
    own = [ways[row] for row in pair[concerned][at].tolist()]
    if not own:
        return none, none
    path = np.concatenate(own)
    of = np.repeat(units, [len(way) for way in own])
    use, links = links_ahead(plan, plan.paths, path, plan.paths.first[path])
    return of[use], links


def _ways_of_pairs(plan: Plan, path: Ints) -> tuple[Ints, list[Ints]]:
    """Return the pair of NICs of each path, numbered from 0, and all paths of each pair."""
    nodes, flow = plan.fabric.node_count, plan.paths.flow
    codes = plan.flows.source[flow] * nodes + plan.flows.destination[flow]
    pairs, pair = np.unique(codes[path], return_inverse=True)
    every = np.flatnonzero(np.isin(codes, pairs))
    every = every[np.argsort(codes[every], kind="stable")]
    return pair, np.split(every, np.searchsorted(codes[every], pairs[1:]))


MOST_NODES = 10_000_000
"""Most nodes for which an entry's match fits one 64-bit number, by which entries are sorted."""
_PORTS = 1 << 16
_WORTH = 4
"""If more than one in this many flows differs, all entries are made again."""


def entries_after(plan: Plan, before: tuple[Plan, Entries] | None = None) -> Entries:
    """Return the entries that switches must hold, using those of an earlier plan where possible.

    ``before`` is the earlier plan and its entries. If nothing differs, these entries are returned.
    The plan keeps its entries, because who verifies it and who programs it both need them.
    """
    made: Entries | None = vars(plan).get(_MADE)
    if made is None:
        made = vars(plan)[_MADE] = _entries_after(plan, before)
    return made


_MADE = "entries"


def _entries_after(plan: Plan, before: tuple[Plan, Entries] | None) -> Entries:
    if before is None or not _comparable(plan, before[0]):
        return entries_of(plan)
    old, entries = before
    differs = _differing_flows(plan, old)
    if np.count_nonzero(differs) * _WORTH > len(differs):
        return entries_of(plan)
    if not differs.any():
        return entries
    return _renewed(plan, entries, plan.flows.source[differs], plan.flows.destination[differs])


def kept_entries(plan: Plan, before: tuple[Plan, Entries], kept: KeptFlows) -> Entries:
    """Return the entries of what is kept of an earlier plan (``model.kept.plan_with_kept``).

    ``before`` is the earlier plan and its entries. Only pairs of NICs are made again between which
    flows went or came, since these also change the ports of others. The result equals that of
    ``entries_of``.
    """
    gone, came = kept.gone, kept.came
    most = max(len(gone), len(came)) * _WORTH
    if most > len(kept.before) or plan.fabric.node_count > MOST_NODES:
        return entries_of(plan)
    source, destination = (
        np.append(getattr(kept.before, name)[gone], getattr(kept.after, name)[came])
        for name in ("source", "destination")
    )
    return _renewed(plan, before[1], source, destination)


def _renewed(plan: Plan, old: Entries, source: Ints, destination: Ints) -> Entries:
    """Return the old entries with those of some pairs of NICs made again."""
    fresh = entries_of(_part(plan, _between(plan.flows, source, destination)))
    nodes = plan.fabric.node_count
    sources = np.zeros(nodes, dtype=np.bool_)
    sources[source] = True
    near = np.flatnonzero(sources[old.source])
    pair = old.source[near] * nodes + old.destination[near]
    gone = near[np.isin(pair, source * nodes + destination)]
    return splice_entries(old, gone, _places(old, fresh, nodes), fresh)


def has_held_backup(plan: Plan, path: int) -> bool:
    """Whether a switch has an entry with the backup of a path, or the host can turn to it.

    The path is judged by itself, although QPs that leave a switch together and part further down
    have one entry and one backup.
    """
    flow = plan.paths.flow[[path]]
    if not len(plan.backups.of(path)) or plan.by_ports[flow[0]]:
        return len(plan.backups.of(path)) > 0
    rows = np.array([path])
    paths, backups = (
        replace(some.take(rows), flow=np.zeros(1, dtype=np.int64))
        for some in (plan.paths, plan.backups)
    )
    entries = entries_of(Plan(plan.fabric, plan.flows.take(flow), paths, backups))
    return bool((entries.backup != NONE).any())


def _comparable(plan: Plan, old: Plan) -> bool:
    structure = plan.fabric.structure
    if structure is not old.fabric.structure or len(structure.nodes.ids) > MOST_NODES:
        return False
    return len(plan.flows) > 0 and plan.flows.begins_with(old.flows)


def _differing_flows(plan: Plan, old: Plan) -> Bools:
    """Mark flows whose path or backup differs, or that only one plan carries by source ports.

    The flows of the old plan come first.
    """
    differs = differing(old.paths, plan.paths, len(plan.flows))
    differs |= differing(old.backups, plan.backups, len(plan.flows))
    differs[: len(old.flows)] |= plan.by_ports[: len(old.flows)] != old.by_ports
    return differs


def _between(flows: Flows, source: Ints, destination: Ints) -> Bools:
    """Mark all flows between some pairs of NICs, shape (flows,)."""
    nodes = 1 + max(int(some.max(initial=0)) for some in (flows.source, source))
    reach = 1 + max(int(some.max(initial=0)) for some in (flows.destination, destination))
    sources = np.zeros(nodes, dtype=np.bool_)
    sources[source] = True
    near = np.flatnonzero(sources[flows.source])
    code = flows.source[near] * reach + flows.destination[near]
    result = np.zeros(len(flows), dtype=np.bool_)
    result[near[np.isin(code, source * reach + destination)]] = True
    return result


def _part(plan: Plan, chosen: Bools) -> Plan:
    """Return a plan of the marked flows alone, without those that source ports carry."""
    chosen = chosen & ~plan.by_ports  # these need no entries
    number = np.cumsum(chosen) - 1
    rows = np.flatnonzero(chosen[plan.paths.flow])
    paths, backups = plan.paths.take(rows), plan.backups.take(rows)
    return Plan(
        plan.fabric,
        plan.flows.take(np.flatnonzero(chosen)),
        replace(paths, flow=number[paths.flow]),
        replace(backups, flow=number[backups.flow]),
    )


def _places(old: Entries, fresh: Entries, nodes: int) -> Ints:
    """Return for each fresh entry the old row before which it belongs, by switch and match."""
    first = np.searchsorted(old.switch, fresh.switch)
    last = np.searchsorted(old.switch, fresh.switch, side="right")
    result = np.empty(len(fresh), dtype=np.int64)
    begins = np.flatnonzero(np.diff(fresh.switch, prepend=NONE))
    for begin, end in pairwise([*begins.tolist(), len(fresh)]):
        own = _codes(old, slice(int(first[begin]), int(last[begin])), nodes)
        result[begin:end] = np.searchsorted(own, _codes(fresh, slice(begin, end), nodes))
    return result + first


def _codes(entries: Entries, rows: slice, nodes: int) -> Ints:
    """Return a number for the match of each entry, in the order in which a switch's are sorted.

    The destination port is left out, since it follows from the source port: both are given or none.
    """
    pair = entries.source[rows] * nodes + entries.destination[rows]
    codes: Ints = pair * _PORTS + entries.source_port[rows]
    return codes
