"""An independent check of ports: that they carry out the plan that they are given for.

It shares no code with the solver: each port is looked up in what is known, and the path that it
takes is held against the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.plan import NicPorts, Paths, Plan
from heddle_controller.model.port_paths import PortPaths, no_port_paths, padded
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.hops import hops_of
from heddle_controller.plan.shortest_paths import choice, free

_PORTS = 1 << 16


def port_faults(plan: Plan) -> Iterator[str]:
    """QPs whose port takes another path or backup than theirs, as far as anybody knows.

    And flows that only entries in a switch that hashes would keep on their paths.
    """
    yield from _unheld(plan)
    if plan.nic_ports is not None:
        yield from _faults(plan, plan.nic_ports, plan.fabric.port_paths or no_port_paths())


def _unheld(plan: Plan) -> Iterator[str]:
    structure = plan.fabric.structure
    if not structure.hashes.any():
        return
    hops = hops_of(plan)
    for row in np.flatnonzero(hops.needed & structure.hashes[hops.switch]).tolist():
        switch = structure.nodes.ids[hops.switch[row]]
        yield f"{_name(plan, int(hops.path[row]))}: needs an entry in {switch!r}, which hashes"


def _faults(plan: Plan, ports: NicPorts, known: PortPaths) -> Iterator[str]:
    path = np.repeat(np.arange(len(plan.paths)), plan.paths.qp_count)
    if len(ports.port) != len(path) or len(ports.backup) != len(path):
        yield "there is not one port for each QP that has a path"
        return
    mine = plan.by_ports[plan.paths.flow[path]]
    for row in np.flatnonzero(mine != (ports.port != NONE)).tolist():
        yield f"{_name(plan, path[row])}: has a port and is not carried by ports, or has none"
    path, port, backup = path[mine], ports.port[mine], ports.backup[mine]
    yield from _astray(plan, plan.paths, (path, port), known)
    has = np.diff(plan.backups.first)[path] > 0
    for row in np.flatnonzero(has != (backup != NONE)).tolist():
        yield f"{_name(plan, path[row])}: has a backup and no port for it, or a port and no backup"
    for problem in _astray(plan, plan.backups, (path[has], backup[has]), known):
        yield f"{problem}, as a backup"


def _astray(plan: Plan, paths: Paths, given: tuple[Ints, Ints], known: PortPaths) -> Iterator[str]:
    """Ports that do not take the path that they are given for: of each its row, and the port."""
    path, port = given
    nodes, flows = plan.fabric.node_count, plan.flows
    owner = np.repeat(np.arange(len(known)), known.port_count)
    code = (known.source * nodes + known.destination)[owner] * _PORTS + known.ports
    order = np.argsort(code)
    flow = plan.paths.flow[path]
    wanted = (flows.source[flow] * nodes + flows.destination[flow]) * _PORTS + port
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
