"""A plan from nothing: colour, place the rest, search, certify.

1. In a fabric of tiers, colouring places every flow whose colour has no hole; on
   a healthy fabric that is all of them, at the bound.
2. What is left is placed greedily.
3. Local search takes load off arcs above the bound that cuts prove.
4. Each path gets a backup, and the plan its certificate.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Fabric, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import arc_loads
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.backups import backups_of
from heddle_controller.solve.bound import Bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.certificate import certify
from heddle_controller.solve.cuts import cut_bound
from heddle_controller.solve.export import paths_of
from heddle_controller.solve.greedy import place_greedily
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Options
from heddle_controller.solve.planes import Planes
from heddle_controller.solve.search import Search, Target
from heddle_controller.solve.unrouted import reason_unrouted


def solve(fabric: Fabric, flows: Flows, options: Options | None = None) -> Plan:
    """Plans all flows anew. Pure, unless a time limit cuts the search short."""
    options = options or Options()
    deadline = options.deadline()
    network = Network(fabric)
    candidates = Candidates(network, options.candidate_limit)
    planes = Planes(network) if network.tiered else None
    assignment = Assignment(network, flows)
    rest = _load_coloured(assignment, planes)
    reachable = attached(network, flows)
    bound = cut_bound(network, flows, reachable)
    search = Search(assignment, candidates, target_of(fabric, bound), deadline)
    rest = rest[reachable[rest]]
    stuck = place_greedily(assignment, search, rest, np.zeros_like(rest), flows.qps[rest] - 1)
    if stuck:
        reachable[stuck] = False
        bound = cut_bound(network, flows, reachable)
    search.run()
    return finished_plan(
        network, candidates, planes, flows, paths_of(assignment, renumber=True), reachable, bound
    )


def finished_plan(  # noqa: PLR0917 - the parts that every plan is made of
    network: Network,
    candidates: Candidates,
    planes: Planes | None,
    flows: Flows,
    paths: Paths,
    routed: Bools,
    bound: Bound,
) -> Plan:
    """Adds to paths what makes them a plan: backups, certificate, reasons."""
    unrouted = {
        row: reason_unrouted(network, int(flows.source[row]), int(flows.destination[row]))
        for row in np.flatnonzero(~routed).tolist()
    }
    return Plan(
        network.fabric,
        flows,
        paths,
        backups_of(network, candidates, planes, flows, paths),
        certify(network.fabric, arc_loads(network.arc_count, flows, paths), bound),
        unrouted,
    )


def attached(network: Network, flows: Flows) -> Bools:
    """Whether both NICs of each flow have a usable uplink, shape (flows,)."""
    result: Bools = (network.terminal[flows.source] != NONE) & (
        network.terminal[flows.destination] != NONE
    )
    return result


def target_of(fabric: Fabric, bound: Bound) -> Target:
    """What the search aims at: the bound."""
    return Target(bound.tiers, fabric.structure.tier_of_arc, bound.overall)


def _load_coloured(assignment: Assignment, planes: Planes | None) -> Ints:
    """Loads what colouring places; returns the rows of the flows that it does not."""
    flows = assignment.flows
    if planes is None:
        return np.arange(len(flows), dtype=np.int64)
    coloured = planes.colour(flows)
    rows = np.flatnonzero(coloured.placed)
    arcs = coloured.arcs[rows]
    lengths = (arcs != NONE).sum(axis=1)
    # Paths keep their arcs on the left: 0 within a leaf, 2 in a zone, 4 between.
    paths = [row[:length] for row, length in zip(arcs, lengths.tolist(), strict=True)]
    assignment.load_chunks(rows, np.zeros_like(rows), flows.qps[rows] - 1, paths)
    return np.flatnonzero(~coloured.placed)
