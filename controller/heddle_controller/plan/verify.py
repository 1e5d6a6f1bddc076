"""Checks a plan independently, before anybody relies on it.

It shares no code with the solver. The rules for a plan are stated here a second time, from the
arrays alone, and cheaply enough to check every plan. Each check looks at all paths at once and
yields the faulty ones with a reason.

A link in maintenance (drained) still carries traffic but takes no new paths. A flow may stay on one
only if links that take new paths do not join its ends.

Source ports are checked, too: each is looked up in what is known about ports, and the path that it
takes is compared with the plan's path.

Loads are computed from those of a plan that differs little, if there is one. What an arc carries
depends only on the paths over it. If two plans have the same flows in the same rows, and perhaps
more flows after them, only arcs that a changed row left or joined are added up again. They are
added up completely, in the order of rows, so the figures equal those of ``arc_loads`` bit for bit.
What new jobs add is put on top, since new jobs come last. A plan keeps its loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np

from heddle_controller.model.arrays import NONE, UNREACHED, Bools, Floats, Ints, distinct
from heddle_controller.model.errors import first_of
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.kept import KeptFlows
from heddle_controller.model.plan import (
    WHOSE,
    Certificate,
    NicPorts,
    Paths,
    Plan,
    differing,
    edit_of,
    phased_loads,
    worst_by_tier,
)
from heddle_controller.model.port_paths import PortPaths, no_port_paths, padded
from heddle_controller.model.program import Entries
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.programs import entries_after, hops_of
from heddle_controller.plan.shortest_paths import choice, free

Fault = tuple[int, str]
"""Row of a path, and what is wrong with it."""


def malformed(plan: Plan, paths: Paths) -> str:
    """Return why the arrays are not paths of the plan's flows and fabric; empty if they are."""
    count = len(paths)
    columns = (paths.flow, paths.first_qp, paths.last_qp)
    if any(column.shape != (count,) for column in columns) or paths.first.shape != (count + 1,):
        return "columns differ in length"
    if (
        paths.first[0] != 0
        or paths.first[-1] != len(paths.arcs)
        or (np.diff(paths.first) < 0).any()
    ):
        return "bounds do not cut the arcs into paths"
    if _outside(paths.arcs, len(plan.fabric.structure.tail)):
        return "an arc is not in the fabric"
    if _outside(paths.flow, len(plan.flows)) or (np.diff(paths.flow) < 0).any():
        return "flows are unknown or out of order"
    return ""


def _outside(rows: Ints, count: int) -> bool:
    return bool(((rows < 0) | (rows >= count)).any())


def path_faults(plan: Plan, paths: Paths, rows: Ints) -> Iterator[Fault]:
    """Yield what is wrong with paths. Paths without arcs are skipped.

    Ends and course are checked for ``rows``, states of links for all paths.
    """
    some = paths.take(rows)
    ends = np.flatnonzero(np.diff(some.first) > 0)
    for faults in (_end_faults(plan, some, ends), _course_faults(plan, some)):
        yield from ((int(rows[row]), reason) for row, reason in faults)
    yield from _state_faults(plan, paths)


def _end_faults(plan: Plan, paths: Paths, rows: Ints) -> Iterator[Fault]:
    structure, flows = plan.fabric.structure, plan.flows
    ids = structure.nodes.ids
    for what, node, due in (
        ("starts", structure.tail[paths.arcs[paths.first[rows]]], flows.source),
        ("ends", structure.head[paths.arcs[paths.first[rows + 1] - 1]], flows.destination),
    ):
        expected = due[paths.flow[rows]]
        for at in np.flatnonzero(node != expected).tolist():
            yield int(rows[at]), f"{what} at {ids[node[at]]!r}, not at {ids[expected[at]]!r}"


def _course_faults(plan: Plan, paths: Paths) -> Iterator[Fault]:
    """Yield gaps, NICs in the middle of a path, and nodes met twice."""
    structure, owner = plan.fabric.structure, paths.owner()
    ids = structure.nodes.ids
    head, tail = structure.head[paths.arcs], structure.tail[paths.arcs]
    inner = np.flatnonzero(owner[1:] == owner[:-1])
    for at in inner[head[inner] != tail[inner + 1]].tolist():
        yield int(owner[at]), f"jumps from {ids[head[at]]!r} to {ids[tail[at + 1]]!r}"
    for at in inner[structure.nodes.kind[head[inner]] == NodeKind.NIC].tolist():
        yield int(owner[at]), f"passes through the NIC {ids[head[at]]!r}"
    visits = _by_ordinal(paths, head)
    starts = np.where(np.diff(paths.first) > 0, paths.first[:-1], NONE)
    before = [np.where(starts != NONE, np.append(tail, NONE)[starts], NONE)]
    for visit in visits:
        for earlier in before:
            for row in np.flatnonzero((visit == earlier) & (visit != NONE)).tolist():
                yield row, f"meets {ids[visit[row]]!r} twice"
        before.append(visit)


