"""When flows are done, if each sends a second's worth of its demand, or a number of bytes.

Each QP carries an equal part of that, as NICs divide it. A flow with a number of bytes sends as
fast as the links of its NICs and paths allow, unless it is paced. A flow that is paced, or that
sends a second's worth of its demand, never sends faster than its demand over all its QPs. When its
other QPs are done, a QP on a bad path may use all of the demand.

A flow begins no sooner than its start. The phases of a job follow one another in the order in which
the job's own flows first name them; each begins when the one before has ended. Flows without a
phase wait for nothing. So if no bytes are given, a fabric without bottlenecks takes a second for
each phase of the job with the most phases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.fluid.queues import ControlName, Messages, played
from heddle_emulator.fluid.simulation import FluidSimulation
from heddle_emulator.fluid.streams import Schedule, Streams, ahead, crossed, repeated, where_held_up
from heddle_emulator.fluid.wire import NO_COST, Wire
from heddle_emulator.traffic.script import BITS, GIGA

_FEW = 30_000
"""Up to this many paths, each end of a path is an event of its own."""
_COARSE = 0.0005
"""With more paths, ends within this fraction of the time so far are one event."""


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """What flows have to send, when they start, and what packets cost; arrays are by flow."""

    bytes: Floats | None = None
    """Bytes of each flow; infinite means a second's worth of its demand, None that for all."""
    wire: Wire = NO_COST
    start: Floats | None = None
    """Seconds; None means 0 for all."""
    paced: bool = False
    """Whether flows with a number of bytes also keep to their demands."""
    queues: ControlName | None = None
    """Congestion control if queues are simulated; None means fair rates at every moment."""

    def kept_to_demand(self, flows: Flows) -> Bools:
        """Return whether each flow never sends faster than its demand."""
        if self.bytes is None or self.paced:
            return np.ones(len(flows), dtype=np.bool_)
        return np.isinf(self.bytes)


def ends(
    capacity: Floats,
    flows: Flows,
    paths: Paths,
    parts: Floats,
    sending: Sending,
    *,
    tell: Callable[[float], None] | None = None,
) -> Floats:
    """Return the seconds until each flow is done, shape (flows,); each must have a path.

    Queues need the links of each path in order, and all ``parts`` 1. Without queues, ``tell`` is
    called now and then with the part that is complete, 0 to 1.

    Raises:
        InputError: Queues are asked for, and there is too much to send, or the flows block each
            other.
    """
    order, wire = _order(flows), sending.wire
    kept = sending.kept_to_demand(flows)
    if sending.queues is not None:
        messages = _messages(flows, paths, sending, kept)
        found = played(capacity, messages, wire, sending.queues)
        last = np.zeros(len(flows))
        np.maximum.at(last, paths.flow, found)
        return last
    streams = _streams(len(capacity), flows, paths, parts, kept)
    payload = _payload(flows, paths, sending)
    lag = np.zeros(len(flows) + order.turns)
    passing, before, fullest = _passing(capacity, paths, parts, payload, wire)
    np.maximum.at(lag, paths.flow, passing)
    early = np.minimum(lag[: len(flows)], where_held_up(before, fullest, paths.flow, len(flows)))
    lag[: len(flows)] -= early
    if sending.start is not None:
        order = order.begun_at(sending.start)
        lag = np.concatenate([lag, np.zeros(len(flows))])
    delay = np.zeros(len(lag))
    delay[: len(flows)] = wire.startup_seconds + early
    if sending.start is not None:
        delay[-len(flows) :] = sending.start
    gbit = wire.sent(payload, paths.qp_count.astype(np.float64))
    schedule = Schedule(delay, lag, order.before, order.after, streams, paths.flow, gbit)
    ways = np.concatenate([capacity, np.where(kept, flows.gbps, np.inf)])
    coarse = 0.0 if len(paths) <= _FEW else _COARSE
    run = FluidSimulation(ways, schedule, coarse=coarse, tell=tell).run()
    return run.end[: len(flows)]


