from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Entries
from heddle_controller.place.score import scores
from heddle_controller.planner.core import PlanningCore
from heddle_controller.planner.planning import (
    FEW,
    Engine,
    Planned,
    Wanted,
    better_plan,
    make_plan,
    only_failures,
    reoptimise,
    same_input,
    wanted_of,
)
from heddle_controller.solve import solve
from heddle_controller.solve.repair.repairer import Repairer
from heddle_controller.state.records import DemandRecord, Intent, JobFacts, JobRecord, JobState
from heddle_emulator.topology import clos as two_tiers
from heddle_emulator.traffic import flows_between
from tests.support.plan_chance import Draft, Wish, clos, wishes
from tests.support.reconcile_world import ENGINE, ring, three_tiers
from tests.support.store_samples import demands

FABRIC = three_tiers()
J1 = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
J2 = ring("j2", "h0.0.1", "h1.0.1", "h0.1.1", "h1.1.1")


def wanted(fabric: Fabric, *jobs: Job) -> Wanted:
    """Return what jobs want on a fabric, without demand sets."""
    return Wanted(fabric, concatenate([ENGINE.flows_of_job(job, fabric) for job in jobs]), ())


def record(job: Job) -> JobRecord:
    """Return a job's record."""
    return JobRecord(job, "e", 0.0, JobFacts("e", JobState.ACCEPTED))


def down(fabric: Fabric, a: str, b: str, state: State = State.DOWN) -> Fabric:
    """Return the fabric with a link in another state."""
    return fabric.with_links(dict.fromkeys(fabric.find_links(a, b), state))


@pytest.fixture
def plan() -> Plan:
    """Return the plan of job j1."""
    return make_plan(wanted(FABRIC, J1), None, None, ENGINE).plan


def test_wanted_is_jobs_and_demands() -> None:
    """Flows come from all jobs and demand sets. A job's demands have the job's weight."""
    own = replace(demands(("n0.0.1", "n1.0.1")), job=("j1",))
    intent = Intent(
        name="f1",
        version=1,
        change_time=0.0,
        revision=1,
        fabric=FABRIC,
        jobs=(record(replace(J1, priority=3.0)),),
        demands=(
            DemandRecord("d1", own, "e", 0.0),
            DemandRecord("d2", replace(demands(("n0.0.1", "gone")), ids=("other",)), "e", 0.0),
        ),
    )
    found = wanted_of(intent, ENGINE)
    assert len(found.flows) == 5
    assert found.flows.job_names == ("j1",)
    assert found.flows.weight.tolist() == [3.0] * 5
    ((name, reason),) = found.refused
    assert (name, "'gone' is not in the fabric" in reason) == ("demands 'd2'", True)


@pytest.mark.parametrize("name", ["a", "z"])
def test_what_comes_stands_behind_all_that_is_known(name: str) -> None:
    """Rows of known jobs and demand sets stay in place when a job comes, whatever its name."""
    before = Intent(
        name="f1",
        version=1,
        change_time=0.0,
        revision=1,
        fabric=FABRIC,
        jobs=(replace(record(J1), create_time=5.0),),
        demands=(DemandRecord("d1", demands(("n0.0.1", "n1.0.1")), "e", 6.0),),
    )
    late = replace(record(replace(J2, name=name)), create_time=7.0)
    jobs = tuple(sorted((*before.jobs, late), key=lambda one: one.job.name))
    known = wanted_of(before, ENGINE).flows
    found = wanted_of(replace(before, jobs=jobs), ENGINE).flows
    assert found.ids[: len(known)] == known.ids
    assert len(found) == len(known) + 4


