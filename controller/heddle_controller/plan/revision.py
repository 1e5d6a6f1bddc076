"""Entries of a plan from those of the plan before it, at the cost of what differs.

Entries of one pair of NICs follow from the paths and backups of its flows and the ports of its QPs,
and from no state of any link. So where two plans are of the same flows on the same structure,
entries are made anew for pairs where any of these differs and taken over for all others. Nothing
is said by whoever made the plans of what has changed: both are compared. What comes out is what
``entries_of`` gives.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.plan.diff import differing
from heddle_controller.plan.entry_edits import splice_entries
from heddle_controller.plan.programs import entries_of

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
