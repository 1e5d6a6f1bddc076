"""Probing as hosts do it: which path each UDP source port of two NICs takes."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Ints, starts
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.port_paths import Learned, PortPaths, gathered
from heddle_emulator.walk.packets import Fate, Forwarding, walk


def probed(fabric: Fabric, flows: Flows, forwarding: Forwarding, ports: Ints) -> PortPaths:
    """The ways of some ports between the NICs of each flow; lost packets teach nothing.

    Args:
        fabric: In the state it is probed in.
        flows: Their ends alone count.
        forwarding: What sends packets on.
        ports: UDP source ports, shape (flows, ports of each).
    """
    probes = flows.with_qps(ports.shape[1])
    seen = walk(fabric, probes, forwarding, ports.ravel())
    took = np.where((seen.fate == Fate.DELIVERED)[:, None], seen.arcs, -1)
    used = took >= 0
    return gathered(
        np.stack([flows.source[seen.flow], flows.destination[seen.flow]]),
        ports.ravel(),
        np.full(len(seen.flow), int(Learned.PROBED), dtype=np.int64),
        (starts(used.sum(axis=1)), took[used]),
    )
