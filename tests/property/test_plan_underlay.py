"""The underlay computed for all NICs at once equals a plain search from each NIC."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.underlay import underlay
from tests.support.plan_chance import random_fabric, with_failures


def hops_to(fabric: Fabric, nic: int) -> dict[int, int]:
    """The number of links from every switch to a NIC, by a plain breadth-first search."""
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
    """Every switch has the same next hops to every NIC, and a sole next hop is known as such."""
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