def _by_ordinal(paths: Paths, values: Ints) -> Ints:
    """Return values of arcs as a table by position in the path, shape (longest path, paths).

    ``NONE`` stands after the end of a path. Paths are short, so comparing positions pair by pair
    costs less than sorting.
    """
    length = np.diff(paths.first)
    table = np.full((int(length.max(initial=0)), len(paths)), NONE, dtype=np.int64)
    within = np.arange(len(values)) - np.repeat(paths.first[:-1], length)
    table[within, paths.owner()] = values
    return table


def _state_faults(plan: Plan, paths: Paths) -> Iterator[Fault]:
    """Yield paths over links that are down, or drained although there is a way round."""
    fabric = plan.fabric
    if fabric.plannable.all():
        return
    poor = np.flatnonzero(~fabric.plannable[paths.arcs])
    if not len(poor):
        return
    owner = paths.owner()
    for at in poor[~fabric.carries[paths.arcs[poor]]].tolist():
        yield int(owner[at]), f"crosses {_link(plan, paths, at)}, which is down"
    drained = poor[fabric.carries[paths.arcs[poor]]]
    if not len(drained):
        return
    avoidable = _joined_by_plannable(plan, paths.flow[owner[drained]])
    for at in drained[avoidable].tolist():
        reason = f"crosses {_link(plan, paths, at)}, which is drained, though there is a way round"
        yield int(owner[at]), reason


def _link(plan: Plan, paths: Paths, at: int) -> str:
    return plan.fabric.link_name(int(paths.arcs[at]) >> 1)


def _joined_by_plannable(plan: Plan, flow: Ints) -> Bools:
    """Whether links that take new paths join the ends of each flow, shape of ``flow``."""
    structure, flows = plan.fabric.structure, plan.flows
    reach = underlay(structure, plan.fabric.plannable).reach
    joined: dict[int, bool] = {}
    for row in distinct(flow).tolist():
        source, place = int(flows.source[row]), int(reach.place[flows.destination[row]])
        own = structure.leaving(source)
        seats = structure.head[own[plan.fabric.plannable[own]]]
        hops = reach.distance[reach.row[seats], place] if place >= 0 else np.empty(0)
        joined[row] = bool((hops != UNREACHED).any())
    return np.array([joined[row] for row in flow.tolist()], dtype=np.bool_)


def backup_faults(plan: Plan, rows: Ints) -> Iterator[Fault]:
    """Yield backups, among some rows, that equal their path.

    Sharing some links is no fault. A graph may have no other way, and where the two part, the
    backup still helps. No entry has a backup over a link that its path needs.
    """
    paths, backups = plan.paths, plan.backups
    lengths = np.diff(paths.first)[rows]
    rows = rows[(lengths == np.diff(backups.first)[rows]) & (lengths > 0)]
    ways = paths.take(rows)
    equal = ways.arcs == backups.take(rows).arcs
    if len(rows):
        for row in rows[np.logical_and.reduceat(equal, ways.first[:-1])].tolist():
            yield row, "is the path itself, so it helps against nothing"


_PORTS = 1 << 16


def port_faults(plan: Plan) -> Iterator[str]:
    """Yield flows that neither ports nor entries keep on their paths, as far as is known.

    These are flows with a port that takes another path or backup, and flows that would need an
    entry in a switch that only hashes.
    """
    yield from _unheld(plan)
    if plan.nic_ports is not None:
        yield from _faults(plan, plan.nic_ports, plan.fabric.port_paths or no_port_paths())


def _unheld(plan: Plan) -> Iterator[str]:
    structure = plan.fabric.structure
    if not structure.hashes.any():
        return
    hops = hops_of(plan)
    for row in np.flatnonzero(hops.needed & structure.hashes[hops.switch]).tolist():
        switch = structure.nodes.ids[hops.switch[row]]
        yield f"{_name(plan, int(hops.path[row]))}: needs an entry in {switch!r}, which hashes"


