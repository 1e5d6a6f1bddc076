"""The NICs that are cut off when links are drained."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.plan.limits import shortest_links
from heddle_controller.plan.what_if import cut_off, links_of
from tests.support.store_samples import clos


def without(fabric: Fabric, *switches: str) -> Fabric:
    """The fabric with some switches drained."""
    index = fabric.structure.index
    return fabric.with_nodes({index[switch]: State.DRAINED for switch in switches})


def names(fabric: Fabric, rows: np.ndarray) -> list[str]:
    """The ids of some node rows."""
    return [fabric.structure.nodes.ids[row] for row in rows.tolist()]


def test_nics_of_a_leaf_are_cut_off_with_it() -> None:
    """A drained leaf cuts off its NICs; a drained spine beside another one cuts off none."""
    fabric = clos(leaves=3)
    assert names(fabric, cut_off(fabric, without(fabric, "l0"))) == ["n0.0", "n0.1"]
    assert names(fabric, cut_off(fabric, without(fabric, "s0"))) == []


def test_the_smaller_part_is_cut_off() -> None:
    """With all spines drained, the NICs of all leaves but one are cut off.

    The greatest connected part counts as the fabric.
    """
    fabric = clos(leaves=3)
    assert len(cut_off(fabric, without(fabric, "s0", "s1"))) == 4


def test_all_are_cut_off_where_each_is_alone() -> None:
    """With the only leaf drained, all NICs are cut off, but not those that were so before."""
    fabric = clos(leaves=1)
    alone = without(fabric, "l0")
    assert names(fabric, cut_off(fabric, alone)) == ["n0.0", "n0.1"]
    assert names(fabric, cut_off(alone, alone)) == []


def test_links_of_shortest_ways_are_found() -> None:
    """``shortest_links`` gives the links over both spines and none of a third leaf."""
    fabric = clos(leaves=3)
    index = fabric.structure.index
    found = shortest_links(fabric.structure, index["n0.0"], index["n1.0"])
    third = links_of(fabric, np.array([index["l2"]]))
    assert len(found) == 6
    assert not set(found.tolist()) & set(third.tolist())
