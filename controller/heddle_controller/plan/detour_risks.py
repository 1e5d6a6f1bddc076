"""What entries on a way round have to watch besides their own way.

An entry on a way longer than the shortest leads packets further off first. One for a whole pair of
NICs answers for all its QPs, also for such as pass elsewhere: these may come to it by the underlay,
once they have lost their own way. It would send them on to where their own entries, further down,
turn them aside, and back to it. And one for a whole pair turns all QPs aside when one has lost its
way further down, also such as come to it round, which may lead them back. So where QPs part and a
pair has an entry for several, all its entries on ways round watch all its ways: as soon as one is
lost, they are all left to backups and to the underlay.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Bools, Ints
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.hops import Hops, links_ahead


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