def test_only_jobs_that_are_new_are_expanded_again() -> None:
    """Only the new or changed job is expanded. The result is as if all had been expanded."""
    expanded: list[str] = []

    def flows_of_job(job: Job, fabric: Fabric) -> Flows:
        expanded.append(job.name)
        return ENGINE.flows_of_job(job, fabric)

    def intent(fabric: Fabric, *jobs: JobRecord) -> Intent:
        return Intent("f1", 1, 0.0, 1, fabric, jobs, ())

    engine = replace(ENGINE, flows_of_job=flows_of_job)
    first = wanted_of(intent(FABRIC, record(J1)), engine)
    lossy = down(FABRIC, "l0.0", "s0.0")
    second = wanted_of(intent(lossy, record(J1), record(J2)), engine, first)
    assert expanded == ["j1", "j2"]
    assert second.flows.same_as(wanted(lossy, J1, J2).flows)
    changed = replace(record(replace(J1, priority=2.0)), etag="e2")
    third = wanted_of(intent(lossy, changed, record(J2)), engine, second)
    assert expanded == ["j1", "j2", "j1"]
    assert set(third.flows.weight.tolist()) == {1.0, 2.0}
    wanted_of(intent(three_tiers(), changed, record(J2)), engine, third)
    assert expanded[3:] == ["j1", "j2"]
    assert wanted_of(intent(lossy, record(J2)), engine, second).flows.job_names == ("j2",)


def test_two_sets_cannot_share_a_flow_id() -> None:
    """The later set is left out with a reason, and the earlier set is planned.

    This happens only with sets that an older Heddle stored, or two replicas at the same moment. The
    name in the reason cannot be a job's.
    """
    one, other = demands(("n0.0.1", "n1.0.1")), demands(("n0.0.2", "n1.0.2"))
    records = (DemandRecord("d1", one, "e", 0.0), DemandRecord("d2", other, "e", 0.0))
    intent = Intent(
        name="f1",
        version=1,
        change_time=0.0,
        revision=1,
        fabric=FABRIC,
        jobs=(),
        demands=records,
    )
    found = wanted_of(intent, ENGINE)
    assert found.flows.ids == one.ids
    ((name, reason),) = found.refused
    assert (name, repr(other.ids[0]) in reason) == ("demands 'd2'", True)


def test_same_input(plan: Plan) -> None:
    """Equal flows on an equal fabric are the same input. Any difference makes another input."""
    assert same_input(plan, wanted(FABRIC, J1))
    assert same_input(plan, wanted(down(FABRIC, "l0.0", "s0.0", State.UP), J1))
    assert not same_input(plan, wanted(FABRIC, J1, J2))
    assert not same_input(plan, wanted(FABRIC, replace(J1, priority=2.0)))
    assert not same_input(plan, wanted(down(FABRIC, "l0.0", "s0.0"), J1))
    drained = FABRIC.with_nodes({FABRIC.structure.index["s0.0"]: State.DRAINED})
    assert not same_input(plan, wanted(drained, J1))
    assert not same_input(plan, wanted(three_tiers(), J1))


def test_only_failures(plan: Plan) -> None:
    """Links that go down have failed; drained ones, and what comes or is another, have not."""
    lossy = down(FABRIC, "l0.0", "s0.0")
    drained = down(FABRIC, "l0.0", "s0.1", State.DRAINED)
    assert only_failures(plan, wanted(lossy, J1))
    assert not only_failures(plan, wanted(drained, J1))
    assert only_failures(plan, wanted(down(drained, "l0.0", "s0.0"), J1))
    assert not only_failures(plan, wanted(lossy, J1, J2))
    assert not only_failures(plan, wanted(three_tiers(), J1))
    after = replace(plan, fabric=lossy)
    assert not only_failures(after, wanted(FABRIC, J1))
    assert not only_failures(after, wanted(down(FABRIC, "l0.0", "s0.1"), J1))


