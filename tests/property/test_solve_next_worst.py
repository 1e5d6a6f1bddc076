"""Planning goes on after the worst arc, so one bad leaf hides no collision elsewhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import arc_loads, utilization
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from tests.bench.workloads import between_switches, permutations
from tests.support.depth import examples

SPINES = 8


def one_bad_leaf(leaves: int, nics: int, left: int) -> tuple[Fabric, int]:
    """A fabric whose first leaf has ``left`` uplinks left, and the row of that leaf."""
    fabric = clos(leaves=leaves, spines=SPINES, nics_per_leaf=nics)
    bad = int(fabric.rows_of_kind(NodeKind.LEAF)[0])
    links = np.flatnonzero(between_switches(fabric) & (fabric.structure.links.a == bad))
    return fabric.with_links(dict.fromkeys(links[left:].tolist(), State.DOWN)), bad


def leaf_of(fabric: Fabric) -> Ints:
    """The leaf of each NIC by node row, shape (nodes,); other nodes are their own."""
    structure = fabric.structure
    leaf = np.arange(fabric.node_count)
    up = np.flatnonzero(structure.nodes.kind[structure.tail] == NodeKind.NIC)
    leaf[structure.tail[up]] = structure.head[up]
    return leaf


def elsewhere(fabric: Fabric, flows: Flows, bad: int) -> Floats:
    """Worst utilisation of links up from and down to each other leaf, shape (2, nodes)."""
    plan = solve(fabric, flows)
    assert not plan.unrouted
    used = utilization(fabric, arc_loads(2 * fabric.link_count, flows, plan.paths))
    structure, inner = fabric.structure, np.repeat(between_switches(fabric), 2)
    worst = np.zeros((2, fabric.node_count))
    for way, end in enumerate((structure.tail, structure.head)):
        leaf = inner & (structure.nodes.kind[end] == NodeKind.LEAF) & (end != bad)
        np.maximum.at(worst[way], end[leaf], used[leaf])
    return worst


@settings(max_examples=examples(12, 60))
@given(
    leaves=st.integers(3, 12),
    nics=st.integers(2, SPINES - 1),
    left=st.integers(1, SPINES - 1),
    qps=st.sampled_from([1, 4]),
    seed=st.integers(0, 10**6),
)
def test_a_bad_leaf_costs_others_only_what_they_send_it(
    leaves: int, nics: int, left: int, qps: int, seed: int
) -> None:
    """With more spines than NICs, another leaf has no more flows on a link than it must.

    It must carry what it exchanges with the bad leaf, over the spines which that leaf has left, and
    otherwise one flow. Split flows may leave a QP more on a link, and in about one of a hundred
    fabrics two: half of the collision that would be hidden otherwise.
    """
    fabric, bad = one_bad_leaf(leaves, nics, left)
    flows = permutations(fabric, seed, 1, qps)
    ends = leaf_of(fabric)[np.stack([flows.source, flows.destination])]
    to_bad = [(ends[1 - way] == bad) & (ends[way] != bad) for way in (0, 1)]
    exchanged = [np.bincount(ends[way, to_bad[way]], minlength=fabric.node_count) for way in (0, 1)]
    must = np.maximum(np.ceil(np.array(exchanged) / left), 1.0)
    slack = 0.0 if qps == 1 else 2 / qps
    assert (elsewhere(fabric, flows, bad) <= must + slack + 1e-9).all()
