"""What starting messages and passing switches costs an activity, beside what it sends.

A packet that switches send on only when all of it is there takes its own length again on each
link but the slowest, beside what it takes to pass the link.

An activity of several steps begins a message in each, and what it sent last has to arrive:
where steps follow one another, as on the way down a tree, that adds up. What goes down a tree
or a chain in pieces goes on in the next step when a piece is there, not when a packet is: the
first piece takes as many times its own length as there are steps. That shows only in so far as
the fullest place has nothing else to send: in a double tree most have, from the first moment on.

A ring waits less. Its step on a hop needs what the hop before brought in the step before, and
nothing else; so a hop that is slower than the others sends one step after another without a
pause, and the latency of the others goes by meanwhile. How much of it is not hidden is found by
following a ring step by step. Rings that share a link may meet there in every step, or take
turns without ever meeting; which, is chance. So a ring is followed both ways, each hop sharing
its links with all that begins with it, and each having them for itself, and the mean is taken.

A ring sends a message in each of its steps, a mesh one to each. Trees and chains cut what they
carry into pieces, which follow one another: the first takes a step for each link of the way
down, all others come behind it.
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
    """Equal messages that each move is on the wire, all its QPs' together; at least 1.

    Pieces that are as small as can be are full packets, however many messages.
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
    """Activities of several steps in which everyone who sends to another host is also sent to."""
    moves = np.flatnonzero((script.flow != NONE) & (script.steps[script.activity] > 1))
    sent, got = (np.sort(_ends(script, moves, side)) for side in (script.sender, script.receiver))
    ring = np.zeros(len(script), dtype=np.bool_)
    ring[script.activity[moves]] = True
    ring[np.sort(script.activity[moves])[sent != got]] = False
    ring[sent[1:][sent[1:] == sent[:-1]] // max(script.gpus, 1)] = False
    return ring


def pipelines(script: Script) -> Bools:
    """Activities of several moves and steps that are no rings: trees and chains."""
    moves = np.flatnonzero((script.flow != NONE) & (script.steps[script.activity] > 1))
    several = np.bincount(script.activity[moves], minlength=len(script)) > 1
    return several & ~rings(script)


def _ends(script: Script, moves: Ints, side: Ints) -> Ints:
    """A number of activity and GPU, ascending with the activity."""
    numbers: Ints = script.activity[moves] * max(script.gpus, 1) + side[moves]
    return numbers


MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, with its bits well spread: by sums of multiples of it few sets of arcs look alike."""
SHIFT = np.uint64(29)


def same_way(carried: Carried) -> Ints:
    """For each path, the first path of its flow that crosses just the same arcs.

    Where packets are sprayed, each is its own.
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
    """A number of each path, equal for those of equal arcs and hardly for others."""
    mark = (paths.arcs.astype(np.uint64) + np.uint64(1)) * MIXER
    mark ^= mark >> SHIFT
    total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mark)])
    looks: Ints = (total[paths.first[1:]] - total[paths.first[:-1]]).view(np.int64)
    return looks


def _is_same(paths: Paths, one: Ints, other: Ints) -> Bools:
    """Whether paths have the same arcs in the same order."""
    lengths = np.diff(paths.first)
    same = lengths[one] == lengths[other]
    rows = np.flatnonzero(same & (one != other))
    arcs = [paths.arcs[places(paths.first, side[rows])] for side in (one, other)]
    owner = np.repeat(rows, lengths[rows])
    same[owner[arcs[0] != arcs[1]]] = False
    return np.asarray(same)


_ROUNDS = 3
"""Times round a ring after which nothing new is expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Latency:
    """The latency of each activity, seconds, shape (activities,)."""

    delay: Floats
    """Before it sends."""
    lag: Floats
    """After it has sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Seconds that each move needs, shape (moves,)."""

    own: Floats
    """If there is nothing else."""
    alone: Floats
    """If there is nothing but its activity."""
    together: Floats
    """Beside all that begins with it."""
    arcs: Floats
    """That all moves together need on each arc, shape (arcs,)."""


def latency(
    script: Script, carried: Carried, wire: Wire, needs: Needs, capacity: Floats
) -> Latency:
    """What each activity of a script waits for besides its bytes; ``capacity`` is of arcs."""
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
    """Seconds that rings take longer than their fullest hop sends."""
    hops = np.flatnonzero((script.flow != NONE) & rings(script)[script.activity])
    sent, shown = _most(script, hops, needs.together), np.zeros(len(script))
    for seconds in (needs.alone, needs.together):
        ends = _passed_on(script, hops, seconds[hops], passing[hops], wire)
        shown += np.maximum(ends - sent, once) / 2
    return shown


def _shown_by_trees(
    script: Script, wire: Wire, needs: Needs, latency: Floats, once: Floats
) -> Floats:
    """Seconds that trees and chains take longer than their fullest place sends.

    A piece needs all the way down. But nobody waits for it who has pieces of another edge to send
    from the first moment on, as leaves of either tree have.
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
    """The most of any of these moves of each activity."""
    most = np.zeros(len(script))
    np.maximum.at(most, script.activity[moves], seconds[moves])
    return most


def _passing(script: Script, carried: Carried, wire: Wire, capacity: Floats) -> Floats:
    """Seconds on its way of the last packet of each move, where nothing else waits.

    Sprayed packets' mean; 0 within a host.
    """
    seconds = _worst(script, carried, crossed(carried.paths, carried.parts)) * wire.hop_seconds
    if wire.store_and_forward:
        again = _worst(script, carried, repeated(carried.paths, carried.parts, capacity))
        seconds += again * wire.packet(script.gbit, messages(script, carried, wire))
    return seconds


def _early(script: Script, carried: Carried, wire: Wire, needs: Needs, capacity: Floats) -> Floats:
    """Seconds until the first packet of each message is where it is held up."""
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
    """The latency of the path of each flow that holds it up."""
    return where_held_up(of_path, fullest, carried.paths.flow, len(carried.flows))


def _worst(script: Script, carried: Carried, of_path: Floats) -> Floats:
    """The most of any path of each move."""
    most = np.zeros(len(carried.flows) + 1)
    np.maximum.at(most, carried.paths.flow, of_path)
    return most[script.flow]  # NONE is -1: the last, which is 0


def _passed_on(script: Script, hops: Ints, seconds: Floats, lag: Floats, wire: Wire) -> Floats:
    """When the last step of each activity has come round, its hops taking ``seconds`` in all.

    After some rounds each takes as long as the one before; no more than those are followed.
    """
    activity, done = script.activity[hops], np.zeros(len(script))
    if not len(hops):
        return done
    before = np.empty_like(hops)  # the hop that brings what each sends on
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