def _faults(plan: Plan, ports: NicPorts, known: PortPaths) -> Iterator[str]:
    path = np.repeat(np.arange(len(plan.paths)), plan.paths.qp_count)
    if len(ports.port) != len(path) or len(ports.backup) != len(path):
        yield "there is not one port for each QP that has a path"
        return
    mine = plan.by_ports[plan.paths.flow[path]]
    for row in np.flatnonzero(mine != (ports.port != NONE)).tolist():
        yield f"{_name(plan, path[row])}: has a port and is not carried by ports, or has none"
    path, port, backup = path[mine], ports.port[mine], ports.backup[mine]
    yield from _astray(plan, plan.paths, (path, port), known)
    has = np.diff(plan.backups.first)[path] > 0
    for row in np.flatnonzero(has != (backup != NONE)).tolist():
        yield f"{_name(plan, path[row])}: has a backup and no port for it, or a port and no backup"
    for problem in _astray(plan, plan.backups, (path[has], backup[has]), known):
        yield f"{problem}, as a backup"


def _astray(plan: Plan, paths: Paths, given: tuple[Ints, Ints], known: PortPaths) -> Iterator[str]:
    """Yield paths whose ports are unknown or take another path.

    A path that is the only shortest one is not among them: all ports take it now, whatever they
    took when they were probed. ``given`` are parallel columns: rows of ``paths``, and the port for
    each.
    """
    path, port = given
    nodes, flows = plan.fabric.node_count, plan.flows
    owner = np.repeat(np.arange(len(known)), known.port_count)
    code = (known.source * nodes + known.destination)[owner] * _PORTS + known.ports
    order = np.argsort(code)
    flow = plan.paths.flow[path]
    wanted = (flows.source[flow] * nodes + flows.destination[flow]) * _PORTS + port
    place = np.minimum(np.searchsorted(code, wanted, sorter=order), max(len(code) - 1, 0))
    found = np.zeros(len(wanted), dtype=np.bool_)
    if len(code):
        found = code[order[place]] == wanted
    for row in distinct(path[~found]).tolist():
        if not _only_one(plan, paths, row):
            yield f"{_name(plan, row)}: nobody knows which path its ports take"
    rows = np.flatnonzero(found)
    way = owner[order[place[rows]]]
    width = int(max(np.diff(known.first).max(initial=0), np.diff(paths.first).max(initial=0)))
    taken = padded(known.first, known.arcs, width)[way]
    meant = padded(paths.first, paths.arcs, width)[path[rows]]
    for row in np.flatnonzero((taken != meant).any(axis=1)).tolist():
        if not _only_one(plan, paths, int(path[rows[row]])):
            yield f"{_name(plan, path[rows[row]])}: port {port[rows[row]]} takes another path"


def _only_one(plan: Plan, paths: Paths, row: int) -> bool:
    """Whether a path is the only shortest one between its NICs."""
    ways = underlay(plan.fabric.structure, plan.fabric.carries)
    there = choice(plan, int(plan.paths.flow[row]), ways, free)
    return there.count == 1 and there.hops == paths.first[row + 1] - paths.first[row]


def _name(plan: Plan, path: int) -> str:
    return f"flow {plan.flows.ids[plan.paths.flow[path]]!r}"


MOST_TOLD = 20
_TOLERANCE = 1e-6
"""Relative difference allowed between a figure of the certificate and its recomputed value."""


