"""Plans that hosts carry out by the source ports of QPs, where switches hash.

Nobody programs these switches. The source port of a QP decides its path, and for each pair of NICs
the paths of some ports are known (``model.port_paths``). Flows that meet no hashing switch with a
choice are carried by entries as usual. Both kinds are planned together.

Packets of one port take the same path until the hash changes, so the candidates of a flow that
ports carry are the paths that known ports take. Addresses are hashed, too, so two pairs of NICs on
the same leaves have different paths. These candidates are therefore between NICs and not between
terminals. All other flows are carried over paths that need no entry in a hashing switch.

A plan of switches that could all be programmed is made first, as a wish. Where no known port takes
a path of it, its QPs go where ports lead, and the search that serves programmed switches makes room
for them. Loads and certificate are those of the ports. The bound holds over all paths, so the gap
tells what hashing costs.

QPs that share a path take its ports in turns. Two QPs may have the same port, since NICs tell QPs
apart by their numbers and not by ports.

A backup is another known path of the same two NICs, one that shares no link and no switch with the
path if possible. Its port is kept ready, so a host changes to it by itself.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, ranges, starts
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import FIRST_SOURCE_PORT as FIRST
from heddle_controller.model.flows import Flows
from heddle_controller.model.flows import qp_ports as consecutive
from heddle_controller.model.plan import NicPorts, Paths, Plan, arc_loads, join_paths
from heddle_controller.model.port_paths import PortPaths, no_port_paths, padded
from heddle_controller.model.underlay import needs_entry
from heddle_controller.solve.assignment import exported_paths, inner_paths, of_sole_links
from heddle_controller.solve.attempt import PlanningProblem, by_wish
from heddle_controller.solve.bounds.cuts import certify, cut_bound, scaled
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.fairness.balance import even
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options
from heddle_controller.solve.planner import solve, unit_of
from heddle_controller.solve.repair.backups import backups_of
from heddle_controller.solve.repair.repairer import Repairer, plan_by_entries, rows_now
from heddle_controller.solve.tables import fit_tables
from heddle_controller.solve.unrouted import Reasons

FIRST_PROBES, MOST_PROBES = 16, 64
"""Ports of two NICs whose paths should be known: at first, and at most."""
_PORTS = 1 << 16
SHARED_LINK = 1 << 20
"""Cost of a link that a backup shares with its path. A shared switch costs 1."""


def plan_with_ports(
    fabric: Fabric, flows: Flows, before: Plan | None = None, options: Options | None = None
) -> Plan:
    """Return a plan of all flows, by entries and, where switches hash, by known ports.

    Pure, unless a time limit cuts it short. A flow that ports have to carry has no path in the plan
    if no port of its NICs is known: the underlay carries it on a path that nobody knows. QPs keep
    the ports of the plan ``before`` where these take their paths.
    """
    if not fabric.structure.hashes.any():
        return plan_by_entries(fabric, flows, before, options)
    return _by_known_ports(fabric, flows, before, options or Options())


def ports_repairer_of(plan: Plan, options: Options | None = None) -> Repairer | PortsRepairer:
    """Return a repairer of a plan."""
    hashes = plan.fabric.structure.hashes.any()
    return PortsRepairer(plan, options) if hashes else Repairer(plan, options)


class PortsRepairer:
    """Repairs plans of fabrics in which switches hash: as a ``Repairer``, as far as ports allow."""

    def __init__(self, previous: Plan, options: Options | None = None) -> None:
        self.options = options or Options()
        self.plan = previous
        """The newest plan: the given one, or the last one that ``repair`` made."""

    def copy(self, *, backups: bool = True) -> PortsRepairer:
        """Return a copy, as ``Repairer.copy`` does. Ports of backups are sought in any case."""
        del backups
        return PortsRepairer(self.plan, self.options)

    def beside(self, fabric: Fabric, flows: Flows) -> tuple[Plan, bool] | None:  # noqa: ARG002 - as ``Repairer``
        """Return None: ports are sought for all flows together."""
        return None

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """Return a plan for the given fabric and flows, and keep it as the newest plan."""
        if not fabric.structure.hashes.any():
            self.plan = Repairer(self.plan, self.options).repair(fabric, flows)
            return self.plan
        before = replace(self.plan, fabric=_without_tables(self.plan.fabric), nic_ports=None)
        same = fabric.structure is self.plan.fabric.structure
        states = fabric.link_state, fabric.node_state
        free = Fabric(before.fabric.structure, *states) if same else _without_tables(fabric)
        wished = Repairer(before, self.options).repair(free, flows)
        self.plan = _by_known_ports(fabric, flows, self.plan, self.options, wished)
        return self.plan

    def relieved(self) -> Plan | None:
        """Return None: a repair with ports keeps nothing that could be improved later."""
        return None

    def is_ready_for(self, plan: Plan) -> bool:
        """Return whether the next repair begins with this very plan."""
        return self.plan is plan


def _by_known_ports(
    fabric: Fabric,
    flows: Flows,
    before: Plan | None,
    options: Options,
    repaired: Plan | None = None,
) -> Plan:
    """Return a plan as near to that of programmed switches as known ports allow.

    ``repaired`` is that plan if it was repaired already; None to make it here.
    """
    network = Network(fabric)
    reasons = Reasons(network)
    routed = attached(network, flows) & reasons.joined(flows)
    parted = {
        row: reasons.of(int(flows.source[row]), int(flows.destination[row]))
        for row in np.flatnonzero(~routed).tolist()
    }
    unit = unit_of(cut_bound(network, flows, routed))
    sized = flows if unit == 1 else replace(flows, gbps=flows.gbps / unit)
    wished = repaired or solve(_without_tables(fabric), flows, options)
    ways = KnownWays(
        network,
        flows,
        (fabric.port_paths or no_port_paths()).over(fabric.plannable),
        options.candidate_limit,
    )
    plan = _Planning(network, sized, ways, parted, options, calm=repaired is not None).of(
        wished, before
    )
    if unit == 1:
        return plan
    return replace(plan, flows=flows, certificate=scaled(plan.certificate, unit))


@dataclass(frozen=True, slots=True, eq=False)
class _Planning:
    """The input of a plan with ports."""

    network: Network
    flows: Flows
    ways: KnownWays
    parted: dict[int, str]
    """Flows that no usable links join, with the reason of each. A repair of programmed switches
    leaves some on drained links, but the underlay carries those here."""
    options: Options
    calm: bool
    """Whether only what must move may move."""

    def of(self, wished: Plan, before: Plan | None) -> Plan:
        """Return the plan nearest to ``wished``, with ports of ``before`` where they still fit."""
        network, flows, ways = self.network, self.flows, self.ways
        deadline = self.options.deadline()
        unrouted = self.parted | dict(wished.unrouted)
        unrouted |= self._pathless(unrouted)
        routed = np.ones(len(flows), dtype=np.bool_)
        routed[list(unrouted)] = False
        bound = cut_bound(network, flows, routed)
        problem = PlanningProblem(network, ways, None, flows, routed, bound, deadline)
        wish = wished.paths.take(np.flatnonzero(routed[wished.paths.flow]))
        assignment = by_wish(problem, inner_paths(network, wish))
        fairer = None if self.calm else even(assignment, ways, problem.target(), deadline)
        paths = exported_paths(assignment if fairer is None else fairer, renumber=not self.calm)
        by_ports = ways.by_ports[paths.flow]
        rows = np.flatnonzero(by_ports), np.flatnonzero(~by_ports)
        fitted = fit_tables(network, ways, flows, paths.take(rows[1]))
        problem.exclude(list(fitted.dropped))
        entries, carried = fitted.paths, paths.take(rows[0])
        # Ordered by flow. No flow is in both sets.
        place = np.argsort(np.append(carried.flow, entries.flow), kind="stable")
        paths = join_paths([carried, entries]).take(place)
        ports = _Ports.of(ways.known, flows, carried)
        spare = ports.backups(network)
        backups = join_paths(
            [
                _paths_of_ways(ways.known, carried, spare),
                backups_of(ways, None, flows, entries),
            ]
        ).take(place)
        loads = arc_loads(network.arc_count, flows, paths)
        return Plan(
            network.fabric,
            flows,
            paths,
            backups,
            certify(network.fabric, loads, problem.bound),
            unrouted | fitted.dropped,
            (*wished.notes, *fitted.notes),
            self._nic_ports(paths, ports, spare, before, self._wanted(wish)),
        )

    def _pathless(self, others: Container[int]) -> dict[int, str]:
        """Return flows that have no path because switches hash, with the reason of each.

        ``others`` are flows that have no path for another reason.
        """
        nodes, flows, found = self.network.fabric.structure.nodes.ids, self.flows, {}
        for flow in range(len(flows)):
            if flow in others:
                continue
            if len(self.ways.between(*self.ways.ends_of(flows, flow))):
                continue
            ends = f"{nodes[flows.source[flow]]} to {nodes[flows.destination[flow]]}"
            found[flow] = (
                f"no port from {ends} is known by its path; probe the two"
                if self.ways.by_ports[flow]
                else f"every way left from {ends} passes a switch that hashes, over a detour"
            )
        return found

    def _wanted(self, wish: Paths) -> Ints:
        """Return how many ports of each flow's NICs should be known; see ``NicPorts.probes``.

        More than are known now, where no known port takes a wished path of the flow.
        """
        flows, ways = self.flows, self.ways
        probes = np.zeros(len(flows), dtype=np.int64)
        mine = np.flatnonzero(ways.by_ports)
        count = np.array(
            [self._known_between(flows.source[row], flows.destination[row]) for row in mine],
            dtype=np.int64,
        )
        denied = np.zeros(len(flows), dtype=np.bool_)
        denied[wish.flow[_Ports.of(ways.known, flows, wish).way == NONE]] = True
        probes[mine] = np.clip(np.where(denied[mine], 2 * count, count), FIRST_PROBES, MOST_PROBES)
        return probes

    def _known_between(self, source: int, destination: int) -> int:
        rows = self.ways.known.of(source, destination)
        first: Ints = self.ways.known.first_port
        return int(first[rows.stop] - first[rows.start])

    def _nic_ports(
        self, paths: Paths, ports: _Ports, spare: Ints, before: Plan | None, probes: Ints
    ) -> NicPorts:
        """Return the ports of all QPs, ``NONE`` where entries carry them."""
        mine = np.repeat(self.ways.by_ports[paths.flow], paths.qp_count)
        chosen = []
        for way, name in ((ports.way, "port"), (spare, "backup")):
            column = np.full(len(mine), NONE, dtype=np.int64)
            kept = self._kept(ports.paths, before, name)
            column[mine] = ports.of_qps(way, kept)
            chosen.append(column)
        return NicPorts(chosen[0], chosen[1], probes)

    def _kept(self, paths: Paths, before: Plan | None, name: str) -> Ints:
        """Return each QP's port, or backup port, in the plan before; ``NONE`` where it had none.

        ``name`` is the column of ``NicPorts``.
        """
        count = paths.qp_count
        if before is None or before.nic_ports is None:
            return np.full(int(count.sum()), NONE, dtype=np.int64)
        now = rows_now(before, self.network.fabric, self.flows)
        old = before.paths
        begins = starts(before.flows.qps)
        dense = np.full(int(begins[-1]), NONE, dtype=np.int64)
        places = np.repeat(begins[old.flow], old.qp_count) + old.qp_numbers()
        dense[places] = getattr(before.nic_ports, name)
        row = np.full(len(self.flows), NONE, dtype=np.int64)
        row[now[now != NONE]] = np.flatnonzero(now != NONE)
        flow = np.repeat(row[paths.flow], count)
        at = np.where(flow == NONE, len(dense), begins[flow] + paths.qp_numbers())
        return np.append(dense, NONE)[at]


def _without_tables(fabric: Fabric) -> Fabric:
    """Return the same fabric with switches that hold any number of entries."""
    nodes = fabric.structure.nodes
    if (nodes.table_size == NONE).all():
        return fabric
    free = replace(nodes, table_size=np.full_like(nodes.table_size, NONE))
    return replace(fabric, structure=replace(fabric.structure, nodes=free))


def _paths_of_ways(known: PortPaths, paths: Paths, way: Ints) -> Paths:
    """Return the known paths in rows ``way``, parallel to ``paths``; no arcs for ``NONE``."""
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
    """Row in ``known`` of each path; ``NONE`` where no known port takes the path."""

    @classmethod
    def of(cls, known: PortPaths, flows: Flows, paths: Paths) -> _Ports:
        """Look up the row in ``known`` of each path."""
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

    def of_qps(self, way: Ints, kept: Ints) -> Ints:
        """Return the port of each QP on its path's row of ``way``, in the order of paths and QPs.

        A QP keeps its port in ``kept`` if that takes the path. Otherwise QPs take the ports of the
        path in turns, by their number among all QPs of the two NICs. Where ``way`` is ``NONE``, a
        QP gets its usual port if ``way`` is that of the paths themselves, and ``NONE`` if it is
        that of backups.
        """
        paths, known = self.paths, self.known
        count = paths.qp_count
        qp = paths.qp_numbers()
        usual = consecutive(np.repeat(self.flows.source_ports()[paths.flow], count), qp)
        row = np.repeat(way, count)
        ports = usual if way is self.way else np.full(len(row), NONE, dtype=np.int64)
        has = row != NONE
        turn = (usual[has] - FIRST) % known.port_count[row[has]]
        ports[has] = known.ports[known.first_port[row[has]] + turn]
        owner = np.repeat(np.arange(len(known)), known.port_count)
        code, sought = owner * _PORTS + known.ports, row * _PORTS + kept
        place = np.minimum(np.searchsorted(code, sought), max(len(code) - 1, 0))
        stays = has & (kept != NONE)
        if len(code):
            stays &= code[place] == sought
            ports[stays] = kept[stays]
        return ports

    def backups(self, network: Network) -> Ints:
        """Return the row in ``known`` of each path's backup, ``NONE`` where there is no other path.

        Backups share least with their paths. Among equals, successive paths take different ones.
        """
        known, paths = self.known, self.paths
        backup = np.full(len(paths), NONE, dtype=np.int64)
        code = known.source * network.fabric.node_count + known.destination
        mine = (
            self.flows.source[paths.flow] * network.fabric.node_count
            + self.flows.destination[paths.flow]
        )
        low, high = (np.searchsorted(code, mine, side=side) for side in ("left", "right"))
        path, way = np.repeat(np.arange(len(paths)), high - low), ranges(low, high)
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
        """Return the cost of what each known path has in common with a path, for parallel pairs."""
        width = int(max(np.diff(self.known.first).max(), np.diff(self.paths.first).max()))
        known = padded(self.known.first, self.known.arcs, width)[way]
        taken = padded(self.paths.first, self.paths.arcs, width)[path]
        used = (known != NONE)[:, :, None] & (taken != NONE)[:, None, :]
        links = ((known >> 1)[:, :, None] == (taken >> 1)[:, None, :]) & used
        heads = network.head_or_none[known][:, :, None] == network.head_or_none[taken][:, None, :]
        cost: Ints = links.sum(axis=(1, 2)) * SHARED_LINK + (heads & used).sum(axis=(1, 2))
        return cost


class KnownWays(Candidates):
    """Candidate paths of flows: between NICs if ports carry a flow, else between terminals."""

    def __init__(self, network: Network, flows: Flows, known: PortPaths, limit: int) -> None:
        super().__init__(network, limit)
        self.known = known
        inner = ~of_sole_links(network)[known.arcs]
        first = np.append(0, np.cumsum(inner))[known.first]
        width = int(np.diff(first).max(initial=0))
        matrix = padded(first, known.arcs[inner], width)
        self._matrix_of_known = np.where(matrix == NONE, network.pad, matrix)
        self._programmed = Candidates(network, limit)
        # Hashing ignores maintenance: it uses drained links like others.
        self._any, self._whole = (
            Candidates(Network(fabric), limit) for fabric in _undrained(network.fabric)
        )
        self._nic_at: dict[tuple[int, int], int] = {}
        """A NIC at the second of two terminals between which flows run."""
        self._nics: set[tuple[int, int]] = set()
        """Pairs of NICs whose flows are carried by ports."""
        self.by_ports = self._parted(flows)
        """Marks the flows that are carried by ports, shape (flows,)."""

    def ends_of(self, flows: Flows, flow: int) -> tuple[int, int]:
        """Return the NICs of a flow that ports carry, the terminals of any other flow."""
        nics = int(flows.source[flow]), int(flows.destination[flow])
        return nics if nics in self._nics else super().ends_of(flows, flow)

    def with_longer(self, source: int, destination: int) -> Ints:
        """Return the candidates only: hashing takes no longer paths."""
        return self.between(source, destination)

    with_detours = with_longer

    def _search(self, source: int, destination: int) -> Ints:
        if (source, destination) in self._nics:
            only = self._only_way(source, destination)
            if only is not None:
                return only
            rows = self.known.of(source, destination)
            return self._matrix_of_known[rows.start : rows.stop]
        paths = self._programmed.between(source, destination)
        nic = self._nic_at.get((source, destination))
        if nic is None or not len(paths):
            return paths
        return paths[~self._met_hash(self.network, paths, np.full(len(paths), nic))]

    def _only_way(self, source: int, destination: int) -> Ints | None:
        """Return the path that every port takes, if there is only one, else None."""
        ends, usable = (
            (int(network.terminal[source]), int(network.terminal[destination]))
            for network in (self._any.network, self.network)
        )
        if ends != usable or NONE in ends:
            return None
        only = self._any.shortest(*ends)
        taken = only[only != self.network.pad]
        return only if len(only) == 1 and self.network.usable[taken].all() else None

    def _parted(self, flows: Flows) -> Bools:
        """Mark flows that may come to a hashing switch with a choice, on any shortest path.

        Shortest paths of the whole fabric count, too: a flow that a loss leaves with one path keeps
        its ports.
        """
        fabric = self.network.fabric
        by_ports = np.zeros(len(flows), dtype=np.bool_)
        if not fabric.structure.hashes.any():
            return by_ports
        for ways in (self._any, self._whole):
            by_ports |= self._hashed(ways, flows)
        rows = np.flatnonzero(by_ports)
        self._nics.update(
            zip(flows.source[rows].tolist(), flows.destination[rows].tolist(), strict=True)
        )
        ends = [self.network.terminal[end].tolist() for end in (flows.source, flows.destination)]
        self._nic_at.update(zip(zip(*ends, strict=True), flows.destination.tolist(), strict=True))
        return by_ports

    def _hashed(self, ways: Candidates, flows: Flows) -> Bools:
        """Mark flows that may come to such a switch on a shortest path of one network."""
        network, hashed = ways.network, np.zeros(len(flows), dtype=np.bool_)
        ends = np.stack([network.terminal[flows.source], network.terminal[flows.destination]])
        some = np.flatnonzero((ends != NONE).all(axis=0))
        pairs, at, pair = np.unique(ends[:, some], axis=1, return_index=True, return_inverse=True)
        nic = flows.destination[some[at]]
        found = [ways.shortest(*map(int, one)) for one in pairs.T]
        owner = np.repeat(np.arange(len(found)), [len(one) for one in found])
        width = max((one.shape[1] for one in found), default=0)
        wide = [
            np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=network.pad)
            for one in found
        ]
        paths = np.concatenate([*wide, np.empty((0, width), dtype=np.int64)])
        met = np.zeros(len(found), dtype=np.bool_)
        met[owner[self._met_hash(network, paths, nic[owner])]] = True
        hashed[some] = met[pair.ravel()]
        return hashed

    @staticmethod
    def _met_hash(network: Network, paths: Ints, nic: Ints) -> Bools:
        """Mark paths between terminals that would need an entry in a hashing switch.

        Args:
            network: The network of the paths.
            paths: Rows of arcs, padded.
            nic: The NIC that each path leads to.
        """
        structure = network.fabric.structure
        used = paths != network.pad
        owner, place = np.nonzero(used)
        arcs = paths[owner, place]
        lengths = used.sum(axis=1) + (network.terminal[nic] != nic)
        at = np.flatnonzero(structure.hashes[structure.tail[arcs]])
        met = np.zeros(len(paths), dtype=np.bool_)
        if len(at):
            row = owner[at]
            left = lengths[row] - place[at]
            needed = needs_entry(structure, arcs[at], nic[row], left)
            met[row[needed]] = True
        return met


def _undrained(fabric: Fabric) -> tuple[Fabric, Fabric]:
    """Return the same fabric with drained parts up, and the same with everything up."""
    links, nodes = fabric.link_state, fabric.node_state
    states = (
        (np.where(one == State.DRAINED, State.UP, one), np.full_like(one, State.UP))
        for one in (links, nodes)
    )
    now, whole = zip(*states, strict=True)
    return Fabric(fabric.structure, *now), Fabric(fabric.structure, *whole)
