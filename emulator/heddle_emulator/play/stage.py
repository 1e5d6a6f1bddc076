"""Turn a script and paths into a schedule: which streams send what over which arcs.

An activity of a single move is a message. The QPs of its flow each send their part independently,
so there is a stream for each path. An activity of several moves goes in step, as a ring does. It is
one stream over all the paths of all its flows, whose slowest place sets the pace. Its rate is that
of its largest move.

GPUs have arcs of their own for NVLink, one out and one in, after those of the fabric.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, ranges, starts
from heddle_controller.model.fabric import Fabric
from heddle_emulator.fluid.streams import Schedule, Streams, join_streams, places
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.play.latency import Needs, latency, messages, same_way
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.script import Script

NVLINK_GBPS = 3600.0
"""In each direction of a GPU; that is 900 GB/s in both directions together."""


def capacities(fabric: Fabric, script: Script, nvlink_gbps: float = NVLINK_GBPS) -> Floats:
    """Return Gbit/s of the arcs of a fabric, then of each GPU out and in."""
    return np.concatenate([fabric.structure.capacity, np.full(2 * script.gpus, nvlink_gbps)])


def staged(
    fabric: Fabric,
    script: Script,
    carried: Carried,
    wire: Wire,
    *,
    apart: bool = False,
    in_step: bool = False,
) -> Schedule:
    """Return the schedule of a script over the given paths. A flow without a path never ends.

    With ``apart``, each path of a message is a stream of its own, even where paths are the same.
    With ``in_step``, all QPs of a message are one stream whose slowest path sets the pace.
    """
    told, script = script, _on_wire(script, carried, wire)
    uses = _uses(2 * fabric.link_count, script, carried)
    moves = np.bincount(script.activity, minlength=len(script))
    single = (moves == 1)[script.activity] & (not in_step)
    crossing = np.flatnonzero(single & (script.flow != NONE))
    same = np.arange(len(carried.paths), dtype=np.int64) if apart else same_way(carried)
    each = _each_message(script, carried, crossing, same)
    stepwise = _stepwise(script, carried, uses, ~single | (script.flow == NONE))
    streams = join_streams([each.streams, stepwise.streams])
    needs = _needs(fabric, script, carried, uses)
    cost = latency(told, carried, wire, needs, fabric.structure.capacity)
    return Schedule(
        delay=cost.delay,
        lag=cost.lag,
        before=script.before,
        after=script.after,
        streams=streams,
        activity=np.concatenate([each.activity, stepwise.activity]),
        gbit=np.concatenate([each.gbit, stepwise.gbit]),
    )


def _on_wire(script: Script, carried: Carried, wire: Wire) -> Script:
    """Return the script with the headers of all that leaves a host."""
    if not wire.header_bytes:
        return script
    sent = wire.sent(script.gbit, messages(script, carried, wire))
    return replace(script, gbit=np.where(script.flow == NONE, script.gbit, sent))


def _needs(fabric: Fabric, script: Script, carried: Carried, uses: _Uses) -> Needs:
    """Return what each move needs on its fullest arc, alone and together with others.

    Activities that wait for the same activity begin together. While a QP sends, another sends no
    more than it does, and no more than it has.
    """
    arcs = 2 * fabric.link_count
    wired = np.flatnonzero(uses.arc < arcs)
    move, arc = uses.move[wired], uses.arc[wired]
    codes, same = np.unique(script.activity[move] * arcs + arc, return_inverse=True)
    total = np.bincount(same, uses.gbit[wired], len(codes)).astype(np.float64)
    _, both = np.unique(move * arcs + arc, return_inverse=True)
    by_itself = np.bincount(both, uses.gbit[wired])[both]  # sum over all paths of the move
    wave = np.full(len(script), NONE, dtype=np.int64)
    wave[script.after] = script.before
    place = (wave[codes // arcs] + 1) * arcs + codes % arcs
    each = _by_qp(script, carried)[codes // arcs]
    found = []
    for gbit in (by_itself, total[same], _together(total, total / each, place)[same]):
        seconds = np.zeros(len(script.flow))
        np.maximum.at(seconds, move, gbit / fabric.structure.capacity[arc])
        found.append(seconds)
    loads = np.bincount(arc, uses.gbit[wired], arcs) / fabric.structure.capacity
    own, alone, together = found
    return Needs(own, alone, together, loads)


def _by_qp(script: Script, carried: Carried) -> Floats:
    """Return the most Gbit of a QP of each activity, above 0."""
    moves = np.flatnonzero(script.flow != NONE)
    most = np.full(len(script), np.finfo(float).tiny)
    gbit = script.gbit[moves] / carried.flows.qps[script.flow[moves]]
    np.maximum.at(most, script.activity[moves], gbit)
    return most


def _together(gbit: Floats, qps: Floats, place: Ints) -> Floats:
    """Return what passes each place until each entry has passed, if all QPs there are equal."""
    each = np.divide(gbit, qps, out=np.zeros(len(gbit)), where=qps > 0)
    order = np.lexsort((each, place))
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = np.diff(place[order]) != 0
    group = np.cumsum(new) - 1
    begin = np.flatnonzero(new)[group]
    passed = np.cumsum(gbit[order])
    sending = np.cumsum(qps[order])
    of_group = np.bincount(group, qps[order])[group]
    before = np.where(begin > 0, passed[begin - 1], 0.0)
    ended = np.where(begin > 0, sending[begin - 1], 0.0)
    total = np.empty_like(gbit)
    total[order] = passed - before + each[order] * (of_group - (sending - ended))
    return total


def ways_of_messages(script: Script, carried: Carried) -> int:
    """Return the number of paths of all messages, which is the most streams they can have."""
    moves = np.bincount(script.activity, minlength=len(script))
    flow = script.flow[(moves == 1)[script.activity] & (script.flow != NONE)]
    return int(np.bincount(carried.paths.flow, minlength=len(carried.flows))[flow].sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some of the streams, and what they send."""

    streams: Streams
    activity: Ints
    gbit: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Uses:
    """Arcs that moves use: a row for each move and each arc of each of its paths."""

    move: Ints
    arc: Ints
    gbit: Floats
    """Gbit that cross the arc, headers included."""


