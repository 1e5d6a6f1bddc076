"""Play a script over a fabric with the paths of its flows, and measure the result.

An activity that goes in step is one stream at the pace of its slowest place. In the long run that
is correct, and for a hundred thousand hops it is all that can be computed. It leaves out that the
hops of a ring send in turns where others leave gaps, that rings which share a link may keep meeting
there or avoid each other, and how a tree fills with pieces. So if there are few messages, rings,
trees and chains are played message by message. Each message is then an activity of its own. It is
ready when what it forwards has arrived and it has been started, it is sent when its QPs have sent
the message before, and it has arrived when its last packet has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_controller.model.fabric import Fabric
from heddle_emulator.fluid.simulation import FluidSimulation, ScheduleResult, Timeline
from heddle_emulator.fluid.streams import Schedule
from heddle_emulator.fluid.wire import NO_COST, Wire
from heddle_emulator.play.latency import pipelines, rings
from heddle_emulator.play.stage import NVLINK_GBPS, capacities, staged, ways_of_messages
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.script import Script

FOLLOWED = 3_000
"""Most messages, counted per QP, to play one by one, which then takes seconds at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled:
    """A script with activities added after the old ones, which still end when they did."""

    script: Script
    ready: Ints
    """Activities that wait until a message may be sent."""
    sent: Ints
    """Parallel to ``ready``: the activities that send the message."""
    arrived: Ints
    """Parallel to ``sent``: the activities that wait for the message to arrive."""

    def timed(self, schedule: Schedule) -> Schedule:
        """Move delays before sending and lags after it, so that messages can follow one another."""
        delay, lag = schedule.delay.copy(), schedule.lag.copy()
        delay[self.ready], delay[self.sent] = delay[self.sent], 0.0
        lag[self.arrived], lag[self.sent] = lag[self.sent], 0.0
        return replace(schedule, delay=delay, lag=lag)


def unrolled(script: Script, wire: Wire, most: int = FOLLOWED) -> Unrolled:
    """Return the script message by message, or unchanged if there are more than ``most``."""
    ring = rings(script)
    told_apart = (ring | (pipelines(script) & (wire.piece_bytes > 0))) & (script.times == 1)
    number = np.where(ring, script.steps, _pieces(script, wire))
    wired = np.flatnonzero((script.flow != NONE) & told_apart[script.activity])
    messages = number[script.activity[wired]]
    none = np.empty(0, dtype=np.int64)
    if not len(wired) or (messages * script.flows.qps[script.flow[wired]]).sum() > most:
        return Unrolled(script, none, none, none)
    return _apart(script, ring, wired, messages)


def _pieces(script: Script, wire: Wire) -> Ints:
    """Return the pieces of each activity's largest move; 1 if they are as small as possible."""
    pieces = wire.pieces(script.gbit)
    most = np.ones(len(script), dtype=np.int64)
    np.maximum.at(most, script.activity, np.where(np.isfinite(pieces), pieces, 1).astype(np.int64))
    return most


def _apart(script: Script, ring: Bools, wired: Ints, messages: Ints) -> Unrolled:
    """Divide wired moves into so many messages each; moves within hosts run in parallel."""
    sheet, old = _Sheet(script), np.unique(script.activity[wired])
    begin, within = sheet.add(old, 0), sheet.add(old, 0)
    sheet.begin(old, begin)
    own = np.repeat(wired, messages)
    of, first = script.activity[own], starts(messages)
    ready, sent, arrived = sheet.add(of, 1), sheet.add(of, 1), sheet.add(of, 0)
    for before, after in ((begin, within), (within, old), (ready, sent), (sent, arrived)):
        sheet.wait(before, after)
    later = np.setdiff1d(np.arange(len(own)), first[:-1])
    sheet.wait(sent[later - 1], sent[later])
    sheet.wait(arrived[first[1:] - 1], old[np.searchsorted(old, script.activity[wired])])
    giver, taker = _handed_on(script, ring, wired, first)
    sheet.wait(arrived[giver], ready[taker])
    fresh = np.setdiff1d(np.arange(len(own)), taker)
    sheet.wait(begin[np.searchsorted(old, of[fresh])], ready[fresh])
    inside = np.setdiff1d(np.arange(len(script.flow)), wired)
    where = script.activity.copy()
    held = np.isin(where, old)
    where[held] = within[np.searchsorted(old, where[held])]
    each = script.gbit[own] / np.repeat(messages, messages)
    told = sheet.script(
        np.concatenate([own, inside]),
        np.concatenate([sent, where[inside]]),
        np.concatenate([each, script.gbit[inside]]),
    )
    return Unrolled(told, ready, sent, arrived)


