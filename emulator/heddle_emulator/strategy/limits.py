"""Limits to compare with: spraying (``spray``), and a crossbar (``ideal``).

``spray`` sends every packet of a flow its own way: at each switch the flow divides evenly over all
equal-cost next hops. It needs NICs that reorder packets. It is also blind: where links are lost or
unequal, an even split is not the best one. A flow is only as fast as its slowest way allows,
because packets are lost there. ``ideal`` is a crossbar: only the links of NICs limit the rate.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, ranges
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.strategy.ways import EqualCostHops
from heddle_emulator.underlay import Underlay


def spray(fabric: Fabric, flows: Flows) -> Carried:
    """Send every flow over all its equal-cost ways at once."""
    return _carried(flows, *_uses(fabric, flows))


def ideal(fabric: Fabric, flows: Flows) -> Carried:
    """Send every flow that has any path over the links of its NICs alone."""
    flow, arc, part = _uses(fabric, flows)
    structure = fabric.structure
    nic = structure.nodes.kind == NodeKind.NIC
    kept = nic[structure.tail[arc]] | nic[structure.head[arc]]
    return _carried(flows, flow[kept], arc[kept], part[kept])


def _uses(fabric: Fabric, flows: Flows) -> tuple[Ints, Ints, Floats]:
    """Return parallel columns: a flow, an arc, and the part of the flow that crosses the arc."""
    head = fabric.structure.head
    ways = EqualCostHops(Underlay(fabric))
    found = []
    flow, arc, part = _out_of_nics(fabric, flows)
    while len(flow):
        found.append((flow, arc, part))
        node = head[arc]
        onward = node != flows.destination[flow]
        flow, node, part = _gathered(flow[onward], node[onward], part[onward], fabric.node_count)
        place, arc = ways.all(node, flows.destination[flow])
        count = np.bincount(place, minlength=len(flow))
        flow, part = flow[place], part[place] / count[place]
    columns = [np.concatenate(column) for column in zip(*found, strict=True)] if found else []
    if not columns:
        return flow, arc, part
    return _arrived(flows, head, (columns[0], columns[1], columns[2]))


def _out_of_nics(fabric: Fabric, flows: Flows) -> tuple[Ints, Ints, Floats]:
    """Take the first hop: divide each flow evenly over the live links of its NIC."""
    first, arcs = fabric.structure.out
    alive = fabric.carries[arcs]
    before = np.concatenate([[0], np.cumsum(alive)])
    begin, count = before[first[flows.source]], before[first[flows.source + 1]]
    count -= begin
    flow = np.repeat(np.arange(len(flows), dtype=np.int64), count)
    return flow, arcs[alive][ranges(begin, begin + count)], 1.0 / count[flow]


def _gathered(flow: Ints, node: Ints, part: Floats, width: int) -> tuple[Ints, Ints, Floats]:
    """Add up the parts of a flow that meet again at a node."""
    codes, which = np.unique(flow * width + node, return_inverse=True)
    total = np.bincount(which, weights=part, minlength=len(codes)).astype(np.float64)
    return codes // width, codes % width, total


def _arrived(
    flows: Flows, head: Ints, uses: tuple[Ints, Ints, Floats]
) -> tuple[Ints, Ints, Floats]:
    """Return the uses of flows that arrive whole; flows that lose a part are left out."""
    flow, arc, part = uses
    last = head[arc] == flows.destination[flow]
    arrived = np.bincount(flow[last], weights=part[last], minlength=len(flows))
    kept: Bools = np.isclose(arrived, 1.0)[flow]
    return flow[kept], arc[kept], part[kept]


def _carried(flows: Flows, flow: Ints, arc: Ints, part: Floats) -> Carried:
    """Return one path for each flow, made of all the arcs it uses, hop after hop."""
    order = np.argsort(flow, kind="stable")
    rows, counts = np.unique(flow, return_counts=True)
    paths = Paths(
        flow=rows,
        first_qp=np.zeros_like(rows),
        last_qp=flows.qps[rows] - 1,
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        arcs=arc[order],
    )
    return Carried(flows, paths, part[order], limit=True)
