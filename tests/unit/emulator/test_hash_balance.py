"""Hashing behaves as published, so that the baseline is a fair one."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import NodeKind
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos, three_tier
from heddle_emulator.traffic import flows_between
from tests.bench.published import NEAR, PUBLISHED, imbalance
from tests.support.depth import examples


@pytest.mark.deep
def test_thousand_flows_on_sixteen_links() -> None:
    """On average over many draws, the fullest of 16 uplinks has 1.23 ± 0.02 times the mean."""
    assert imbalance(examples(60, 300)).mean() == pytest.approx(PUBLISHED, abs=NEAR)


def test_a_permutation_collides_on_a_fabric_that_could_carry_it() -> None:
    """With 32 leaves, 32 spines and 32 NICs a leaf, the worst link has 4 to 7 flows."""
    fabric = clos(leaves=32, spines=32, nics_per_leaf=32)
    for seed in range(3):
        found = strategy("ecmp")(fabric, flows_between(fabric, "permutation", seed=seed), seed)
        assert len(found.walk.lost) == 0
        assert 4 <= found.worst["leaf-spine"] <= 7
        assert found.collisions > 0
        assert found.slowest <= 1 / 3


def test_more_qps_hash_better() -> None:
    """E-ECMP-32 has a less loaded worst link and a faster slowest flow than plain ECMP."""
    fabric = clos(leaves=16, spines=16, nics_per_leaf=16)
    flows = flows_between(fabric, "permutation", seed=1)
    plain, spread = strategy("ecmp")(fabric, flows, 1), strategy("e-ecmp:32")(fabric, flows, 1)
    assert len(spread.walk.flow) == 32 * len(flows)
    assert spread.worst["leaf-spine"] < plain.worst["leaf-spine"] / 2
    assert spread.slowest > plain.slowest


def test_switches_in_a_row_do_not_polarise() -> None:
    """After two layers of hashing, all cores of a three-tier fabric are used."""
    fabric = three_tier(zones=2, leaves=8, spines=4, nics_per_leaf=16, cores=16, taper=1)
    found = strategy("ecmp")(fabric, flows_between(fabric, "shift"), 3)
    structure = fabric.structure
    into_core = (structure.nodes.kind[structure.head] == NodeKind.CORE) & (found.loads > 0)
    assert len(np.unique(structure.head[into_core])) == 16


def test_same_seed_same_walk() -> None:
    """The same seed sends every packet the same way again."""
    fabric = clos(leaves=8, spines=8, nics_per_leaf=8)
    flows = flows_between(fabric, "permutation", seed=5)
    one, two, other = (strategy("ecmp")(fabric, flows, seed) for seed in (7, 7, 8))
    assert (one.walk.arcs == two.walk.arcs).all()
    assert (one.walk.arcs != other.walk.arcs).any()


def test_strategies_by_name() -> None:
    """A name runs the strategy that it stands for."""
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4)
    flows = flows_between(fabric, "permutation", seed=2)
    assert len(strategy("ecmp")(fabric, flows, 1).walk.flow) == 16
    assert len(strategy("e-ecmp:5")(fabric, flows, 1).walk.flow) == 80


@pytest.mark.parametrize("name", ["", "ECMP", "e-ecmp", "e-ecmp:0", "e-ecmp:9999", "e-ecmp:-1"])
def test_unknown_strategies(name: str) -> None:
    """The error says what to give."""
    with pytest.raises(InputError, match="give"):
        strategy(name)
