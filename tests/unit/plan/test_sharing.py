"""Turns that the jobs of a plan take on the links where they meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from heddle_controller.model.flows import ANY_PHASE, Flows, concatenate
from heddle_controller.model.job import Collective, Group, Iteration, Job, Operation
from heddle_controller.model.plan import Plan, Turn
from heddle_controller.plan.sharing import turns_in
from heddle_controller.solve import solve
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.topology import clos

SECOND = 50e9
"""Bytes that two hosts of two NICs each send each other in an all-reduce of a second."""


def _job(name: str, at: int, network: float, compute: float = 1.0) -> Job:
    """A job on a host of each of two leaves; it sends for ``network`` seconds when it is alone."""
    rounds = Collective(Operation.ALL_REDUCE, Group.WORLD, round(network * SECOND / 1.5 * 2))
    hosts = (f"l0-h{at}", f"l1-h{at}")
    return Job(name, hosts, 2, collectives=(rounds,), compute_seconds=compute)


def _plan(jobs: Iterable[Job], uplink: float = 800.0, more: Flows | None = None) -> Plan:
    """A plan of jobs over two leaves and a single spine; each job alone fits the uplink."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=6, nics_per_host=2, uplink_gbps=uplink)
    flows = flows_of_jobs(jobs, fabric)
    return solve(fabric, flows if more is None else concatenate([flows, more]))


def _turns(jobs: Iterable[Job], plan: Plan | None = None) -> dict[str, Turn]:
    told = [one.iteration for one in jobs]
    found = turns_in(plan or _plan(jobs), [one for one in told if one is not None])
    return {turn.job: turn for turn in found}


def test_jobs_that_meet_on_a_link_take_turns() -> None:
    """Two jobs that send for 0.8 s of 1.8 s get one pace, and send while the other computes."""
    turns = _turns([_job("a", 0, 0.8), _job("b", 1, 0.8)])
    one, other = turns["a"], turns["b"]
    assert one.pace_seconds == other.pace_seconds == pytest.approx(1.8 * 1.02, rel=0.02)
    apart = (one.shift_seconds - other.shift_seconds) % one.pace_seconds
    assert 0.8 <= apart <= one.pace_seconds - 0.8
    assert 0.1 < one.saved < 0.5


def test_where_links_carry_all_nothing_is_advised() -> None:
    """If the worst link is at 1 or below, no turns are advised."""
    jobs = [_job("a", 0, 0.8), _job("b", 1, 0.8)]
    plan = _plan(jobs, uplink=1600.0)
    assert plan.certificate.max_utilization <= 1
    assert _turns(jobs, plan) == {}


def test_bytes_or_what_is_told_say_how_long_the_network_takes() -> None:
    """Network seconds that a job states count like those that follow from its bytes."""
    jobs = [_job("a", 0, 0.8), _job("b", 1, 0.8)]
    plan = _plan(jobs)
    followed = _turns(jobs, plan)
    told = _turns([replace(one, network_seconds=0.8) for one in jobs], plan)
    for name, turn in followed.items():
        assert told[name].pace_seconds == pytest.approx(turn.pace_seconds, rel=0.01)
    half = _turns([replace(one, network_seconds=0.4) for one in jobs], plan)
    assert half["a"].pace_seconds == pytest.approx(1.4 * 1.02, rel=0.02)


def test_nobody_takes_turns_with_what_sends_at_times_unknown() -> None:
    """No turns are advised beside jobs without known times or demands without a phase."""
    jobs = [_job("a", 0, 0.8), _job("b", 1, 0.8), _job("c", 2, 0.8)]
    plan = _plan(jobs)
    assert _turns(jobs[:2], plan) == {}
    assert _turns(jobs[:1], plan) == {}
    assert turns_in(plan, []) == ()
    assert turns_in(plan, [Iteration("gone", 1.0, 0.5), Iteration("a", 1.0, 0.5)]) == ()
    always = flows_of_jobs([_job("x", 2, 0.8)], plan.fabric)
    always = replace(always, phase=always.phase * 0 + ANY_PHASE)
    assert _turns(jobs[:2], _plan(jobs[:2], more=always)) == {}


def test_what_others_always_ask_for_is_left_to_them() -> None:
    """Beside a little load of unknown times that fits with each, two jobs still take turns."""
    jobs = [_job("a", 0, 0.8), _job("b", 1, 0.8)]
    always = flows_of_jobs([_job("x", 2, 0.8)], _plan(jobs).fabric)
    always = replace(always, phase=always.phase * 0 + ANY_PHASE, gbps=always.gbps * 0.1)
    beside = _turns(jobs, _plan(jobs, uplink=900.0, more=always))
    assert beside.keys() == {"a", "b"}


def test_a_job_without_a_path_has_no_turn() -> None:
    """If a flow of a job has no path, no turns are advised."""
    jobs = [_job("a", 0, 0.8), _job("b", 1, 0.8)]
    plan = _plan(jobs)
    row = next(row for row, name in enumerate(plan.flows.ids) if name.startswith("b/"))
    assert _turns(jobs, replace(plan, unrouted={row: "no path"})) == {}
