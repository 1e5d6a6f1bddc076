"""Scripts of collectives as messages of a packet twin, each step of a ring a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import TopologicalSorter

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.script import Script
from tests.support.packet_twin import Twin

QUEUED = 8
"""Packets of a QP that may be on their way beyond what links' latency needs.

They are enough to keep links busy, and so few that packets which wait at one link do not take from
another, as congestion control or flow control ensures.
"""
MOST_HOPS = 6


@dataclass(slots=True)
class _Messages:
    paths: list[list[int]] = field(default_factory=list)
    gbit: list[float] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    """The QP of each message; QPs are numbered by activity, move and QP."""
    queues: dict[tuple[int, int], int] = field(default_factory=dict)


def twin_of(
    fabric: Fabric,
    script: Script,
    carried: Carried,
    *,
    packets: int,
    startup: float,
    hop: float,
    fair: bool = True,
) -> tuple[Twin, Wire]:
    """Return a twin that plays a script, and a wire with the same costs for the fluid world.

    The largest message has ``packets`` packets. Activities must be single messages, or rings whose
    hops pass on in steps, and each rank must be alone on its host. A packet is forwarded when all
    of it has arrived.
    """
    steps = script.steps[script.activity]
    largest = float((script.gbit / np.maximum(steps, 1)).max())
    packet, fastest = largest / packets, float(fabric.structure.capacity.max())
    told, last = _Messages(), dict[int, list[int]]()
    for activity in _in_order(script):
        others = script.before[script.after == activity].tolist()
        before = [message for other in others for message in last[other]]
        moves = np.flatnonzero(script.activity == activity)
        last[activity] = _steps(script, carried, moves, before, told) if len(moves) else before
    twin = Twin(
        fabric.structure.capacity.tolist(),
        told.paths,
        told.gbit,
        packet_gbit=packet,
        window=QUEUED + round(MOST_HOPS * hop * fastest / packet),
        fair=fair,
        after=told.after,
        queue=told.queue,
        delay=startup,
        hop_seconds=hop,
    )
    size = round(packet * 1e9 / 8)
    return twin, Wire(size, 0, startup, hop, store_and_forward=True)


def _in_order(script: Script) -> list[int]:
    """Return the activities, each after those that it waits for."""
    waits = TopologicalSorter(dict.fromkeys(range(len(script)), ()))
    for before, after in zip(script.before.tolist(), script.after.tolist(), strict=True):
        waits.add(after, before)
    return [*waits.static_order()]


def _steps(
    script: Script, carried: Carried, moves: Ints, before: list[int], told: _Messages
) -> list[int]:
    """Add the messages of one activity; return those of its last step."""
    steps = int(script.steps[script.activity[moves[0]]])
    into = {int(script.receiver[move]): int(move) for move in moves}
    latest: dict[int, list[int]] = {int(move): before for move in moves}
    for step in range(steps):
        sent = {}
        for move in moves.tolist():
            waits = latest[move]
            if step:
                waits = latest[into[int(script.sender[move])]]
            sent[move] = _message(script, carried, move, sorted({*waits}), told)
        latest = sent
    return [message for messages in latest.values() for message in messages]


def _message(
    script: Script, carried: Carried, move: int, waits: list[int], told: _Messages
) -> list[int]:
    """Add one step of a move: a message for each QP of its flow, since QPs share links."""
    flow, steps = int(script.flow[move]), int(script.steps[script.activity[move]])
    rows = []
    for path in np.flatnonzero(carried.paths.flow == flow).tolist():
        for qp in range(int(carried.paths.first_qp[path]), int(carried.paths.last_qp[path]) + 1):
            told.queue.append(told.queues.setdefault((move, qp), len(told.queues)))
            rows.append(len(told.paths))
            told.paths.append(carried.paths.of(path).tolist())
            told.gbit.append(float(script.gbit[move]) / steps / int(carried.flows.qps[flow]))
            told.after.append(waits)
    return rows