def _handed_on(script: Script, ring: Bools, wired: Ints, first: Ints) -> tuple[Ints, Ints]:
    """Return pairs of messages where the second forwards the first."""
    kept = np.isin(script.brings, wired)
    giver, taker = (np.searchsorted(wired, side[kept]) for side in (script.brings, script.goes))
    count = np.diff(first)[taker]
    turn = ring[script.activity[wired[taker]]].astype(np.int64)  # on a ring in the next step
    pair = np.repeat(np.arange(len(taker)), count - turn)
    within = np.arange(len(pair)) - starts(count - turn)[pair]
    return first[giver[pair]] + within, first[taker[pair]] + within + turn[pair]


class _Sheet:
    """The activities of a script, with more added."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._count = len(script)
        self._seconds = [script.seconds.copy()]
        self._steps, self._label = [script.steps.copy()], [script.label]
        self._before, self._after = [script.before], [script.after.copy()]

    def add(self, like: Ints, steps: int) -> Ints:
        """Add an activity for each of those in ``like``, with the same label; return their rows."""
        rows = np.arange(self._count, self._count + len(like), dtype=np.int64)
        self._count += len(like)
        self._seconds.append(np.zeros(len(like)))
        self._steps.append(np.full(len(like), steps, dtype=np.int64))
        self._label.append(self._script.label[like])
        return rows

    def wait(self, before: Ints, after: Ints) -> None:
        """Make each of ``after`` wait for the one in the same place of ``before``."""
        self._before.append(before)
        self._after.append(after)

    def begin(self, old: Ints, begin: Ints) -> None:
        """Let ``begin`` wait for what ``old`` waited for; ``old`` then only marks the end."""
        held = np.isin(self._after[0], old)
        self._after[0][held] = begin[np.searchsorted(old, self._after[0][held])]
        self._steps[0][old] = 0

    def script(self, move: Ints, activity: Ints, gbit: Floats) -> Script:
        """Return the script; its moves are some old ones with new activities and sizes."""
        old, none = self._script, np.empty(0, dtype=np.int64)
        return replace(
            old,
            seconds=np.concatenate(self._seconds),
            steps=np.concatenate(self._steps),
            times=np.ones(self._count),
            label=np.concatenate(self._label),
            before=np.concatenate(self._before),
            after=np.concatenate(self._after),
            activity=activity,
            flow=old.flow[move],
            sender=old.sender[move],
            receiver=old.receiver[move],
            gbit=gbit,
            brings=none,
            goes=none,
        )


_FEW = 20_000
"""Up to this many streams, each end of a stream is an event of its own."""
_COARSE = 0.001
"""With more streams, ends within this fraction of the time so far are one event."""
_MOST = 500_000
"""Up to this many paths of messages, the QPs of a message proceed independently.

With more they go in step, as if every piece of a message were divided among them.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """Properties of a fabric beyond its links."""

    wire: Wire = NO_COST
    nvlink_gbps: float = NVLINK_GBPS
    followed: int = FOLLOWED
    """Most messages of rings and trees, counted per QP, to play one by one."""


