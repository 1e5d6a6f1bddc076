"""What a trial looks at: packets of all flows walked through the tables, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.graphs import joined_parts
from heddle_controller.model.load import arc_loads, utilization
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.walk import Forwarding, Walk, walk


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The flows at one moment."""

    walk: Walk
    joined: Bools
    """Whether anything joins a flow's ends, shape (flows,)."""
    worst: float
    """Greatest utilisation of a link between switches."""
    slowest: float
    """Least max-min fair rate over demand of a flow whose ends are joined."""

    @property
    def stranded(self) -> int:
        """QPs that get nowhere though their ends are joined."""
        lost = self.walk.lost
        return int(np.count_nonzero(self.joined[self.walk.flow[lost]]))

    @property
    def cut_off(self) -> int:
        """Flows whose ends nothing joins."""
        return int(np.count_nonzero(~self.joined))


def evaluate(fabric: Fabric, flows: Flows, forwarding: Forwarding) -> Evaluation:
    """Walk, and add up."""
    walked = walk(fabric, flows, forwarding)
    paths = walked.paths()
    used = utilization(fabric, arc_loads(2 * fabric.link_count, flows, paths))
    ratios = flow_ratios(fabric.structure.capacity, flows, paths)
    joined = _joined(fabric, flows) if len(walked.lost) else np.ones(len(flows), dtype=np.bool_)
    return Evaluation(
        walked,
        joined,
        float(used[_between_switches(fabric)].max(initial=0.0)),
        float(ratios[joined].min(initial=1.0)),
    )


def _between_switches(fabric: Fabric) -> Bools:
    structure = fabric.structure
    nic = structure.nodes.kind == NodeKind.NIC
    return np.asarray(~nic[structure.tail] & ~nic[structure.head])


def _joined(fabric: Fabric, flows: Flows) -> Bools:
    """Nodes joined by links that carry; a NIC hands nothing on."""
    links = fabric.structure.links
    alive = np.flatnonzero(fabric.carries[::2])
    part = joined_parts(links.a[alive], links.b[alive], fabric.node_count)
    return np.asarray(part[flows.source] == part[flows.destination])
