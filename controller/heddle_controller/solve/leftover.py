"""Planning with unannounced flows: they take what the announced flows leave over.

Unannounced flows exist and send, but what a job is promised must not depend on them. So the plan of
the announced flows is made, kept and repaired by itself. Then each unannounced flow, the largest
first, is placed where the fullest link of its path is least full. It stays there until its path is
overloaded and another path is clearly better.

Where tables are limited or switches hash, all flows share the room for entries and ports by weight,
so all are planned together. They are also planned together where nothing was announced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, starts
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows, first_flows, unannounced_rows
from heddle_controller.model.plan import IDLE, Certificate, Paths, Plan, arc_loads, join_paths
from heddle_controller.solve.assignment import concatenated, with_nics
from heddle_controller.solve.bounds.cuts import Bound, certify
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from heddle_controller.solve.nic_ports import PortsRepairer, plan_with_ports, ports_repairer_of
from heddle_controller.solve.options import Options
from heddle_controller.solve.phases import copied
from heddle_controller.solve.repair.few_moves import few_moves
from heddle_controller.solve.repair.repairer import Repairer
from heddle_controller.solve.repair.spare_paths import backups_for
from heddle_controller.solve.tables import limited
from heddle_controller.solve.unrouted import Reasons

_WORTH = 0.02
"""How much less full, relatively, the fullest link of another path must be for a flow to move."""


def announced(fabric: Fabric, flows: Flows) -> Flows:
    """Return the flows that are planned by themselves: those before the first unannounced one.

    Returns ``flows`` itself where all flows are planned together.
    """
    found = unannounced_rows(flows)
    apart = len(found) and 0 < found[0] == len(flows) - len(found)
    if not apart or fabric.structure.hashes.any() or limited(fabric).any():
        return flows
    return first_flows(flows, int(found[0]))


def plan_anew(
    fabric: Fabric, flows: Flows, before: Plan | None = None, options: Options | None = None
) -> Plan:
    """Return a plan from scratch.

    ``nic_ports.plan_with_ports`` plans the announced flows, and ``with_leftover`` adds the others.
    """
    told = announced(fabric, flows)
    if told is flows:
        return plan_with_ports(fabric, flows, before, options)
    base = plan_with_ports(fabric, told, before and announced_part(before), options)
    return with_leftover(base, flows, before, options or Options())


def improvements(plan: Plan, options: Options | None = None) -> Iterator[Plan]:
    """Yield plans of the same flows that move few of them, as ``few_moves`` does.

    There are none where switches hash, because ports are sought for all flows together.
    """
    if plan.fabric.structure.hashes.any():
        return
    for base in few_moves(announced_part(plan), options):
        apart = len(base.flows) < len(plan.flows)
        yield with_leftover(base, plan.flows, plan, options or Options()) if apart else base


def repairer_of(plan: Plan, options: Options | None = None) -> AnnouncedFirst:
    """Return a repairer of a plan."""
    return AnnouncedFirst(plan, options)


class AnnouncedFirst:
    """Repairs the plan of the announced flows, and places the other flows beside it."""

    def __init__(self, previous: Plan, options: Options | None = None) -> None:
        self.options = options or Options()
        self.plan = previous
        """The newest plan: the given one, or the last one that was made."""
        self._base: Repairer | PortsRepairer = ports_repairer_of(
            announced_part(previous), self.options
        )

    def copy(self, *, backups: bool = True) -> AnnouncedFirst:
        """Return a copy, as ``Repairer.copy`` does."""
        return copied(self, _base=self._base.copy(backups=backups))

    def beside(self, fabric: Fabric, flows: Flows) -> tuple[Plan, bool] | None:
        """Return the plan with one new job added, as ``Repairer.beside`` does.

        Also returns None where some flows are planned apart.
        """
        return self._base.beside(fabric, flows) if announced(fabric, flows) is flows else None

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """Return a plan for the given fabric and flows, and keep it as the newest plan."""
        told = announced(fabric, flows)
        base = self._base.repair(fabric, told)
        self.plan = self._whole(base, flows) if told is not flows else base
        return self.plan

    def relieved(self) -> Plan | None:
        """Return a plan with announced flows brought to their bound by few moves, and keep it.

        None where they are at their bound, or few moves do not bring them there.
        """
        flows, apart = self.plan.flows, self.plan is not self._base.plan
        if apart and self._base.plan.certificate.gap <= 0:
            return None
        base = self._base.relieved()
        if base is not None:
            self.plan = self._whole(base, flows) if apart else base
        return None if base is None else self.plan

    def is_ready_for(self, plan: Plan) -> bool:
        """Return whether the next repair begins with this very plan and all indexes are built."""
        return self.plan is plan and self._base.is_ready_for(self._base.plan)

    def _whole(self, base: Plan, flows: Flows) -> Plan:
        return with_leftover(base, flows, self.plan, self.options)


def announced_part(plan: Plan) -> Plan:
    """Return a plan without the unannounced flows; the same object where it has none apart."""
    told = announced(plan.fabric, plan.flows)
    if told is plan.flows:
        return plan
    kept = np.flatnonzero(plan.paths.flow < len(told))
    return replace(
        plan,
        flows=told,
        paths=plan.paths.take(kept),
        backups=plan.backups.take(kept),
        unrouted={row: why for row, why in plan.unrouted.items() if row < len(told)},
    )


def with_leftover(base: Plan, flows: Flows, before: Plan | None, options: Options) -> Plan:
    """Return a plan that also places the flows behind its own. Its own flows keep their paths.

    The bound is that of the plan's own flows, since more flows can only make the worst link fuller.
    Links of the placed flows' NICs raise it where they are the only way.

    Args:
        base: The plan of the first flows.
        flows: All flows; the plan's own come first.
        before: An earlier plan, on whose paths the placed flows stay where they can.
        options: Options of the planner.
    """
    fabric, first = base.fabric, len(base.flows)
    network = Network(fabric)
    candidates = Candidates(network, options.candidate_limit)
    load, reasons = np.append(base.loads, 0.0), Reasons(network)
    rows = np.arange(first, len(flows), dtype=np.int64)
    stays, unrouted = _standing(before, fabric, flows, rows), dict(base.unrouted)
    chosen: dict[int, Ints] = {}
    for row in rows[np.argsort(-flows.gbps[rows], kind="stable")].tolist():
        ends = candidates.ends_of(flows, row)
        ways = candidates.between(*ends) if NONE not in ends else np.empty((0, 0), dtype=np.int64)
        if not len(ways):
            nics = int(flows.source[row]), int(flows.destination[row])
            unrouted[row] = reasons.of(*nics)
            continue
        way = (
            ways[0]
            if ways.shape[1] == 0
            else ways[_least_full(network, load, ways, float(flows.gbps[row]), stays.get(row))]
        )
        chosen[row] = way[way != network.pad]
        load[chosen[row]] += flows.gbps[row]
    fresh = _paths(network, flows, chosen)
    used = load * network.per_gbps
    spare = backups_for((network, candidates, None), flows, fresh, used)
    paths = join_paths([base.paths, fresh])
    loads = arc_loads(network.arc_count, flows, paths)
    bound = _raised(base.certificate, network, flows, fresh.flow, loads)
    return replace(
        base,
        flows=flows,
        paths=paths,
        backups=join_paths([base.backups, spare]),
        unrouted=unrouted,
        certificate=certify(fabric, loads, bound),
    )


def _raised(own: Certificate, network: Network, flows: Flows, placed: Ints, loads: Floats) -> Bound:
    """Return the bound of a certificate, raised to the loads that no plan can avoid.

    These are the loads of links that are the only ones of a placed flow's NIC.
    """
    up, down = network.nic_arc[flows.source[placed]], network.nic_arc[flows.destination[placed]]
    arcs = np.concatenate([up[up != NONE], down[down != NONE] ^ 1])
    tiers = np.array([tier.lower_bound for tier in own.tiers])
    np.maximum.at(tiers, network.tier[arcs], loads[arcs] * network.per_gbps[arcs])
    most = float(tiers.max(initial=0.0))
    if most > own.lower_bound:
        return Bound(tiers, most, "cut")
    return Bound(tiers, own.lower_bound, own.proof)


def _least_full(
    network: Network, load: Floats, ways: Ints, gbps: float, stays: frozenset[int] | None
) -> int:
    """Return the row of the path whose fullest link is least full.

    Returns the row of the current path (arcs ``stays``) instead if that path is nearly as good, or
    is not above line rate.
    """
    full = ((load[ways] + gbps) * network.per_gbps[ways]).max(axis=1)
    hops = np.count_nonzero(ways != network.pad, axis=1)
    best = int(np.lexsort((hops, full))[0])
    if stays is not None:
        most = max(IDLE, float(full[best]) * (1 + _WORTH))
        for row in np.flatnonzero(full <= most).tolist():
            if stays.issuperset(ways[row][ways[row] != network.pad].tolist()):
                return row
    return best


def _standing(
    before: Plan | None, fabric: Fabric, flows: Flows, rows: Ints
) -> dict[int, frozenset[int]]:
    """Return the arcs of each flow's path in an earlier plan, by the flow's row now."""
    if before is None or before.fabric.structure is not fabric.structure:
        return {}
    now = {flows.ids[row]: row for row in rows.tolist()}
    found = {}
    for row in unannounced_rows(before.flows).tolist():
        place = int(np.searchsorted(before.paths.flow, row))
        known = place < len(before.paths) and before.paths.flow[place] == row
        if known and before.flows.ids[row] in now:
            found[now[before.flows.ids[row]]] = frozenset(before.paths.of(place).tolist())
    return found


def _paths(network: Network, flows: Flows, chosen: dict[int, Ints]) -> Paths:
    """Return each flow whole on its chosen path, ascending, with the arcs of its NICs."""
    rows = sorted(chosen)
    flow = np.array(rows, dtype=np.int64)
    ways = [chosen[row] for row in rows]
    first = starts(np.array([len(way) for way in ways], dtype=np.int64))
    last_qp = flows.qps[flow] - 1
    return with_nics(
        network, flows, Paths(flow, np.zeros_like(flow), last_qp, first, concatenated(ways))
    )
