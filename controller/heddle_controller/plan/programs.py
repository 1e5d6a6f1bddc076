"""A plan as entries of switches.

Where all QPs between two NICs leave a switch the same way, one entry for the pair
does; where they part, each QP that needs an entry has its own, told apart by its
UDP source port. A *unit* is what one decision covers: a pair of NICs at a switch,
or a single hop of a path.

The risk of an entry is every link between switches from here to the destination:
whoever hears of one's loss can turn the flow aside without asking anybody, to the
backup, unless a link of the backup's own path is lost as well. A pair whose QPs part
further down shares the risk of all of them, and takes a backup only if it avoids all
of it. Nor does an entry take a backup from which the underlay may send packets back.

What entries on a way round have to watch besides their own way.

An entry on a way longer than the shortest leads packets further off first. One for a whole pair of
NICs answers for all its QPs, also for such as pass elsewhere: these may come to it by the underlay,
once they have lost their own way. It would send them on to where their own entries, further down,
turn them aside, and back to it. And one for a whole pair turns all QPs aside when one has lost its
way further down, also such as come to it round, which may lead them back. So where QPs part and a
pair has an entry for several, all its entries on ways round watch all its ways: as soon as one is
lost, they are all left to backups and to the underlay.

The hops of a plan at switches: what each path asks of each switch it passes.

One row a hop, in order of paths and of travel. Which hops need an entry is the
underlay's to say (``model.underlay``).

Entries of a plan from those of the plan before it, at the cost of what differs.

Entries of one pair of NICs follow from the paths and backups of its flows and the ports of its QPs,
and from no state of any link. So where two plans are of the same flows on the same structure,
entries are made anew for pairs where any of these differs and taken over for all others. Nothing
is said by whoever made the plans of what has changed: both are compared. What comes out is what
``entries_of`` gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, among, distinct, numbered
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ROCE_PORT, SOURCE_PORT_COUNT, Flows, qp_ports
from heddle_controller.model.plan import Paths, Plan, differing
from heddle_controller.model.program import ANY_PORT, Entries, no_entries
from heddle_controller.model.underlay import needs_entry, underlay
from heddle_controller.plan.entry_edits import splice_entries


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Hops at switches, parallel columns."""

    path: Ints
    """Row in the plan's paths."""
    place: Ints
    """Position in the paths' arcs."""
    arc: Ints
    switch: Ints
    source: Ints
    destination: Ints
    needed: Bools
    """Whether the hop needs an entry."""
    backup: Ints
    """Position in the backups' arcs where the backup leaves this switch by another
    arc; ``NONE`` where it does not."""

    def __len__(self) -> int:
        return len(self.path)


def hops_of(plan: Plan) -> Hops:
    """Every hop of every path that leaves a switch."""
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
    """Where each hop's backup leaves the same switch by another arc."""
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
    """Links between switches from a position of a path on, shape (uses,) both.

    Returns:
        The row in ``place`` each use belongs to, and its link.
    """
    rows, arcs = arcs_ahead(plan, paths, path, place)
    return rows, arcs >> 1


def arcs_ahead(plan: Plan, paths: Paths, path: Ints, place: Ints) -> tuple[Ints, Ints]:
    """As ``links_ahead``, in order of travel, by their arcs."""
    structure = plan.fabric.structure
    length = paths.first[path + 1] - place
    rows = np.repeat(np.arange(len(place)), length)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(length) - length, length)
    arcs = paths.arcs[np.repeat(place, length) + within]
    switch = structure.nodes.kind != NodeKind.NIC
    inner = switch[structure.tail[arcs]] & switch[structure.head[arcs]]
    return rows[inner], arcs[inner]


MOST_STAGES = 32
"""Far more than any path has switches with a choice."""


