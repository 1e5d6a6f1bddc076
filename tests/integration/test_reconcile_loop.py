from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.plan.diff import changed_flows
from heddle_controller.reconcile.ports import LinkObservation, LinkReport, Metric
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import JobState, LinkName
from tests.support.reconcile_world import ENGINE, House, ring, three_tiers

J1 = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
J2 = ring("j2", "h0.0.1", "h1.0.1", "h0.1.1", "h1.1.1")


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A controller of two zones of two leaves, with two cores in each of two planes."""
    return House(tmp_path, three_tiers())


async def furnish(house: House, *jobs: Job) -> None:
    """Put the fabric and the jobs, and wait until all jobs are programmed."""
    await house.store.put_fabric("f1", house.fabric)
    for job in jobs:
        await house.store.submit_job("f1", job)
    await house.programmed(*(job.name for job in jobs))
    await house.settled()


async def test_a_job_is_planned_and_programmed(house: House) -> None:
    """A submitted job is planned and programmed, its facts are right, and the time is measured.

    It is not PROGRAMMED while a switch has not answered.
    """
    async with house.running():
        answers = house.gateway.switches["l0.0"].answers
        answers.clear()
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)

        async def begun() -> bool:
            return (await house.job("j1")).facts.state != JobState.ACCEPTED

        await house.until(begun, "a plan for j1")
        assert (await house.job("j1")).facts.state != JobState.PROGRAMMED
        answers.set()
        await house.programmed("j1")
        await house.settled()
        done = await house.committed()
        facts = (await house.job("j1")).facts
        assert (facts.flow_count, facts.unrouted_count) == (4, 0)
        assert facts.generation == done.generation
        assert not house.trouble(done.plan.fabric, done.plan.flows)
        assert done.programmed_time() > 0
        values = house.figures.values
        await house.until(lambda: values[Metric.PROGRAM_SECONDS], "the time it took")
        await house.until(lambda: values[Metric.PENDING_SWITCHES] == [0], "none to be behind")


async def test_nothing_to_do_writes_nothing(house: House) -> None:
    """Writes that change neither flows nor states make no new plan, and no entry is sent.

    Switches without entries may still be told the generation, because nothing waits for them.
    """
    async with house.running():
        await furnish(house, J1)
        before, changes = await house.committed(), house.change_count()
        await house.store.put_fabric("f1", house.fabric, title="another")
        runs = house.figures.counts[Metric.RECONCILE_RUNS]
        await house.store.set_link_state("f1", LinkName("l0.0", "s0.0"), State.UP)
        await house.store.update_job("f1", replace(J1, traffic_class=J1.traffic_class))
        await house.programmed("j1")
        await house.until(lambda: house.figures.counts[Metric.RECONCILE_RUNS] > runs, "a run")
        assert (await house.committed()).generation == before.generation
        assert house.change_count() == changes
        assert (await house.job("j1")).facts.generation == before.generation


async def test_restart_with_nothing_new_writes_nothing(house: House) -> None:
    """A restarted controller makes no new plan and sends no entry; the jobs stay programmed.

    Switches whose entries did not change in the last plan may still be told its generation.
    """
    async with house.running():
        await furnish(house, J1)
        before, changes = await house.committed(), house.change_count()
    async with house.running():
        runs = house.figures.counts[Metric.RECONCILE_RUNS]
        await house.until(lambda: house.figures.counts[Metric.RECONCILE_RUNS] > runs, "a run")
        await house.store.put_fabric("f1", house.fabric, title="still the same")
        await house.until(lambda: house.figures.counts[Metric.RECONCILE_RUNS] > runs + 1, "more")
        assert (await house.committed()).generation == before.generation
        assert house.change_count() == changes
        await house.programmed("j1")


async def test_deleted_jobs_leave_no_entries(house: House) -> None:
    """Deleting a job removes its entries and leaves those of the other job."""
    async with house.running():
        await furnish(house, J1, J2)
        lost = house.watch_packets(house.fabric, J1, J2)
        await house.store.delete_job("f1", "j1")
        await house.until(lambda: _generation(house, 1), "a plan without it")
        await house.settled()
        flows = (await house.committed()).plan.flows
        assert flows.job_names == ("j2",)
        await house.store.delete_job("f1", "j2")
        await house.until(lambda: _is_empty(house), "empty tables")
        assert not lost


async def test_a_deleted_fabric_leaves_no_entries_and_is_put_again(house: House) -> None:
    """Switches lose all entries, also one that was away meanwhile.

    One that has accepted a newer plan keeps them, because the store must have lost that. All this
    is in one epoch: no agent refuses the pushes of the new fabric as older than what the deleted
    one had sent, although that had reached a higher generation, and none takes the leader for
    another one. Nothing counts as a failure.
    """
    switches = house.gateway.switches
    async with house.running():
        await furnish(house, J1, J2)
        await house.store.set_switch_state("f1", "s0.0", State.DRAINED)
        await house.until(lambda: _newer(house, 1), "a second plan")
        await house.settled()
        before = await house.committed()
        newer, away = [name for name in before.switches() if switches[name].table.entries][:2]
        house.gateway.disconnect(newer, away)
        table = switches[newer].table
        kept, fence = dict(table.entries), table.fence
        table.fence = (fence[0], 1000)
        for name in ("j1", "j2"):
            await house.store.delete_job("f1", name)
        await house.store.delete_fabric("f1")
        others = [switch for name, switch in switches.items() if name not in (newer, away)]
        await house.until(lambda: not any(one.table.entries for one in others), "empty tables")
        assert switches[away].table.entries
        house.gateway.connect(newer, away)
        await house.until(lambda: not switches[away].table.entries, "an empty table")
        assert table.entries == kept
        table.fence = fence
        house.gateway.connect(newer)
        await furnish(house, J1)
        after = await house.committed()
        assert after.generation > before.generation
        assert not house.trouble(after.plan.fabric, after.plan.flows)
        await house.store.delete_job("f1", "j1")
        await house.until(lambda: _is_empty(house), "empty tables")
        assert house.reconciler is not None
        assert house.reconciler.epoch == before.program.epoch
        assert house.figures.counts[Metric.RECONCILE_FAILURES] == 0


async def test_the_next_controller_withdraws_the_entries_of_a_deleted_fabric(house: House) -> None:
    """Agents that come back after a deletion and a restart of the controller lose their entries."""
    switches = house.gateway.switches
    async with house.running():
        await furnish(house, J1)
        away = [one for one, switch in switches.items() if switch.table.entries]
        house.gateway.disconnect(*away)
        await house.store.delete_job("f1", "j1")
        await house.store.delete_fabric("f1")
    async with house.running(connected=False):
        await house.until(lambda: house.gateway.followed, "a leader")
        house.gateway.connect(*away)
        await house.until(lambda: _is_empty(house), "empty tables")


async def test_switches_that_a_new_fabric_leaves_out_lose_their_entries(house: House) -> None:
    """They do so once all other switches hold the new plan, or when they come back after that.

    One that has accepted a newer plan keeps its entries. Put back, all get entries again.
    """
    switches, smaller = house.gateway.switches, three_tiers(spines=1)
    async with house.running():
        await furnish(house, J1, J2)
        before = await house.committed()
        ids = smaller.structure.index
        left_out = [name for name in before.switches() if name not in ids]
        gone, away = (name for name in left_out if switches[name].table.entries)
        slow = next(name for name in before.switches() if name.startswith("l"))
        switches[slow].answers.clear()
        house.gateway.disconnect(away)
        pushes, lost = house.push_count(), house.watch_packets(house.fabric, J1, J2)
        await house.store.put_fabric("f1", smaller)
        await house.until(lambda: _newer(house, before.generation), "a new plan")
        await house.until(lambda: house.push_count() > pushes, "pushes of it")
        assert switches[gone].table.entries
        switches[slow].answers.set()
        await house.until(lambda: not switches[gone].table.entries, "an empty table")
        await house.programmed("j1", "j2")
        assert switches[away].table.entries
        table = switches[away].table
        fence, table.fence = table.fence, (table.fence[0], 1000)
        house.gateway.connect(away)
        await house.store.set_switch_state("f1", "c0.0", State.DRAINED)
        await house.until(lambda: _newer(house, before.generation + 1), "another plan")
        await house.programmed("j1", "j2")
        assert table.entries
        table.fence = fence
        house.gateway.connect(away)
        await house.until(lambda: not table.entries, "an empty table")
        await house.store.put_fabric("f1", house.fabric)
        await house.until(lambda: switches[gone].table.entries and table.entries, "entries")
        await house.settled()
        assert not lost
        assert house.figures.counts[Metric.RECONCILE_FAILURES] == 0


async def test_fabrics_that_come_and_go_fast(house: House) -> None:
    """However fast fabrics come and go, also different ones, the last one is planned."""
    async with house.running():
        for _ in range(8):
            await house.store.put_fabric("f1", house.fabric)
            await house.store.delete_fabric("f1")
        await furnish(house, J1)
        for house.fabric in (three_tiers(cores=1), three_tiers()):
            await house.store.delete_job("f1", "j1")
            await house.store.delete_fabric("f1")
            await house.store.put_fabric("f1", house.fabric)
            await house.store.submit_job("f1", J1)
            await house.programmed("j1")
        done = await house.committed()
        assert not house.trouble(done.plan.fabric, done.plan.flows)
        assert house.reconciler is not None
        assert house.reconciler.epoch == done.program.epoch == 1


async def _generation(house: House, jobs: int) -> bool:
    return len((await house.committed()).plan.flows.job_names) == jobs


def _is_empty(house: House) -> bool:
    return not any(switch.table.entries for switch in house.gateway.switches.values())


async def test_a_lost_link_moves_only_what_it_must(house: House) -> None:
    """An agent's report of a lost link moves the flows over that link and no others."""
    async with house.running():
        await furnish(house, J1, J2)
        before = await house.committed()
        tail, head = before.plan.fabric.structure.tail, before.plan.fabric.structure.head
        kinds = before.plan.fabric.structure.nodes.kind
        arc = next(
            int(a) for a in before.plan.paths.arcs if kinds[tail[a]] == 2 and kinds[head[a]] == 3
        )
        crossing = before.plan.paths.crosses(np.isin(np.arange(len(tail)), [arc, arc ^ 1]))
        ids = before.plan.fabric.structure.nodes.ids
        link = LinkName(ids[tail[arc]], ids[head[arc]])
        seen = LinkObservation(link, State.DOWN, time=1.0, sequence=1)
        about = house.gateway.sessions("f1")[ids[tail[arc]]]
        house.observations.report(about, LinkReport((seen,)), 1.0)
        await house.until(lambda: _newer(house, before.generation), "a new plan")
        await house.settled()
        await house.programmed("j1", "j2")
        after = await house.committed()
        moved = changed_flows(before.plan, after.plan)
        assert set(moved.tolist()) == set(before.plan.paths.flow[crossing].tolist())
        assert after.facts.changed_count == len(moved) > 0
        assert not after.plan.paths.crosses(np.isin(np.arange(len(tail)), [arc, arc ^ 1])).any()
        assert not house.trouble(after.plan.fabric, after.plan.flows)


