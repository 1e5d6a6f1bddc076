"""Link load as packets find it: every hop is asked of the agents' tables, never of the plan."""

from heddle_emulator.walk.measure import Measurement, crossing, measure, moved
from heddle_emulator.walk.packets import Fate, Forwarding, Walk, walk

__all__ = [
    "Fate",
    "Forwarding",
    "Measurement",
    "Walk",
    "crossing",
    "measure",
    "moved",
    "walk",
]
