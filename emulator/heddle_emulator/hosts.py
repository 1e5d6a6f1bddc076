"""Hosts whose NICs have several links: the link by which each QP leaves its NIC.

No switch can choose that link. The plan does, and the API returns it with each route. The hosts
here follow the newest plan once all switches hold it, as a host would that reads its routes. If a
host has no route, or the link of its route is down, its NIC spreads QPs by UDP source port over the
links that are up, as a bond does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle.v1 import plan_pb2
from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import FIRST_SOURCE_PORT, SOURCE_PORT_COUNT
from heddle_emulator.client import Client

PORTS = 1 << 16


def of_several(fabric: Fabric) -> bool:
    """Return whether any NIC of a fabric has several links."""
    structure = fabric.structure
    links = np.bincount(structure.tail, minlength=fabric.node_count)
    return bool((links[structure.nodes.kind == NodeKind.NIC] > 1).any())


class Hosts:
    """The links that hosts use for their QPs, taken from the routes of a plan."""

    def __init__(self, fabric: Fabric, routes: Sequence[plan_pb2.Route] = ()) -> None:
        self._nodes = fabric.node_count
        links, index = _uplinks(fabric), fabric.structure.index
        codes, arcs = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for route in routes:
            pair = (index[route.source] * self._nodes + index[route.destination]) * PORTS
            for path in route.paths:
                qp = np.arange(path.first_qp, path.last_qp + 1)
                offset = (route.source_port - FIRST_SOURCE_PORT + qp) % SOURCE_PORT_COUNT
                codes.append(pair + FIRST_SOURCE_PORT + offset)
                arcs.append(np.full(len(qp), links[path.nodes[0], path.nodes[1], path.keys[0]]))
        self._codes, first = np.unique(np.concatenate(codes), return_index=True)
        self._arcs = np.concatenate(arcs)[first]

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Return the arc by which each packet has to leave its NIC; ``NONE`` if no route says so.

        The arguments are node rows and UDP source ports, one element per packet.
        """
        if not len(self._codes):
            return np.full(len(nic), NONE, dtype=np.int64)
        wanted = (nic * self._nodes + destination) * PORTS + source_port
        place = np.minimum(np.searchsorted(self._codes, wanted), len(self._codes) - 1)
        return np.where(self._codes[place] == wanted, self._arcs[place], NONE)


async def told_hosts(fabric: Fabric, client: Client) -> Hosts:
    """Return hosts that follow the newest plan; empty ones if every NIC has one link.

    Raises:
        HeddleError: The controller did not answer.
    """
    return Hosts(fabric, (await client.list_routes())[1] if of_several(fabric) else ())


def _uplinks(fabric: Fabric) -> dict[tuple[str, str, str], int]:
    """Return the arc out of a NIC by the ids of its two ends and the link's key."""
    structure, ids = fabric.structure, fabric.structure.nodes.ids
    arcs = np.flatnonzero(structure.nodes.kind[structure.tail] == NodeKind.NIC).tolist()
    return {
        (ids[structure.tail[a]], ids[structure.head[a]], str(structure.links.key[a >> 1])): a
        for a in arcs
    }
