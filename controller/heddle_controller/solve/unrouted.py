"""Why a flow has no path, in words that name what is in the way."""

from __future__ import annotations

from collections import deque

import numpy as np

from heddle_controller.model.fabric import NONE, Fabric, NodeKind, State
from heddle_controller.solve.network import Network

MOST_NAMED = 6
"""Links named in one reason; the rest are counted."""


def reason_unrouted(network: Network, source: int, destination: int) -> str:
    """The empty cut between two NICs: who is cut off, and by which links."""
    fabric, ids = network.fabric, network.fabric.structure.nodes.ids
    for nic in (source, destination):
        if network.terminal[nic] == NONE:
            return f"{ids[nic]} has no usable uplink: {_state_of_links(fabric, {nic}, nic)}"
    reached = _reached(network, source)
    back = _reached(network, destination)
    ends = (source, destination) if len(reached) <= len(back) else (destination, source)
    name, other = ends
    side = reached if name == source else back
    switches = sum(1 for node in side if node != name)
    return (
        f"no usable link leaves the part of the fabric around {ids[name]}"
        f" ({switches} switches): {_state_of_links(fabric, side, other)}"
    )


def _reached(network: Network, start: int) -> set[int]:
    """Nodes that packets from a NIC can reach through switches, other NICs left out."""
    found, queue = {start}, deque([start])
    while queue:
        for node in network.head[network.out(queue.popleft())].tolist():
            if node not in found and network.level[node] != 0:
                found.add(node)
                queue.append(node)
    return found


def _state_of_links(fabric: Fabric, inside: set[int], other: int) -> str:
    """The links that would lead out of a set of nodes to ``other``, and how they stand."""
    links = fabric.structure.links
    inner = np.zeros(fabric.node_count, dtype=np.bool_)
    inner[list(inside)] = True
    kind = fabric.structure.nodes.kind
    outside = np.where(inner[links.a], links.b, links.a)
    # A link to a third NIC leads no further, dead or not.
    further = (inner[links.a] != inner[links.b]) & (
        (kind[outside] != NodeKind.NIC) | (outside == other)
    )
    leaving = np.flatnonzero(further & (fabric.effective != State.UP)).tolist()
    if not leaving:
        return "there are no links that could lead further"
    named = [
        f"{fabric.link_label(row)} is {State(int(fabric.effective[row])).name.lower()}"
        for row in leaving[:MOST_NAMED]
    ]
    more = f", and {len(leaving) - MOST_NAMED} more" if len(leaving) > MOST_NAMED else ""
    return ", ".join(named) + more
