"""Rank orders of given hosts have the same hosts and are never worse than alphabetical."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from typing_extensions import override

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import concatenate
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.model.plan import Plan
from heddle_controller.place.ask import EQUAL
from heddle_controller.place.order import Hosts, candidates, places, run_lengths
from heddle_controller.place.score import scores
from heddle_controller.planner.advice import order_ranks
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.port import Trial
from heddle_controller.solve import Options, plan_anew
from heddle_controller.state.records import Intent, JobFacts, JobRecord, JobState
from heddle_controller.traffic.groups import resolve_parallelism
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.topology import clos, rail_optimised, three_tier
from tests.support.depth import fresh_seeds
from tests.support.direct_planner import DirectPlanner


def renamed(fabric: Fabric, draw: random.Random) -> Fabric:
    """The fabric with shuffled host names, which say nothing about where hosts are."""
    names = [f"node{number}" for number in range(len(fabric.structure.host_names))]
    draw.shuffle(names)
    structure = replace(fabric.structure, host_names=tuple(names))
    return replace(fabric, structure=structure)


def drawn(draw: random.Random) -> tuple[Fabric, Job]:
    """A small fabric and a job on some of its hosts."""
    kind = draw.choice(["zones", "clos", "rails"])
    if kind == "zones":
        fabric = three_tier(
            zones=draw.randint(2, 3),
            leaves=draw.randint(2, 4),
            spines=2,
            nics_per_leaf=8,
            nics_per_host=2,
            cores=2,
            taper=draw.choice([2.0, 4.0]),
        )
    elif kind == "clos":
        fabric = clos(leaves=draw.randint(2, 5), spines=2, nics_per_leaf=8, nics_per_host=2)
    else:
        fabric = rail_optimised(units=2, servers=6, rails=2, spines=2)
    fabric = renamed(fabric, draw)
    hosts = sorted(fabric.structure.nics_of_host)
    pp, dp = draw.choice([(1, 2), (1, 4), (2, 2), (2, 3), (1, 6), (2, 4)])
    count = min(pp * dp, len(hosts))
    pp = pp if count == pp * dp else 1
    ep = draw.choice([1, count // pp if count % pp == 0 else 1])
    job = Job("order", tuple(draw.sample(hosts, count)), 2, Parallelism(tp=2, pp=pp, ep=ep))
    return fabric, job


@pytest.mark.deep
def test_an_order_is_never_worse_than_alphabetical() -> None:
    """An order has the same hosts, and its worst link and its time are no worse."""
    for seed in fresh_seeds(3, 400):
        check_order(seed)


def check_order(seed: int) -> None:
    """Check one drawn case."""
    draw = random.Random(seed)
    fabric, job = drawn(draw)
    intent = Intent("f1", 1, 0.0, 1, fabric, (), ())
    planner = DirectPlanner(planning_engine(None))
    found = asyncio.run(order_ranks(planner, intent, job, None))
    told = f"seed {seed}: {job}"
    assert sorted(found.hosts) == sorted(job.hosts), told
    for hosts, said in ((found.hosts, found.score), (sorted(job.hosts), found.alphabetical)):
        flows = flows_of_job(replace(job, hosts=tuple(hosts)), fabric)
        plan = plan_anew(fabric, flows, None, options=Options())
        own = scores(plan)[job.name]
        assert replace(own, least_seconds=own.seconds, settled=True) == said, told
    assert found.score.no_worse_than(found.alphabetical), told


def beside_others(draw: random.Random) -> tuple[Intent, Plan, Job]:
    """An intent with other jobs on an over-subscribed fabric, its plan, and a job on free hosts."""
    if draw.random() < 0.5:
        fabric = clos(leaves=8, spines=2, nics_per_leaf=8, nics_per_host=2)
    else:
        fabric = three_tier(
            zones=4, leaves=2, spines=2, nics_per_leaf=8, nics_per_host=2, cores=4, taper=4.0
        )
    if draw.random() < 0.5:
        fabric = renamed(fabric, draw)
    hosts = sorted(fabric.structure.nics_of_host)
    draw.shuffle(hosts)
    jobs = []
    for row, size in enumerate(draw.sample([2, 3, 4, 6], 3)):
        own, hosts = tuple(hosts[:size]), hosts[size:]
        jobs.append(Job(f"other{row}", own, 2, Parallelism(tp=2, ep=draw.choice([1, size]))))
    pp, count = draw.choice([1, 2, 4]), draw.choice([8, 16])
    ep = draw.choice([1, count // pp])
    job = Job("job", tuple(hosts[:count]), 2, Parallelism(tp=2, pp=pp, ep=ep))
    flows = concatenate([flows_of_job(one, fabric) for one in jobs])
    records = tuple(map(recorded, jobs))
    return Intent("f1", 1, 0.0, 1, fabric, records, ()), plan_anew(fabric, flows), job


def recorded(job: Job) -> JobRecord:
    """The job as it is stored."""
    return JobRecord(job, job.name, 0.0, JobFacts(job.name, JobState.ACCEPTED))


@pytest.mark.deep
def test_beside_other_jobs_an_order_is_never_worse_than_alphabetical() -> None:
    """Planned beside other jobs, the job takes no longer, and as long as the score says."""
    # Here equal choices also fall by the order of flows, which is that of jobs' names.
    assert check_beside(1812), "no order was better where one was"
    for seed in fresh_seeds(0, 120):
        check_beside(seed)


class SlowToCompare(DirectPlanner):
    """Never ends a plan from scratch that is made to compare orders."""

    @override
    async def try_job(
        self,
        intent: Intent,
        job: Job,
        standing: Plan | None,
        *,
        settled: bool = False,
        hasty: bool = False,
    ) -> Trial:
        """Answer at once, or never."""
        if settled:
            await asyncio.Event().wait()
        return await super().try_job(intent, job, standing, hasty=hasty)


def test_without_time_to_compare_only_what_cuts_prefer_is_taken() -> None:
    """An answer comes when the time is up: a better order by cuts, no slower at once, or none."""
    taken = 0
    for seed in (4, 7, 10, 16):
        intent, standing, job = beside_others(random.Random(seed))
        planner = SlowToCompare(planning_engine(None))
        found = asyncio.run(order_ranks(planner, intent, job, standing, 0.05))
        if found.hosts == tuple(sorted(job.hosts)):
            assert found.score == found.alphabetical, f"seed {seed}"
            continue
        taken += 1
        assert found.score.better_than(found.alphabetical), f"seed {seed}"
        assert found.score.no_worse_than(found.alphabetical), f"seed {seed}"
    assert taken, "no order was taken where some are"


def check_beside(seed: int) -> bool:
    """Check one drawn case, and return whether another order was better."""
    intent, standing, job = beside_others(random.Random(seed))
    planner = DirectPlanner(planning_engine(None))
    found = asyncio.run(order_ranks(planner, intent, job, standing))
    told = f"seed {seed}: {job}"

    def planned(hosts: Hosts) -> float:
        jobs = (recorded(job.on(hosts)), *intent.jobs)  # sorted by name
        supposed = replace(intent, jobs=jobs)
        whole = asyncio.run(planner.what_if(intent, supposed, standing))
        return scores(whole.after)[job.name].seconds

    alphabetical, mine = (planned(hosts) for hosts in (tuple(sorted(job.hosts)), found.hosts))
    assert mine <= alphabetical * (1 + EQUAL), told
    if found.score.settled and found.alphabetical.settled:
        assert (found.score.settled_seconds, found.alphabetical.settled_seconds) == pytest.approx(
            (mine, alphabetical)
        ), told
    return mine < alphabetical * (1 - EQUAL)


@pytest.mark.deep
def test_runs_are_kept_together_as_often_as_can_be() -> None:
    """As many runs as the hosts allow lie in one zone, and as many below one leaf."""
    for seed in fresh_seeds(20, 2000):
        check_runs(seed)


def check_runs(seed: int) -> None:
    """Check one drawn case."""
    draw = random.Random(seed)
    fabric = renamed(
        three_tier(
            zones=3, leaves=4, spines=2, nics_per_leaf=16, nics_per_host=4, cores=2, taper=4.0
        ),
        draw,
    )
    length = draw.choice([2, 3, 4])
    count = length * draw.randint(2, 40 // length)
    hosts = tuple(draw.sample(sorted(fabric.structure.nics_of_host), count))
    job = Job("order", hosts, 4, Parallelism(tp=4, dp=length, pp=count // length))
    parallelism = resolve_parallelism(job)
    assert run_lengths(parallelism, 4) == [length]
    where = places(job.held, fabric)
    orders = candidates(job, parallelism, where)

    def kept(order: tuple[str, ...], level: str) -> int:
        runs = [order[at : at + length] for at in range(0, count, length)]
        return sum(len({getattr(where[host], level) for host in run}) == 1 for run in runs)

    most = {}
    for level in ("zone", "leaves"):
        of = [getattr(where[host], level) for host in hosts]
        most[level] = sum(of.count(place) // length for place in set(of))
    # The second candidate does it, or the first, alphabetical one by chance.
    told = [{level: kept(order, level) for level in most} for order in orders[:2]]
    assert most in told, f"seed {seed}: {told} of {most}"


def test_alphabetical_is_tried_and_nothing_twice() -> None:
    """The first candidate is the alphabetical order; none repeats; all have the same hosts."""
    fabric = clos(leaves=4, spines=2, nics_per_leaf=8, nics_per_host=2)
    hosts = tuple(sorted(fabric.structure.nics_of_host)[:6])
    job = Job("order", hosts[::-1], 2, Parallelism(tp=2))
    found = candidates(job, resolve_parallelism(job), places(job.held, fabric))
    assert found[0] == hosts
    assert len(set(found)) == len(found)
    assert all(set(one) == set(hosts) for one in found)


def test_pipelines_stay_below_a_leaf_where_leaves_are_over_subscribed() -> None:
    """Each pipeline stays below one leaf, and then no link is overfull.

    In alphabetical order each stage is a leaf of eight NICs, which share four uplinks.
    """
    fabric = clos(leaves=4, spines=4, nics_per_leaf=8, nics_per_host=1)
    hosts = tuple(f"l{leaf}-h{host}" for leaf in range(4) for host in range(8))
    job = Job("order", hosts, 1, Parallelism(pp=4))
    intent = Intent("f1", 1, 0.0, 1, fabric, (), ())
    planner = DirectPlanner(planning_engine(None))
    found = asyncio.run(order_ranks(planner, intent, job, None))
    stages = [found.hosts[stage * 8 : stage * 8 + 8] for stage in range(4)]
    for ranks in zip(*stages, strict=True):
        assert len({host.partition("-")[0] for host in ranks}) == 1, found.hosts
    assert found.score.max_utilization <= 1 < found.alphabetical.max_utilization
