"""Compare strategies on one fabric and one set of flows.

``least_utilization`` is a lower bound on the worst utilisation that holds for every planner. All
traffic that has to leave a NIC, or a switch with its NICs, must fit through the links that leave
it, so their worst utilisation is at least that traffic over their total capacity. On damaged
fabrics a planner's own bound is tighter, but this one needs no planner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, ranges
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.graphs import joined_parts
from heddle_controller.model.plan import phased_loads
from heddle_emulator.strategy.carried import Outcome
from heddle_emulator.strategy.choose import choose
from heddle_emulator.strategy.makespan import Sending


def least_utilization(fabric: Fabric, flows: Flows) -> float:
    """Return a lower bound on the worst utilisation of any way to carry all flows with a path."""
    flows = flows.take(np.flatnonzero(_connected(fabric, flows)))
    nodes = np.arange(fabric.node_count, dtype=np.int64)
    nic = fabric.structure.nodes.kind == NodeKind.NIC
    alone = np.where(nic, nodes, NONE)
    return max(
        _around(fabric, flows, group, ends)
        for group in (alone, _by_switch(fabric))
        for ends in ((flows.source, flows.destination), (flows.destination, flows.source))
    )


def _connected(fabric: Fabric, flows: Flows) -> Bools:
    """Return which flows have a path over live links. No path leads through a NIC."""
    structure, count = fabric.structure, fabric.node_count
    tail, head = structure.tail[fabric.carries], structure.head[fabric.carries]
    nic = structure.nodes.kind == NodeKind.NIC
    inner, up = ~nic[tail] & ~nic[head], nic[tail]
    part = joined_parts(tail[inner], head[inner], count)
    attached = np.unique(np.stack([tail[up], part[head[up]]]), axis=1)
    begin = np.searchsorted(attached[0], flows.source)
    end = np.searchsorted(attached[0], flows.source, side="right")
    flow = np.repeat(np.arange(len(flows)), end - begin)
    wanted = flows.destination[flow] * count + attached[1][ranges(begin, end)]
    met = np.isin(wanted, attached[0] * count + attached[1])
    result: Bools = np.bincount(flow[met], minlength=len(flows)) > 0
    return result


def _by_switch(fabric: Fabric) -> Ints:
    """Return the switch that each node is, or is attached to; ``NONE`` for NICs with several."""
    structure = fabric.structure
    nic = structure.nodes.kind == NodeKind.NIC
    up = np.flatnonzero(fabric.carries & nic[structure.tail])
    group = np.arange(fabric.node_count, dtype=np.int64)
    group[nic] = NONE
    single = up[
        np.bincount(structure.tail[up], minlength=fabric.node_count)[structure.tail[up]] == 1
    ]
    group[structure.tail[single]] = structure.head[single]
    return group


def _around(fabric: Fabric, flows: Flows, group: Ints, ends: tuple[Ints, Ints]) -> float:
    """Return the worst ratio of demand to capacity over all groups of nodes.

    Demand goes from the first of ``ends`` to nodes outside the group; capacity is that of the links
    which lead out of it.
    """
    inner, outer = group[ends[0]], group[ends[1]]
    rows = np.flatnonzero((inner != NONE) & (inner != outer))
    count = fabric.node_count
    demand = phased_loads(count, inner[rows], flows.gbps[rows], flows.job[rows], flows.phase[rows])
    structure = fabric.structure
    tail, head = group[structure.tail], group[structure.head]
    arcs = np.flatnonzero(fabric.carries & (tail != NONE) & (tail != head))
    capacity = np.bincount(tail[arcs], weights=structure.capacity[arcs], minlength=count)
    open_ = capacity > 0
    return float((demand[open_] / capacity[open_]).max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Outcomes by name of the strategy, in the order asked for."""

    outcomes: dict[str, Outcome]
    lower_bound: float
    """No plan has a worst utilisation below this that carries all flows with a path by whole QPs.

    Strategies with more QPs, or without paths, may have: ``e-ecmp``, ``spray`` and ``ideal``.
    """
    seed: int

    def record(self) -> dict[str, Any]:
        """Return the JSON record that ``--json`` prints."""
        return {
            "strategies": {
                name: {
                    "max_utilization": outcome.max_utilization,
                    "slowest_flow": outcome.slowest_flow,
                    "makespan_seconds": outcome.makespan_seconds,
                    "lost_flows": outcome.lost_flows,
                    "tiers": outcome.worst,
                }
                for name, outcome in self.outcomes.items()
            },
            "lower_bound": self.lower_bound,
            "seed": self.seed,
        }


def compare(
    fabric: Fabric,
    flows: Flows,
    names: Sequence[str],
    seed: int,
    tell: Callable[[str], None] = lambda _: None,
    *,
    sending: Sending | None = None,
) -> Comparison:
    """Try each strategy; ``tell`` is called with its name before it begins.

    Outcomes are computed when they are read. ``tell`` is then called with the progress.

    Raises:
        HeddleError, ControllerError: For "te", its controller did not start or did not answer.
    """
    bounds = [least_utilization(fabric, flows)]
    outcomes = {}
    for name in names:
        tell(name)
        choice = choose(name, fabric, flows, seed)
        bounds.append(choice.lower_bound)
        outcomes[name] = Outcome(
            fabric, choice.carried, sending or Sending(), partial(_progress, tell, name)
        )
    return Comparison(outcomes, max(bounds), seed)


def _progress(tell: Callable[[str], None], name: str, share: float) -> None:
    tell(f"{name}: {100 * share:.1f} % of the flows and phases are done")
