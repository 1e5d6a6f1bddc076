"""Routes as a controller lists them, as arrays that can be held against a walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle.names import link_name
from heddle.v1 import common_pb2, plan_pb2
from heddle_controller.model.arrays import Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """The routes of some flows: paths, and why some have none."""

    paths: Paths
    """Of the flows they were read for, by flow row and QP."""
    source_port: Ints
    """UDP source port of QP 0 of each flow, as the controller has it, shape (flows,); 0: any."""
    unrouted: dict[str, str]
    """Reason by flow id."""


def routed(fabric: Fabric, flows: Flows, routes: Sequence[plan_pb2.Route]) -> Routed:
    """Read routes of just these flows.

    Raises:
        InputError: a flow that is not among them, or one of them that is missing.
    """
    row_of = {flow: row for row, flow in enumerate(flows.ids)}
    strangers = [route.flow for route in routes if route.flow not in row_of]
    missing = row_of.keys() - {route.flow for route in routes}
    if strangers:
        raise refuse("routes", f"flow {strangers[0]}", f"was not asked for ({len(strangers)} such)")
    if missing:
        raise refuse("routes", f"flow {min(missing)}", f"is not listed ({len(missing)} such)")
    links = _arcs(fabric)
    told = sorted(
        (row_of[route.flow], path.first_qp, path.last_qp, _way(links, path))
        for route in routes
        for path in route.paths
    )
    ports = np.zeros(len(flows), dtype=np.int64)
    ports[[row_of[route.flow] for route in routes]] = [route.source_port for route in routes]
    unrouted = {route.flow: route.unrouted_reason for route in routes if not route.paths}
    return Routed(_paths(told), ports, unrouted)


def _paths(told: list[tuple[int, int, int, list[int]]]) -> Paths:
    arcs = [arc for *_, way in told for arc in way]
    lengths = [len(way) for *_, way in told]
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Paths(
        flow=np.array([flow for flow, *_ in told], dtype=np.int64),
        first_qp=np.array([qp for _, qp, *_ in told], dtype=np.int64),
        last_qp=np.array([qp for *_, qp, _ in told], dtype=np.int64),
        first=first,
        arcs=np.array(arcs, dtype=np.int64),
    )


def _arcs(fabric: Fabric) -> dict[tuple[str, str, str], int]:
    """Arc by the ids of the nodes it leaves and enters, and its link's key."""
    structure, ids = fabric.structure, fabric.structure.nodes.ids
    return {
        (ids[tail], ids[head], str(structure.links.key[arc >> 1])): arc
        for arc, (tail, head) in enumerate(
            zip(structure.tail.tolist(), structure.head.tolist(), strict=True)
        )
    }


def _way(arcs: dict[tuple[str, str, str], int], path: common_pb2.Path) -> list[int]:
    hops = zip(path.nodes, path.nodes[1:], path.keys, strict=False)
    try:
        return [arcs[hop] for hop in hops]
    except KeyError as error:
        a, b, key = error.args[0]
        raise refuse(
            "routes", f"link {link_name(a, b, key)}", "is in a path, not in the fabric"
        ) from error


def qp_arcs(paths: Paths) -> dict[tuple[int, int], tuple[int, ...]]:
    """The arcs of each QP by flow row and QP: what two sets of paths are compared by."""
    return {
        (int(paths.flow[row]), qp): tuple(paths.of(row).tolist())
        for row in range(len(paths))
        for qp in range(int(paths.first_qp[row]), int(paths.last_qp[row]) + 1)
    }