async def _newer(house: House, generation: int) -> bool:
    return (await house.committed()).generation > generation


async def test_a_drained_switch_is_emptied_without_a_loss(house: House) -> None:
    """All flows leave a drained switch without a lost packet, and none is lost when it returns."""
    async with house.running():
        await furnish(house, J1, J2)
        lost = house.watch_packets(house.fabric, J1, J2)
        generation = (await house.committed()).generation
        await house.store.set_switch_state("f1", "s0.0", State.DRAINED)
        await house.until(lambda: _newer(house, generation), "a new plan")
        await house.settled()
        after = await house.committed()
        row = after.plan.fabric.structure.index["s0.0"]
        assert row not in after.plan.fabric.structure.head[after.plan.paths.arcs]
        await house.store.set_switch_state("f1", "s0.0", State.UP)
        await house.until(lambda: _newer(house, after.generation), "a new plan")
        await house.settled()
        assert not lost


async def test_failed_planning_keeps_the_old_plan(house: House) -> None:
    """When planning fails, each job is told why and the old plan stays, until planning succeeds."""
    broken = True

    def solve(fabric: Fabric, flows: Flows, before: Plan | None = None) -> Plan:
        if broken and len(flows) > 4:
            raise RuntimeError("out of colours")
        return ENGINE.solve(fabric, flows, before)

    class Repair:
        def __init__(self, plan: Plan) -> None:
            del plan

        def copy(self, *, backups: bool = True) -> Repair:  # noqa: ARG002 - a port
            return self

        def beside(self, fabric: Fabric, flows: Flows) -> None:
            del fabric, flows

        def repair(self, fabric: Fabric, flows: Flows) -> Plan:
            return solve(fabric, flows)

        def relieved(self) -> Plan | None:
            return None

        def is_ready_for(self, plan: Plan) -> bool:
            del plan
            return False

    house.engine = replace(ENGINE, solve=solve, repairer=Repair)
    async with house.running():
        await furnish(house, J1)
        before = await house.committed()
        await house.store.submit_job("f1", J2)
        why = "planning failed: RuntimeError: out of colours; the plan of generation "
        await house.degraded("j1", f"{why}{before.generation} stays")
        await house.degraded("j2", "not planned: RuntimeError: out of colours")
        assert (await house.committed()).generation == before.generation
        await house.settled()
        assert house.figures.counts[Metric.RECONCILE_FAILURES] > 0
        broken = False
        await house.programmed("j1", "j2")
        assert (await house.job("j1")).facts.reason == ""
        assert (await house.job("j1")).facts.generation == before.generation


