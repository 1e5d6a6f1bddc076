"""How many messages each move is, and how they are passed on.

A ring sends a message in each of its steps, a mesh one to each. Trees and chains cut what they
carry into pieces, which follow one another: the first takes a step for each link of the way
down, all others come behind it.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints
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
    sent, got = (np.sort(ends(script, moves, side)) for side in (script.sender, script.receiver))
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


def ends(script: Script, moves: Ints, side: Ints) -> Ints:
    """A number of activity and GPU, ascending with the activity."""
    numbers: Ints = script.activity[moves] * max(script.gpus, 1) + side[moves]
    return numbers
