"""Plans that choose source ports: hashing sends packets where the plan says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, Forwarding, NodeKind, State
from heddle_controller.model.files.port_paths_file import parse_port_paths, port_paths_document
from heddle_controller.model.plan import Paths, Plan, arc_loads, utilization
from heddle_controller.model.port_paths import PortPaths
from heddle_controller.model.program import ANY_PORT, Entries
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import plan_anew, repairer_of
from heddle_emulator.switches import Switches
from heddle_emulator.topology import clos, hashing
from heddle_emulator.walk import Fate, probed, walk
from tests.support.depth import fresh_seeds
from tests.support.drawn import Case, drawn
from tests.support.solve_flows import flows_of

PROBES = 24


def ways(paths: Paths) -> list[tuple[int, int, tuple[int, ...]]]:
    """Flow, QP and arcs of every QP that has a path."""
    return [
        (int(paths.flow[row]), qp, tuple(paths.of(row).tolist()))
        for row in range(len(paths))
        for qp in range(int(paths.first_qp[row]), int(paths.last_qp[row]) + 1)
    ]


def spread(plan: Plan, ports: Ints) -> Ints:
    """The source port of each QP of each flow, shape (QPs,); 1 for a QP without a path or port."""
    flows, paths = plan.flows, plan.paths
    begins = np.cumsum(flows.qps) - flows.qps
    rows = [begins[flow] + qp for flow, qp, _ in ways(paths)]
    every = np.ones(int(flows.qps.sum()), dtype=np.int64)
    every[rows] = np.maximum(ports, 1)
    return every


class Programmed:
    """Switches that follow a plan's entries, and hash where there is none."""

    def __init__(self, plan: Plan, hashes: Switches) -> None:
        self._hashes = hashes
        entries: Entries = entries_of(plan)
        columns = (entries.switch, entries.source, entries.destination, entries.source_port)
        keys = zip(*(column.tolist() for column in columns), strict=True)
        self.entries = dict(zip(keys, entries.primary.tolist(), strict=True))
        self._first = {}
        ports = plan.qp_ports().tolist()
        for (flow, _, arcs), port in zip(ways(plan.paths), ports, strict=True):
            if not plan.by_ports[flow]:
                ends = int(plan.flows.source[flow]), int(plan.flows.destination[flow])
                self._first[*ends, port] = arcs[0]

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """The first arc of each packet by the plan; NONE for flows that are placed by ports."""
        packets = zip(nic.tolist(), destination.tolist(), source_port.tolist(), strict=True)
        return np.array([self._first.get(one, NONE) for one in packets], dtype=np.int64)

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Implement ``Switches.forward``."""
        hashed = self._hashes.forward(switch, source, destination, source_port)
        packets = zip(*(one.tolist() for one in (switch, source, destination)), strict=True)
        return np.array(
            [
                self.entries.get((*one, port), self.entries.get((*one, ANY_PORT), arc))
                for one, port, arc in zip(
                    packets, source_port.tolist(), hashed.tolist(), strict=True
                )
            ],
            dtype=np.int64,
        )


def every_switch(case: Case) -> Fabric:
    """The case's fabric, with every switch hashing."""
    return hashing(case.fabric)


def some_switches(case: Case) -> Fabric:
    """The case's fabric, with some switches hashing and random table sizes.

    It is drawn for each switch, for each zone or for each kind of switch whether it hashes.
    """
    random = Random(case.seed)
    structure = case.fabric.structure
    nodes = structure.nodes
    by = random.choice([np.arange(len(nodes.ids)), nodes.zone, nodes.kind])
    chosen = {int(one): random.random() < 0.5 for one in np.unique(by)}
    ecmp = np.array([chosen[int(one)] for one in by]) & (nodes.kind != NodeKind.NIC)
    size = np.full(len(nodes.ids), random.choice([NONE, NONE, 4, 16]))
    size[nodes.kind == NodeKind.NIC] = NONE
    forwarding = np.where(ecmp, Forwarding.ECMP, Forwarding.PROGRAMMED)
    nodes = replace(nodes, forwarding=forwarding.astype(np.int64), table_size=size)
    return replace(case.fabric, structure=replace(structure, nodes=nodes))


