"""The traffic of a drill in virtual time: rates at every moment, and what is lost meanwhile.

Whenever links or tables have changed, ``update`` walks a packet of every QP and takes all streams
the way it went. In between rates follow from max-min fairness as jobs go on. What streams sent
just before their way died is lost for as long as it is dead: senders do not know at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats
from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.drill.cables import Cables
from heddle_emulator.drill.fluid.streams import (
    QpPaths,
    Worth,
    capacity_of,
    schedule_of,
    streams_of,
    ways_of,
    worth_of,
)
from heddle_emulator.drill.fluid.traffic import Traffic
from heddle_emulator.fluid.simulation import FluidSimulation
from heddle_emulator.walk import Forwarding

PACKET_GBIT = 4096 * 8 / 1e9
"""Of what jobs and demands send."""


@dataclass(frozen=True, slots=True, eq=False)
class TrafficState:
    """How everything stood from a moment on."""

    at: float
    ways: QpPaths
    worth: Worth
    losing: Bools
    """Whether each flow loses packets."""
    capacity: Floats
    """Gbit/s of each arc of the fabric."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What happened between two moments, by stream."""

    begin: float
    end: float
    sent: Floats
    """Gbit that arrived."""
    lost: Floats
    """Gbit that did not."""


@dataclass(slots=True, eq=False)
class Losses:
    """Per flow, how long and how much it lost."""

    since: Floats
    """When it began to lose packets, infinite where it does not."""
    longest: Floats
    """Seconds of the longest time it did."""
    packets: Floats
    """For each packet a second that it sends, those that were lost: seconds."""
    looped: Floats
    """The same, of packets that came to a switch twice."""
    moments: Floats
    """How often a packet would have been lost in between two moments."""
    loops: Floats


