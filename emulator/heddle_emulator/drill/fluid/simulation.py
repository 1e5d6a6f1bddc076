"""Simulate the traffic of a drill in virtual time: paths and rates at every moment, and losses.

Whenever links or tables change, ``update`` walks a packet of every QP through the agents' tables
and moves all streams to the paths found. In between, rates follow from max-min fairness as jobs go
on. While a path is dead, a job loses what it sent there at its last rate, and a demand all that it
asks for, whatever it got before: senders do not know at once, and a demand that never had a path
loses as much. A job that has done all its iterations wants nothing more.

There is one stream for each QP of a message, one for each ring, and one for each QP of a demand.
Streams stay the same for the whole run. The stream of a QP without a path does not move, and
neither does a ring that waits for such a QP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, arc_loads
from heddle_emulator.drill.cables import Cables
from heddle_emulator.drill.fluid.traffic import Traffic
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.fluid.simulation import FluidSimulation
from heddle_emulator.fluid.streams import Schedule, Streams, join_schedules, places
from heddle_emulator.fluid.wire import NO_COST
from heddle_emulator.play.stage import capacities, staged
from heddle_emulator.strategy.carried import whole
from heddle_emulator.traffic.script import Script
from heddle_emulator.walk import Fate, Forwarding, walk

ENOUGH_SECONDS = 1e4
"""Seconds for which demands have something to send: more than any drill lasts."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamIndex:
    """Says which flow, QP or ring each stream is of, and where the kinds of streams begin."""

    flow: Ints
    """Row of each stream's flow; ``NONE`` for a ring."""
    qp: Ints
    """Row of each stream's QP among all QPs; ``NONE`` for a ring."""
    ring_activity: Ints
    """Activity of each ring, in order of their streams."""
    messages: int
    """Number of streams of messages, which come first; rings follow."""
    demands: int
    """The first stream of demands, which come last."""


def capacity_of(fabric: Fabric, traffic: Traffic) -> Floats:
    """Return Gbit/s of the fabric's arcs, and then of each GPU's connection out and in."""
    return capacities(fabric, traffic.script)


def schedule_of(fabric: Fabric, traffic: Traffic, ways: QpPaths) -> tuple[Schedule, StreamIndex]:
    """Return the schedule of all traffic over the present paths, and an index of its streams."""
    jobs = _jobs(fabric, traffic, ways)
    rest = _demands(traffic, ways)
    index = _stream_index(traffic, len(jobs.streams))
    schedule = join_schedules([jobs, rest])
    return replace(schedule, streams=_held(schedule.streams, traffic, ways, index)), index


def streams_of(fabric: Fabric, traffic: Traffic, ways: QpPaths) -> Streams:
    """Return the streams of ``schedule_of`` over the present paths."""
    return schedule_of(fabric, traffic, ways)[0].streams


def _jobs(fabric: Fabric, traffic: Traffic, ways: QpPaths) -> Schedule:
    flows = traffic.script.flows
    return staged(fabric, traffic.script, whole(flows, ways.paths(flows)), NO_COST, apart=True)


def _demands(traffic: Traffic, ways: QpPaths) -> Schedule:
    """Return an endless activity for each flow of a demand, with a stream for each of its QPs."""
    first = len(traffic.script.flows)
    flows = traffic.flows.take(np.arange(first, len(traffic.flows)))
    begin = int(traffic.first_qp[first])
    owner = np.repeat(np.arange(len(flows), dtype=np.int64), flows.qps)
    limit = flows.gbps[owner] / flows.qps[owner]
    uses = ways.first[begin:] - ways.first[begin]
    arcs = ways.arcs[int(ways.first[begin]) :]
    streams = Streams(np.ones(len(owner)), limit, uses, arcs, np.ones(len(arcs)))
    nothing, nobody = np.zeros(len(flows)), np.empty(0, dtype=np.int64)
    return Schedule(nothing, nothing, nobody, nobody, streams, owner, limit * ENOUGH_SECONDS)


