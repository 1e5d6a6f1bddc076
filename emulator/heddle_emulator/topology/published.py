"""Published clusters by name, at the sizes that were published.

Two servers of 8 GPUs a rack and a 400G NIC a GPU: 16 NICs a leaf, 16 leaf uplinks,
full bisection in a zone, one seventh of it between zones. The larger one leaves two
spines of slack: 18 uplinks for 16 NICs, as the builders of the first found they
needed in the face of failures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_emulator.topology.clos import three_tier
from heddle_emulator.topology.rails import rail_optimised


@dataclass(frozen=True, slots=True)
class Cluster:
    """A published cluster: its shape in words, and how to build it."""

    shape: str
    build: Callable[[], Fabric]


_META_24K = partial(
    three_tier, zones=8, leaves=192, spines=16, nics_per_leaf=16, cores=16, taper=7.0
)
_META_32K = partial(
    three_tier, zones=8, leaves=252, spines=18, nics_per_leaf=16, cores=18, taper=7.0
)
PUBLISHED = {
    "meta-24k": Cluster(
        "8 zones of 192 leaves x 16 NICs, 16 spines, 1:7 to the cores",
        partial(_META_24K, name="meta-24k"),
    ),
    "meta-32k": Cluster(
        "8 zones of 252 leaves x 16 NICs, 18 spines, 1:7 to the cores",
        partial(_META_32K, name="meta-32k"),
    ),
    "rail-256": Cluster(
        "32 servers x 8 rails, a leaf for each rail, 16 spines",
        partial(rail_optimised, name="rail-256"),
    ),
}


def published(name: str) -> Fabric:
    """A published cluster.

    Raises:
        InputError: for a name that is not known, with those that are.
    """
    if name not in PUBLISHED:
        raise refuse("topology", name, f"is not known; give one of {', '.join(sorted(PUBLISHED))}")
    return PUBLISHED[name].build()
