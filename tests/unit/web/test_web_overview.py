"""The overview of a fabric: which agents are missing and which switches are set aside."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from heddle_controller.model.fabric import Fabric, Forwarding
from heddle_controller.reconcile.observations import SeenLinks
from heddle_controller.state.records import FabricRecord
from heddle_controller.web.overview import StandingPlan, SwitchLinks, overview
from tests.support.store_samples import clos


def told(fabric: Fabric, *, missing: Collection[str] = (), aside: Collection[str] = ()) -> Any:
    """Return the overview of a fabric without jobs."""
    record = FabricRecord(fabric.name, "", "1", 0.0, 1, fabric, np.zeros(fabric.link_count))
    now = StandingPlan(
        record=record,
        seen=SeenLinks(),
        unwell={},
        jobs=(),
        missing=tuple(missing),
        aside=frozenset(aside),
        plan=None,
        view=None,
        leader="one",
        leads=True,
        stale_seconds=0.0,
    )
    return overview(now, SwitchLinks.of(fabric.structure))


def test_all_that_are_set_aside_are_counted() -> None:
    """All thirty switches are counted, although the page names only a few."""
    fabric = clos(leaves=32, spines=2)
    aside = [f"l{number}" for number in range(30)]
    assert "30 switches are set aside." in told(fabric, aside=aside)["verdict"]["sentences"]


def test_who_is_set_aside_is_not_missed_too() -> None:
    """A switch that is set aside has no session, and only one sentence mentions it."""
    found = told(clos(), missing=("l0", "l1"), aside=("l1",))
    assert found["agents"]["missing"] == ["l0"]
    assert (found["agents"]["connected"], found["agents"]["expected"]) == (2, 4)
    assert "1 agent has no session here." in found["verdict"]["sentences"]


def test_no_agent_is_expected_on_a_switch_that_hashes() -> None:
    """Two of four switches hash, so two agents are expected and no warning is given."""
    fabric = clos()
    nodes = fabric.structure.nodes
    forwarding = nodes.forwarding.copy()
    forwarding[[fabric.structure.index[name] for name in ("s0", "s1")]] = Forwarding.ECMP
    structure = replace(fabric.structure, nodes=replace(nodes, forwarding=forwarding))
    found = told(replace(fabric, structure=structure))
    assert (found["agents"]["connected"], found["agents"]["expected"]) == (2, 2)
    assert found["verdict"]["level"] == "good"