def _stream_index(traffic: Traffic, job_streams: int) -> StreamIndex:
    script, first_qp = traffic.script, traffic.first_qp
    single = (np.bincount(script.activity, minlength=len(script)) == 1)[script.activity]
    message = np.flatnonzero(single & (script.flow != NONE))
    flow = script.flow[message]
    count = traffic.flows.qps[flow]
    owner = np.repeat(np.arange(len(flow)), count)
    qp = first_qp[flow][owner] + np.arange(len(owner)) - (np.cumsum(count) - count)[owner]
    rings = np.unique(script.activity[~single | (script.flow == NONE)])
    if len(owner) + len(rings) != job_streams:
        raise ValueError("the index has to stage one stream for each QP")
    rest = np.arange(int(first_qp[len(script.flows)]), int(first_qp[-1]), dtype=np.int64)
    none = np.full(len(rings), NONE, dtype=np.int64)
    every = np.repeat(np.arange(len(traffic.flows), dtype=np.int64), traffic.flows.qps)
    return StreamIndex(
        np.concatenate([flow[owner], none, every[rest]]),
        np.concatenate([qp, none, rest]),
        rings,
        len(owner),
        job_streams,
    )


def _held(streams: Streams, traffic: Traffic, ways: QpPaths, index: StreamIndex) -> Streams:
    """Return the streams, with a limit of 0 for those without a path and for waiting rings."""
    limit = streams.limit.copy()
    own = index.qp != NONE
    limit[own] = np.where(ways.alive[index.qp[own]], limit[own], 0.0)
    waiting = rings_waiting(traffic.script, traffic.flows, ways, index)
    limit[index.messages : index.demands][waiting > 0] = 0.0
    return replace(streams, limit=limit)


def rings_waiting(script: Script, flows: Flows, ways: QpPaths, index: StreamIndex) -> Floats:
    """Return the number of QPs without a path that each ring waits for, shape (rings,)."""
    lost = np.zeros(len(flows))
    flow_of_qp = np.repeat(np.arange(len(flows)), flows.qps)
    np.add.at(lost, flow_of_qp[~ways.alive], 1.0)
    crossing = script.flow != NONE
    waiting = np.zeros(len(script))
    np.add.at(waiting, script.activity[crossing], lost[script.flow[crossing]])
    found: Floats = waiting[index.ring_activity]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class QpPaths:
    """The path of every QP of all flows, one row each. QPs that are not wanted have no arcs."""

    wanted: Bools
    """Whether the QP's flow is wanted now."""
    alive: Bools
    """Whether the QP's packets arrive."""
    looped: Bools
    """Whether the QP's packets go in a loop."""
    first: Ints
    """Where the arcs of each QP begin in ``arcs``, shape (QPs + 1,)."""
    arcs: Ints
    """The arcs of the paths of QPs whose packets arrive."""

    @property
    def dead(self) -> Bools:
        """Whether each QP is wanted and its packets do not arrive."""
        return self.wanted & ~self.alive

    def paths(self, flows: Flows) -> Paths:
        """Return a path for each QP of ``flows``; that of a dead QP has no arcs."""
        flow = np.repeat(np.arange(len(flows), dtype=np.int64), flows.qps)
        qp = np.arange(len(flow), dtype=np.int64) - starts(flows.qps)[:-1][flow]
        count = len(flow)
        return Paths(flow, qp, qp, self.first[: count + 1], self.arcs[: int(self.first[count])])

    def without(self, gone: Bools) -> QpPaths:
        """Return the paths if the marked QPs are not wanted, shape (QPs,)."""
        lengths = np.diff(self.first)
        kept = ~np.repeat(gone, lengths)
        return QpPaths(
            self.wanted & ~gone,
            self.alive & ~gone,
            self.looped & ~gone,
            starts(np.where(gone, 0, lengths)),
            self.arcs[kept],
        )

    def crosses(self, arcs: Bools) -> Bools:
        """Return whether each QP's path uses any of the marked arcs."""
        owner = np.repeat(np.arange(len(self.alive)), np.diff(self.first))
        hit = np.zeros(len(self.alive), dtype=np.bool_)
        hit[owner[arcs[self.arcs]]] = True
        return hit


def ways_of(fabric: Fabric, traffic: Traffic, active: Bools, forwarding: Forwarding) -> QpPaths:
    """Walk a packet of every QP of active flows through ``fabric`` in its present state."""
    first_qp, qps = traffic.first_qp, traffic.flows.qps
    rows = np.flatnonzero(active)
    walked = walk(fabric, traffic.flows.take(rows), forwarding)
    own = places(first_qp, rows)
    count = int(first_qp[-1])
    wanted, alive, looped = (np.zeros(count, dtype=np.bool_) for _ in range(3))
    wanted[own] = True
    alive[own] = walked.fate == Fate.DELIVERED
    looped[own] = walked.fate == Fate.LOOP
    taken = (walked.arcs != NONE) & (walked.fate == Fate.DELIVERED)[:, None]
    lengths = np.zeros(count, dtype=np.int64)
    lengths[own] = taken.sum(axis=1)
    assert len(own) == int(qps[rows].sum())
    return QpPaths(wanted, alive, looped, starts(lengths), walked.arcs[taken])


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """How good the present paths are, by the same measures as plans are judged."""

    ratios: Floats
    """Max-min fair rate over demand of each flow, 0 to 1; 1 for flows that are not wanted."""
    utilization: Floats
    """Load over capacity of each arc."""