def _path_range(carried: Carried, flow: Ints) -> tuple[Ints, Ints]:
    """Return where the paths of each flow begin, and how many it has."""
    first = np.searchsorted(carried.paths.flow, flow)
    return first, np.searchsorted(carried.paths.flow, flow, side="right") - first


def _paths_of(carried: Carried, flow: Ints) -> tuple[Ints, Ints]:
    """Return a row for each path of each flow: its place in ``flow``, and the path."""
    first, count = _path_range(carried, flow)
    place = np.repeat(np.arange(len(flow), dtype=np.int64), count)
    return place, ranges(first, first + count)


def _part_of_flow(carried: Carried, path: Ints) -> Floats:
    """Return the part of its flow that each path carries."""
    paths, qps = carried.paths, carried.flows.qps
    part: Floats = paths.qp_count[path] / qps[paths.flow[path]]
    return part


def _uses(arcs: int, script: Script, carried: Carried) -> _Uses:
    crossing = np.flatnonzero(script.flow != NONE)
    place, path = _paths_of(carried, script.flow[crossing])
    use = places(carried.paths.first, path)
    lengths = np.diff(carried.paths.first)[path]
    move = np.repeat(crossing[place], lengths)
    gbit = script.gbit[move] * carried.parts[use]
    gbit *= np.repeat(_part_of_flow(carried, path), lengths)
    local = np.flatnonzero(script.flow == NONE)
    return _Uses(
        np.concatenate([move, local, local]),
        np.concatenate(
            [
                carried.paths.arcs[use],
                arcs + 2 * script.sender[local],
                arcs + 2 * script.receiver[local] + 1,
            ]
        ),
        np.concatenate([gbit, script.gbit[local], script.gbit[local]]),
    )


def _each_message(script: Script, carried: Carried, moves: Ints, same: Ints) -> _Part:
    """Return a stream for each path of each message, and one that never moves if one is missing.

    QPs of a message that take the ``same`` path have the same rate, so they are one stream.
    """
    flow = script.flow[moves]
    place, path = _paths_of(carried, flow)
    own = np.flatnonzero(same[path] == path)
    place, path = place[own], path[own]
    paths = carried.paths
    qps = np.bincount(same, weights=paths.qp_count, minlength=len(paths)).astype(np.float64)[path]
    lengths = np.diff(paths.first)[path]
    use = places(paths.first, path)
    gbit = script.gbit[moves[place]] * qps / carried.flows.qps[paths.flow[path]]
    streams = Streams(
        qps, np.full(len(path), np.inf), starts(lengths), paths.arcs[use], carried.parts[use]
    )
    lost = moves[_qps_held(carried)[flow] < carried.flows.qps[flow]]
    none = np.zeros(0)
    stuck = Streams(
        np.ones(len(lost)),
        np.zeros(len(lost)),
        np.zeros(len(lost) + 1, dtype=np.int64),
        none.astype(np.int64),
        none,
    )
    return _Part(
        join_streams([streams, stuck]),
        script.activity[np.concatenate([moves[place], lost])],
        np.concatenate([gbit, script.gbit[lost]]),
    )


def _qps_held(carried: Carried) -> Floats:
    """Return the number of QPs of each flow that have a path."""
    paths = carried.paths
    held = np.bincount(paths.flow, weights=paths.qp_count, minlength=len(carried.flows))
    return held.astype(np.float64)


def _stepwise(script: Script, carried: Carried, uses: _Uses, which: Bools) -> _Part:
    """Return one stream for each activity with such moves."""
    moves = np.flatnonzero(which)
    activities, place = np.unique(script.activity[moves], return_inverse=True)
    crossing = script.flow[moves] != NONE
    flow = script.flow[moves][crossing]
    largest, weight, limit = (
        np.zeros(len(activities)),
        np.ones(len(activities)),
        np.full(len(activities), np.inf),
    )
    np.maximum.at(largest, place, script.gbit[moves])
    np.maximum.at(weight, place[crossing], carried.flows.qps[flow].astype(np.float64))
    limit[place[crossing][_qps_held(carried)[flow] < carried.flows.qps[flow]]] = 0.0
    stream = np.full(len(script), NONE, dtype=np.int64)
    stream[activities] = np.arange(len(activities))
    own = stream[script.activity[uses.move]]
    kept = which[uses.move] & (uses.gbit > 0)
    own, arc, gbit = own[kept], uses.arc[kept], uses.gbit[kept]
    width = int(arc.max(initial=0)) + 1
    codes, same = np.unique(own * width + arc, return_inverse=True)
    total = np.bincount(same, weights=gbit, minlength=len(codes))
    owner = codes // width
    counts = np.bincount(owner, minlength=len(activities))
    streams = Streams(weight, limit, starts(counts), codes % width, total / largest[owner])
    return _Part(streams, activities, largest)