async def test_the_first_planning_fails(house: House) -> None:
    """When the first planning fails, the job is told why, and it is planned once planning works."""
    broken = True

    def solve(fabric: Fabric, flows: Flows, before: Plan | None = None) -> Plan:
        if broken:
            raise RuntimeError("out of colours")
        return ENGINE.solve(fabric, flows, before)

    house.engine = replace(ENGINE, solve=solve)
    async with house.running():
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J1)
        await house.degraded("j1", "not planned: RuntimeError: out of colours")
        broken = False
        await house.programmed("j1")


async def test_an_invalid_plan_is_never_committed(house: House) -> None:
    """A plan that fails verification is not committed."""

    def verify(plan: Plan, before: tuple[Plan, Entries] | None = None) -> None:
        del before
        if "j2" in plan.flows.job_names:
            raise ValueError("path of j2 is broken")

    house.engine = replace(ENGINE, verify=verify)
    async with house.running():
        await furnish(house, J1)
        before = await house.committed()
        await house.store.submit_job("f1", J2)
        await house.degraded("j2", "path of j2 is broken")
        assert (await house.committed()).generation == before.generation
        await house.store.delete_job("f1", "j2")
        await house.programmed("j1")


async def test_one_job_that_cannot_be_had_harms_no_other(house: House) -> None:
    """A job whose flows cannot be made is told so; the other jobs are planned."""

    def flows_of_job(job: Job, fabric: Fabric) -> Flows:
        if job.name == "j2":
            raise refuse("job 'j2'", "hosts", "vanished")
        return ENGINE.flows_of_job(job, fabric)

    house.engine = replace(ENGINE, flows_of_job=flows_of_job)
    async with house.running():
        await house.store.put_fabric("f1", house.fabric)
        await house.store.submit_job("f1", J2)
        await house.store.submit_job("f1", J1)
        await house.programmed("j1")
        await house.degraded("j2", "not planned: job 'j2': hosts: vanished")