def check(plan: Plan, known: PortPaths, hashes: Switches, case: Case) -> None:
    """Assert that packets of a plan's ports take its paths, and of its spare ports its backups."""
    verify_plan(plan)
    fabric, flows = plan.fabric, plan.flows
    switches = Programmed(plan, hashes)
    hashed = np.array([key[0] for key in switches.entries], dtype=np.int64)
    assert not fabric.structure.hashes[hashed].any(), case
    seen = walk(fabric, flows, switches, spread(plan, plan.qp_ports()))
    taken = {
        (int(flow), int(qp)): tuple(arcs[arcs >= 0].tolist())
        for flow, qp, arcs, fate in zip(seen.flow, seen.qp, seen.arcs, seen.fate, strict=True)
        if fate == Fate.DELIVERED
    }
    planned = ways(plan.paths)
    assert [taken.get((flow, qp)) for flow, qp, _ in planned] == [w for *_, w in planned], case
    usable = known.over(fabric.plannable)
    for flow in np.flatnonzero(~np.isin(np.arange(len(flows)), plan.paths.flow)).tolist():
        assert flow in plan.unrouted, case
        if plan.by_ports[flow]:
            ends = int(flows.source[flow]), int(flows.destination[flow])
            assert len(usable.of(*ends)) == 0, (case, plan.unrouted[flow])
    loads = arc_loads(2 * fabric.link_count, flows, plan.paths)
    worst = float(utilization(fabric, loads).max(initial=0.0))
    assert worst == pytest.approx(plan.certificate.max_utilization), case
    if plan.nic_ports is None:
        return
    spare = walk(fabric, flows, hashes, spread(plan, plan.nic_ports.backup))
    backups = {(flow, qp): way for flow, qp, way in ways(plan.backups) if way}
    for flow, qp, arcs in zip(spare.flow, spare.qp, spare.arcs, strict=True):
        if plan.by_ports[flow] and (int(flow), int(qp)) in backups:
            wanted = backups[int(flow), int(qp)]
            assert wanted == tuple(arcs[arcs >= 0].tolist()), case


@pytest.mark.deep
@pytest.mark.parametrize("drawn_switches", [every_switch, some_switches])
def test_packets_of_each_port_take_the_path_of_its_plan(
    drawn_switches: Callable[[Case], Fabric],
) -> None:
    """Packets take the plan's paths and backups, on any fabric, damaged or not.

    Switches that hash hold no entry. A flow that is to be placed by ports has no path only if no
    port is known to arrive. The worst link is that of the certificate. The file of known port paths
    reads back unchanged. All of this still holds after a repair for a lost link, and QPs that keep
    their path keep their port.
    """
    for seed in fresh_seeds(quick=8, deep=400):
        case = drawn(seed)
        fabric, flows = drawn_switches(case), case.flows
        hashes = Switches(fabric, seed)
        ports = np.tile(49152 + np.arange(PROBES), (len(flows), 1))
        known = probed(fabric, flows, hashes, ports)
        again = parse_port_paths(port_paths_document(known, fabric), fabric, "again")
        for name in ("source", "destination", "learned", "first", "arcs", "first_port", "ports"):
            assert np.array_equal(getattr(known, name), getattr(again, name)), (case, name)
        plan = plan_anew(replace(fabric, port_paths=again), flows)
        check(plan, known, hashes, case)
        up = np.flatnonzero(fabric.link_state == State.UP).tolist()
        lost = {Random(seed).choice(up): State.DOWN}
        hashes.change(lost)
        hashes.converge()
        after = fabric.with_links(lost)
        known = probed(after, flows, hashes, ports)
        repaired = repairer_of(plan).repair(replace(after, port_paths=known), flows)
        check(repaired, known, hashes, case)
        was = {
            (flow, qp, way): port
            for (flow, qp, way), port in zip(ways(plan.paths), plan.qp_ports(), strict=True)
        }
        for row, one in enumerate(ways(repaired.paths)):
            if one in was and known_to_take(known, repaired, one, was[one]):
                assert repaired.qp_ports()[row] == was[one], (case, one)


