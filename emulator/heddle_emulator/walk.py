"""Measure a fabric by walking packets through its forwarding tables, never by reading the plan.

``walk`` sends one packet for each QP of each flow. All packets on their way take one step together,
and each switch's table decides where its packets go. The state of the fabric, and not a plan, says
whether a link carries. A table decides by the packet alone, so a packet that reaches a switch for
the second time is in a loop.

``measure`` returns what the walk says about a fabric: link loads, collisions, and how slow the
slowest flow is. A collision is a QP that crosses a link between two switches on which more is sent
than it can carry. On a tier that is over-subscribed on purpose some are unavoidable, so they are
also counted by tier.

``probed`` does what hosts do: it finds the path that each UDP source port between two NICs takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, ranges, starts
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows, qp_ports
from heddle_controller.model.plan import Paths, arc_loads, utilization, worst_by_tier
from heddle_controller.model.port_paths import Learned, PortPaths, gathered
from heddle_emulator.fluid.rates import flow_ratios


class Forwarding(Protocol):
    """Forwards packets: the tables of agents, or a strategy under test."""

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Return the arc by which each packet leaves its switch; ``NONE`` if it is dropped."""


@runtime_checkable
class Hosting(Protocol):
    """A ``Forwarding`` that also knows by which link QPs leave NICs with several links."""

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Return the arc by which each packet leaves its NIC; ``NONE``: the NIC chooses."""


class Fate(IntEnum):
    """What became of a packet."""

    ON_ITS_WAY = 0
    DELIVERED = 1
    BLACK_HOLE = 2
    """A switch had no next hop for it."""
    DEAD_LINK = 3
    """It was sent over a link that is down, or its NIC has no link that is up."""
    LOOP = 4
    """It reached a switch for the second time."""
    MISDELIVERED = 5
    """It reached a NIC that is not its destination."""


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The routes that packets took, one row per packet, ordered by flow and then by QP."""

    flow: Ints
    qp: Ints
    fate: Ints
    last: Ints
    """Node row where each packet was last seen."""
    arcs: Ints
    """Arcs in the order of travel, then ``NONE``; shape (packets, most hops)."""

    @property
    def lost(self) -> Ints:
        """Rows of packets that were not delivered."""
        return np.flatnonzero(self.fate != Fate.DELIVERED)

    def paths(self) -> Paths:
        """Return the paths of delivered packets.

        Consecutive QPs of a flow that took the same route share a path.
        """
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
        """Describe one packet's way in words: "flow f1 QP 0: loop at s1 (l0 s0 l1 s0)"."""
        ids, heads = fabric.structure.nodes.ids, fabric.structure.head
        arcs = self.arcs[row]
        way = " ".join(ids[node] for node in heads[arcs[arcs != NONE]].tolist())
        fate = Fate(int(self.fate[row])).name.lower().replace("_", " ")
        flow = flows.ids[int(self.flow[row])]
        return f"flow {flow} QP {self.qp[row]}: {fate} at {ids[int(self.last[row])]} ({way})"


def walk(fabric: Fabric, flows: Flows, forwarding: Forwarding, ports: Ints | None = None) -> Walk:
    """Send a packet for each QP of each flow through a fabric in the given state.

    ``ports`` are the UDP source ports of the QPs, ordered by flow and then by QP; the default is
    what ``Flows.source_ports`` gives.
    """
    flow = np.repeat(np.arange(len(flows), dtype=np.int64), flows.qps)
    qp = ranges(np.zeros_like(flows.qps), flows.qps)
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
        """Take the first hop; a NIC with several live links spreads its QPs over them by port.

        If ``forwarding`` names a live link for a QP, the QP takes that one.
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
        """Ask each switch where its packets go, and move them there."""
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
        """Move the open packets over arcs, and close those that have reached an end."""
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


FULL = 1 + 1e-9
"""Utilisation above which a link counts as overloaded; the small excess allows for rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """The results of one walk. Lost packets carry nothing, which makes their flows slower."""

    walk: Walk
    paths: Paths
    loads: Floats
    """Gbit/s of each arc; each job counts with its worst phase, and jobs add up."""
    worst: dict[str, float]
    """Greatest utilisation of each tier, from the hosts up."""
    collisions: int
    """QPs that cross an overloaded link between switches."""
    collisions_by_tier: dict[str, int]
    ratios: Floats
    """Max-min fair rate over demand of each flow, 0 to 1."""

    @property
    def slowest(self) -> float:
        """The smallest ratio of any flow; 1.0 is the roofline, and the value without flows."""
        return float(self.ratios.min(initial=1.0))


def measure(fabric: Fabric, flows: Flows, forwarding: Forwarding) -> Measurement:
    """Walk the packets of all flows and measure the result."""
    walked = walk(fabric, flows, forwarding)
    paths = walked.paths()
    loads = arc_loads(2 * fabric.link_count, flows, paths)
    overloaded = utilization(fabric, loads) > FULL
    overloaded &= ~_at_nic(fabric)
    tiers = {
        name: _qps_over(paths, overloaded & (fabric.structure.tier_of_arc == row))
        for row, name in enumerate(fabric.structure.tiers)
    }
    return Measurement(
        walk=walked,
        paths=paths,
        loads=loads,
        worst=worst_by_tier(fabric, loads),
        collisions=_qps_over(paths, overloaded),
        collisions_by_tier=tiers,
        ratios=flow_ratios(fabric.structure.capacity, flows, paths),
    )


def crossing(seen: Walk, links: Sequence[int]) -> Ints:
    """Return the rows of flows that had a QP on any of the links."""
    over = np.isin(seen.arcs >> 1, list(links)) & (seen.arcs != NONE)
    return np.unique(seen.flow[over.any(axis=1)])


def moved(before: Walk, after: Walk) -> Ints:
    """Return the rows of flows with a QP whose route differs between the two walks."""
    hops = max(before.arcs.shape[1], after.arcs.shape[1])
    one, other = (_wide(seen.arcs, hops) for seen in (before, after))
    return np.unique(before.flow[(one != other).any(axis=1)])


def _wide(arcs: Ints, hops: int) -> Ints:
    return np.pad(arcs, ((0, 0), (0, hops - arcs.shape[1])), constant_values=NONE)


def _qps_over(paths: Paths, arcs: Bools) -> int:
    return int(paths.qp_count[paths.crosses(arcs)].sum())


def _at_nic(fabric: Fabric) -> Bools:
    kind = fabric.structure.nodes.kind
    ends = kind[fabric.structure.tail], kind[fabric.structure.head]
    return np.asarray((ends[0] == NodeKind.NIC) | (ends[1] == NodeKind.NIC))


def probed(fabric: Fabric, flows: Flows, forwarding: Forwarding, ports: Ints) -> PortPaths:
    """Return the paths that UDP source ports take between the NICs of each flow.

    Lost packets are left out.

    Args:
        fabric: The fabric in its state at the time of probing.
        flows: Only their sources and destinations matter.
        forwarding: Forwards the packets.
        ports: UDP source ports, shape (flows, ports per flow).
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
