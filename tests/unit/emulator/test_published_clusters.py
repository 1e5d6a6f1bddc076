"""The published clusters at their published sizes, and shapes that are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.topology import (
    clos,
    dragonfly,
    published,
    rail_optimised,
    random_regular,
    three_tier,
)


@pytest.mark.parametrize(
    ("name", "nics", "leaves", "spines", "cores"),
    [
        ("meta-24k", 24_576, 1_536, 128, 16),
        ("meta-32k", 32_256, 2_016, 144, 18),
        ("rail-256", 256, 8, 16, 0),
    ],
)
def test_sizes(name: str, nics: int, leaves: int, spines: int, cores: int) -> None:
    """There are as many NICs and switches of each kind as were published."""
    fabric = published(name)
    assert fabric.name == name
    kinds = np.bincount(fabric.structure.nodes.kind, minlength=len(NodeKind)).tolist()
    assert kinds == [nics, leaves, spines, cores, 0]


@pytest.mark.parametrize("name", ["meta-24k", "meta-32k"])
def test_seven_to_one_between_zones(name: str) -> None:
    """A seventh of the capacity below goes on to the cores.

    Leaves have at least as much up as down.
    """
    fabric = published(name)
    structure = fabric.structure
    total = np.bincount(structure.tier_of_arc, weights=structure.capacity)
    per_tier = dict(zip(structure.tiers, total.tolist(), strict=True))
    assert per_tier["leaf-spine"] / per_tier["spine-core"] == pytest.approx(7)
    assert per_tier["leaf-spine"] >= per_tier["nic-leaf"]


@pytest.mark.parametrize(
    ("build", "record"),
    [
        (lambda: clos(leaves=0, spines=1, nics_per_leaf=1), "leaves"),
        (lambda: clos(leaves=1, spines=1, nics_per_leaf=-3), "nics-per-leaf"),
        (lambda: clos(leaves=1, spines=1, nics_per_leaf=1, nic_gbps=float("nan")), "nic-gbps"),
        (lambda: clos(leaves=1, spines=1, nics_per_leaf=1, uplink_gbps=0), "uplink-gbps"),
        (lambda: clos(leaves=10**6, spines=10**6, nics_per_leaf=1), "leaves"),
        (lambda: _tapered(cores=3), "cores"),
        (lambda: _tapered(taper=-1.0), "taper"),
        (lambda: rail_optimised(rails=0), "rails"),
        (lambda: random_regular(switches=4, degree=4, nics_per_switch=1), "degree"),
        (lambda: random_regular(switches=5, degree=3, nics_per_switch=1), "degree"),
        (lambda: random_regular(switches=10, degree=1, nics_per_switch=1), "degree"),
        (lambda: dragonfly(routers=2, global_links=0, nics_per_switch=1), "global-links"),
        (lambda: published("meta-1"), "meta-1"),
    ],
)
def test_what_makes_no_fabric_is_refused(build: Callable[[], Fabric], record: str) -> None:
    """The error names the option as it is written on the command line."""
    with pytest.raises(InputError) as refused:
        build()
    assert refused.value.problems[0].record == record


def _tapered(*, cores: int = 2, taper: float = 1.0) -> Fabric:
    return three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=cores, taper=taper)
