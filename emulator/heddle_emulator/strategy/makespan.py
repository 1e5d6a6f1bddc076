"""When flows are done, each having a second's worth of its demand to send, or so many bytes.

Each QP has its equal part of that, as a NIC deals it out. A flow of so many bytes sends as fast
as the links of its NICs and of its paths let it, unless it is paced. A flow that has a second's
worth of its demand, or is paced, never sends more than its demand over all its QPs; a QP on a bad
path is still at it when its fellows are done, and may by then have all of the demand for itself.

A flow begins no sooner than its start. The phases of a job follow one another in the order of
their names in the flow file, each when the one before has ended; flows without a phase wait for
nobody. So a fabric that holds nothing up takes a second for each phase of the job that has most
of them, where no bytes are told.
"""

from __future__ import annotations

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
"""Paths up to which each end is an event of its own."""
_COARSE = 0.0005
"""The part of the time gone by within which ends are one event where there are more."""


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """What flows have to send and from when, and what packets cost; arrays are by flow."""

    bytes: Floats | None = None
    """Infinite is a second's worth of the flow's demand; None is that for all."""
    wire: Wire = NO_COST
    start: Floats | None = None
    """Seconds; None is 0 for all."""
    paced: bool = False
    """Whether flows of so many bytes keep to their demands too."""
    queues: ControlName | None = None
    """Who keeps queues from filling, where they are played; None is fair rates at every moment."""

    def kept_to_demand(self, flows: Flows) -> Bools:
        """Whether each flow never sends faster than its demand."""
        if self.bytes is None or self.paced:
            return np.ones(len(flows), dtype=np.bool_)
        return np.isinf(self.bytes)


def ends(capacity: Floats, flows: Flows, paths: Paths, parts: Floats, sending: Sending) -> Floats:
    """Seconds until each flow is done, shape (flows,); each must have a path.

    Packets that are sprayed (``parts``) have fair rates also where queues are asked for.

    Raises:
        InputError: queues are asked for, and there is too much to send, or no end to it.
    """
    order, wire = _order(flows), sending.wire
    kept = sending.kept_to_demand(flows)
    if sending.queues is not None and (parts == 1).all():
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
    run = FluidSimulation(ways, schedule, coarse=0.0 if len(paths) <= _FEW else _COARSE).run()
    return run.end[: len(flows)]


def _messages(flows: Flows, paths: Paths, sending: Sending, kept: Bools) -> Messages:
    """What queues are given: a row for each path."""
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
    """Gbit that each path carries."""
    second = paths.gbps(flows)
    if sending.bytes is None:
        return second
    part = paths.qp_count / flows.qps[paths.flow]
    size = sending.bytes[paths.flow]
    return np.where(np.isfinite(size), part * (size * BITS / GIGA), second)


def _passing(
    capacity: Floats, paths: Paths, parts: Floats, payload: Floats, wire: Wire
) -> tuple[Floats, Floats, Floats]:
    """Of each path: seconds of its last packet, and before its fullest link; how full that is."""
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
    """The order of waiting: flows come first, then a meeting at the end of each job's phase."""

    turns: int
    before: Ints
    after: Ints

    def begun_at(self, start: Floats) -> _Order:
        """Each flow waits for a moment of its own too, which come last."""
        rows = np.arange(len(start), dtype=np.int64)
        return _Order(
            self.turns,
            np.concatenate([self.before, len(start) + self.turns + rows]),
            np.concatenate([self.after, rows]),
        )


def _order(flows: Flows) -> _Order:
    phased = np.flatnonzero(flows.phase != ANY_PHASE)
    width = len(flows.phase_names) + 1
    codes, turn = np.unique(flows.job[phased] * width + flows.phase[phased], return_inverse=True)
    meeting = len(flows) + turn.astype(np.int64)
    follows = np.append(False, codes[1:] // width == codes[:-1] // width)
    later = follows[turn]
    return _Order(
        len(codes),
        np.concatenate([phased, meeting[later] - 1]),
        np.concatenate([meeting, phased[later]]),
    )


def _streams(arcs: int, flows: Flows, paths: Paths, parts: Floats, kept: Bools) -> Streams:
    """A stream for each path.

    Where a flow that is kept to its demand has several, that is an arc of its own that all of
    them cross.
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
