"""What starting messages and passing switches costs an activity, beside what it sends.

An activity of several steps begins a message in each, and what it sent last has to arrive:
where steps follow one another, as on the way down a tree, that adds up.

A ring waits less. Its step on a hop needs what the hop before brought in the step before, and
nothing else; so a hop that is slower than the others sends one step after another without a
pause, and the latency of the others goes by meanwhile. How much of it is not hidden is found by
following a ring step by step. Rings that share a link may meet there in every step, or take
turns without ever meeting; which, is chance. So a ring is followed both ways, each hop sharing
its links with all that begins with it, and each having them for itself, and the mean is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.script import Script

ROUNDS = 3
"""Times round a ring after which nothing new is expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Latency:
    """Of each activity, seconds, shape (activities,)."""

    delay: Floats
    """Before it sends."""
    lag: Floats
    """After it has sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Seconds that each move needs, shape (moves,)."""

    alone: Floats
    """If there is nothing but its activity."""
    together: Floats
    """Beside all that begins with it."""


def latency(script: Script, carried: Carried, wire: Wire, needs: Needs) -> Latency:
    """What each activity of a script waits for besides its bytes."""
    links = _links(script, carried)
    longest = np.zeros(len(script))
    moves = np.flatnonzero(script.flow != NONE)
    np.maximum.at(longest, script.activity[moves], links[moves])
    delay = script.steps * wire.startup_seconds
    lag = script.steps * longest * wire.hop_seconds
    if wire.startup_seconds or wire.hop_seconds:
        ring = np.flatnonzero(_rings(script))
        hops = moves[np.isin(script.activity[moves], ring)]
        sent = np.zeros(len(script))
        np.maximum.at(sent, script.activity[hops], needs.together[hops])
        once = wire.startup_seconds + longest * wire.hop_seconds
        shown = np.zeros(len(script))
        for seconds in (needs.alone, needs.together):
            ends = _passed_on(script, hops, seconds[hops], links[hops] * wire.hop_seconds, wire)
            shown += np.maximum(ends - sent, once) / 2
        delay[ring], lag[ring] = wire.startup_seconds, (shown - wire.startup_seconds)[ring]
    return Latency(script.seconds + delay, lag)


def _links(script: Script, carried: Carried) -> Floats:
    """Links on the longest path of each move; sprayed packets' mean; 0 within a host."""
    paths = carried.paths
    crossed = np.bincount(paths.owner(), weights=carried.parts, minlength=len(paths))
    longest = np.zeros(len(carried.flows) + 1)
    np.maximum.at(longest, paths.flow, crossed)
    return longest[script.flow]  # NONE is -1: the last, which is 0


def _rings(script: Script) -> Bools:
    """Activities of several steps in which everyone who sends to another host is also sent to."""
    moves = np.flatnonzero((script.flow != NONE) & (script.steps[script.activity] > 1))
    sent, got = (np.sort(_ends(script, moves, side)) for side in (script.sender, script.receiver))
    ring = np.zeros(len(script), dtype=np.bool_)
    ring[script.activity[moves]] = True
    ring[np.sort(script.activity[moves])[sent != got]] = False
    ring[sent[1:][sent[1:] == sent[:-1]] // max(script.gpus, 1)] = False
    return ring


def _ends(script: Script, moves: Ints, side: Ints) -> Ints:
    """A number of activity and GPU, ascending with the activity."""
    numbers: Ints = script.activity[moves] * max(script.gpus, 1) + side[moves]
    return numbers


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
    followed = np.minimum(steps, ROUNDS * length)
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