def worth_of(traffic: Traffic, ways: QpPaths, capacity: Floats) -> Worth:
    """Evaluate paths; ``capacity`` has the present Gbit/s of each arc, 0 if it carries nothing."""
    flows = traffic.flows
    kept = np.flatnonzero(ways.alive)
    paths = ways.paths(flows).take(kept)
    room = np.maximum(capacity, np.finfo(float).tiny)
    ratios = flow_ratios(room, flows, paths)
    wanted = np.zeros(len(flows), dtype=np.bool_)
    wanted[np.repeat(np.arange(len(flows)), flows.qps)[ways.wanted]] = True
    loads = arc_loads(len(capacity), flows, paths)
    used = np.divide(loads, capacity, out=np.zeros(len(loads)), where=capacity > 0)
    return Worth(np.where(wanted, ratios, 1.0), used)


PACKET_GBIT = 4096 * 8 / 1e9
"""Size in Gbit of a packet of jobs and demands."""


@dataclass(frozen=True, slots=True, eq=False)
class TrafficState:
    """The state of the traffic from a moment on, until the next state."""

    at: float
    ways: QpPaths
    worth: Worth
    losing: Bools
    """Whether each flow loses packets."""
    capacity: Floats
    """Gbit/s of each arc of the fabric."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """What streams sent and lost between two moments."""

    begin: float
    end: float
    sent: Floats
    """Gbit of each stream that arrived."""
    lost: Floats
    """Gbit of each stream that did not arrive."""


@dataclass(slots=True, eq=False)
class Losses:
    """How long and how much each flow lost; all arrays have shape (flows,)."""

    since: Floats
    """When the flow began to lose packets; infinite if it loses none now."""
    longest: Floats
    """Longest time in seconds for which the flow lost packets."""
    packets: Floats
    """Seconds for which the flow lost packets, as a mean over its QPs.

    A QP that loses a share of its packets counts for that share of the time, so that this times
    packets per second is the number of lost packets."""
    looped: Floats
    """The same for packets that went in a loop."""
    moments: Floats
    """At how many calls of ``TrafficSimulation.probe`` the flow would have lost a packet."""
    loops: Floats
    """At how many calls of ``TrafficSimulation.probe`` a packet would have gone in a loop."""


class TrafficSimulation:
    """The traffic of a drill while it runs."""

    def __init__(
        self, fabric: Fabric, traffic: Traffic, cables: Cables, forwarding: Forwarding
    ) -> None:
        """Take the fabric as it was built, and ``cables``, the changing condition of its links."""
        self.fabric, self.traffic, self.cables = fabric, traffic, cables
        self.states: list[TrafficState] = []
        self.spans: list[Span] = []
        self._done = np.zeros(len(traffic.placed) + 1, dtype=np.bool_)
        """Whether each placement has done all its iterations; the last element is for none."""
        self._last_ends = traffic.last_ends
        ways = self._ways(forwarding)
        schedule, self.index = schedule_of(self.fabric, self.traffic, ways)
        self._capacity = capacity_of(self.fabric, self.traffic)
        self._arcs = 2 * self.fabric.link_count
        self.fluid = FluidSimulation(self._capacity.copy(), schedule)
        count, flows = len(schedule.streams), len(self.traffic.flows)
        self._left = schedule.gbit.copy()
        self._lost_rate = np.zeros(count)
        self._qp_loss = np.zeros(len(ways.alive))
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
        """Continue until a moment in virtual seconds with unchanged links and tables."""
        while (begin := self.now) < until:
            ahead = np.flatnonzero(~self._done[:-1] & (self._last_ends != NONE))
            self.fluid.advance(until, self._last_ends[ahead])
            self._account(begin)
            self._finish(ahead)

    def _account(self, begin: float) -> None:
        """Add up what was sent and lost since ``begin``."""
        left, passed = self.fluid.left(), self.now - begin
        sent, self._left = np.maximum(self._left - left, 0.0), left
        lost = self._lost_rate * passed + sent * self._loss / (1 - self._loss)
        self.spans.append(Span(begin, self.now, sent, lost))
        state, flows = self.states[-1], self.traffic.flows
        share = self._per_flow(state.ways.dead + self._qp_loss) / flows.qps
        self.losses.packets += share * passed
        self.losses.looped += self._per_flow(state.ways.looped) / flows.qps * passed

    def _finish(self, placements: Ints) -> None:
        """Note which of these placements are done by now: their flows are not wanted any more."""
        over = placements[np.isfinite(self.fluid.told().end[self._last_ends[placements]])]
        if len(over):
            self._done[over] = True
            gone = ~np.repeat(self._active(), self.traffic.flows.qps)
            self._note(self.states[-1].ways.without(gone))

    def _active(self) -> Bools:
        """Return which flows are wanted now."""
        active = self.traffic.active(self.fluid.now if self.states else 0.0)
        return active & ~self._done[self.traffic.placement]

    def update(self, forwarding: Forwarding) -> TrafficState:
        """Take the present paths, after links, tables or the wanted flows have changed."""
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
        """Count flows that would lose or loop packets at this instant. It takes no virtual time."""
        ways = self._ways(forwarding)
        fresh = ways.dead & ~self.states[-1].ways.dead
        self.losses.moments += self._per_flow(fresh) > 0
        self.losses.loops += self._per_flow(ways.looped) > 0

    def _ways(self, forwarding: Forwarding) -> QpPaths:
        present = self.fabric.with_links(self._link_states())
        return ways_of(present, self.traffic, self._active(), forwarding)

    def _link_states(self) -> dict[int, State]:
        rows = {*self.cables.cut, *self.cables.silent, *self.cables.powerless}
        return {row: State.DOWN for row in rows if not self.cables.carries(row)}

    def _room(self) -> None:
        """Set the capacity of arcs to what they carry now."""
        present = self._present_capacity()
        changed = np.flatnonzero(present != self.fluid.shares.capacity[: self._arcs])
        if len(changed):
            self.fluid.resize(changed, present[changed])

    def _present_capacity(self) -> Floats:
        return self.cables.capacity(self.fabric)

    def _note(self, ways: QpPaths) -> None:
        """Add the present state to ``states``."""
        capacity = self._present_capacity()
        lossy = self._lossy(ways)
        losing = self._per_flow(ways.dead | lossy) > 0
        self._count(losing)
        own = self.index.qp != NONE
        self._qp_loss = np.zeros(len(ways.alive))
        self._loss = np.zeros(len(self.index.flow))
        arcs = self.cables.loss(self.fabric)
        if lossy.any():
            logs = np.log1p(-np.minimum(arcs, 1 - 1e-12))[ways.arcs]
            owner = np.repeat(np.arange(len(ways.alive)), np.diff(ways.first))
            kept = np.exp(np.bincount(owner, weights=logs, minlength=len(ways.alive)))
            self._qp_loss = np.where(lossy, 1 - kept, 0.0)
            self._loss[own] = self._qp_loss[self.index.qp[own]]
        worth = worth_of(self.traffic, ways, capacity)
        self.states.append(TrafficState(self.fluid.now, ways, worth, losing, capacity))

    def _count(self, losing: Bools) -> None:
        """Note since when flows lose packets, and how long those lost that now lose none."""
        known, now = self.losses, self.fluid.now
        ended = np.isfinite(known.since) & ~losing
        known.longest[ended] = np.maximum(known.longest[ended], now - known.since[ended])
        known.since[~losing] = np.inf
        known.since[losing] = np.minimum(known.since[losing], now)

    def _lossy(self, ways: QpPaths) -> Bools:
        return ways.crosses(self.cables.lossy(self.fabric)) & ways.alive

    def _per_flow(self, qps: Bools | Floats) -> Floats:
        """Return the sum over the QPs of each flow, shape (flows,); a marked QP counts as 1."""
        flows = self.traffic.flows
        owner = np.repeat(np.arange(len(flows)), flows.qps)
        return np.bincount(owner, weights=qps, minlength=len(flows)).astype(np.float64)

    def _stream_wanted(self, ways: QpPaths) -> Bools:
        """Return which streams are wanted. A ring is, as long as all of its flows are wanted."""
        wanted = np.ones(len(self.index.flow), dtype=np.bool_)
        own = self.index.qp != NONE
        wanted[own] = ways.wanted[self.index.qp[own]]
        script, flows = self.traffic.script, self.traffic.script.flows
        crossing = script.flow != NONE
        gone = ~self._active()[: len(flows)]
        ended = np.zeros(len(script), dtype=np.bool_)
        ended[script.activity[crossing][gone[script.flow[crossing]]]] = True
        wanted[self.index.messages : self.index.demands] = ~ended[self.index.ring_activity]
        return wanted
