"""States that a fabric derives from the one before equal those computed from nothing."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric, State
from tests.support.depth import examples
from tests.support.plan_chance import random_fabric

ASKED = ("effective", "carries", "plannable", "connected")


@pytest.mark.deep
@settings(max_examples=examples(50))
@given(st.integers(0, 2**32))
def test_states_after_changes(seed: int) -> None:
    """After changes, states of links, arcs and nodes are those of a newly made fabric.

    A few links or switches change at a time, or none, and some values are read in between.
    """
    random = Random(seed)
    fabric = random_fabric(random)
    for _ in range(6):
        for name in random.sample(ASKED, random.randint(0, len(ASKED))):
            getattr(fabric, name)
        nodes = random.random() < 0.3
        count = fabric.node_count if nodes else fabric.link_count
        some = random.sample(range(count), random.randint(0, min(3, count)))
        states = {row: random.choice([State.UP, State.DRAINED, State.DOWN]) for row in some}
        fabric = fabric.with_nodes(states) if nodes else fabric.with_links(states)
        anew = Fabric(fabric.structure, fabric.link_state, fabric.node_state)
        for name in ASKED:
            assert np.array_equal(getattr(fabric, name), getattr(anew, name)), (seed, name)
