"""What starting messages and passing switches costs an activity, beside what it sends.

An activity of several steps begins a message in each, and what it sent last has to arrive:
where steps follow one another, as on the way down a tree, that adds up.

A ring waits less. Its step on a hop needs what the hop before brought in the step before, and
nothing else; so a hop that is slower than the others sends one step after another without a
pause, and the latency of the others goes by meanwhile. What a ring takes with no other traffic
is therefore followed step by step, hop by hop. In company it is done no sooner than that, and
no sooner than its slowest hop has sent all that it has to.
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
    least: Floats
    """From sending until complete, however fast it sends."""


def latency(script: Script, carried: Carried, wire: Wire, alone: Floats) -> Latency:
    """``alone`` is how many seconds each move needs if nothing but its activity is going on."""
    links = _links(script, carried)
    longest = np.zeros(len(script))
    moves = np.flatnonzero(script.flow != NONE)
    np.maximum.at(longest, script.activity[moves], links[moves])
    ring = _rings(script)
    steps = np.where(ring, np.minimum(script.steps, 1), script.steps)
    delay = steps * wire.startup_seconds
    least = np.zeros(len(script))
    if wire.startup_seconds or wire.hop_seconds:
        hops = np.flatnonzero(ring[script.activity] & (script.flow != NONE))
        least = _passed_on(script, hops, alone[hops], links[hops] * wire.hop_seconds, wire)
    return Latency(
        script.seconds + delay, steps * longest * wire.hop_seconds, np.maximum(least - delay, 0.0)
    )


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
