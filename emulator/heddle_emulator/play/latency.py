"""The time that starting messages and passing switches adds to an activity.

Where switches forward a packet only when all of it has arrived, the packet takes the time of its
own length again on each link but the slowest, besides the time to pass the link.

An activity of several steps begins a message in each, and its last message has to arrive. Where
steps depend on one another, as on the way down a tree, these times add up. In a tree or a chain
that works in pieces, the next step begins when a piece has arrived, not when a packet has. So the
first piece takes its own length as often as there are steps. That matters only if the fullest place
has nothing else to send, but in a double tree most places have, from the first moment on.

A ring waits less. Its step on a hop needs only what the hop before brought in the step before. So a
hop that is slower than the others sends one step after another without a pause, which hides the
latency of the others. How much is not hidden is found by simulating a ring step by step. Rings that
share a link may meet there in every step, or take turns and never meet; that is chance. So a ring
is simulated in both ways, with its links shared with all that begins together with it, and with its
links for itself, and the mean is taken.

A ring sends a message in each of its steps, a mesh one to each rank. Trees and chains divide what
they carry into pieces that follow one another. The first piece takes a step for each link of the
way down, and all others follow behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.plan import Paths
from heddle_emulator.fluid.streams import ahead, crossed, places, repeated, where_held_up
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.script import Script


def messages(script: Script, carried: Carried, wire: Wire) -> Floats:
    """Return the number of equal messages of each move, of all its QPs together; at least 1.

    Pieces that are as small as possible are full packets, so they count as one message.
    """
    crossing = script.flow != NONE
    activity = script.activity
    count = script.steps[activity].astype(np.float64)
    piped = pipelines(script)[activity]
    times = script.times[activity]
    pieces = wire.pieces(script.gbit / times)
    count = np.where(piped, np.where(np.isfinite(pieces), pieces, 1.0) * times, count)
    qps = np.append(carried.flows.qps, 1)[np.where(crossing, script.flow, -1)]
    found: Floats = np.maximum(count * qps, 1.0)
    return found


def rings(script: Script) -> Bools:
    """Return which activities of several steps are rings.

    In a ring, every GPU that sends to another host sends once, and also receives once.
    """
    moves = np.flatnonzero((script.flow != NONE) & (script.steps[script.activity] > 1))
    sent, got = (np.sort(_ends(script, moves, side)) for side in (script.sender, script.receiver))
    ring = np.zeros(len(script), dtype=np.bool_)
    ring[script.activity[moves]] = True
    ring[np.sort(script.activity[moves])[sent != got]] = False
    ring[sent[1:][sent[1:] == sent[:-1]] // max(script.gpus, 1)] = False
    return ring


def pipelines(script: Script) -> Bools:
    """Return which activities of several moves and steps are not rings: trees and chains."""
    moves = np.flatnonzero((script.flow != NONE) & (script.steps[script.activity] > 1))
    several = np.bincount(script.activity[moves], minlength=len(script)) > 1
    return several & ~rings(script)


def _ends(script: Script, moves: Ints, side: Ints) -> Ints:
    """Return a code of activity and GPU, ascending with the activity."""
    numbers: Ints = script.activity[moves] * max(script.gpus, 1) + side[moves]
    return numbers


MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, with well-spread bits, so that sums of multiples rarely coincide for sets of arcs."""
SHIFT = np.uint64(29)


def same_way(carried: Carried) -> Ints:
    """Return, for each path, the first path of its flow that crosses the same arcs.

    If packets are sprayed, each path is its own.
    """
    paths = carried.paths
    own = np.arange(len(paths), dtype=np.int64)
    if not len(paths) or (carried.parts != 1).any():
        return own
    looks = _looks(paths)
    order = np.lexsort((own, looks, paths.flow))
    new = np.ones(len(paths), dtype=np.bool_)
    new[1:] = (np.diff(looks[order]) != 0) | (np.diff(paths.flow[order]) != 0)
    first = np.empty_like(own)
    first[order] = order[np.maximum.accumulate(np.where(new, own, 0))]
    return np.where(_is_same(paths, own, first), first, own)


def _looks(paths: Paths) -> Ints:
    """Return a hash of each path's arcs."""
    mark = (paths.arcs.astype(np.uint64) + np.uint64(1)) * MIXER
    mark ^= mark >> SHIFT
    total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mark)])
    looks: Ints = (total[paths.first[1:]] - total[paths.first[:-1]]).view(np.int64)
    return looks


def _is_same(paths: Paths, one: Ints, other: Ints) -> Bools:
    """Return whether paths have the same arcs in the same order."""
    lengths = np.diff(paths.first)
    same = lengths[one] == lengths[other]
    rows = np.flatnonzero(same & (one != other))
    arcs = [paths.arcs[places(paths.first, side[rows])] for side in (one, other)]
    owner = np.repeat(rows, lengths[rows])
    same[owner[arcs[0] != arcs[1]]] = False
    return np.asarray(same)


_ROUNDS = 3
"""Rounds of a ring after which every further round takes as long as the one before."""


@dataclass(frozen=True, slots=True, eq=False)
class Latency:
    """The latency of each activity in seconds, shape (activities,)."""

    delay: Floats
    """Time before it sends."""
    lag: Floats
    """Time after it has sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Seconds that each move needs to send, shape (moves,)."""

    own: Floats
    """Seconds without any other traffic."""
    alone: Floats
    """Seconds with only its own activity's traffic."""
    together: Floats
    """Seconds with the traffic of all that begins together with it."""
    arcs: Floats
    """Seconds that all moves together need on each arc, shape (arcs,)."""


