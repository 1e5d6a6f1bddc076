"""Turns in time of jobs that share links: in plans, by the API, and for operators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.v1 import plan_pb2
from heddle_controller.model.files.plan_file import load_plan, save_plan
from heddle_controller.model.job import Collective, Group, Job, Operation
from heddle_controller.model.plan import Turn
from heddle_controller.plan.sharing import turns_in
from heddle_controller.planner.process import PlanningProcess
from heddle_controller.solve import solve
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.topology import clos
from tests.support.operating import Operator, operating
from tests.support.reconcile_world import House

FABRIC = clos(leaves=2, spines=1, nics_per_leaf=6, nics_per_host=2, uplink_gbps=800.0)
TURN = Turn("j1", 0.25, 1.5, 0.3)


def _job(at: int, compute: float = 1.0) -> Job:
    """Return a job over both leaves that fills the uplinks alone; ``compute`` is in seconds."""
    rounds = Collective(Operation.ALL_REDUCE, Group.WORLD, round(0.8 * 50e9 / 1.5 * 2))
    hosts = f"l0-h{at}", f"l1-h{at}"
    return Job(f"j{at}", hosts, 2, collectives=(rounds,), compute_seconds=compute)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A controller that compares plans after little quiet, with two jobs that share links."""
    house = House(tmp_path, FABRIC)
    house.settings = replace(house.settings, compare_after=0.01)
    async with house.running():
        await house.store.put_fabric("f1", FABRIC)
        for at in range(2):
            await house.store.submit_job("f1", _job(at))
        await house.programmed("j0", "j1")
        yield house


async def _told(house: House) -> dict[str, Turn] | None:
    """Return the turns of the newest plan by job; None if they have not been worked out."""
    turns = (await house.committed()).plan.certificate.turns
    return None if turns is None else {turn.job: turn for turn in turns}


async def _until(house: House, jobs: set[str], pace: float) -> None:
    async def reached() -> bool:
        told = await _told(house)
        paces = {turn.pace_seconds for turn in told.values()} if told else set()
        return (
            told is not None
            and told.keys() == jobs
            and all(pace <= one <= 1.05 * pace for one in paces)
        )

    await house.until(reached, f"turns of {jobs} at {pace}")


async def test_turns_come_with_the_plan_and_follow_iterations(house: House) -> None:
    """Turns come after some quiet and follow changed iterations, without a new plan."""
    await _until(house, {"j0", "j1"}, 1.8)
    before = await house.committed()
    for at in range(2):
        await house.store.update_job("f1", _job(at, compute=1.2))
    await _until(house, {"j0", "j1"}, 2.0)
    await house.settled()
    after = await house.committed()
    assert after.generation == before.generation
    assert after.plan.certificate == replace(
        before.plan.certificate, turns=after.plan.certificate.turns
    )


@pytest.mark.parametrize("how", ["rests", "went", "tells nothing"])
async def test_who_is_left_alone_has_no_turn(house: House, how: str) -> None:
    """A job has no turn once the other one rests, has gone, or does not tell its iteration."""
    await _until(house, {"j0", "j1"}, 1.8)
    other = _job(1)
    if how == "went":
        await house.store.delete_job("f1", "j1")
    elif how == "rests":
        await house.store.update_job("f1", replace(other, suspended=True))
    else:
        await house.store.update_job("f1", replace(other, compute_seconds=0.0))
    await _until(house, set(), 0.0)


async def test_an_earlier_plan_that_is_kept_to_has_turns_of_its_own(house: House) -> None:
    """While an operator holds an earlier plan, jobs that share its links still get turns."""
    await _until(house, {"j0", "j1"}, 1.8)
    first = await house.committed()
    await house.store.submit_job("f1", _job(2, compute=0.01))  # it sends all the time
    await _until(house, set(), 0.0)
    await house.store.roll_back("f1", first.generation, 3600.0)
    await house.store.delete_job("f1", "j2")
    await _until(house, {"j0", "j1"}, 1.8)
    for at in range(2):
        await house.store.update_job("f1", _job(at, compute=1.2))
    await _until(house, {"j0", "j1"}, 2.0)


async def test_the_planning_process_says_the_same() -> None:
    """The planning process returns the same turns as a direct call."""
    jobs = [_job(0), _job(1)]
    plan = solve(FABRIC, flows_of_jobs(jobs, FABRIC))
    told = [one for job in jobs if (one := job.iteration)]
    planner = PlanningProcess("test")
    try:
        found = await planner.turns("f1", plan, told)
    finally:
        await planner.close()
    assert found == turns_in(plan, told) != ()


def test_plan_files_keep_turns(tmp_path: Path) -> None:
    """Plan files keep turns, and also None, which means that they have not been worked out."""
    plan = solve(FABRIC, flows_of_jobs([_job(0)], FABRIC))
    for turns in (None, (), (TURN,)):
        certificate = replace(plan.certificate, turns=turns)
        save_plan(replace(plan, certificate=certificate), tmp_path / "p.json", timing={}, changed=0)
        assert load_plan(tmp_path / "p.json", FABRIC, plan.flows).certificate.turns == turns


async def _certified(o: Operator) -> None:
    """Commit a plan with a turn of its job."""
    await o.s.put_fabric()
    done = await o.s.commit_plan()
    certificate = replace(done.plan.certificate, turns=(TURN,))
    await o.s.store.certify(
        "f1", epoch=o.s.epoch, generation=done.generation, certificate=certificate
    )


async def test_operators_see_turns(tmp_path: Path) -> None:
    """``heddle show plan`` and the API show when jobs begin, and what that saves."""
    async with operating(tmp_path) as o:
        await _certified(o)
        done = await o.does("show", "plan")
        assert ["j1", "0.2500", "1.5000", "30.0%"] in done.lines
        told = (await o.does("show", "plan", "--json")).json["certificate"]["turns"]["jobs"]
        assert told == [{"job": "j1", "shift_seconds": 0.25, "pace_seconds": 1.5, "saved": 0.3}]
        plan = await o.s.plans.GetPlan(plan_pb2.GetPlanRequest(name="fabrics/f1/plan"))
        assert plan.certificate.turns.jobs[0].job == "j1"
