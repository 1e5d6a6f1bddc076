"""Walking packets through a fabric, hop by hop, as its tables send them.

One packet for each QP of each flow. All packets that are on their way take a step
together; what a switch does with those it has is asked of its table. The world, not
any plan, says whether a link carries. A table decides by the packet alone, so a
packet that comes to a switch for the second time is in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows, qp_ports
from heddle_controller.model.plan import Paths


class Forwarding(Protocol):
    """Whatever sends packets on: agents' tables, or a way to choose paths under test."""

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """The arc by which each packet leaves the switch it is at; ``NONE``: dropped."""


@runtime_checkable
class Hosting(Protocol):
    """A ``Forwarding`` that also knows by which link QPs leave NICs of several."""

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """The arc by which each packet leaves its NIC; ``NONE``: as the NIC itself will."""


class Fate(IntEnum):
    """What became of a packet."""

    ON_ITS_WAY = 0
    DELIVERED = 1
    BLACK_HOLE = 2
    """A switch had no next hop for it."""
    DEAD_LINK = 3
    """It was sent over a link that is down, or its NIC has none that is up."""
    LOOP = 4
    """It came to a switch for the second time."""
    MISDELIVERED = 5
    """It came to a NIC that it was not for."""


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The ways of packets; one row each, by flow and then by QP."""

    flow: Ints
    qp: Ints
    fate: Ints
    last: Ints
    """Node row where each packet was last seen."""
    arcs: Ints
    """Arcs taken in order of travel, then ``NONE``; shape (packets, most hops)."""

    @property
    def lost(self) -> Ints:
        """Rows of packets that were not delivered."""
        return np.flatnonzero(self.fate != Fate.DELIVERED)

    def paths(self) -> Paths:
        """Paths of the packets delivered; neighbouring QPs of a flow on one way share a path."""
        rows = np.flatnonzero(self.fate == Fate.DELIVERED)
        flow, qp, arcs = self.flow[rows], self.qp[rows], self.arcs[rows]
        new = np.ones(len(rows), dtype=np.bool_)
        new[1:] = (np.diff(flow) != 0) | (np.diff(qp) != 1) | (arcs[1:] != arcs[:-1]).any(axis=1)
        starts = np.flatnonzero(new)
        ends = np.append(starts[1:], len(rows)) - 1
        taken = arcs[starts]
        used = taken != NONE
        first = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int64)
        return Paths(flow[starts], qp[starts], qp[ends[: len(starts)]], first, taken[used])

    def story(self, fabric: Fabric, flows: Flows, row: int) -> str:
        """What became of one packet, in words: "flow f1 QP 0: loop at s1 (l0 s0 l1 s0)"."""
        ids, heads = fabric.structure.nodes.ids, fabric.structure.head
        arcs = self.arcs[row]
        way = " ".join(ids[node] for node in heads[arcs[arcs != NONE]].tolist())
        fate = Fate(int(self.fate[row])).name.lower().replace("_", " ")
        flow = flows.ids[int(self.flow[row])]
        return f"flow {flow} QP {self.qp[row]}: {fate} at {ids[int(self.last[row])]} ({way})"


def walk(fabric: Fabric, flows: Flows, forwarding: Forwarding, ports: Ints | None = None) -> Walk:
    """Send a packet of each QP of each flow through a fabric in the state it is given in.

    ``ports`` are the UDP source ports of the QPs, by flow and then QP; by default those that
    ``Flows.source_ports`` gives.
    """
    flow = np.repeat(np.arange(len(flows), dtype=np.int64), flows.qps)
    qp = np.arange(len(flow)) - np.repeat(np.cumsum(flows.qps) - flows.qps, flows.qps)
    packets = _Packets(fabric, flows, flow, qp, ports)
    packets.leave_nics(forwarding)
    while len(packets.open):
        packets.step(forwarding)
    columns = packets.taken or [np.empty(len(flow), dtype=np.int64)]
    return Walk(flow, qp, packets.fate, packets.at, np.stack(columns, axis=1))


class _Packets:
    """All packets, and the rows of those still on their way."""

    def __init__(
        self, fabric: Fabric, flows: Flows, flow: Ints, qp: Ints, ports: Ints | None
    ) -> None:
        self.fabric = fabric
        self.source, self.destination = flows.source[flow], flows.destination[flow]
        self.port = qp_ports(flows.source_ports()[flow], qp) if ports is None else ports
        self.at = self.source.copy()
        self.fate = np.zeros(len(flow), dtype=np.int64)
        self.open = np.arange(len(flow), dtype=np.int64)
        self.taken: list[Ints] = []
        self._visited: list[Ints] = []

    def leave_nics(self, forwarding: Forwarding) -> None:
        """The first hop: a NIC with several live links spreads its QPs over them by port.

        Unless it has been told better, and that link lives.
        """
        structure = self.fabric.structure
        first, arcs = structure.out
        alive = self.fabric.carries[arcs]
        live_before = np.concatenate([[0], np.cumsum(alive)])
        live = live_before[first[self.source + 1]] - live_before[first[self.source]]
        nth = self.port % np.maximum(live, 1)
        chosen = np.append(arcs[alive], NONE)[
            np.where(live > 0, live_before[first[self.source]] + nth, -1)
        ]
        several = np.flatnonzero(np.diff(first)[self.source] > 1)
        if len(several) and isinstance(forwarding, Hosting):
            told = forwarding.leave(
                self.source[several], self.destination[several], self.port[several]
            )
            good = (told != NONE) & self.fabric.carries[told]
            chosen[several[good]] = told[good]
        self.fate[live == 0] = Fate.DEAD_LINK
        self.open = np.flatnonzero(live > 0)
        self._move(chosen[self.open])

    def step(self, forwarding: Forwarding) -> None:
        """Ask the switches where to, and go there."""
        rows = self.open
        arcs = forwarding.forward(
            self.at[rows], self.source[rows], self.destination[rows], self.port[rows]
        )
        lost = arcs == NONE
        self.fate[rows[lost]] = Fate.BLACK_HOLE
        self.open = rows[~lost]
        arcs = arcs[~lost]
        if (self.fabric.structure.tail[arcs] != self.at[self.open]).any():
            raise ValueError("a switch was said to send by a link of another; mend the forwarding")
        dead = ~self.fabric.carries[arcs]
        self.fate[self.open[dead]] = Fate.DEAD_LINK
        self.open = self.open[~dead]
        self._move(arcs[~dead])

    def _move(self, arcs: Ints) -> None:
        """Take the open packets over arcs, and close those that have come to an end."""
        taken = np.full(len(self.at), NONE, dtype=np.int64)
        taken[self.open] = arcs
        self.taken.append(taken)
        self.at[self.open] = self.fabric.structure.head[arcs]
        here = self.at[self.open]
        again = np.zeros(len(here), dtype=np.bool_)
        for before in self._visited:
            again |= before[self.open] == here
        self._visited.append(self.at.copy())
        nic = self.fabric.structure.nodes.kind[here] == NodeKind.NIC
        home = here == self.destination[self.open]
        self._close(again, Fate.LOOP)
        self._close(nic & ~home, Fate.MISDELIVERED)
        self._close(home, Fate.DELIVERED)
        self.open = self.open[~(again | nic | home)]

    def _close(self, which: Bools, fate: Fate) -> None:
        self.fate[self.open[which]] = fate