def latency(
    script: Script, carried: Carried, wire: Wire, needs: Needs, capacity: Floats
) -> Latency:
    """Return the latency of each activity; ``capacity`` is Gbit/s of each arc."""
    passing = _passing(script, carried, wire, capacity)
    longest = np.zeros(len(script))
    moves = np.flatnonzero(script.flow != NONE)
    np.maximum.at(longest, script.activity[moves], passing[moves])
    delay = script.steps * wire.startup_seconds
    lag = script.steps * longest
    if wire.startup_seconds or wire.piece_bytes or passing.any():
        once = wire.startup_seconds + longest
        for which, shown in (
            (rings(script), _shown_by_rings(script, wire, needs, passing, once)),
            (pipelines(script), _shown_by_trees(script, wire, needs, delay + lag, once)),
        ):
            delay[which], lag[which] = wire.startup_seconds, shown[which] - wire.startup_seconds
    early = np.minimum(_early(script, carried, wire, needs, capacity), lag)
    return Latency(script.seconds + delay + early, lag - early)


def _shown_by_rings(
    script: Script, wire: Wire, needs: Needs, passing: Floats, once: Floats
) -> Floats:
    """Return the seconds that rings take longer than their fullest hop sends."""
    hops = np.flatnonzero((script.flow != NONE) & rings(script)[script.activity])
    sent, shown = _most(script, hops, needs.together), np.zeros(len(script))
    for seconds in (needs.alone, needs.together):
        ends = _passed_on(script, hops, seconds[hops], passing[hops], wire)
        shown += np.maximum(ends - sent, once) / 2
    return shown


def _shown_by_trees(
    script: Script, wire: Wire, needs: Needs, latency: Floats, once: Floats
) -> Floats:
    """Return the seconds that trees and chains take longer than their fullest place sends.

    A piece takes its time on all the way down. But a place does not wait for it if it has pieces of
    another edge to send from the first moment on, as the leaves of either tree have.
    """
    moves = np.flatnonzero((script.flow != NONE) & pipelines(script)[script.activity])
    activity = script.activity[moves]
    times, piece = script.times[activity], np.zeros(len(script.flow))
    piece[moves] = needs.own[moves] / times / wire.pieces(script.gbit[moves] / times)
    each = _most(script, moves, piece)
    down = latency + (script.steps - script.times) * each
    least = script.times * (once + each)
    found: Floats = np.maximum(down - _most(script, moves, needs.own), least)
    return found


def _most(script: Script, moves: Ints, seconds: Floats) -> Floats:
    """Return the maximum over these moves for each activity."""
    most = np.zeros(len(script))
    np.maximum.at(most, script.activity[moves], seconds[moves])
    return most


def _passing(script: Script, carried: Carried, wire: Wire, capacity: Floats) -> Floats:
    """Return the seconds that each move's last packet is on its way without other traffic.

    For sprayed packets it is the mean. It is 0 within a host.
    """
    seconds = _worst(script, carried, crossed(carried.paths, carried.parts)) * wire.hop_seconds
    if wire.store_and_forward:
        again = _worst(script, carried, repeated(carried.paths, carried.parts, capacity))
        seconds += again * wire.packet(script.gbit, messages(script, carried, wire))
    return seconds


def _early(script: Script, carried: Carried, wire: Wire, needs: Needs, capacity: Floats) -> Floats:
    """Return the seconds until the first packet of each message is where it is held up."""
    found = np.zeros(len(script))
    if not (wire.hop_seconds or wire.store_and_forward):
        return found
    several = np.bincount(script.activity, minlength=len(script)) > 1
    moves = np.flatnonzero((script.flow != NONE) & ~several[script.activity])
    moves = moves[script.steps[script.activity[moves]] == 1]
    paths, flow = carried.paths, script.flow[moves]
    links, again, fullest = ahead(paths, carried.parts, needs.arcs, capacity)
    seconds = _held(carried, links, fullest)[flow] * wire.hop_seconds
    if wire.store_and_forward:
        packet = wire.packet(script.gbit, messages(script, carried, wire))[moves]
        seconds += _held(carried, again, fullest)[flow] * packet
    found[script.activity[moves]] = seconds
    return found


def _held(carried: Carried, of_path: Floats, fullest: Floats) -> Floats:
    """Return the value of the path that holds up each flow."""
    return where_held_up(of_path, fullest, carried.paths.flow, len(carried.flows))


def _worst(script: Script, carried: Carried, of_path: Floats) -> Floats:
    """Return the maximum over the paths of each move."""
    most = np.zeros(len(carried.flows) + 1)
    np.maximum.at(most, carried.paths.flow, of_path)
    return most[script.flow]  # NONE is -1: the last element, which is 0


def _passed_on(script: Script, hops: Ints, seconds: Floats, lag: Floats, wire: Wire) -> Floats:
    """Return when the last step of each activity is done; ``seconds`` are for all its steps.

    After a few rounds each takes as long as the one before, so only these are simulated.
    """
    activity, done = script.activity[hops], np.zeros(len(script))
    if not len(hops):
        return done
    before = np.empty_like(hops)  # the hop that brings what each hop sends on
    before[np.argsort(_ends(script, hops, script.sender))] = np.argsort(
        _ends(script, hops, script.receiver)
    )
    steps = script.steps[activity]
    length = np.bincount(activity, minlength=len(script))[activity]
    followed = np.minimum(steps, _ROUNDS * length)
    each = seconds / steps
    there, free = np.full(len(hops), wire.startup_seconds), np.zeros(len(hops))
    earlier = np.zeros(len(hops))
    for step in range(int(followed.max())):
        open_ = step < followed
        free = np.where(open_, np.maximum(there, free) + each, free)
        there = (free + lag)[before] + wire.startup_seconds
        earlier = np.where(step == followed - length - 1, free, earlier)
    more = (steps - followed) * (free - earlier) / length
    np.maximum.at(done, activity, free + more + lag)
    return done