@dataclass
class Scripted:
    """A repairer and solver whose plans are as good as the test says, and which record calls."""

    repaired: float | None = 1.0
    """Worst utilisation of repaired plans; None if repair fails."""
    fresh: float | None = 1.0
    """Worst utilisation of plans made anew; None if solving fails."""
    fresh_unrouted: int = 0
    better: float | None = None
    """Worst utilisation of relieved plans; None if there is no such plan."""
    near: float | None = None
    """Worst utilisation of plans that move few flows; None if there is no such plan."""

    def __post_init__(self) -> None:
        self.asked: list[str] = []

    def engine(self) -> Engine:
        """Return an engine that makes plans anew with ``solve``, and better ones with few moves."""
        return replace(ENGINE, solve=self.solve, improvements=self.improvements)

    def improvements(self, plan: Plan) -> Iterator[Plan]:
        """Yield a plan that moves no flow, if there is one."""
        self.asked.append("improve")
        if self.near is not None:
            yield replace(plan, certificate=Certificate(self.near, 1.0, "cut"), notes=("near",))

    def solve(self, fabric: Fabric, flows: Flows, before: Plan | None = None) -> Plan:
        """Return a plan made anew."""
        self.asked.append("solve")
        if self.fresh is None:
            raise RuntimeError("cannot solve")
        plan = ENGINE.solve(fabric, flows, before)
        lost = dict.fromkeys(range(self.fresh_unrouted), "lost")
        certificate = Certificate(self.fresh, 1.0, "cut")
        return replace(plan, certificate=certificate, unrouted=lost, notes=("fresh",))

    def beside(self, fabric: Fabric, flows: Flows) -> None:
        """Implement ``Repair.beside``: nothing is known without a repair."""

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """Return a repaired plan."""
        self.asked.append("repair")
        if self.repaired is None:
            raise RuntimeError("cannot repair")
        plan = ENGINE.solve(fabric, flows, None)
        certificate = Certificate(self.repaired, 1.0, "cut")
        return replace(plan, certificate=certificate, notes=("repaired",))

    def relieved(self) -> Plan | None:
        """Return a relieved plan, or None."""
        self.asked.append("relieve")
        if self.better is None:
            return None
        plan = ENGINE.solve(FABRIC, wanted(FABRIC, J1).flows, None)
        return replace(plan, certificate=Certificate(self.better, 1.0, "cut"), notes=("relieved",))

    def copy(self, *, backups: bool = True) -> Scripted:  # noqa: ARG002 - a port
        """Implement ``Repair.copy``."""
        return self

    def is_ready_for(self, plan: Plan) -> bool:  # noqa: ARG002 - a port
        """Implement ``Repair.is_ready_for``."""
        return False


def choose(plan: Plan, after: Wanted, script: Scripted) -> tuple[str, list[str]]:
    """Return the note of the plan that is taken, and the calls."""
    engine = replace(script.engine(), verify=lambda *_: None)
    planned = make_plan(after, plan, script, engine)
    return planned.plan.notes[0], script.asked


def test_repair_is_enough_where_it_meets_its_bound(plan: Plan) -> None:
    """No plan is made anew if the repaired plan is near its bound."""
    script = Scripted(repaired=1.01, fresh=1.0)
    assert choose(plan, wanted(FABRIC, J1, J2), script) == ("repaired", ["repair"])


def test_after_a_loss_only_repair_moves_flows(plan: Plan) -> None:
    """Flows that lost nothing keep their paths, even if a new plan would be much better."""
    script = Scripted(repaired=2.0, fresh=1.0)
    after = wanted(down(FABRIC, "l0.0", "s0.0"), J1)
    assert choose(plan, after, script) == ("repaired", ["repair"])


def test_a_drain_is_predicted_and_planned_as_well_as_from_scratch() -> None:
    """A spine that can be spared is drained without a full link, as the question says before.

    The flows that must move fill links twice, but there is time to move others, too.
    """
    fabric = two_tiers(leaves=12, spines=9, nics_per_leaf=8)
    flows, core = flows_between(fabric, "permutation", seed=5), PlanningCore(ENGINE)
    pairs = zip(flows.source.tolist(), flows.destination.tolist(), strict=True)
    ids = fabric.structure.nodes.ids
    asked = demands(*((ids[source], ids[target]) for source, target in pairs))
    asked = replace(asked, gbps=flows.gbps, qps=flows.qps, phase=("",) * len(flows))
    before = Intent("f1", 1, 0.0, 1, fabric, (), (DemandRecord("d", asked, "e", 0.0),))
    first = core.plan(before, None).planned
    assert first is not None
    drained = fabric.with_nodes({fabric.structure.index["s0"]: State.DRAINED})
    after = replace(before, fabric=drained, version=2)
    assert core.what_if(before, after, first.plan).after.certificate.max_utilization == 1.0
    second = core.plan(after, first.plan).planned
    assert second is not None
    assert second.plan.certificate.max_utilization == 1.0