def test_a_drained_leaf_is_repaired_like_a_lost_one() -> None:
    """Flows between NICs of one leaf have no entries. The underlay keeps them while it is drained.

    Their reason names the drain, also for flows that ports carried.
    """
    fabric = hashing(clos(leaves=2, spines=2, nics_per_leaf=2, nics_per_host=1))
    ends = ("l0-h0-n0", "l0-h1-n0"), ("l0-h0-n0", "l1-h0-n0"), ("l1-h0-n0", "l1-h1-n0")
    flows = flows_of(fabric, *((a, b, 100.0, 1, "job", "") for a, b in ends))
    hashes = Switches(fabric, 1)
    known = probed(fabric, flows, hashes, np.tile(49152 + np.arange(PROBES), (len(flows), 1)))
    plan = plan_anew(replace(fabric, port_paths=known), flows)
    assert not plan.unrouted
    leaf = fabric.structure.index["l0"]
    drained = replace(fabric.with_nodes({leaf: State.DRAINED}), port_paths=known)
    repaired = repairer_of(plan).repair(drained, flows)
    verify_plan(repaired)
    assert sorted(repaired.unrouted) == [0, 1]
    assert all("is drained" in why for why in repaired.unrouted.values()), repaired.unrouted
    assert ways(repaired.paths) == [one for one in ways(plan.paths) if one[0] == 2]


def test_a_flow_of_more_qps_than_all_before_takes_ports_that_are_known() -> None:
    """A job of four QPs follows one of a single QP between NICs whose ports are known."""
    fabric = hashing(clos(leaves=2, spines=2, nics_per_leaf=1, nics_per_host=1))
    ends = "l0-h0-n0", "l1-h0-n0"
    small, large = (flows_of(fabric, (*ends, 100.0, qps, f"of-{qps}", "")) for qps in (1, 4))
    large = replace(large, ids=("other",))
    known = probed(fabric, small, Switches(fabric, 1), 49152 + np.arange(PROBES)[None])
    fabric = replace(fabric, port_paths=known)
    plan = plan_anew(fabric, small)
    for after in (plan_anew(fabric, large, plan), repairer_of(plan).repair(fabric, large)):
        verify_plan(after)
        assert len({*after.qp_ports().tolist()} - {NONE}) == 4


@pytest.mark.parametrize("probed_when", ["healthy", "broken"])
def test_ports_take_the_only_path_left_also_if_they_were_probed_on_others(probed_when: str) -> None:
    """Two lost links leave one long path. It is planned at once, and so is a short one afterwards.

    All that is known of ports is what they took before.
    """
    fabric = hashing(clos(leaves=3, spines=2, nics_per_leaf=1, nics_per_host=1))
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 100.0, 2, "job", ""))
    lost = {fabric.find_links(f"l{n}", f"s{n}")[0]: State.DOWN for n in range(2)}
    broken, back = fabric.with_links(lost), fabric.with_links(dict([lost.popitem()]))
    before, after = (fabric, broken) if probed_when == "healthy" else (broken, back)
    hashes = Switches(before, 1)
    known = probed(before, flows, hashes, 49152 + np.arange(PROBES)[None])
    plan = plan_anew(replace(before, port_paths=known), flows)
    hashes.change({row: State(int(after.link_state[row])) for row in range(after.link_count)})
    hashes.converge()
    now = replace(after, port_paths=known)
    for new in (plan_anew(now, flows, plan), repairer_of(plan).repair(now, flows)):
        verify_plan(new)
        seen = walk(now, flows, hashes, spread(new, new.qp_ports()))
        taken = [tuple(arcs[arcs >= 0].tolist()) for arcs in seen.arcs]
        assert [way for *_, way in ways(new.paths)] == taken


def known_to_take(
    known: PortPaths, plan: Plan, one: tuple[int, int, tuple[int, ...]], port: int
) -> bool:
    """Whether a port is known to take the path of a QP."""
    flow, _, arcs = one
    rows = known.of(int(plan.flows.source[flow]), int(plan.flows.destination[flow]))
    return any(
        tuple(known.arcs[known.first[row] : known.first[row + 1]].tolist()) == arcs
        and port in known.ports[known.first_port[row] : known.first_port[row + 1]]
        for row in rows
    )
