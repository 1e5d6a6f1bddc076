"""A reason why a flow has no path names a cut: no path avoids the named links."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_controller.solve import solve
from tests.support.depth import examples
from tests.support.solve_fabrics import EACH, KINDS, damaged
from tests.support.solve_flows import any_flows
from tests.support.solve_reference import is_joined

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def healthy(fabric: Fabric) -> Fabric:
    """The same fabric with every link and node up."""
    return Fabric(fabric.structure, fabric.link_state * 0, fabric.node_state * 0)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(4, EACH))
@given(SEEDS)
def test_the_links_named_are_all_that_is_in_the_way(kind: str, seed: int) -> None:
    """The named links are not up, and no path avoids them even with all others up."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), 0.5)
    flows = any_flows(rng, fabric, 12)
    plan = solve(fabric, flows)
    rows = {fabric.link_name(row): row for row in range(fabric.link_count)}
    states = ("up", "down", "drained")
    for flow, reason in plan.unrouted.items():
        if " more" in reason:
            continue
        named = dict(re.findall(r"([\w,-]+) is (\w+)", reason))
        assert named
        for label, state in named.items():
            assert states[int(fabric.effective[rows[label]])] == state != "up"
        ends = int(flows.source[flow]), int(flows.destination[flow])
        cut = frozenset(rows[label] for label in named)
        assert is_joined(healthy(fabric), *ends)
        assert not is_joined(healthy(fabric), *ends, cut)
        assert np.isin([*cut], np.flatnonzero(fabric.effective)).all()