@pytest.mark.parametrize(
    ("script", "taken"),
    [
        (Scripted(repaired=2.0, fresh=1.0), "fresh"),
        (Scripted(repaired=2.0, fresh=1.99), "repaired"),
        (Scripted(repaired=2.0, fresh=1.0, fresh_unrouted=1), "repaired"),
        (Scripted(repaired=2.0, fresh=None), "repaired"),
        (Scripted(repaired=2.0, fresh=1.0, near=1.5), "fresh"),
        (Scripted(repaired=2.0, fresh=1.99, near=1.0), "repaired"),
    ],
)
def test_a_new_plan_must_be_worth_the_moves(plan: Plan, script: Scripted, taken: str) -> None:
    """When few flows come, a plan made anew is used if it is better and leaves no flow out."""
    found, asked = choose(plan, wanted(FABRIC, J1, J2), script)
    assert found == taken
    assert asked == ["repair", "relieve", "solve", *(["improve"] if found != "repaired" else [])]


@pytest.mark.parametrize(("better", "taken"), [(1.0, "relieved"), (None, "repaired")])
@pytest.mark.parametrize("jobs", [(J1,), (J1, J2), (J2,)])
def test_nobody_who_waits_for_a_path_waits_for_many_flows_planned_anew(
    plan: Plan, jobs: tuple[Job, ...], better: float | None, taken: str
) -> None:
    """When links or jobs come or go and flows are many, only repair and relief decide."""
    lossy = down(FABRIC, "l0.0", "s0.0")
    before = ENGINE.solve(lossy, plan.flows, None)
    script = Scripted(repaired=2.0, fresh=1.0, better=better)
    after = wanted(FABRIC, *jobs)
    many = replace(after, flows=concatenate([*[after.flows] * (FEW // len(after.flows) + 1)]))
    assert choose(before, many, script) == (taken, ["repair", "relieve"])


def test_where_repair_fails_all_is_planned_anew(plan: Plan) -> None:
    """If repair fails or its plan is invalid, a plan is made anew."""
    after = wanted(down(FABRIC, "l0.0", "s0.0"), J1)
    assert choose(plan, after, Scripted(repaired=None)) == ("fresh", ["repair", "solve"])

    def verify(plan: Plan, before: tuple[Plan, Entries] | None = None) -> None:
        del before
        if plan.notes == ("repaired",):
            raise ValueError("unsound")

    script = Scripted()
    engine = replace(script.engine(), verify=verify)
    assert make_plan(after, plan, script, engine).plan.notes == ("fresh",)


def test_where_both_fail_the_caller_is_told(plan: Plan) -> None:
    """The error of the last attempt is raised."""
    with pytest.raises(RuntimeError, match="cannot solve"):
        choose(plan, wanted(FABRIC, J1, J2), Scripted(repaired=None, fresh=None))


def test_in_peace_backups_alone_may_change() -> None:
    """After a repair backups change, but no flow moves. A second time, nothing changes."""
    fabric = two_tiers(leaves=8, spines=5, nics_per_leaf=12)
    flows = flows_between(fabric, "permutation", seed=2)
    lost = fabric.with_links({fabric.find_links("l0", "s0")[0]: State.DOWN})
    repaired = Repairer(solve(fabric, flows)).repair(lost, flows)
    backed = reoptimise(repaired, ENGINE, worth_moving=0.9)
    assert isinstance(backed, Planned)
    assert backed.plan.paths is repaired.paths
    assert backed.changed_count == 0
    assert np.array_equal(backed.entries.backup, ENGINE.entries_of(backed.plan).backup)
    assert len(backed.entries) == len(ENGINE.entries_of(repaired))
    assert not isinstance(reoptimise(backed.plan, ENGINE, worth_moving=0.9), Planned)


def test_in_peace_flows_return_to_links_that_came_back() -> None:
    """After links were lost and came back, another loss slows no flow more than at first.

    Repairs leave links empty that came back, and flows close together: no flow is slower for that
    at once, but a flow would be after the next loss. A second time, nothing changes.
    """
    fabric = two_tiers(leaves=4, spines=3, nics_per_leaf=4, nics_per_host=2, uplink_gbps=800.0)
    hosts = tuple(sorted(fabric.structure.nics_of_host))
    flows = ENGINE.flows_of_job(Job("j", hosts, 2, Parallelism(tp=1, ep=8)), fabric)
    first = solve(fabric, flows)
    repairer = Repairer(first)
    for link in (("l0", "s2"), ("l3", "s0")):
        repairer.repair(down(fabric, *link), flows)
        repairer.repair(fabric, flows)
    plan, moved = repairer.plan, 0
    assert slowest_after_loss(plan) < slowest_after_loss(first) == 1.0
    while isinstance(found := reoptimise(plan, ENGINE, worth_moving=0.02), Planned):
        plan, moved = found.plan, moved + found.changed_count
    assert moved > 0
    assert slowest_after_loss(plan) == 1.0


def slowest_after_loss(plan: Plan) -> float:
    """Return what the slowest flow gets right after the worst single loss."""
    certificate = ENGINE.certify(plan, ENGINE.screen(plan, None))
    return min(loss.slowest_flow for loss in certificate.after_loss)


def test_moved_flows_are_counted(plan: Plan) -> None:
    """The count is of flows in both plans whose path differs."""
    assert make_plan(wanted(FABRIC, J1), None, None, ENGINE).changed_count == 0
    structure, arcs = FABRIC.structure, plan.paths.of(0)
    ids = structure.nodes.ids
    lossy = down(FABRIC, ids[structure.tail[arcs[1]]], ids[structure.head[arcs[1]]])
    planned = make_plan(wanted(lossy, J1), plan, Repairer(plan), ENGINE)
    moved = plan.paths.crosses(~lossy.carries)
    assert planned.changed_count == len(set(plan.paths.flow[moved].tolist())) > 0


def test_flows_that_go_to_another_nic_count_as_moved() -> None:
    """A flow of the same id that is told of another NIC has another path than before."""
    fabric, stays = clos(), Wish("n1", "n3")
    old, new = (wishes(fabric, a=Wish("n0", nic), b=stays) for nic in ("n2", "n3"))
    made = make_plan(Wanted(fabric, old, ()), None, None, ENGINE)
    before = made.plan, made.entries
    again = make_plan(Wanted(fabric, new, ()), made.plan, Repairer(made.plan), ENGINE, before)
    assert again.changed_count == 1


@pytest.mark.parametrize(
    ("before", "fresh", "unrouted", "taken"),
    [
        (2.0, 1.0, 0, 1),
        (2.0, 1.9, 0, 0),
        (2.0, 1.0, 1, 0),
        (1.05, 1.0, 0, 0),
        (1.0, 1.0, 0, 0),
    ],
)
def test_a_plan_gives_way_to_one_that_wins_by_the_threshold(
    plan: Plan, before: float, fresh: float, unrouted: int, taken: int
) -> None:
    """Only a plan made anew that is better by a tenth and leaves no flow out replaces it."""
    stands = replace(plan, certificate=Certificate(before, 1.0, "cut"))
    script = Scripted(fresh=fresh, fresh_unrouted=unrouted)
    engine = replace(script.engine(), verify=lambda *_: None)
    better = better_plan(stands, engine, 0.1)
    assert (better is not None) == bool(taken)
    assert script.asked == ["solve", "improve"][: (before > 1.0) + taken]


@pytest.mark.parametrize(("spine", "taken"), [("spine0", 1), ("spine1", 0)])
def test_a_plan_gives_way_where_jobs_are_faster_at_the_same_worst_link(
    spine: str, taken: int
) -> None:
    """A job that could be faster is reason enough, even if the worst link stays as it is."""
    fabric = clos(leaves=4, nics=4)
    full = {f"full{row}": Wish(f"n{8 + row}", f"n{12 + row}", job="full") for row in range(4)}
    slow = {f"slow{row}": Wish(f"n{row}", f"n{4 + row}", job="slow") for row in range(2)}
    flows = wishes(fabric, **full, **slow)
    ways = {f"full{row}": f"n{8 + row} leaf2 spine{row % 2} leaf3 n{12 + row}" for row in range(4)}
    ways |= {"slow0": "n0 leaf0 spine0 leaf1 n4", "slow1": f"n1 leaf0 {spine} leaf1 n5"}
    stands = Draft(fabric, flows, {name: [(0, 0, way)] for name, way in ways.items()}).plan()
    assert stands.certificate.gap == 0.0
    found = better_plan(stands, ENGINE, 0.02)
    assert (found is not None) == bool(taken)
    if found is not None:
        assert found.plan.certificate.max_utilization == stands.certificate.max_utilization
        assert scores(stands)["slow"].seconds == 2 * scores(found.plan)["slow"].seconds


def test_the_plan_that_stands_is_ready_once() -> None:
    """The planning core indexes each plan once, when it is made ready or prepared.

    A question that keeps the plan does not undo this.
    """
    indexed: list[Plan] = []

    def index(plan: Plan) -> Repairer:
        indexed.append(plan)
        return Repairer(plan)

    core = PlanningCore(replace(ENGINE, repairer=index))
    intent = Intent("f1", 1, 0.0, 1, FABRIC, (record(J1),), ())
    planned = core.plan(intent, None).planned
    assert planned is not None
    assert indexed == []
    core.make_ready("f1")
    assert indexed == [planned.plan]
    other = replace(planned.plan)
    core.prepare("f1", other)
    assert indexed == [planned.plan, other]
    assert core.plan(replace(intent, version=2), other).planned is None
    core.make_ready("f1")
    lost = replace(intent, fabric=down(FABRIC, "l0.0", "s0.0"))
    assert core.plan(lost, other).planned is not None
    core.make_ready("f1")
    assert indexed == [planned.plan, other]


def test_the_first_job_gets_what_a_trial_says_and_no_better_plan_later() -> None:
    """On an idle fabric, a job of few flows is planned from scratch at once.

    So its trial is right, and nothing is left to improve in quiet. A repair of the empty plan would
    be six per cent slower.
    """
    fabric = two_tiers(leaves=4, spines=2, nics_per_leaf=4, nics_per_host=2)
    hosts, core = ("l1-h1", "l0-h0", "l3-h0", "l0-h1"), PlanningCore(ENGINE)
    job = Job("j", hosts, 2, Parallelism(tp=2, ep=4))
    idle = Intent("f1", 1, 0.0, 1, fabric, (), ())
    first = core.plan(idle, None).planned
    assert first is not None
    assert not len(first.plan.paths)
    trial = core.try_job(idle, job, first.plan)
    assert trial.final
    told = core.what_if(idle, replace(idle, jobs=(record(job),)), first.plan)
    second = core.plan(replace(idle, version=2, jobs=(record(job),)), first.plan).planned
    assert second is not None
    assert scores(second.plan)["j"].seconds == pytest.approx(trial.score.seconds)
    assert scores(told.after)["j"].seconds == pytest.approx(trial.score.seconds)
    assert not isinstance(reoptimise(second.plan, ENGINE, worth_moving=0.02), Planned)


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_tried_job_leaves_the_rows_of_others(plan: Plan, name: str) -> None:
    """The flows of a tried job come behind those of known jobs and demands, whatever its name.

    So the current plan is repaired with its index, and the result does not depend on the name.
    """
    others = DemandRecord("d", demands(("n0.0.1", "n1.0.1")), "e", 0.0)
    intent = Intent("f1", 1, 0.0, 1, FABRIC, (record(J1),), (others,))
    standing = make_plan(wanted_of(intent, ENGINE), plan, Repairer(plan), ENGINE).plan
    seen: list[Flows] = []

    class Seen(Repairer):
        def beside(self, fabric: Fabric, flows: Flows) -> tuple[Plan, bool] | None:
            seen.append(flows)
            return super().beside(fabric, flows)

    core = PlanningCore(replace(ENGINE, repairer=Seen))
    trial = core.try_job(intent, replace(J2, name=name), standing)
    assert [flows.begins_with(standing.flows) for flows in seen] == [True]
    assert trial == PlanningCore(ENGINE).try_job(intent, replace(J2, name="m"), standing)


def test_a_larger_fabric_is_planned_by_repair() -> None:
    """One job ends while another comes on hosts that the fabric before did not have."""
    small, large = (
        two_tiers(leaves=2, spines=4, nics_per_leaf=nics, nics_per_host=1) for nics in (9, 10)
    )
    hosts, more = list(small.structure.nics_of_host), list(large.structure.nics_of_host)
    ends, stays, comes = ring("j1", *hosts[:2]), ring("j2", *hosts[:9]), ring("j3", *more[-2:])
    before = make_plan(wanted(small, ends, stays), None, None, ENGINE)
    made = before.plan, before.entries

    def refuse(_fabric: Fabric, _flows: Flows, _before: Plan | None) -> Plan:
        raise AssertionError

    engine = replace(ENGINE, solve=refuse)
    after = make_plan(wanted(large, stays, comes), made[0], Repairer(made[0]), engine, made)
    assert after.changed_count == 0
    assert not after.plan.unrouted
