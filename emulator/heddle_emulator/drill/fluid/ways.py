"""Which way every QP takes at a moment, by the agents' tables; and what that is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Fabric, Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import arc_loads
from heddle_controller.model.plan import Paths, starts
from heddle_emulator.drill.fluid.traffic import Traffic
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.fluid.rows import places
from heddle_emulator.walk import Fate, Forwarding, walk


@dataclass(frozen=True, slots=True, eq=False)
class QpPaths:
    """A row for each QP of all flows that there may be; those not wanted have no arcs."""

    wanted: Bools
    alive: Bools
    """Whether its packets arrive."""
    looped: Bools
    first: Ints
    """Where the arcs of each begin, shape (QPs + 1,)."""
    arcs: Ints

    @property
    def dead(self) -> Bools:
        """QPs that are wanted and get nowhere."""
        return self.wanted & ~self.alive

    def paths(self, flows: Flows) -> Paths:
        """A path for each QP, that of a dead one without arcs."""
        flow = np.repeat(np.arange(len(flows), dtype=np.int64), flows.qps)
        qp = np.arange(len(flow), dtype=np.int64) - starts(flows.qps)[:-1][flow]
        count = len(flow)
        return Paths(flow, qp, qp, self.first[: count + 1], self.arcs[: int(self.first[count])])

    def crosses(self, arcs: Bools) -> Bools:
        """Whether each QP uses any of the arcs marked."""
        owner = np.repeat(np.arange(len(self.alive)), np.diff(self.first))
        hit = np.zeros(len(self.alive), dtype=np.bool_)
        hit[owner[arcs[self.arcs]]] = True
        return hit


def ways_of(fabric: Fabric, traffic: Traffic, now: float, forwarding: Forwarding) -> QpPaths:
    """Walk a packet of every QP that is wanted now through a fabric as it is."""
    first_qp, qps = traffic.first_qp, traffic.flows.qps
    rows = np.flatnonzero(traffic.active(now))
    walked = walk(fabric, traffic.flows.take(rows), forwarding)
    own = places(first_qp, rows)
    count = int(first_qp[-1])
    wanted, alive, looped = (np.zeros(count, dtype=np.bool_) for _ in range(3))
    wanted[own] = True
    alive[own] = walked.fate == Fate.DELIVERED
    looped[own] = walked.fate == Fate.LOOP
    taken = (walked.arcs != NONE) & (walked.fate == Fate.DELIVERED)[:, None]
    lengths = np.zeros(count, dtype=np.int64)
    lengths[own] = taken.sum(axis=1)
    assert len(own) == int(qps[rows].sum())
    return QpPaths(wanted, alive, looped, starts(lengths), walked.arcs[taken])


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """What ways come to, by the rules that plans are judged by."""

    ratios: Floats
    """Max-min fair rate over demand of each flow, 0 to 1; 1 where it is not wanted."""
    utilization: Floats
    """Load over capacity of each arc."""


def worth_of(traffic: Traffic, ways: QpPaths, capacity: Floats) -> Worth:
    """``capacity`` is what arcs carry now, in Gbit/s; 0 for those that carry nothing."""
    flows = traffic.flows
    kept = np.flatnonzero(ways.alive)
    paths = ways.paths(flows).take(kept)
    room = np.maximum(capacity, np.finfo(float).tiny)
    ratios = flow_ratios(room, flows, paths)
    wanted = np.zeros(len(flows), dtype=np.bool_)
    wanted[np.repeat(np.arange(len(flows)), flows.qps)[ways.wanted]] = True
    loads = arc_loads(len(capacity), flows, paths)
    used = np.divide(loads, capacity, out=np.zeros(len(loads)), where=capacity > 0)
    return Worth(np.where(wanted, ratios, 1.0), used)
