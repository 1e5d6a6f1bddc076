"""The traffic of a drill in virtual time: rates at every moment, and what is lost meanwhile.

Whenever links or tables have changed, ``update`` walks a packet of every QP and takes all streams
the way it went. In between rates follow from max-min fairness as jobs go on. What streams sent
just before their way died is lost for as long as it is dead: senders do not know at once.

Which path every QP takes at a moment, by the agents' tables, and the streams that this makes.

There is one stream for each QP of a message, one for a ring, one for a QP of a demand. Streams stay
the same for the whole run. Where a QP has no path its stream stands still, and with it the ring
that waits for it.
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
"""What demands have to send: more than any drill lasts."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamIndex:
    """Finds streams by their names."""

    flow: Ints
    """Row of each stream's flow; ``NONE`` for a ring."""
    qp: Ints
    """Its row among all QPs; ``NONE`` for a ring."""
    ring_activity: Ints
    """Activity of each ring, in order; rings come after messages."""
    messages: int
    demands: int
    """Streams from this one on are demands'."""


def capacity_of(fabric: Fabric, traffic: Traffic) -> Floats:
    """Gbit/s of the fabric's arcs, then of those that only GPUs have."""
    return capacities(fabric, traffic.script)


def schedule_of(fabric: Fabric, traffic: Traffic, ways: QpPaths) -> tuple[Schedule, StreamIndex]:
    """All that will be sent, over the ways of now."""
    jobs = _jobs(fabric, traffic, ways)
    rest = _demands(traffic, ways)
    index = _stream_index(traffic, len(jobs.streams))
    schedule = join_schedules([jobs, rest])
    return replace(schedule, streams=_held(schedule.streams, traffic, ways, index)), index


def streams_of(fabric: Fabric, traffic: Traffic, ways: QpPaths) -> Streams:
    """The same streams, over the ways of now."""
    return schedule_of(fabric, traffic, ways)[0].streams


def _jobs(fabric: Fabric, traffic: Traffic, ways: QpPaths) -> Schedule:
    flows = traffic.script.flows
    return staged(fabric, traffic.script, whole(flows, ways.paths(flows)), NO_COST, apart=True)


def _demands(traffic: Traffic, ways: QpPaths) -> Schedule:
    """An activity for each flow, a stream for each of its QPs, as long as anybody looks."""
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
    """Streams that have no way may not move."""
    limit = streams.limit.copy()
    own = index.qp != NONE
    limit[own] = np.where(ways.alive[index.qp[own]], limit[own], 0.0)
    waiting = rings_waiting(traffic.script, traffic.flows, ways, index)
    limit[index.messages : index.demands][waiting > 0] = 0.0
    return replace(streams, limit=limit)


def rings_waiting(script: Script, flows: Flows, ways: QpPaths, index: StreamIndex) -> Floats:
    """QPs without a way, of each ring."""
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
    """A row for each QP of all flows that there may be; those not wanted have no arcs."""

    wanted: Bools
    alive: Bools
    """Whether its packets arrive."""
    looped: Bools
    first: Ints
    """Where the arcs of each begin, shape (QPs + 1,)."""
    arcs: Ints

    @property
    def dead(self) -> Bools:
        """QPs that are wanted and get nowhere."""
        return self.wanted & ~self.alive

    def paths(self, flows: Flows) -> Paths:
        """A path for each QP, that of a dead one without arcs."""
        flow = np.repeat(np.arange(len(flows), dtype=np.int64), flows.qps)
        qp = np.arange(len(flow), dtype=np.int64) - starts(flows.qps)[:-1][flow]
        count = len(flow)
        return Paths(flow, qp, qp, self.first[: count + 1], self.arcs[: int(self.first[count])])

    def crosses(self, arcs: Bools) -> Bools:
        """Whether each QP uses any of the arcs marked."""
        owner = np.repeat(np.arange(len(self.alive)), np.diff(self.first))
        hit = np.zeros(len(self.alive), dtype=np.bool_)
        hit[owner[arcs[self.arcs]]] = True
        return hit


def ways_of(fabric: Fabric, traffic: Traffic, now: float, forwarding: Forwarding) -> QpPaths:
    """Walk a packet of every QP that is wanted now through a fabric as it is."""
    first_qp, qps = traffic.first_qp, traffic.flows.qps
    rows = np.flatnonzero(traffic.active(now))
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
    """What ways come to, by the rules that plans are judged by."""

    ratios: Floats
    """Max-min fair rate over demand of each flow, 0 to 1; 1 where it is not wanted."""
    utilization: Floats
    """Load over capacity of each arc."""


def worth_of(traffic: Traffic, ways: QpPaths, capacity: Floats) -> Worth:
    """``capacity`` is what arcs carry now, in Gbit/s; 0 for those that carry nothing."""
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
