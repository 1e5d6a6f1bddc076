"""Facts of demand sets, from the intent and the plan that the real engine makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.plan import Plan
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.planning import left_out, make_plan, wanted_of
from heddle_controller.serve.codec.demand import DemandFacts, demand_facts
from heddle_controller.state.records import DemandRecord, Intent, JobFacts, JobRecord, JobState
from tests.support.store_samples import clos, demands, job


def intent_of(
    sets: dict[str, Demands], jobs: Sequence[str] = (), fabric: Fabric | None = None
) -> Intent:
    """Return an intent with these sets by name, and with jobs of two hosts each."""
    hosts = iter([("h0.0", "h1.0"), ("h0.1", "h1.1")])
    return Intent(
        name="f1",
        version=1,
        change_time=0.0,
        revision=1,
        fabric=fabric or clos(),
        jobs=tuple(
            JobRecord(job(name, next(hosts)), name, 0.0, JobFacts(name, JobState.ACCEPTED))
            for name in jobs
        ),
        demands=tuple(DemandRecord(name, sets[name], name, 0.0) for name in sorted(sets)),
    )


def planned(intent: Intent) -> Plan:
    """Return the plan that the controller makes."""
    engine = planning_engine(None)
    return make_plan(wanted_of(intent, engine), None, None, engine).plan


def facts_of(intent: Intent, plan: Plan | None) -> dict[str, DemandFacts]:
    """Return the facts of demand sets under a plan."""
    return demand_facts(
        intent, plan, {flow: row for row, flow in enumerate(plan.flows.ids)} if plan else {}
    )


A = demands(("n0.0", "n1.0"), ("n1.0", "n0.1"), ids="a")


def test_a_set_is_planned_once_the_plan_has_what_it_asks_for() -> None:
    """A set is ACCEPTED before, and again when it asks for something else."""
    intent = intent_of({"a": A})
    assert facts_of(intent, None) == {"a": DemandFacts()}
    plan = planned(intent)
    assert facts_of(intent, plan) == {"a": DemandFacts(JobState.PLANNED)}
    for other in (
        replace(A, gbps=A.gbps / 2),
        replace(A, qps=A.qps * 2),
        replace(A, source=A.source[::-1], destination=A.destination[::-1]),
        demands(("n0.0", "n1.0"), ids="other"),
    ):
        assert facts_of(intent_of({"a": other}), plan) == {"a": DemandFacts()}


def test_of_sets_that_share_an_id_one_is_planned_and_the_others_say_why() -> None:
    """Sets stored by a release without the check are never left out without a reason."""
    sets = {"a": A, "b": replace(A, gbps=A.gbps * 2), "c": demands(("n0.0", "n1.1"), ids="c")}
    intent = intent_of(sets)
    plan = planned(intent)
    assert sorted(plan.flows.ids) == ["a0", "a1", "c0"]
    facts = facts_of(intent, plan)
    assert {name: fact.state for name, fact in facts.items()} == {
        "a": JobState.PLANNED,
        "b": JobState.DEGRADED,
        "c": JobState.PLANNED,
    }
    text = "demands 'b': flow 'a0': demands 'a' have one of this id; rename it (and 1 more problem)"
    assert facts["b"].reason == f"not planned: {text}"


def test_the_id_of_a_jobs_flow_is_the_jobs() -> None:
    """The job is planned, and the set says why it is not. Without the job the set is planned."""
    own = planned(intent_of({}, ["j1"])).flows.ids
    mine = replace(A, ids=(own[0], "mine"))
    intent = intent_of({"a": mine}, ["j1"])
    assert set(planned(intent).flows.ids) == set(own)
    assert (
        left_out(intent)["a"]
        == f"demands 'a': flow {own[0]!r}: this id is one of job 'j1'; rename it"
    )
    assert facts_of(intent, planned(intent))["a"].state is JobState.DEGRADED
    alone = intent_of({"a": mine}, ["j2"])
    assert facts_of(alone, planned(alone)) == {"a": DemandFacts(JobState.PLANNED)}


def test_flows_without_a_path_are_told() -> None:
    """The facts have the number of such flows, and why the first has no path."""
    whole = clos()
    nic, links = whole.structure.index["n1.0"], whole.structure.links
    cut = (links.a == nic) | (links.b == nic)
    fabric = replace(whole, link_state=np.where(cut, State.DOWN, whole.link_state))
    intent = intent_of({"a": A, "z": demands(("n0.0", "n1.1"), ids="z")}, fabric=fabric)
    facts = facts_of(intent, planned(intent))
    assert facts["z"] == DemandFacts(JobState.PLANNED)
    assert (facts["a"].state, facts["a"].unrouted_count) == (JobState.DEGRADED, 2)
    assert facts["a"].reason.startswith("2 flows without a path: a0: ")
