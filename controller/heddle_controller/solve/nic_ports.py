"""A plan that hosts carry out: which source port each QP takes, where switches hash.

Nobody programs the switches. A QP's source port decides its path, and for each two NICs some ports
are known by the way they take (``model.port_paths``). The plan of switches that could be programmed
is wished for. A path of it that no known port takes is given up: its QPs go where ports lead, and
the same search that serves plans of programmed switches makes room for them. Loads and certificate
are those of the ports. The bound is over all paths, so it says what hashing costs.

QPs that share a way take its ports in turns. Two QPs may have one port: a NIC tells QPs apart by
their numbers, not by ports.

A backup is another known way of the same two NICs, one that shares no link and no switch with the
path if there is such; its port is kept ready, so a host turns to it by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.fabric import NONE, Fabric, Ints
from heddle_controller.model.flows import FIRST_SOURCE_PORT as FIRST
from heddle_controller.model.flows import Flows
from heddle_controller.model.flows import qp_ports as consecutive
from heddle_controller.model.load import arc_loads
from heddle_controller.model.plan import NicPorts, Paths, Plan, starts
from heddle_controller.model.port_paths import PortPaths, padded
from heddle_controller.solve.attempt import PlanningProblem, by_wish
from heddle_controller.solve.bounds.certificate import certify, scaled
from heddle_controller.solve.bounds.cuts import cut_bound
from heddle_controller.solve.export import paths_of
from heddle_controller.solve.fairness.balance import even
from heddle_controller.solve.known_ways import KnownWays
from heddle_controller.solve.losses.survey import after_losses
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options
from heddle_controller.solve.planner import solve, unit_of
from heddle_controller.solve.repair.carry_over import inner_paths
from heddle_controller.solve.unrouted import Reasons

SHARED_LINK = 1 << 20
"""What a link in common costs a backup; a switch in common costs one."""


def solve_ports(
    fabric: Fabric, flows: Flows, known: PortPaths, options: Options | None = None
) -> Plan:
    """Plans all flows anew by ports that are known. Pure, unless a time limit cuts it short.

    A flow whose NICs have several ways, none of them known, has no path in the plan: the underlay
    carries it, nobody can say where.
    """
    options = options or Options()
    network = Network(fabric)
    routed = attached(network, flows) & Reasons(network).joined(flows)
    unit = unit_of(cut_bound(network, flows, routed))
    sized = flows if unit == 1 else replace(flows, gbps=flows.gbps / unit)
    plan = _planned(network, sized, known.over(fabric.plannable), options)
    if unit != 1:
        plan = replace(plan, flows=flows, certificate=scaled(plan.certificate, unit))
    return replace(plan, certificate=replace(plan.certificate, after_loss=after_losses(plan)))


def _planned(network: Network, flows: Flows, known: PortPaths, options: Options) -> Plan:
    deadline = options.deadline()
    wished = solve(_without_tables(network.fabric), flows, options)
    ways = KnownWays(network, known, options.candidate_limit)
    unrouted = dict(wished.unrouted)
    nodes = network.fabric.structure.nodes.ids
    for flow in sorted(set(range(len(flows))) - set(unrouted)):
        source, destination = ways.ends_of(flows, flow)
        if not len(ways.between(source, destination)):
            ends = f"from {nodes[source]} to {nodes[destination]}"
            unrouted[flow] = f"no port {ends} is known by its path; probe the two"
    routed = np.ones(len(flows), dtype=np.bool_)
    routed[list(unrouted)] = False
    bound = cut_bound(network, flows, routed)
    problem = PlanningProblem(network, ways, None, flows, routed, bound, deadline)
    wish = wished.paths.take(np.flatnonzero(routed[wished.paths.flow]))
    assignment = by_wish(problem, inner_paths(network, wish))
    fairer = even(assignment, ways, problem.target(), deadline)
    paths = paths_of(assignment if fairer is None else fairer, renumber=True)
    ports = _Ports.of(known, flows, paths)
    backups = ports.backups(network)
    loads = arc_loads(network.arc_count, flows, paths)
    return Plan(
        network.fabric,
        flows,
        paths,
        _paths_of_ways(known, paths, backups),
        certify(network.fabric, loads, problem.bound),
        unrouted,
        wished.notes,
        NicPorts(ports.of_qps(ports.way), ports.of_qps(backups)),
    )


def _without_tables(fabric: Fabric) -> Fabric:
    """The same fabric whose switches hold any number of entries, as none is made."""
    nodes = fabric.structure.nodes
    if (nodes.table_size == NONE).all():
        return fabric
    free = replace(nodes, table_size=np.full_like(nodes.table_size, NONE))
    return replace(fabric, structure=replace(fabric.structure, nodes=free))


def _paths_of_ways(known: PortPaths, paths: Paths, way: Ints) -> Paths:
    """Parallel to ``paths``, the ways of some rows; ``NONE`` is one of no arcs."""
    lengths = np.append(np.diff(known.first), 0)[way]
    first = starts(lengths)
    begin = np.append(known.first[:-1], 0)[way]
    at = np.repeat(begin - first[:-1], lengths) + np.arange(first[-1])
    return Paths(paths.flow, paths.first_qp, paths.last_qp, first, known.arcs[at])


@dataclass(frozen=True, slots=True, eq=False)
class _Ports:
    """Ports of the QPs of a plan."""

    known: PortPaths
    flows: Flows
    paths: Paths
    way: Ints
    """Row in ``known`` of each path; ``NONE`` for the only way there is, where none is known."""

    @classmethod
    def of(cls, known: PortPaths, flows: Flows, paths: Paths) -> _Ports:
        """Find the way of each path."""
        width = int(max(np.diff(known.first).max(initial=0), np.diff(paths.first).max(initial=0)))
        ends = np.stack([known.source, known.destination], axis=1)
        mine = np.stack([flows.source[paths.flow], flows.destination[paths.flow]], axis=1)
        rows = [
            np.concatenate([end, padded(one.first, one.arcs, width)], axis=1)
            for end, one in ((ends, known), (mine, paths))
        ]
        _, number = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
        number = number.ravel()
        row_of = np.full(int(number.max(initial=0)) + 1, NONE, dtype=np.int64)
        row_of[number[: len(known)]] = np.arange(len(known))
        return cls(known, flows, paths, row_of[number[len(known) :]])

    def of_qps(self, way: Ints) -> Ints:
        """Port of each QP over a way for its path, in the order of paths and then of QPs.

        QPs of two NICs go round the ports of a way by their number among all of the two. Where a
        way is ``NONE`` the port is the one that the QP has anyway for its own path, and ``NONE``
        for a backup.
        """
        paths, known = self.paths, self.known
        count = paths.qp_count
        bounds = starts(count)
        qp = np.arange(bounds[-1]) - np.repeat(bounds[:-1] - paths.first_qp, count)
        usual = consecutive(np.repeat(self.flows.source_ports()[paths.flow], count), qp)
        row = np.repeat(way, count)
        ports = usual if way is self.way else np.full(len(row), NONE, dtype=np.int64)
        has = row != NONE
        turn = (usual[has] - FIRST) % known.port_count[row[has]]
        ports[has] = known.ports[known.first_port[row[has]] + turn]
        return ports

    def backups(self, network: Network) -> Ints:
        """Row in ``known`` of the backup of each path, ``NONE`` where there is no other way.

        Of those that share least with the path, each path takes another than the paths before it.
        """
        known, paths = self.known, self.paths
        backup = np.full(len(paths), NONE, dtype=np.int64)
        code = known.source * network.fabric.node_count + known.destination
        mine = (
            self.flows.source[paths.flow] * network.fabric.node_count
            + self.flows.destination[paths.flow]
        )
        low, high = (np.searchsorted(code, mine, side=side) for side in ("left", "right"))
        count = high - low
        path = np.repeat(np.arange(len(paths)), count)
        way = np.arange(len(path)) - np.repeat(np.cumsum(count) - count - low, count)
        other = way != self.way[path]
        path, way = path[other], way[other]
        if not len(path):
            return backup
        cost = self._shared(network, path, way)
        place = np.arange(len(path)) - np.searchsorted(path, path)
        several = np.bincount(path, minlength=len(paths))
        turn = (place - path) % several[path]
        order = np.lexsort((turn, cost, path))
        taken, first = np.unique(path[order], return_index=True)
        backup[taken] = way[order[first]]
        return backup

    def _shared(self, network: Network, path: Ints, way: Ints) -> Ints:
        """What ways have in common with paths, a cost for each of these pairs."""
        width = int(max(np.diff(self.known.first).max(), np.diff(self.paths.first).max()))
        known = padded(self.known.first, self.known.arcs, width)[way]
        taken = padded(self.paths.first, self.paths.arcs, width)[path]
        used = (known != NONE)[:, :, None] & (taken != NONE)[:, None, :]
        links = ((known >> 1)[:, :, None] == (taken >> 1)[:, None, :]) & used
        heads = network.head_or_none[known][:, :, None] == network.head_or_none[taken][:, None, :]
        cost: Ints = links.sum(axis=(1, 2)) * SHARED_LINK + (heads & used).sum(axis=(1, 2))
        return cost
