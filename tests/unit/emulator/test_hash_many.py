"""Drawing many hashes at once gives the same distribution as tables, one hash after another."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.fabric import State
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos, random_regular
from heddle_emulator.traffic import flows_between
from tests.bench.hash_seeds import FABRICS, Case, run
from tests.support.hash_many import hashed_slowest

MANY, SINGLE = 400, 40
FAR = 0.25
"""Greatest distance allowed between two distributions. Equal ones exceed it once in 50 times."""


def test_drawn_at_once_or_by_tables() -> None:
    """Distributions agree on a leaf that has lost an uplink and on a graph without tiers."""
    whole = clos(leaves=3, spines=4, nics_per_leaf=3)
    (lost,) = whole.find_links("l0", "s0")
    for fabric in (
        whole.with_links({lost: State.DOWN}),
        random_regular(switches=6, degree=3, nics_per_switch=2, seed=1),
    ):
        flows = flows_between(fabric, "permutation", seed=3, qps=4)
        many = np.sort(hashed_slowest(fabric, flows, MANY))
        single = np.sort([strategy("ecmp")(fabric, flows, seed).slowest for seed in range(SINGLE)])
        at = np.concatenate([many, single]) + 1e-9
        parts = [np.searchsorted(one, at) / len(one) for one in (many, single)]
        assert np.abs(parts[0] - parts[1]).max() < FAR, fabric.name


def test_the_same_seed_draws_the_same() -> None:
    """Two calls with equal seeds give equal results."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    flows = flows_between(fabric, "permutation", qps=4)
    assert (
        hashed_slowest(fabric, flows, 50, 7).tolist()
        == hashed_slowest(fabric, flows, 50, 7).tolist()
    )


def test_a_flow_without_a_way_has_no_rate() -> None:
    """A flow that is cut off is the slowest, with a rate of 0."""
    whole = clos(leaves=2, spines=1, nics_per_leaf=1)
    flows = flows_between(whole, "permutation", qps=2)
    cut = whole.with_links({whole.find_links("l0", "s0")[0]: State.DOWN})
    assert hashed_slowest(cut, flows, 3).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("fabric", "failed"), [*zip(FABRICS, (8, 4), strict=False)])
def test_no_hash_of_a_hundred_beats_the_plan(fabric: str, failed: int) -> None:
    """The plan's slowest flow is at least as fast as that of any of a hundred 32-QP hashes."""
    found = run(Case(fabric, failed, failed % 2, 100))
    assert found.losses == 0, found.margins.min()