async def test_bad_jobs_are_refused_at_the_door(house: House) -> None:
    """Impossible jobs and fabrics are refused, and nothing of them is stored.

    Such jobs name unknown hosts, hosts in use, or a parallelism that does not match. Such a fabric
    lacks hosts that a job needs.
    """
    async with house.running():
        await furnish(house, J1)
        version = (await house.store.versions("f1")).intent
        with pytest.raises(InputError, match="'h9'"):
            await house.store.submit_job("f1", ring("j3", "h9", "h0.0.1"))
        with pytest.raises(FailedPrecondition, match="in use by job 'j1'"):
            await house.store.submit_job("f1", ring("j3", "h0.0.0", "h0.0.1"))
        bad = replace(J2, parallelism=replace(J2.parallelism, dp=3))
        with pytest.raises(InputError):
            await house.store.submit_job("f1", bad)
        with pytest.raises(FailedPrecondition, match="job 'j1': needs it"):
            await house.store.put_fabric("f1", three_tiers(zones=1))
        assert (await house.store.versions("f1")).intent == version
        assert [r.job.name for r in await house.store.list_jobs("f1")] == ["j1"]


async def test_a_fabric_that_grows(house: House) -> None:
    """When the fabric gets one more leaf per zone, no packet is lost and no flow moves."""
    grown = three_tiers(leaves=3)
    house.gateway.switches |= {
        name: switch
        for name, switch in House(house.path.parent, grown).gateway.switches.items()
        if name not in house.gateway.switches
    }
    async with house.running():
        await furnish_without_new(house)
        lost = house.watch_packets(house.fabric, J1)
        generation = (await house.committed()).generation
        await house.store.put_fabric("f1", grown)
        await house.until(lambda: _newer(house, generation), "a new plan")
        await house.settled()
        await house.programmed("j1")
        assert not lost
        assert (await house.committed()).facts.changed_count == 0


async def furnish_without_new(house: House) -> None:
    """Like ``furnish`` with J1, but do not wait for switches that the fabric does not have yet."""
    await house.store.put_fabric("f1", house.fabric)
    await house.store.submit_job("f1", J1)
    await house.programmed("j1")
