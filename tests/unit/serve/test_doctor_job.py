"""The rules that find why a job is slow, on a plan of two flows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from heddle.v1 import doctor_pb2 as pb
from heddle_controller.model.fabric import Fabric, Forwarding
from heddle_controller.model.plan import Certificate, Plan, TierCertificate, join_paths
from heddle_controller.reconcile.observations import LinkEnds, SeenLinks
from heddle_controller.serve.agents.link_book import Condition
from heddle_controller.serve.doctor.job import JobCase, examine
from heddle_controller.serve.flow_index import FlowIndex
from heddle_controller.serve.rates import MeasuredRate
from heddle_controller.state.records import (
    Committed,
    FabricRecord,
    JobFacts,
    JobRecord,
    JobState,
    PlanFacts,
    Programmed,
)
from tests.support.store_samples import clos, job, plan_of, program_of, walk

UNWELL: Mapping[LinkEnds, Condition] = {}


def plan_of_two() -> Plan:
    """Return a plan of j1/f0, 400 Gbit/s over s0, and j1/f1, 12.5 Gbit/s over s1."""
    plan = plan_of(clos())
    arcs = np.array(walk(plan.fabric, "n0.1", "l0", "s1", "l1", "n1.1"))
    second = replace(
        plan.paths,
        flow=np.array([1]),
        arcs=arcs,
        first_qp=np.array([0]),
        last_qp=np.array([7]),
    )
    none = replace(second, arcs=arcs[:0], first=np.array([0, 0]))
    return replace(
        plan,
        paths=join_paths([plan.paths, second]),
        backups=join_paths([plan.backups, none]),
        unrouted={},
        certificate=Certificate(1.0, 1.0, "cut", ()),
    )


def case(
    plan: Plan,
    *,
    unwell: Mapping[LinkEnds, Condition] = UNWELL,
    measured: Mapping[str, MeasuredRate] | None = None,
    held: int = 1,
) -> JobCase:
    """Return all that is known of job j1, whose agents are all connected."""
    program = program_of(plan, 1, 1)
    fabric = plan.fabric
    committed = Committed(plan, program, PlanFacts(2, 0.1, 5.0), Programmed(held))
    record = FabricRecord("f1", "", "", 1.0, 1, fabric, np.zeros(fabric.link_count))
    return JobCase(
        record=record,
        job=JobRecord(job(), "", 1.0, JobFacts("", JobState.PROGRAMMED)),
        committed=committed,
        index=FlowIndex(committed),
        seen=SeenLinks(),
        unwell=unwell,
        agents=frozenset({"l0", "l1", "s0", "s1"}),
        aside={},
        measured=measured or {},
    )


def hashing(fabric: Fabric, *switches: str) -> Fabric:
    """Return the fabric with switches that only hash."""
    structure = fabric.structure
    forwarding = structure.nodes.forwarding.copy()
    forwarding[[structure.index[one] for one in switches]] = Forwarding.ECMP
    nodes = replace(structure.nodes, forwarding=forwarding)
    return replace(fabric, structure=replace(structure, nodes=nodes))


def bad(told: pb.JobExamination) -> list[pb.Finding]:
    """Return the findings that ask for something."""
    return [one for one in told.findings if one.severity > pb.SEVERITY_INFO]


def test_a_job_that_is_well_has_nothing_to_be_done() -> None:
    """The examination names the slowest flow and says that its packets are pinned."""
    told = examine(case(plan_of_two()))
    assert bad(told) == []
    assert (told.slowest.flow, told.slowest.share, told.pinned) == ("j1/f0", 1.0, True)
    assert (told.source_rail, told.destination_rail) == (0, 0)


def test_a_link_that_offers_less_makes_its_flow_the_slowest() -> None:
    """A full link that offers half of its speed gives its flow half. The cure is to drain it."""
    slow = {("l0", "s0", "0"): Condition("slow", rate_ratio=0.5)}
    told = examine(case(plan_of_two(), unwell=slow))
    assert (told.slowest.flow, told.slowest.share) == ("j1/f0", 0.5)
    assert told.expected_gbps == pytest.approx(200.0)
    texts = [one.cure for one in bad(told) if one.about == "link"]
    assert any("heddle drain l0,s0,0;" in text for text in texts)


def test_a_flow_over_a_grey_link_comes_before_one_over_a_full_link() -> None:
    """Both flows get all that they ask for by the plan. The one that loses packets is named."""
    grey = {("l0", "s1", "0"): Condition("grey", loss_ratio=0.02)}
    told = examine(case(plan_of_two(), unwell=grey))
    assert told.slowest.flow == "j1/f1"
    (found,) = bad(told)
    assert "loses 2.00% of packets" in found.text
    elsewhere = {("l0", "n0.0", "9"): Condition("grey", loss_ratio=0.02)}
    assert bad(examine(case(plan_of_two(), unwell=elsewhere))) == []


def test_what_was_measured_stands_beside_what_is_expected() -> None:
    """A low rate is reported with its hosts. A rate of 0 points to the ports."""
    short = examine(case(plan_of_two(), measured={"j1/f0": MeasuredRate(9.0, 100.0)}))
    assert short.measured_gbps == 100.0
    (found,) = bad(short)
    assert "measured at 100 of 400 Gbit/s" in found.text
    assert "n0.0" in found.cure
    silent = examine(case(plan_of_two(), measured={"j1/f1": MeasuredRate(9.0, 0.0)}))
    assert "heddle job ports j1" in bad(silent)[0].cure
    fine = examine(case(plan_of_two(), measured={"j1/f0": MeasuredRate(9.0, 390.0)}))
    assert bad(fine) == []


def test_switches_that_only_hash_have_no_agent_to_miss() -> None:
    """Ports pin the packets, and nothing asks for agents or their counters."""
    plan = plan_of_two()
    every = hashing(plan.fabric, "l0", "l1", "s0", "s1")
    told = examine(replace(case(replace(plan, fabric=every)), agents=frozenset()))
    assert bad(told) == []
    (pinned,) = [one for one in told.findings if one.about == "programmed"]
    assert pinned.text.startswith("Its packets are pinned by their source ports")
    (rate,) = [one for one in told.findings if one.about == "rate"]
    assert "no agent counts" in rate.cure
    half = hashing(plan.fabric, "s0", "s1")
    told = examine(replace(case(replace(plan, fabric=half)), agents=frozenset({"l0"})))
    (away,) = bad(told)
    assert away.text.startswith("No session here has the agent of l1: ")


def test_a_flow_without_a_known_port_needs_probes() -> None:
    """Where switches only hash, the cure asks for the program that finds the ports."""
    plan = plan_of_two()
    lost = replace(plan, paths=plan.paths.take(np.array([0])), unrouted={1: "no port is known"})
    told = examine(case(replace(lost, fabric=hashing(plan.fabric, "l0", "l1", "s0", "s1"))))
    (path,) = [one for one in bad(told) if one.about == "path"]
    assert "heddle-agent host" in path.cure


def test_a_flow_is_not_pinned_before_its_switches_say_so() -> None:
    """The finding names the switch that lacks the plan."""
    told = examine(case(plan_of_two(), held=0))
    assert not told.pinned
    assert "Switch l0 does not hold plan 1 yet" in bad(told)[0].text


def test_a_flow_without_a_path_is_the_slowest() -> None:
    """The finding has the reason, and the expected rate is 0, so no measured rate is missed."""
    told = examine(case(plan_of(clos())))
    assert "rate" not in {one.about for one in told.findings}
    assert (told.slowest.flow, told.slowest.unrouted_count) == ("j1/f1", 1)
    assert (told.expected_gbps, told.pinned) == (0.0, False)
    assert "every path is down" in bad(told)[0].text


def test_a_job_that_no_plan_holds_yet_is_not_called_idle() -> None:
    """The finding is a warning that it waits for a plan."""
    known = case(plan_of_two())
    new = replace(job(), name="new")
    waits = replace(known, job=JobRecord(new, "", 1.0, JobFacts("", JobState.ACCEPTED)))
    (told,) = examine(waits).findings
    assert told.severity == pb.SEVERITY_WARNING
    assert "waits for the first plan" in told.text


def test_whole_flows_on_a_link_above_its_bound_should_have_two_qps() -> None:
    """The cure names the jobs whose flows cannot be split. It does not where each has more QPs."""
    plan = plan_of_two()
    fullest = Certificate(2.0, 1.0, "cut", (TierCertificate("leaf-spine", 2.0, 1.0),))
    overfull = replace(plan.flows, gbps=2 * plan.flows.gbps)
    whole = replace(plan, flows=overfull, certificate=fullest)
    (found,) = [one for one in bad(examine(case(whole))) if one.about == "link"]
    assert "state 'qps: 2' for job j1" in found.cure
    two = replace(overfull, qps=np.maximum(overfull.qps, 2))
    both = replace(plan.paths, last_qp=np.maximum(plan.paths.last_qp, 1))
    split = replace(whole, flows=two, paths=both)
    (found,) = [one for one in bad(examine(case(split))) if one.about == "link"]
    assert "A better plan may exist" in found.cure
    assert "qps" not in found.cure


def test_a_bound_of_another_place_proves_nothing_of_a_link() -> None:
    """A tier's bound is that of its worst place. A link that is less full may have another one."""
    plan = plan_of_two()
    fuller = replace(plan.flows, gbps=1.5 * plan.flows.gbps, qps=np.full(len(plan.flows), 4))
    all_qps = replace(plan.paths, last_qp=np.full(len(plan.paths), 3))
    for bound, told in ((1.5, "No plan does better"), (2.0, "Whether a plan does better is not")):
        certificate = Certificate(2.0, bound, "cut", (TierCertificate("nic-leaf", 2.0, bound),))
        here = replace(plan, flows=fuller, paths=all_qps, certificate=certificate)
        (found,) = [one for one in bad(examine(case(here))) if one.about == "link"]
        assert found.cure.startswith(told)
