"""Play a script over a fabric, its flows carried in some way, and see what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric
from heddle_emulator.fluid.simulation import FluidSimulation, ScheduleResult
from heddle_emulator.fluid.timeline import Timeline
from heddle_emulator.fluid.wire import NO_COST, Wire
from heddle_emulator.play.stage import NVLINK_GBPS, capacities, staged, ways_of_messages
from heddle_emulator.play.unrolled import FOLLOWED, unrolled
from heddle_emulator.strategy.carried import Carried
from heddle_emulator.traffic.script import Script

_FEW = 20_000
"""Streams up to which each end is an event of its own."""
_COARSE = 0.001
"""The part of the time gone by within which ends are one event where there are more."""
_MOST = 500_000
"""Paths of messages up to which QPs of a message go on by themselves; where there are more they go
in step, as where every piece of a message is divided among them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a fabric is made of beyond its links."""

    wire: Wire = NO_COST
    nvlink_gbps: float = NVLINK_GBPS
    followed: int = FOLLOWED
    """Messages of rings and trees, each QP's counted, up to which every one is followed."""


PLAIN = Setting()
"""No headers, no latency, NVLink as on an H100."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A script that was played."""

    script: Script
    run: ScheduleResult

    @property
    def seconds(self) -> float:
        """The time until all was complete; infinite where something never is."""
        return self.run.makespan

    def ends(self) -> dict[str, float]:
        """When the last activity of each label was complete, seconds."""
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
    """A world about to play a script; activities beyond those of the script are parts of them."""
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
    """Play a script to its end. ``timeline`` hears how full arcs were, those of GPUs last."""
    run = world_of(fabric, script, carried, setting, timeline).run()
    return Played(script, run.of(len(script)))


def least_seconds(script: Script, lower_bound: float, wire: Wire) -> float:
    """No plan of whole QPs plays a script of one phase faster. Spraying is no such plan.

    ``lower_bound`` is the utilisation that some arc has whatever the plan: at the rates
    that flows ask for, it gets that many times what it can pass on.
    """
    crossing = script.flow >= 0
    count = len(script.flows)
    gbit: Floats = np.bincount(
        script.flow[crossing], weights=script.gbit[crossing], minlength=count
    ).astype(np.float64)
    each = gbit * wire.swelling / script.flows.gbps
    return float(lower_bound * each.min()) if count else 0.0


BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """Utilisation in steps of equal length; arrays have shape (steps,)."""

    begins: Floats
    """Seconds."""
    mean: dict[str, Floats]
    """Of the links of each tier that carry anything at all, both ways of a link apart."""
    most: dict[str, Floats]
    """Of the fullest link of each tier."""


def over_time(fabric: Fabric, timeline: Timeline) -> OverTime:
    """What a timeline heard, by tier from the hosts up."""
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
    """Values from 0 to 1 as blocks, the greatest of those that share a place."""
    if not len(values):
        return ""
    groups = np.array_split(values, min(width, len(values)))
    levels = [min(max(float(group.max()), 0.0), 1.0) for group in groups]
    return "".join(BLOCKS[round(level * (len(BLOCKS) - 1))] for level in levels)