def entries_of(plan: Plan) -> Entries:
    """What every switch must hold so that packets take the paths of the plan."""
    hops = hops_of(plan)
    if not hops.needed.any():
        return no_entries()
    units = _units(plan, hops)
    risk_unit, risk_link = _risks(plan, hops, units)
    backup, spare_unit, spare_link = _backups(plan, hops, units, risk_unit, risk_link)
    unit, link = np.append(risk_unit, spare_unit), np.append(risk_link, ~spare_link)
    order = np.argsort(unit, kind="stable")  # of each unit the primary's first
    return _expanded(plan, hops, units, backup, (unit[order], link[order]))


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """Decisions; ``member`` and ``of`` are parallel, the rest has one element a unit."""

    member: Ints
    """Hops that need entries."""
    of: Ints
    """Unit of each of them."""
    lead: Ints
    """The first hop of each unit."""
    whole: Bools
    """Whether the unit is a pair of NICs, or else a single hop."""
    stage: Ints

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
    """Stage of each unit: above that of whichever comes next on any of its paths.

    Two paths of one pair could meet two switches in opposite order, and then no order
    is right; ``MOST_STAGES`` ends that too.
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
    """Risk links of units: parallel, by unit and then by link, each once."""
    rows, links = links_ahead(plan, plan.paths, hops.path[units.member], hops.place[units.member])
    others, more = detour_risks(plan, hops, units.member, units.of, units.whole)
    unit, link = np.append(units.of[rows], others), np.append(links, more)
    codes = distinct(unit * plan.fabric.link_count + link)
    return codes // plan.fabric.link_count, codes % plan.fabric.link_count


def _backups(
    plan: Plan, hops: Hops, units: _Units, risk_unit: Ints, risk_link: Ints
) -> tuple[Ints, Ints, Ints]:
    """Backup arc of each unit: the first of its hops' that avoids the unit's risk.

    And the risk of these backups, parallel as that of ``_risks``.
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
    codes = distinct(unit[rows[mine]] * plan.fabric.link_count + links[mine])
    return backup, codes // plan.fabric.link_count, codes % plan.fabric.link_count


def _turns_back(plan: Plan, arcs: Ints, destinations: Ints) -> Bools:
    """Whether packets may come back to where a backup turned them aside.

    Only the first hop of a backup is an entry, the underlay has the rest: a way round by a switch
    that is further away leads there only by luck. Asked of the whole fabric, as ``needs_entry`` is:
    a backup that is left after losses, and that the underlay takes by itself from there on
    (``_wrong_ways``), brings packets no further off than their switch has become since.
    """
    return underlay(plan.fabric.structure).may_loop(arcs, destinations)


def _wrong_ways(plan: Plan, rows: Ints, arcs: Ints, destinations: Ints) -> Ints:
    """Rows of backups with a hop, after the first, that the underlay does not take by itself.

    ``rows`` and ``arcs`` are parallel: the hops of each backup in order of travel. Where one goes
    round by a switch further away, packets would meet the very link that it is to avoid. Asked as
    ``needs_entry`` is: what the underlay takes on the whole fabric it takes wherever that is left.
    """
    later = np.zeros(len(rows), dtype=np.bool_)
    later[1:] = rows[1:] == rows[:-1]
    taken = underlay(plan.fabric.structure).forwards(arcs, destinations[rows])
    return rows[later & ~taken]


def _expanded(
    plan: Plan, hops: Hops, units: _Units, backup: Ints, risks: tuple[Ints, Ints]
) -> Entries:
    """Entries of units: one for a whole pair, one for each QP of a single hop."""
    unit, port = _ports(plan, hops, units)
    lead = units.lead[unit]
    columns = (hops.switch[lead], hops.source[lead], hops.destination[lead], port)
    order = np.lexsort(columns[::-1])
    # Ports wrap round, so a pair with very many QPs may meet the same match twice:
    # a switch holds it once, and the first flow has it.
    first = np.ones(len(order), dtype=np.bool_)
    ordered = np.stack([column[order] for column in columns])
    first[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    order = order[first]
    unit, lead, port = unit[order], lead[order], port[order]
    risk_unit, risk_links = risks
    bounds = np.searchsorted(risk_unit, np.arange(len(units) + 1))
    lengths = np.diff(bounds)[unit]
    risk_first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    within = np.arange(risk_first[-1]) - np.repeat(risk_first[:-1], lengths)
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
        risk_links=risk_links[np.repeat(bounds[unit], lengths) + within],
    )


def _ports(plan: Plan, hops: Hops, units: _Units) -> tuple[Ints, Ints]:
    """Unit and source port of each entry."""
    whole, single = np.flatnonzero(units.whole), np.flatnonzero(~units.whole)
    path = hops.path[units.lead[single]]
    # Ports wrap round: more QPs than ports on one path have no ports of their own.
    count = np.minimum(plan.paths.qp_count[path], SOURCE_PORT_COUNT)
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    first = plan.flows.source_ports()[plan.paths.flow[path]]
    port = qp_ports(np.repeat(first, count), np.repeat(plan.paths.first_qp[path], count) + within)
    unit = np.concatenate([whole, np.repeat(single, count)])
    return unit, np.concatenate([np.full(len(whole), ANY_PORT, dtype=np.int64), port])


