"""How flows are carried, whichever strategy chose it, and what the result is.

All strategies are compared in this one form: the paths of flows and, where packets are sprayed,
which part of a flow crosses each arc. The "path" of a sprayed flow contains all arcs that it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import Bools, Floats
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, phased_loads, utilization, worst_by_tier
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy.makespan import Sending, ends


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """Flows and the arcs that carry them."""

    flows: Flows
    """The flows as they were sent: a strategy may divide them into more QPs."""
    paths: Paths
    parts: Floats
    """Parallel to ``paths.arcs``: the part of the path's packets that crosses the arc."""
    limit: bool = False
    """Whether this is a limit to compare with, such as spraying, and no choice of paths."""


def whole(flows: Flows, paths: Paths) -> Carried:
    """Return flows whose packets take one path per QP."""
    return Carried(flows, paths, np.ones(len(paths.arcs)))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The measured result of one way of carrying flows through a fabric."""

    fabric: Fabric
    carried: Carried
    sending: Sending = field(default_factory=Sending)
    tell: Callable[[float], None] | None = None
    """Called with the part that is complete, 0 to 1, while ``ends`` are computed."""

    @cached_property
    def loads(self) -> Floats:
        """Gbit/s of each arc; each job counts with its worst phase, and jobs add up."""
        flows, paths = self.carried.flows, self.carried.paths
        owner = paths.owner()
        flow = paths.flow[owner]
        gbps = paths.gbps(flows)[owner] * self.carried.parts
        arcs = 2 * self.fabric.link_count
        return phased_loads(arcs, paths.arcs, gbps, flows.job[flow], flows.phase[flow])

    @property
    def max_utilization(self) -> float:
        """Load over capacity of the fullest arc, including the arcs of NICs."""
        return float(utilization(self.fabric, self.loads).max(initial=0.0))

    @property
    def worst(self) -> dict[str, float]:
        """Greatest utilisation of each tier, from the hosts up."""
        return worst_by_tier(self.fabric, self.loads)

    @cached_property
    def ratios(self) -> Floats:
        """Max-min fair rate over demand of each flow, 0 to 1."""
        capacity, carried = self.fabric.structure.capacity, self.carried
        return flow_ratios(capacity, carried.flows, carried.paths, carried.parts)

    @property
    def slowest_flow(self) -> float:
        """The smallest ratio of any flow; 1.0 is the roofline, and the value without flows."""
        return float(self.ratios.min(initial=1.0))

    @property
    def rates(self) -> Floats:
        """Max-min fair rate of each flow, Gbit/s."""
        rates: Floats = self.ratios * self.carried.flows.gbps
        return rates

    @cached_property
    def lost(self) -> Bools:
        """Whether each flow has a QP without a path."""
        flows, paths = self.carried.flows, self.carried.paths
        held = np.bincount(paths.flow, weights=paths.qp_count, minlength=len(flows))
        return np.asarray(held < flows.qps)

    @property
    def lost_flows(self) -> int:
        """Number of flows with a QP without a path."""
        return int(np.count_nonzero(self.lost))

    @cached_property
    def ends(self) -> Floats | None:
        """Seconds until each flow is done, see ``makespan``; None if any flow has a lost QP.

        Limits keep fair rates, as queues are those of paths.
        """
        if self.lost_flows:
            return None
        carried, capacity = self.carried, self.fabric.structure.capacity
        sending = replace(self.sending, queues=None) if carried.limit else self.sending
        return ends(capacity, carried.flows, carried.paths, carried.parts, sending, tell=self.tell)

    @property
    def makespan_seconds(self) -> float | None:
        """Seconds until all is sent; None if any flow has a lost QP."""
        return None if self.ends is None else float(self.ends.max(initial=0.0))