PLAIN = Setting()
"""No headers, no latency, NVLink as on an H100."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """The result of playing a script."""

    script: Script
    run: ScheduleResult

    @property
    def seconds(self) -> float:
        """Seconds until all was complete; infinite if something never is."""
        return self.run.makespan

    def ends(self) -> dict[str, float]:
        """Return when the last activity of each label was complete, in seconds."""
        last = np.zeros(len(self.script.labels))
        np.maximum.at(last, self.script.label, self.run.end)
        return dict(zip(self.script.labels, last.tolist(), strict=True))


def world_of(
    fabric: Fabric,
    script: Script,
    carried: Carried,
    setting: Setting = PLAIN,
    timeline: Timeline | None = None,
) -> FluidSimulation:
    """Return a simulation ready to play a script; it may split activities into added ones."""
    fine = unrolled(script, setting.wire, setting.followed)
    script = fine.script
    in_step = ways_of_messages(script, carried) > _MOST
    schedule = fine.timed(staged(fabric, script, carried, setting.wire, in_step=in_step))
    capacity = capacities(fabric, script, setting.nvlink_gbps)
    coarse = 0.0 if len(schedule.streams) <= _FEW and not in_step else _COARSE
    return FluidSimulation(capacity, schedule, coarse=coarse, timeline=timeline)


def play(
    fabric: Fabric,
    script: Script,
    carried: Carried,
    setting: Setting = PLAIN,
    timeline: Timeline | None = None,
) -> Played:
    """Play a script to its end. ``timeline`` records how full arcs are, those of GPUs last."""
    run = world_of(fabric, script, carried, setting, timeline).run()
    return Played(script, run.of(len(script)))


def least_seconds(fabric: Fabric, script: Script, lower_bound: float, wire: Wire) -> float:
    """Return a lower bound on the seconds of a script of one phase, for plans of whole QPs.

    Spraying is no such plan. ``lower_bound`` is a utilisation that some arc has in every plan: at
    the demands of the flows, it gets that many times what it can pass on. And no plan sends or
    receives faster than the busiest NIC.
    """
    crossing = script.flow >= 0
    count = len(script.flows)
    gbit: Floats = np.bincount(
        script.flow[crossing], weights=script.gbit[crossing], minlength=count
    ).astype(np.float64)
    if not count:
        return 0.0
    gbit *= wire.swelling
    structure, carries = fabric.structure, fabric.carries
    nics = 0.0
    for side, ends in (
        (script.flows.source, structure.tail),
        (script.flows.destination, structure.head),
    ):
        room = np.bincount(ends, weights=structure.capacity * carries, minlength=fabric.node_count)
        moved = np.bincount(side, weights=gbit, minlength=fabric.node_count)
        nics = max(nics, float((moved[room > 0] / room[room > 0]).max(initial=0.0)))
    return max(nics, float(lower_bound * (gbit / script.flows.gbps).min()))


BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """Utilisation in steps of equal length; arrays have shape (steps,)."""

    begins: Floats
    """When each step begins, in seconds."""
    mean: dict[str, Floats]
    """Mean over the arcs of each tier that carry anything; each direction is an arc."""
    most: dict[str, Floats]
    """Utilisation of the fullest arc of each tier."""


def over_time(fabric: Fabric, timeline: Timeline) -> OverTime:
    """Return what a timeline recorded, by tier from the hosts up."""
    structure = fabric.structure
    arcs = 2 * fabric.link_count
    used = timeline.loads()[:, :arcs] / structure.capacity
    mean, most = {}, {}
    for row, name in enumerate(structure.tiers):
        own = used[:, structure.tier_of_arc == row]
        busy = own[:, (own > 0).any(axis=0)]
        mean[name] = busy.mean(axis=1) if busy.size else np.zeros(len(own))
        most[name] = own.max(axis=1) if own.size else np.zeros(len(own))
    return OverTime(timeline.begins, mean, most)


def drawn(values: Floats, width: int = 60) -> str:
    """Draw values from 0 to 1 as blocks; values that share a block show the greatest."""
    if not len(values):
        return ""
    groups = np.array_split(values, min(width, len(values)))
    levels = [min(max(float(group.max()), 0.0), 1.0) for group in groups]
    return "".join(BLOCKS[round(level * (len(BLOCKS) - 1))] for level in levels)
