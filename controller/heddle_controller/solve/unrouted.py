"""Reasons why a flow has no path, in words that name the cause.

Usable links sort the switches into connected parts. Two NICs are kept apart by the links that leave
the parts around one of them, which are all unusable. The reason names the smaller of the two sides.
Parts are found only once, so all flows of an isolated zone cost little more to explain than one.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct
from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.solve.colouring.layers import ordinals
from heddle_controller.solve.network import Network

MOST_NAMED = 6
"""Most links that one reason names. The others are counted."""


class Reasons:
    """Reasons on one network. Nothing is computed before the first is requested."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._fabric = network.fabric
        self._leaving: dict[bytes, Ints] = {}

    def of(self, source: int, destination: int) -> str:
        """Return why two NICs have no path: which side is cut off, and by which links."""
        ids = self._fabric.structure.nodes.ids
        for nic in (source, destination):
            if self._network.terminal[nic] == NONE:
                links = self._arcs_to_switches(nic) >> 1
                return f"{ids[nic]} has no usable uplink: {self._told(links)}"
        ends = (source, destination)
        parts = [self._parts_around(nic) for nic in ends]
        sizes = [int(self._size[around].sum()) for around in parts]
        near = int(sizes[1] < sizes[0])
        return (
            f"no usable link leaves the part of the fabric around {ids[ends[near]]}"
            f" ({sizes[near]} switches): "
            + self._told(self._cut(parts[near], ends[near], ends[1 - near]))
        )

    def joined(self, flows: Flows) -> Bools:
        """Return whether usable links join the ends of each flow, shape (flows,).

        Flows of a NIC without a usable uplink count as joined.
        """
        network = self._network
        result = np.ones(len(flows), dtype=np.bool_)
        if network.usable.all():
            return result
        reached = self._reached
        source, destination = reached[flows.source], reached[flows.destination]
        told = (source != NONE).any(axis=1) & (destination != NONE).any(axis=1)
        meet = source[told][:, :, None] == destination[told][:, None, :]
        meet &= (source[told] != NONE)[:, :, None]
        result[told] = meet.any(axis=(1, 2))
        return result

    def _cut(self, parts: Ints, nic: int, other: int) -> Ints:
        """Return the links that would lead from a NIC, and the parts around it, to another NIC."""
        head = self._network.head
        own, last = self._arcs_to_switches(nic), self._arcs_to_switches(other)
        own = own[~np.isin(self._part[head[own]], parts)]
        last = last[np.isin(self._part[head[last]], parts)]
        return distinct(np.concatenate([self._links_leaving(parts), own >> 1, last >> 1]))

    def _links_leaving(self, parts: Ints) -> Ints:
        """Return the links between a switch in some parts and one outside of them."""
        key = parts.tobytes()
        if key not in self._leaving:
            links = self._fabric.structure.links
            a, b = self._part[links.a], self._part[links.b]
            crossing = (np.isin(a, parts) != np.isin(b, parts)) & (a != NONE) & (b != NONE)
            self._leaving[key] = np.flatnonzero(crossing)
        return self._leaving[key]

    def _parts_around(self, nic: int) -> Ints:
        """Return the parts that a NIC has usable uplinks to, ascending."""
        arcs = self._arcs_to_switches(nic)
        usable = arcs[self._network.usable[arcs]]
        return distinct(self._part[self._network.head[usable]])

    def _arcs_to_switches(self, nic: int) -> Ints:
        own = self._fabric.structure.leaving(nic)
        rising: Ints = own[self._network.level[self._network.head[own]] != NodeKind.NIC]
        return rising

    @cached_property
    def _reached(self) -> Ints:
        """The parts that each NIC has usable uplinks to, padded; shape (nodes, uplinks)."""
        network = self._network
        up = np.flatnonzero(network.usable & (network.level[network.tail] == NodeKind.NIC))
        table = np.full(
            (self._fabric.node_count, int(network.uplinks.max(initial=1))), NONE, dtype=np.int64
        )
        table[network.tail[up], ordinals(network.tail[up])] = self._part[network.head[up]]
        return table

    @cached_property
    def _part(self) -> Ints:
        """Number of the part of each switch; ``NONE`` for NICs."""
        return self._network.switch_parts()

    @cached_property
    def _size(self) -> Ints:
        """Number of switches in each part."""
        return np.bincount(self._part[self._part != NONE])

    def _told(self, links: Ints) -> str:
        """Return the states of links in words."""
        fabric = self._fabric
        if not len(links):
            return "there are no links that could lead further"
        named = [
            f"{fabric.link_name(row)} is {State(int(fabric.effective[row])).name.lower()}"
            for row in np.sort(links)[:MOST_NAMED].tolist()
        ]
        more = f", and {len(links) - MOST_NAMED} more" if len(links) > MOST_NAMED else ""
        return ", ".join(named) + more
