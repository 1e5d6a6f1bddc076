"""The progress of a drain while the fabric is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle.v1 import common_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import State
from heddle_controller.model.plan import no_paths
from heddle_controller.serve.what_if import DrainWatch
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from tests.support.store_samples import clos, plan_of, program_of


def test_a_link_that_the_plan_does_not_know_carries_nothing() -> None:
    """A link of a leaf that came after the plan was made carries 0 flows and is not refused.

    The link of an old leaf, beside it, has the flows that the plan has on it.
    """
    plan = plan_of(clos(leaves=2))
    committed = Committed(plan, program_of(plan, 3, 7), PlanFacts(), Programmed())
    grown = clos(leaves=3)
    new = common_pb2.LinkRef(source="l2", target="s0")
    old = common_pb2.LinkRef(source="l0", target="s0")
    request = pb.WatchDrainRequest(links=[new])
    assert DrainWatch(request).look(grown, 1, committed).flow_count == 0
    known = DrainWatch(pb.WatchDrainRequest(links=[old])).look(plan.fabric, 1, committed)
    both = DrainWatch(pb.WatchDrainRequest(links=[new, old])).look(grown, 1, committed)
    assert both.flow_count == known.flow_count > 0


def test_a_link_that_the_fabric_does_not_have_is_refused() -> None:
    """The link is refused even while the plan is still of a fabric that has it."""
    plan = plan_of(clos(leaves=3))
    committed = Committed(plan, program_of(plan, 3, 7), PlanFacts(), Programmed())
    watch = DrainWatch(pb.WatchDrainRequest(switches=["l2"]))
    with pytest.raises(InputError, match="l2"):
        watch.look(clos(leaves=2), 1, committed)


def test_nothing_is_idle_before_the_first_plan() -> None:
    """A drained switch is not idle while a plan that may use others is still to come."""
    fabric = clos(leaves=2)
    drained = fabric.with_nodes({fabric.structure.index["s0"]: State.DRAINED})
    progress = DrainWatch(pb.WatchDrainRequest(switches=["s0"])).look(drained, 1, None)
    assert not progress.idle
    assert not progress.planned


def test_nothing_is_idle_while_switches_ignore_their_entries() -> None:
    """A link without flows is idle, unless the overlay is withdrawn."""
    plan = plan_of(clos(leaves=2))
    fabric = plan.fabric.with_nodes({plan.fabric.structure.index["s0"]: State.DRAINED})
    plan = replace(plan, fabric=fabric, paths=no_paths(), backups=no_paths())
    program = program_of(plan, 3, 7)
    committed = Committed(plan, program, PlanFacts(), Programmed(generation=program.generation))
    for withdrawn in (False, True):
        watch = DrainWatch(pb.WatchDrainRequest(switches=["s0"]))
        progress = watch.look(fabric, 1, committed, withdrawn=withdrawn)
        assert (progress.idle, progress.withdrawn) == (not withdrawn, withdrawn)


def test_nothing_is_idle_while_backups_lead_over_it() -> None:
    """A link lost elsewhere would bring traffic back, so backups have to leave as well."""
    plan = plan_of(clos(leaves=2))
    fabric = plan.fabric.with_nodes({plan.fabric.structure.index["s1"]: State.DRAINED})
    program = program_of(plan, 3, 7)
    for paths, backups, idle in (
        (plan.paths, plan.backups, False),
        (no_paths(), no_paths(), True),
    ):
        some = replace(plan, fabric=fabric, paths=paths, backups=backups)
        committed = Committed(some, program, PlanFacts(), Programmed(generation=7))
        progress = DrainWatch(pb.WatchDrainRequest(switches=["s1"])).look(fabric, 1, committed)
        assert progress.path_count == 0
        assert (progress.flow_count == 0, progress.idle) == (idle, idle)
