"""Seeded cases for measuring how far plans are from the best that their paths allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan, arc_loads, utilization
from heddle_controller.solve import Options, solve
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from heddle_emulator.topology import clos, dragonfly, random_regular, three_tier
from tests.support.solve_checks import between_switches, routed_rows
from tests.support.solve_fabrics import frayed, inner_links
from tests.support.solve_flows import permutations, plain_flows
from tests.support.solve_reference import Ways, least_over_paths

Draw = Callable[[Random, int], tuple[Fabric, Flows]]


@dataclass(frozen=True, slots=True)
class Measured:
    """How full links between switches are in a plan and in its relaxation over the same paths."""

    plan: Plan
    reached: float
    """Worst utilisation between switches."""
    relaxed: float
    """Worst utilisation between switches in the relaxation."""
    proven: float
    """The highest lower bound that the certificate has for a tier between switches."""
    grain: float
    """The utilisation that one QP of the largest flow adds to the slowest of these links."""

    @property
    def excess(self) -> float:
        """How far the plan is above the relaxation, relative to it."""
        return self.reached / self.relaxed - 1

    @property
    def within(self) -> bool:
        """Whether it is within 1 % and a QP of the relaxation."""
        return self.reached <= (self.relaxed * 1.01 + self.grain) * (1 + 1e-9)


def damaged_zone(rng: Random, qps: int) -> tuple[Fabric, Flows]:
    """One or two permutations of a 1:1 zone with some uplinks down."""
    fabric = clos(leaves=8, spines=8, nics_per_leaf=8)
    fabric = frayed(rng, fabric, rng.choice([0.02, 0.08, 0.2]))
    return fabric, permutations(fabric, rng, rng.randint(1, 2), qps)


def tapered_cores(rng: Random, qps: int) -> tuple[Fabric, Flows]:
    """Random flows over three tapered zones, in some cases with links down."""
    fabric = three_tier(
        zones=3, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=rng.choice([2.0, 7.0])
    )
    fabric = frayed(rng, fabric, rng.choice([0.0, 0.05]))
    return fabric, plain_flows(fabric, rng, 60, qps)


def tapered_mesh(rng: Random, qps: int) -> tuple[Fabric, Flows]:
    """Random flows over two zones with all spines linked to all cores, perhaps with links down."""
    fabric = three_tier(
        zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=3, taper=3.0, wiring="mesh"
    )
    fabric = frayed(rng, fabric, rng.choice([0.0, 0.05]))
    return fabric, plain_flows(fabric, rng, 60, qps)


def mixed_speeds(rng: Random, qps: int) -> tuple[Fabric, Flows]:
    """A permutation of two tiers with links of three speeds, some dead."""
    fabric = clos(leaves=6, spines=5, nics_per_leaf=6, parallel=rng.choice([1, 2]))
    links = fabric.structure.links
    speeds = [rng.choice([100.0, 200.0, 400.0]) for _ in range(fabric.link_count)]
    gbps = np.where(inner_links(fabric), speeds, links.gbps)
    structure = replace(fabric.structure, links=replace(links, gbps=gbps))
    fabric = frayed(rng, replace(fabric, structure=structure), 0.05)
    return fabric, permutations(fabric, rng, 1, qps)


def random_graph(rng: Random, qps: int) -> tuple[Fabric, Flows]:
    """Random flows over a random regular graph, in some cases with links down."""
    fabric = random_regular(switches=14, degree=4, nics_per_switch=3, seed=rng.randrange(10**6))
    fabric = frayed(rng, fabric, rng.choice([0.0, 0.05]))
    return fabric, plain_flows(fabric, rng, 50, qps)


def small_dragonfly(rng: Random, qps: int) -> tuple[Fabric, Flows]:
    """Random flows over a dragonfly of nine groups."""
    fabric = dragonfly(routers=4, global_links=2, nics_per_switch=2)
    return fabric, plain_flows(fabric, rng, 50, qps)


CASES: Mapping[str, Draw] = {
    "damaged": damaged_zone,
    "tapered-planes": tapered_cores,
    "tapered-mesh": tapered_mesh,
    "mixed-speeds": mixed_speeds,
    "regular": random_graph,
    "dragonfly": small_dragonfly,
}


def planned(case: str, seed: int, qps: int) -> Plan:
    """The plan of a case."""
    return solve(*CASES[case](Random(f"{case} {seed} {qps}"), qps))


def measure(case: str, seed: int, qps: int) -> Measured:
    """Plan a case and solve its relaxation over the planner's candidate paths."""
    plan = planned(case, seed, qps)
    fabric, flows = plan.fabric, plan.flows
    inner = between_switches(fabric)
    used = utilization(fabric, arc_loads(2 * fabric.link_count, flows, plan.paths))
    ways = candidate_ways(fabric, flows)
    relaxed = least_over_paths(fabric, flows, ways, routed_rows(plan), inner)
    speed = float(fabric.structure.capacity[inner].min())
    tiers = [t.lower_bound for t in plan.certificate.tiers if "nic" not in t.tier]
    return Measured(
        plan,
        reached=float(used[inner].max()),
        relaxed=relaxed,
        proven=max(tiers),
        grain=float((flows.gbps / flows.qps).max()) / speed,
    )


def candidate_ways(fabric: Fabric, flows: Flows) -> Ways:
    """Return a function that gives the candidate paths of a flow, NIC arcs included."""
    network = Network(fabric)
    candidates = Candidates(network, Options().candidate_limit)
    known: dict[tuple[int, int], list[list[int]]] = {}

    def ways(row: int) -> Sequence[Sequence[int]]:
        ends = (int(flows.source[row]), int(flows.destination[row]))
        if ends not in known:
            out, into = (int(network.nic_arc[end]) for end in ends)
            before, after = [out] * (out != NONE), [into ^ 1] * (into != NONE)
            found = candidates.between(*(int(network.terminal[end]) for end in ends)).tolist()
            inner = [[arc for arc in path if arc != network.pad] for path in found]
            known[ends] = [[*before, *path, *after] for path in inner]
        return known[ends]

    return ways
