"""How full the links of each tier are over time, for reports and for the eye."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Fabric, Floats
from heddle_emulator.fluid.timeline import Timeline

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