class PlanInvalid(Exception):  # noqa: N818  # a word of the design: a plan is valid or invalid
    """Raised for a plan that must not be used. ``problems`` says why, at most ``MOST_TOLD``."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(*self.problems)

    def __str__(self) -> str:
        return f"the plan is invalid: {first_of(self.problems)}"


def verify_plan(plan: Plan, before: tuple[Plan, Entries] | None = None) -> None:
    """Check a whole plan.

    Args:
        plan: The plan to check.
        before: A plan that passed, and its entries. If the plan has its flows, and perhaps more
            after them, only paths and backups of flows where these differ are checked, and only
            arcs whose users changed are added up again. What depends on states of links is always
            checked for all.

    Raises:
        PlanInvalid: If anything at all is wrong with the plan.
    """
    # Later checks rely on earlier ones, so each group runs only if the one before found nothing.
    known = before[0] if before is not None else None
    for group in (_shape, partial(_routes, known=known), partial(_figures, before=before)):
        if problems := [*islice(group(plan), MOST_TOLD)]:
            raise PlanInvalid(problems)


def _shape(plan: Plan) -> Iterator[str]:
    for name, paths in (("paths", plan.paths), ("backups", plan.backups)):
        if reason := malformed(plan, paths):
            yield f"{name}: {reason}"
            return
    pairs = [(getattr(plan.paths, name), getattr(plan.backups, name)) for name in WHOSE]
    if not all(path is backup or np.array_equal(path, backup) for path, backup in pairs):
        yield "backups do not stand in parallel to paths"
    if not all(0 <= row < len(plan.flows) for row in plan.unrouted):
        yield "unrouted names flows that are not there"


def _routes(plan: Plan, known: Plan | None) -> Iterator[str]:
    rows = _new_rows(plan, known) if known is not None else None
    if rows is None:
        rows = np.arange(len(plan.paths), dtype=np.int64)
    yield from _coverage(plan, rows)
    yield from _told(plan, "path", path_faults(plan, plan.paths, rows))
    empty = rows[plan.paths.first[rows] == plan.paths.first[rows + 1]].tolist()
    yield from _told(plan, "path", ((row, "has no links") for row in empty))
    yield from _told(plan, "backup", path_faults(plan, plan.backups, rows))
    yield from _told(plan, "backup", backup_faults(plan, rows))


def _new_rows(plan: Plan, known: Plan) -> Ints | None:
    """Return all rows of the flows with a path or backup that the known plan has not, ascending.

    None if the fabric is another one, or the flows of the known plan do not come first.
    """
    if known.fabric.structure is not plan.fabric.structure or not _comes_first(known, plan):
        return None
    differs = differing(known.paths, plan.paths, len(plan.flows))
    differs |= differing(known.backups, plan.backups, len(plan.flows))
    return np.flatnonzero(differs[plan.paths.flow])


def _comes_first(known: Plan, plan: Plan) -> bool:
    return plan.flows.begins_with(known.flows)


def _told(plan: Plan, what: str, faults: Iterator[Fault]) -> Iterator[str]:
    paths = plan.paths
    for row, reason in faults:
        qps = f"QPs {paths.first_qp[row]} to {paths.last_qp[row]}"
        yield f"flow {plan.flows.ids[paths.flow[row]]!r}, {what} of {qps}: {reason}"


def _coverage(plan: Plan, rows: Ints) -> Iterator[str]:
    """Yield flows whose QPs are not on paths exactly once, unless a reason is given for no path.

    ``rows`` are the paths to look at, ascending, always all of a flow.
    """
    paths, flows = plan.paths, plan.flows
    for row in _not_partitioned(plan, rows):
        own = paths.flow == row
        told = [*zip(paths.first_qp[own].tolist(), paths.last_qp[own].tolist(), strict=True)]
        yield f"flow {flows.ids[row]!r}: paths carry QPs {told[:3]}, not 0 to {flows.qps[row] - 1}"
    routed = np.zeros(len(flows), dtype=np.bool_)
    routed[paths.flow] = True
    for row in plan.unrouted:
        if routed[row]:
            yield f"flow {flows.ids[row]!r}: has a path, yet counts as unrouted"
        routed[row] = True
    for row, reason in plan.unrouted.items():
        if not reason.strip():
            yield f"flow {flows.ids[row]!r}: has no path, and no reason is given"
    for row in np.flatnonzero(~routed).tolist():
        yield f"flow {flows.ids[row]!r}: is neither routed nor said to be unrouted"


def _not_partitioned(plan: Plan, rows: Ints) -> list[int]:
    flow, first, last = (getattr(plan.paths, name)[rows] for name in WHOSE)
    starts = np.ones(len(rows), dtype=np.bool_)
    starts[1:] = flow[1:] != flow[:-1]
    due = np.zeros(len(rows), dtype=np.int64)
    due[1:] = last[:-1] + 1
    due[starts] = 0
    bad = (first != due) | (last < first)
    ends = np.append(starts[1:], np.ones(min(len(rows), 1), dtype=np.bool_))
    bad |= ends & (last != plan.flows.qps[flow] - 1)
    found: list[int] = distinct(flow[bad]).tolist()
    return found


def _figures(plan: Plan, before: tuple[Plan, Entries] | None) -> Iterator[str]:
    yield from port_faults(plan)
    yield from _tables(plan, before)
    known = before[0] if before is not None else None
    worst = worst_by_tier(plan.fabric, loads_after(plan, known))
    yield from _certificate(plan.certificate, worst)


def _tables(plan: Plan, before: tuple[Plan, Entries] | None) -> Iterator[str]:
    nodes = plan.fabric.structure.nodes
    if (nodes.table_size == NONE).all():
        return
    entries = np.bincount(entries_after(plan, before).switch, minlength=len(nodes.ids))
    for row in np.flatnonzero((nodes.table_size != NONE) & (entries > nodes.table_size)).tolist():
        held = f"needs {entries[row]} entries, its table holds {nodes.table_size[row]}"
        yield f"switch {nodes.ids[row]!r}: {held}"


def _certificate(told: Certificate, found: dict[str, float]) -> Iterator[str]:
    rows = [("", told.max_utilization, told.lower_bound, max(found.values(), default=0.0))]
    for tier in told.tiers:
        if tier.tier not in found:
            yield f"certificate: the fabric has no tier {tier.tier!r}"
            continue
        name = f" of {tier.tier}"
        rows.append((name, tier.max_utilization, tier.lower_bound, found[tier.tier]))
    for name, said, bound, real in rows:
        # Written as ``>``, the comparison would let a NaN pass.
        if not abs(said - real) <= _TOLERANCE * max(1.0, real):
            yield f"certificate: worst utilisation{name} is {real:.6g}, said to be {said:.6g}"
        if not 0 <= bound <= said + _TOLERANCE * max(1.0, said):
            yield f"certificate: lower bound{name} {bound:.6g} is not within 0 and {said:.6g}"
    for name in sorted({tier for tier, value in found.items() if value > 0}):
        if name not in {tier.tier for tier in told.tiers}:
            yield f"certificate: says nothing of the tier {name!r}, which carries load"
    if told.lower_bound > 0 and told.proof in ("", "none"):
        yield "certificate: gives a lower bound and no proof of it"


_WORTH = 8
"""If more than one in this many uses of arcs differs, everything is added up."""


def loads_after(plan: Plan, known: Plan | None) -> Floats:
    """Return the load of each arc in Gbit/s, shape (arcs,).

    ``known`` is an earlier plan whose loads may have been computed, or None.
    """
    loads = None
    if known is not None and "loads" not in plan.__dict__:
        loads = _from_known(plan, known)
    return plan.loads if loads is None else plan.with_loads(loads).loads


def with_kept_loads(plan: Plan, before: Plan, kept: KeptFlows) -> Plan:
    """Give what is kept of an earlier plan its loads if those of the whole plan are known.

    ``plan`` is what ``model.kept.plan_with_kept`` returns for ``before``. It is returned.
    """
    if "loads" in before.__dict__:
        touched = before.paths.of_flows(kept.gone).arcs, plan.paths.of_flows(kept.altered).arcs
        arcs = distinct(np.concatenate(touched))
        plan.with_loads(_with_sums(plan, before.loads, arcs))
    return plan


def _with_sums(plan: Plan, loads: Floats, arcs: Ints) -> Floats:
    """Return loads with those of some arcs, ascending, added up again for a plan."""
    near = np.zeros(len(loads), dtype=np.bool_)
    near[arcs] = True
    loads = loads.copy()
    loads[arcs] = _loads_of(plan, arcs, np.flatnonzero(near[plan.paths.arcs]))
    return loads


def _from_known(plan: Plan, known: Plan) -> Floats | None:
    """Return the loads from those of ``known``; None if it has none or differs too much."""
    if "loads" not in known.__dict__ or plan.fabric.structure is not known.fabric.structure:
        return None
    if not _comes_first(known, plan):
        return None
    paths, was = plan.paths, known.paths
    gone, came = edit_of(was, paths)
    behind = int(np.searchsorted(paths.flow, len(known.flows)))
    came, new = came[came < behind], np.arange(paths.first[behind], len(paths.arcs))
    loads = known.loads
    if len(new) and _of_new_jobs(plan, known):
        loads, new = loads + _loads_of(plan, np.arange(len(loads)), new), new[:0]
    touched = was.take(gone).arcs, paths.take(came).arcs, paths.arcs[new]
    if sum(map(len, touched)) * _WORTH > len(paths.arcs):
        return None
    return _with_sums(plan, loads, distinct(np.concatenate(touched)))


def _of_new_jobs(plan: Plan, known: Plan) -> bool:
    """Whether all flows after those of an earlier plan belong to new jobs, which sums add last.

    False if any flow of the plan has no phase.
    """
    flows, count = plan.flows, len(known.flows)
    return bool(
        (flows.phase != ANY_PHASE).all()
        and flows.job[count:].min() > flows.job[:count].max(initial=-1)
    )


def _loads_of(plan: Plan, arcs: Ints, uses: Ints) -> Floats:
    """Return the loads of some arcs, ascending. ``uses`` are all places of them in ``arcs``."""
    paths, flows = plan.paths, plan.flows
    row = np.searchsorted(paths.first, uses, side="right") - 1
    flow = paths.flow[row]
    return phased_loads(
        len(arcs),
        np.searchsorted(arcs, paths.arcs[uses]),
        paths.gbps(flows, row),
        flows.job[flow],
        flows.phase[flow],
    )
