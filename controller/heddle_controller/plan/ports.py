"""An independent check of ports: that they carry out the plan that they are given for.

It shares no code with the solver: each port is looked up in what is known, and the path that it
takes is held against the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from heddle_controller.model.fabric import NONE, Ints
from heddle_controller.model.plan import NicPorts, Paths, Plan
from heddle_controller.model.port_paths import PortPaths, padded
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.shortest_paths import choice, free
from heddle_controller.plan.verify import MOST_TOLD, PlanInvalid

PORTS = 1 << 16


def verify_ports(plan: Plan, known: PortPaths) -> None:
    """Check that each QP has a port that takes its path, and one that takes its backup.

    Raises:
        PlanInvalid: a port takes another path, or nobody knows which.
    """
    ports = plan.nic_ports
    if ports is None:
        raise PlanInvalid(["the plan gives no ports"])
    if problems := [*islice(_faults(plan, ports, known), MOST_TOLD)]:
        raise PlanInvalid(problems)


def _faults(plan: Plan, ports: NicPorts, known: PortPaths) -> Iterator[str]:
    path = np.repeat(np.arange(len(plan.paths)), plan.paths.qp_count)
    if len(ports.port) != len(path) or len(ports.backup) != len(path):
        yield "there is not one port for each QP that has a path"
        return
    yield from _astray(plan, plan.paths, (path, ports.port), known)
    has = np.diff(plan.backups.first)[path] > 0
    for row in np.flatnonzero(has != (ports.backup != NONE)).tolist():
        yield f"{_name(plan, path[row])}: has a backup and no port for it, or a port and no backup"
    for problem in _astray(plan, plan.backups, (path[has], ports.backup[has]), known):
        yield f"{problem}, as a backup"


def _astray(plan: Plan, paths: Paths, given: tuple[Ints, Ints], known: PortPaths) -> Iterator[str]:
    """Ports that do not take the path that they are given for: of each its row, and the port."""
    path, port = given
    nodes, flows = plan.fabric.node_count, plan.flows
    owner = np.repeat(np.arange(len(known)), known.port_count)
    code = (known.source * nodes + known.destination)[owner] * PORTS + known.ports
    order = np.argsort(code)
    flow = plan.paths.flow[path]
    wanted = (flows.source[flow] * nodes + flows.destination[flow]) * PORTS + port
    place = np.minimum(np.searchsorted(code, wanted, sorter=order), max(len(code) - 1, 0))
    found = np.zeros(len(wanted), dtype=np.bool_)
    if len(code):
        found = code[order[place]] == wanted
    for row in np.unique(path[~found]).tolist():
        if not _only_one(plan, paths, row):
            yield f"{_name(plan, row)}: nobody knows which path its ports take"
    rows = np.flatnonzero(found)
    way = owner[order[place[rows]]]
    width = int(max(np.diff(known.first).max(initial=0), np.diff(paths.first).max(initial=0)))
    taken = padded(known.first, known.arcs, width)[way]
    meant = padded(paths.first, paths.arcs, width)[path[rows]]
    for row in np.flatnonzero((taken != meant).any(axis=1)).tolist():
        yield f"{_name(plan, path[rows[row]])}: port {port[rows[row]]} takes another path"


def _only_one(plan: Plan, paths: Paths, row: int) -> bool:
    """Whether a path is the only shortest one of its NICs."""
    ways = underlay(plan.fabric.structure, plan.fabric.carries)
    there = choice(plan, int(plan.paths.flow[row]), ways, free)
    return there.count == 1 and there.hops == paths.first[row + 1] - paths.first[row]


def _name(plan: Plan, path: int) -> str:
    return f"flow {plan.flows.ids[plan.paths.flow[path]]!r}"
