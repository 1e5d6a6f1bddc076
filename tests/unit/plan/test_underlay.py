"""Next hops of the underlay, on fabrics small enough to check by hand."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.model.underlay import underlay
from tests.support.plan_chance import clos, joined


def test_leaf_has_a_choice_and_spine_has_none() -> None:
    """A leaf has every spine as next hop, a spine only the leaf, and the last leaf the NIC."""
    fabric = clos(spines=3)
    index, found = fabric.structure.index, underlay(fabric.structure)
    heads = {
        name: [
            fabric.structure.nodes.ids[head]
            for head in fabric.structure.head[found.next_hops(index[name], index["n2"])]
        ]
        for name in ("leaf0", "spine1", "leaf1")
    }
    assert heads == {
        "leaf0": ["spine0", "spine1", "spine2"],
        "spine1": ["leaf1"],
        "leaf1": ["n2"],
    }


def test_dead_links_are_gone_round() -> None:
    """A spine that lost its link to a leaf still reaches it, over the other leaves."""
    fabric = clos(leaves=3)
    (link,) = fabric.find_links("leaf1", "spine0")
    sick = fabric.with_links({link: State.DOWN})
    index, found = fabric.structure.index, underlay(fabric.structure, sick.carries)
    heads = fabric.structure.head[found.next_hops(index["spine0"], index["n2"])]
    assert [fabric.structure.nodes.ids[head] for head in heads] == ["leaf0", "leaf2"]


def test_nic_out_of_reach_has_no_next_hops() -> None:
    """A NIC whose only link is down has no next hops anywhere, and that is no error."""
    fabric = clos()
    (link,) = fabric.find_links("n2", "leaf1")
    sick = fabric.with_links({link: State.DOWN})
    index, found = fabric.structure.index, underlay(fabric.structure, sick.carries)
    assert found.next_hops(index["leaf0"], index["n2"]).tolist() == []
    dark = fabric.with_links(dict.fromkeys(range(fabric.link_count), State.DOWN))
    nothing = underlay(fabric.structure, dark.carries)
    arcs = np.arange(2 * fabric.link_count)
    assert not nothing.only_next_hop(arcs, np.full(len(arcs), index["n2"])).any()


def test_nic_at_two_switches_is_reached_at_the_nearer() -> None:
    """A NIC with two links is reached over whichever of its switches is nearest, here over both."""
    nodes = [{"id": f"s{i}", "kind": "switch"} for i in range(3)]
    nodes += [{"id": name, "kind": "nic"} for name in ("a", "b")]
    line = joined(nodes, [("s0", "s1"), ("s1", "s2"), ("a", "s0"), ("a", "s2"), ("b", "s1")])
    index, found = line.structure.index, underlay(line.structure)
    heads = line.structure.head[found.next_hops(index["s1"], index["a"])]
    assert [line.structure.nodes.ids[head] for head in heads] == ["s0", "s2"]


def test_search_is_done_once_and_let_go() -> None:
    """A result is computed once, and freed together with its structure."""
    structure = clos().structure
    assert underlay(structure).reach is underlay(structure).reach
    gone = weakref.ref(structure)
    del structure
    gc.collect()
    assert gone() is None


def test_what_one_thread_reads_no_other_changes() -> None:
    """A structure keeps at most four results, in a mapping that is replaced, never changed."""
    fabric = clos(leaves=3, spines=3)
    structure = fabric.structure
    whole = underlay(structure).reach
    before = structure.reaches
    told = dict(before)
    for link in np.flatnonzero(structure.nodes.kind[structure.links.a] != NodeKind.NIC).tolist():
        sick = fabric.with_links({link: State.DOWN})
        underlay(structure, sick.carries)
        assert underlay(structure).reach is whole
        assert len(structure.reaches) <= 4
    assert structure.reaches is not before
    assert dict(before) == told
