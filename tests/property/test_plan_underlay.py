"""The underlay found all at once is that of a plain search from each NIC."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model import reach_update as amended
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.reach_update import MOST_SEARCHED_SINGLY
from heddle_controller.model.underlay import _search, underlay
from tests.support.plan_chance import random_fabric, with_failures


def hops_to(fabric: Fabric, nic: int) -> dict[int, int]:
    """Links from every switch to a NIC, by a search that anybody can read."""
    structure = fabric.structure
    distance = {nic: 0}
    queue = deque([nic])
    while queue:
        node = queue.popleft()
        for arc in np.flatnonzero((structure.head == node) & fabric.carries).tolist():
            before = int(structure.tail[arc])
            if structure.nodes.kind[before] != NodeKind.NIC and before not in distance:
                distance[before] = distance[node] + 1
                queue.append(before)
    return distance


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_next_hops_are_those_of_a_plain_search(seed: int) -> None:
    """At every switch towards every NIC: the same next hops, and a choice if more than one."""
    rng = Random(seed)
    fabric = with_failures(rng, random_fabric(rng), rng.choice([0.0, 0.3, 0.7]))
    structure = fabric.structure
    found = underlay(structure, fabric.carries)
    for nic in fabric.rows_of_kind(NodeKind.NIC).tolist():
        distance = hops_to(fabric, nic)
        for switch in fabric.rows_of_kind(NodeKind.SWITCH).tolist():
            out = structure.out[1][structure.out[0][switch] : structure.out[0][switch + 1]]
            expected = [
                arc
                for arc in out.tolist()
                if fabric.carries[arc]
                and distance.get(switch, 0) - 1 == distance.get(int(structure.head[arc]), -9)
            ]
            assert found.next_hops(switch, nic).tolist() == expected
            sole = found.only_next_hop(out, np.full(len(out), nic))
            assert out[sole].tolist() == (expected if len(expected) == 1 else [])


@given(st.integers(min_value=0, max_value=2**32 - 1), st.sampled_from([0, MOST_SEARCHED_SINGLY]))
def test_what_follows_from_the_reach_before_is_what_is_searched(seed: int, few: int) -> None:
    """Links go and come, a few at a time: distances and choices are those of a search anew.

    Whether places are searched one by one, where they are few, or all at once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amended, "MOST_SEARCHED_SINGLY", few)
        _links_go_and_come(seed)


def _links_go_and_come(seed: int) -> None:
    rng = Random(seed)
    fabric = with_failures(rng, random_fabric(rng), rng.choice([0.0, 0.2, 0.5]))
    structure, mask = fabric.structure, fabric.carries.copy()
    for _ in range(4):
        for arc in rng.sample(range(len(mask)), rng.randint(1, 3)):
            mask[arc] = not mask[arc]
        found, due = underlay(structure, mask.copy()).reach, _search(structure, mask)
        counts, right = found.distance.whole(), due.distance.whole()
        np.testing.assert_array_equal(counts, right, err_msg=f"{seed}: distance")
        for name in ("place", "row", "several", "twin"):
            one, other = getattr(found, name), getattr(due, name)
            np.testing.assert_array_equal(one, other, err_msg=f"{seed}: {name}")