class TrafficSimulation:
    """A drill's traffic under way."""

    def __init__(
        self, fabric: Fabric, traffic: Traffic, cables: Cables, forwarding: Forwarding
    ) -> None:
        """``fabric`` is as built; ``cables`` are how its links are, which changes."""
        self.fabric, self.traffic, self.cables = fabric, traffic, cables
        self.states: list[TrafficState] = []
        self.spans: list[Span] = []
        ways = self._ways(forwarding)
        schedule, self.index = schedule_of(self.fabric, self.traffic, ways)
        self._capacity = capacity_of(self.fabric, self.traffic)
        self._arcs = 2 * self.fabric.link_count
        self.fluid = FluidSimulation(self._capacity.copy(), schedule)
        count, flows = len(schedule.streams), len(self.traffic.flows)
        self._left = schedule.gbit.copy()
        self._lost_rate = np.zeros(count)
        self._loss = np.zeros(count)
        self.losses = Losses(np.full(flows, np.inf), *(np.zeros(flows) for _ in range(5)))
        self.fluid.advance(0.0)
        self._left = self.fluid.left()
        self._note(ways)
        self._room()

    @property
    def now(self) -> float:
        """Seconds of virtual time."""
        return self.fluid.now

    def advance(self, until: float) -> None:
        """Go on with everything as it is."""
        if until <= self.now:
            return
        begin = self.now
        self.fluid.advance(until)
        left = self.fluid.left()
        sent, self._left = np.maximum(self._left - left, 0.0), left
        lost = self._lost_rate * (until - begin) + sent * self._loss / (1 - self._loss)
        self.spans.append(Span(begin, until, sent, lost))
        state, flows = self.states[-1], self.traffic.flows
        share = self._per_flow(state.ways.dead | self._lossy(state.ways)) / flows.qps
        self.losses.packets += share * (until - begin)
        self.losses.looped += self._per_flow(state.ways.looped) / flows.qps * (until - begin)

    def update(self, forwarding: Forwarding) -> TrafficState:
        """Links or tables have changed, or who is wanted: take the ways of now."""
        ways = self._ways(forwarding)
        rate = self.fluid.shares.rate.copy()
        streams = streams_of(self.fabric, self.traffic, ways)
        stood = streams.limit <= 0
        self._lost_rate = np.where(stood, np.where(self._lost_rate > 0, self._lost_rate, rate), 0.0)
        self._lost_rate[~self._stream_wanted(ways)] = 0.0
        demands = slice(self.index.demands, None)
        qp = self.index.qp[demands]
        flow = self.index.flow[demands]
        offered = self.traffic.flows.gbps[flow] / self.traffic.flows.qps[flow]
        self._lost_rate[demands] = np.where(ways.dead[qp], offered, 0.0)
        self._room()
        self.fluid.redirect(streams)
        self._note(ways)
        return self.states[-1]

    def probe(self, forwarding: Forwarding) -> None:
        """Whether packets would be lost at this very instant; it takes no time."""
        ways = self._ways(forwarding)
        fresh = ways.dead & ~self.states[-1].ways.dead
        self.losses.moments += self._per_flow(fresh) > 0
        self.losses.loops += self._per_flow(ways.looped) > 0

    def _ways(self, forwarding: Forwarding) -> QpPaths:
        present = self.fabric.with_links(self._link_states())
        now = self.fluid.now if self.states else 0.0
        return ways_of(present, self.traffic, now, forwarding)

    def _link_states(self) -> dict[int, State]:
        rows = {*self.cables.cut, *self.cables.silent, *self.cables.powerless}
        return {row: State.DOWN for row in rows if not self.cables.carries(row)}

    def _room(self) -> None:
        """Give arcs what they carry now."""
        present = self._present_capacity()
        changed = np.flatnonzero(present != self.fluid.shares.capacity[: self._arcs])
        if len(changed):
            self.fluid.resize(changed, present[changed])

    def _present_capacity(self) -> Floats:
        return self.cables.capacity(self.fabric)

    def _note(self, ways: QpPaths) -> None:
        """Keep how everything stands now."""
        capacity = self._present_capacity()
        lossy = self._lossy(ways)
        losing = self._per_flow(ways.dead | lossy) > 0
        self._count(losing)
        own = self.index.qp != NONE
        self._loss = np.zeros(len(self.index.flow))
        arcs = self.cables.loss(self.fabric)
        if lossy.any():
            logs = np.log1p(-np.minimum(arcs, 1 - 1e-12))[ways.arcs]
            owner = np.repeat(np.arange(len(ways.alive)), np.diff(ways.first))
            kept = np.exp(np.bincount(owner, weights=logs, minlength=len(ways.alive)))
            self._loss[own] = np.where(lossy, 1 - kept, 0.0)[self.index.qp[own]]
        worth = worth_of(self.traffic, ways, capacity)
        self.states.append(TrafficState(self.fluid.now, ways, worth, losing, capacity))

    def _count(self, losing: Bools) -> None:
        """Begin and end the times in which flows lose packets."""
        known, now = self.losses, self.fluid.now
        ended = np.isfinite(known.since) & ~losing
        known.longest[ended] = np.maximum(known.longest[ended], now - known.since[ended])
        known.since[~losing] = np.inf
        known.since[losing] = np.minimum(known.since[losing], now)

    def _lossy(self, ways: QpPaths) -> Bools:
        return ways.crosses(self.cables.lossy(self.fabric)) & ways.alive

    def _per_flow(self, qps: Bools) -> Floats:
        """How many QPs of each flow are marked."""
        flows = self.traffic.flows
        owner = np.repeat(np.arange(len(flows)), flows.qps)
        return np.bincount(owner[qps], minlength=len(flows)).astype(np.float64)

    def _stream_wanted(self, ways: QpPaths) -> Bools:
        """Streams of flows that are wanted; a ring is where the job is."""
        wanted = np.ones(len(self.index.flow), dtype=np.bool_)
        own = self.index.qp != NONE
        wanted[own] = ways.wanted[self.index.qp[own]]
        script, flows = self.traffic.script, self.traffic.script.flows
        crossing = script.flow != NONE
        gone = ~self.traffic.active(self.fluid.now)[: len(flows)]
        ended = np.zeros(len(script), dtype=np.bool_)
        ended[script.activity[crossing][gone[script.flow[crossing]]]] = True
        wanted[self.index.messages : self.index.demands] = ~ended[self.index.ring_activity]
        return wanted