def detour_risks(
    plan: Plan, hops: Hops, member: Ints, unit: Ints, whole: Bools
) -> tuple[Ints, Ints]:
    """Unit and link, parallel, of what such entries have to watch; any may be named twice.

    Args:
        plan: A plan.
        hops: Its hops.
        member: Rows of hops.
        unit: Of each of them: what one entry decides.
        whole: Of each unit, whether it is a whole pair at a switch.
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
    """Number of the pair of NICs of each path, from 0, and all paths that each of them has."""
    nodes, flow = plan.fabric.node_count, plan.paths.flow
    codes = plan.flows.source[flow] * nodes + plan.flows.destination[flow]
    pairs, pair = np.unique(codes[path], return_inverse=True)
    every = np.flatnonzero(np.isin(codes, pairs))
    every = every[np.argsort(codes[every], kind="stable")]
    return pair, np.split(every, np.searchsorted(codes[every], pairs[1:]))


MOST_NODES = 10_000_000
"""Up to which an entry's match fits one number, by which those of a switch are sorted."""
_PORTS = 1 << 16
_WORTH = 4
"""Where more than one flow in so many differs, all entries are made anew."""


def entries_after(plan: Plan, before: tuple[Plan, Entries] | None = None) -> Entries:
    """What every switch must hold; ``before`` is an earlier plan and what it asked for."""
    if before is None or not _comparable(plan, before[0]):
        return entries_of(plan)
    old, entries = before
    differs = _differing_flows(plan, old)
    if np.count_nonzero(differs) * _WORTH > len(differs):
        return entries_of(plan)
    if not differs.any():
        return entries
    pairs = _pairs(plan.flows, differs)
    return _replaced(plan, entries, entries_of(_part(plan, pairs)), pairs)


def _comparable(plan: Plan, old: Plan) -> bool:
    structure = plan.fabric.structure
    if structure is not old.fabric.structure or len(structure.nodes.ids) > MOST_NODES:
        return False
    return len(plan.flows) > 0 and plan.flows.same_as(old.flows)


def _differing_flows(plan: Plan, old: Plan) -> Bools:
    """Flows with another path or backup, or carried by something else."""
    differs = differing(old.paths, plan.paths, len(plan.flows))
    differs |= differing(old.backups, plan.backups, len(plan.flows))
    differs |= plan.by_ports != old.by_ports
    return differs


def _pairs(flows: Flows, differs: Bools) -> Bools:
    """All flows of the pairs of NICs that some flows join, shape (flows,)."""
    nodes = int(max(flows.source.max(), flows.destination.max())) + 1
    sources = np.zeros(nodes, dtype=np.bool_)
    sources[flows.source[differs]] = True
    near = np.flatnonzero(sources[flows.source])
    code = flows.source[near] * nodes + flows.destination[near]
    result = np.zeros(len(flows), dtype=np.bool_)
    result[near[np.isin(code, code[differs[near]])]] = True
    return result


def _part(plan: Plan, chosen: Bools) -> Plan:
    """The plan of some flows alone."""
    chosen = chosen & ~plan.by_ports  # which need none
    number = np.cumsum(chosen) - 1
    rows = np.flatnonzero(chosen[plan.paths.flow])
    paths, backups = plan.paths.take(rows), plan.backups.take(rows)
    return Plan(
        plan.fabric,
        plan.flows.take(np.flatnonzero(chosen)),
        replace(paths, flow=number[paths.flow]),
        replace(backups, flow=number[backups.flow]),
    )


def _replaced(plan: Plan, old: Entries, fresh: Entries, chosen: Bools) -> Entries:
    """Entries with those of some flows' pairs replaced."""
    nodes, flows = plan.fabric.node_count, plan.flows
    sources = np.zeros(nodes, dtype=np.bool_)
    sources[flows.source[chosen]] = True
    near = np.flatnonzero(sources[old.source])
    pair = old.source[near] * nodes + old.destination[near]
    gone = near[np.isin(pair, flows.source[chosen] * nodes + flows.destination[chosen])]
    return splice_entries(old, gone, _places(old, fresh, nodes), fresh)


def _places(old: Entries, fresh: Entries, nodes: int) -> Ints:
    """Before which row of the old ones each of the fresh stands, by switch and match."""
    first = np.searchsorted(old.switch, fresh.switch)
    last = np.searchsorted(old.switch, fresh.switch, side="right")
    result = np.empty(len(fresh), dtype=np.int64)
    begins = np.flatnonzero(np.diff(fresh.switch, prepend=NONE))
    for begin, end in pairwise([*begins.tolist(), len(fresh)]):
        own = _codes(old, slice(int(first[begin]), int(last[begin])), nodes)
        result[begin:end] = np.searchsorted(own, _codes(fresh, slice(begin, end), nodes))
    return result + first


def _codes(entries: Entries, rows: slice, nodes: int) -> Ints:
    """A number for the match of each of some entries, ascending as those of one switch are sorted.

    A destination port follows from the source port: both are there or none.
    """
    pair = entries.source[rows] * nodes + entries.destination[rows]
    codes: Ints = pair * _PORTS + entries.source_port[rows]
    return codes
