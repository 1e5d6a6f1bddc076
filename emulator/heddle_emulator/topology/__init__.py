"""Fabric builders: Clos, three-tier, rail-optimised, dual-ToR, flat, and published clusters."""

from heddle_emulator.topology.assembly import hashing, with_ipv6
from heddle_emulator.topology.clos import clos, three_tier
from heddle_emulator.topology.dual_tor import dual_tor
from heddle_emulator.topology.flat import dragonfly, random_regular
from heddle_emulator.topology.published import PUBLISHED, published, rail_optimised

__all__ = [
    "PUBLISHED",
    "clos",
    "dragonfly",
    "dual_tor",
    "hashing",
    "published",
    "rail_optimised",
    "random_regular",
    "three_tier",
    "with_ipv6",
]