def _messages(flows: Flows, paths: Paths, sending: Sending, kept: Bools) -> Messages:
    """Return the messages to simulate with queues, a row for each path."""
    qps, start = paths.qp_count.astype(np.float64), np.zeros(len(flows))
    if sending.start is not None:
        start += sending.start
    wire = sending.wire
    gbit = wire.sent(_payload(flows, paths, sending), qps)
    limit = np.where(kept, flows.gbps * GIGA / BITS, np.inf)
    turn, follows = np.full(len(flows), NONE), np.full(len(flows), NONE)
    order = _order(flows)
    ends, begins = order.before < len(flows), order.after < len(flows)
    turn[order.before[ends]] = order.after[ends] - len(flows)
    follows[order.after[begins]] = order.before[begins] - len(flows)
    return Messages(
        paths.first,
        paths.arcs,
        gbit * GIGA / BITS,
        qps,
        start[paths.flow] + wire.startup_seconds,
        limit[paths.flow],
        paths.flow,
        turn[paths.flow],
        follows[paths.flow],
    )


def _payload(flows: Flows, paths: Paths, sending: Sending) -> Floats:
    """Return the Gbit that each path carries."""
    second = paths.gbps(flows)
    if sending.bytes is None:
        return second
    part = paths.qp_count / flows.qps[paths.flow]
    size = sending.bytes[paths.flow]
    return np.where(np.isfinite(size), part * (size * BITS / GIGA), second)


def _passing(
    capacity: Floats, paths: Paths, parts: Floats, payload: Floats, wire: Wire
) -> tuple[Floats, Floats, Floats]:
    """Return seconds of each path's last packet, those before its fullest link, and its load."""
    gbit = payload[paths.owner()] * parts
    loads = np.bincount(paths.arcs, weights=gbit, minlength=len(capacity)) / capacity
    links, again, fullest = ahead(paths, parts, loads, capacity)
    seconds, before = crossed(paths, parts) * wire.hop_seconds, links * wire.hop_seconds
    if wire.store_and_forward:
        packet = wire.packet(payload, paths.qp_count.astype(np.float64))
        seconds += repeated(paths, parts, capacity) * packet
        before += again * packet
    return seconds, np.minimum(before, seconds), fullest


@dataclass(frozen=True, slots=True)
class _Order:
    """Who waits for whom. Rows are flows first, then a meeting point for each phase of each job."""

    turns: int
    before: Ints
    after: Ints

    def begun_at(self, start: Floats) -> _Order:
        """Return the order in which each flow also waits for its start, a row added at the end."""
        rows = np.arange(len(start), dtype=np.int64)
        return _Order(
            self.turns,
            np.concatenate([self.before, len(start) + self.turns + rows]),
            np.concatenate([self.after, rows]),
        )


def _order(flows: Flows) -> _Order:
    """Return the order in which each job's own flows first name its phases."""
    phased = np.flatnonzero(flows.phase != ANY_PHASE)
    width = len(flows.phase_names) + 1
    named = flows.job[phased] * width + flows.phase[phased]
    codes, first, code = np.unique(named, return_index=True, return_inverse=True)
    order = np.lexsort((first, codes // width))
    turn = np.argsort(order)[code]
    job = codes[order] // width
    meeting = len(flows) + turn.astype(np.int64)
    follows = np.append(False, job[1:] == job[:-1])
    later = follows[turn]
    return _Order(
        len(codes),
        np.concatenate([phased, meeting[later] - 1]),
        np.concatenate([meeting, phased[later]]),
    )


def _streams(arcs: int, flows: Flows, paths: Paths, parts: Floats, kept: Bools) -> Streams:
    """Return a stream for each path.

    If a flow that keeps to its demand has several paths, an extra arc with the demand as its
    capacity is added, which all its streams cross.
    """
    weight = paths.qp_count.astype(np.float64)
    several = (np.bincount(paths.flow, minlength=len(flows))[paths.flow] > 1) & kept[paths.flow]
    lengths = np.diff(paths.first)
    first = starts(lengths + several)
    place = np.arange(len(paths.arcs)) + (np.cumsum(several) - several)[paths.owner()]
    taken: Ints = np.empty(first[-1], dtype=np.int64)
    part = np.ones(first[-1])
    taken[place], part[place] = paths.arcs, parts
    taken[first[1:][several] - 1] = arcs + paths.flow[several]
    demand = np.where(kept, flows.gbps, np.inf)[paths.flow]
    limit = np.where(several, np.inf, demand)
    return Streams(weight, limit, first, taken, part)
