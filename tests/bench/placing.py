"""Jobs placed on half-full, fragmented fabrics: by Heddle, first fit, and at random.

Each state is a fabric of some 3,072 NICs on which jobs came and went. A new job is placed and
everything is planned. Then the emulator tells how fast the job's flows are over the planned paths
while all other jobs send. The network time is how long its phases then take. Every placement is
planned in the same way, as a controller plans a new job: by repair of the current plan, and anew
once things are quiet. So only the placement differs.

"Best of N" draws N random placements, lets estimates from cuts choose a few of them, and takes the
one that is fastest in the emulator. If no link slows one of them, the others are not emulated.

Rank orders are compared with the alphabetical one twice: on hosts whose names tell their places, so
that it keeps hosts of a leaf together, and on the same fabric with names given in order of
delivery. The notes say in how many states cuts prove that no order beats the alphabetical one
(``least_order``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.model.plan import Plan
from heddle_controller.place.ask import PlacementAsk
from heddle_controller.place.estimate import Estimator, Surroundings
from heddle_controller.planner.advice import order_ranks, recommend
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.planning import Wanted, settled_plan
from heddle_controller.solve import Repairer, plan_anew
from heddle_controller.state.records import Intent, JobFacts, JobRecord, JobState
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.fluid.rates import path_rates
from heddle_emulator.topology import clos, rail_optimised, three_tier
from tests.bench.least_order import least_seconds
from tests.bench.pool import each
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.support.direct_planner import DirectPlanner

TITLE = "jobs placed on half-full fabrics of 3,072 NICs: network time by the emulator"
AMOUNT = {"quick": (2, 50, 2), "default": (20, 2000, 5), "full": (200, 2000, 20)}
"""Number of states, random placements in each, and how many of these are emulated."""
EQUAL = 1e-6
ROUNDED = 1e-5
"""Relative tolerance, since estimates have six digits."""


def _zones(zones: int, nics_per_host: int, taper: float) -> Fabric:
    return three_tier(
        zones=zones,
        leaves=192 // zones,
        spines=16,
        nics_per_leaf=16,
        nics_per_host=nics_per_host,
        cores=16,
        taper=taper,
    )


FABRICS: Mapping[str, Callable[[], Fabric]] = {
    "4 zones, 1:7, 2 NICs a host": lambda: _zones(4, 2, 7.0),
    "8 zones, 1:4, 4 NICs a host": lambda: _zones(8, 4, 4.0),
    "8 zones, 1:7, 8 NICs a host": lambda: _zones(8, 8, 7.0),
    "2:1 leaves, 4 NICs a host": lambda: clos(
        leaves=96, spines=16, nics_per_leaf=32, nics_per_host=4
    ),
    "rails, 12 units of 32 x 8": lambda: rail_optimised(units=12, servers=32, rails=8, spines=16),
}
SHAPES = ("dp", "moe", "pp")


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A half-full fabric, and a job that is to be placed."""

    seed: int
    kind: str
    shape: str
    fabric: Fabric
    intent: Intent
    standing: Plan
    free: tuple[str, ...]
    job: Job

    def __str__(self) -> str:
        return f"{self.kind}, {self.shape} of {len(self.job.hosts)} hosts, seed {self.seed}"


def drawn(seed: int) -> State:
    """Return a state: jobs fill the fabric in order of host names, then half of it becomes free."""
    draw = random.Random(seed)
    kind = draw.choice([*FABRICS])
    fabric = FABRICS[kind]()
    known = fabric.structure.nics_of_host
    hosts, gpus = sorted(known), len(next(iter(known.values())))
    jobs: list[Job] = []
    at = 0
    while at < len(hosts):
        size = min(draw.choice([1, 2, 3, 4, 6, 8, 12, 16, 32]), len(hosts) - at)
        own = tuple(hosts[at : at + size])
        jobs.append(drawn_job(f"j{len(jobs):03d}", draw.choice(SHAPES), own, gpus, draw))
        at += size
    draw.shuffle(jobs)
    kept: list[Job] = []
    while sum(len(one.hosts) for one in kept) < len(hosts) / 2:
        kept.append(jobs.pop())
    free = moved_about(kept, hosts, draw)
    sizes = [size for size in (8, 16, 32, 64, 128, 256, 512) if size <= len(free)]
    shape, count = draw.choice(SHAPES), draw.choice(sizes)
    job = drawn_job("new", shape, tuple(free[:count]), gpus, draw)
    intent = Intent("f1", 1, 0.0, 1, fabric, tuple(map(_record, kept)), ())
    flows = concatenate([flows_of_job(one, fabric) for one in kept])
    return State(seed, kind, shape, fabric, intent, plan_anew(fabric, flows), tuple(free), job)


def moved_about(kept: list[Job], hosts: list[str], draw: random.Random) -> list[str]:
    """Spread every third job over random hosts, and return the hosts that are free then.

    Such jobs are as if no free hosts had been next to each other. ``kept`` is changed in place.
    """
    used = {host for job in kept for host in job.hosts}
    free = [host for host in hosts if host not in used]
    for row in range(0, len(kept), 3):
        pool = free + list(kept[row].hosts)
        own = draw.sample(pool, len(kept[row].hosts))
        kept[row] = replace(kept[row], hosts=tuple(own))
        free = sorted(set(pool).difference(own))
    kept.sort(key=lambda job: job.name)
    return free


def drawn_job(name: str, shape: str, hosts: tuple[str, ...], gpus: int, draw: random.Random) -> Job:
    """Return a job of a shape on hosts, with pipelines or groups of experts of a drawn size."""
    count = len(hosts)
    pp = draw.choice([n for n in (2, 4, 8) if count % n == 0] or [1]) if shape == "pp" else 1
    of_all = count // pp
    experts = [n for n in (4, 8, 16, 32, 64) if of_all % n == 0] or [of_all]
    ep = draw.choice(experts) if shape == "moe" else 1
    return Job(name, hosts, gpus, Parallelism(tp=gpus, pp=pp, ep=ep))


def _record(job: Job) -> JobRecord:
    return JobRecord(job, job.name, 0.0, JobFacts(job.name, JobState.ACCEPTED))


def emulated(state: State, hosts: tuple[str, ...]) -> float:
    """Return the network seconds of one round of the job on these hosts, by the emulator."""
    fabric, job = state.fabric, replace(state.job, hosts=hosts)
    flows = concatenate([state.standing.flows, flows_of_job(job, fabric)])
    wanted, engine = Wanted(fabric, flows, ()), planning_engine(None)
    plan = settled_plan(wanted, state.standing, Repairer(state.standing), engine)
    rates = path_rates(fabric.structure.capacity, flows, plan.paths)
    gbps = np.bincount(plan.paths.flow, weights=rates, minlength=len(flows)).astype(np.float64)
    mine = np.flatnonzero(flows.job == flows.job_names.index(job.name))
    return _seconds(flows.take(mine), gbps[mine])


def at_line_rate(state: State, hosts: tuple[str, ...]) -> float:
    """Return the same if every flow got all that it asks for, which no plan can beat."""
    flows = flows_of_job(replace(state.job, hosts=hosts), state.fabric)
    return _seconds(flows, flows.gbps)


def _seconds(flows: Flows, gbps: Floats) -> float:
    """Return the seconds that all phases of one job take, one after another, at these rates."""
    longest = np.zeros(len(flows.phase_names))
    np.maximum.at(longest, flows.phase, flows.bytes * 8e-9 / gbps)
    return float(longest.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Network seconds of each way to place one job."""

    seed: int
    state: str
    ours: float
    first_fit: float
    line_rate: float
    """Of first fit, if no link slowed any flow."""
    at_random: float
    best: float
    orders: tuple[float, float]
    """On random hosts, in Heddle's order and the alphabetical one; names tell the places."""
    orders_by_delivery: tuple[float, float]
    """The same where names tell nothing about places."""
    unbeaten: tuple[bool, bool]
    """Whether cuts prove that no order of these hosts beats the alphabetical one, in both."""


def run(seed: int, draws: int, few: int) -> Found:
    """Place the job of one state in every way."""
    state = drawn(seed)
    draw = random.Random(seed + 1_000_000)
    count = len(state.job.hosts)
    planner = DirectPlanner(planning_engine(None))
    ask = PlacementAsk(state.job, state.free, 5)
    found = asyncio.run(recommend(planner, state.intent, ask, state.standing))
    ours = found.placements[0].job.hosts
    around = Surroundings.of_plan(state.fabric, state.standing)
    flows = flows_of_job(state.job, state.fabric)
    estimator = Estimator(around, flows, state.job.hosts)
    sets = [tuple(sorted(draw.sample(state.free, count))) for _ in range(draws)]
    liked = sorted(sets, key=estimator.of)[:few]
    first, orders = emulated(state, state.free[:count]), _orders(state, sets[0])
    other = renamed(state, draw)
    by_delivery = tuple(sorted(draw.sample(other.free, count)))
    unbeaten = _unbeaten(state, sets[0]), _unbeaten(other, by_delivery)
    return Found(
        seed,
        f"{state}",
        first if ours == state.free[:count] else emulated(state, ours),
        first,
        at_line_rate(state, state.free[:count]),
        orders[1],
        _fastest(state, liked),
        orders,
        _orders(other, by_delivery),
        unbeaten,
    )


def _fastest(state: State, sets: Sequence[tuple[str, ...]]) -> float:
    """Return the network seconds of the fastest set of hosts."""
    least = min(at_line_rate(state, hosts) for hosts in sets)
    found = float("inf")
    for hosts in sets:
        found = min(found, emulated(state, hosts))
        if found <= least * (1 + EQUAL):
            break
    return found


def renamed(state: State, draw: random.Random) -> State:
    """Return the same state with hosts numbered in order of delivery."""
    structure = state.fabric.structure
    numbers = [f"node{number:05d}" for number in range(len(structure.host_names))]
    draw.shuffle(numbers)
    named = dict(zip(structure.host_names, numbers, strict=True))

    def other(job: Job) -> Job:
        return replace(job, hosts=tuple(named[host] for host in job.hosts))

    fabric = replace(state.fabric, structure=replace(structure, host_names=tuple(numbers)))
    records = tuple(_record(other(record.job)) for record in state.intent.jobs)
    return replace(
        state,
        fabric=fabric,
        intent=replace(state.intent, fabric=fabric, jobs=records),
        standing=replace(state.standing, fabric=fabric),
        free=tuple(sorted(named[host] for host in state.free)),
        job=other(state.job),
    )


def _unbeaten(state: State, hosts: tuple[str, ...]) -> bool:
    """Whether cuts prove that no order of these hosts is faster than the given one."""
    around = Surroundings.of_plan(state.fabric, state.standing)
    flows = flows_of_job(replace(state.job, hosts=hosts), state.fabric)
    seconds = Estimator(around, flows, hosts).of(hosts).seconds
    return seconds <= least_seconds(flows, hosts, around) * (1 + ROUNDED)


def _orders(state: State, hosts: tuple[str, ...]) -> tuple[float, float]:
    """Return network seconds of hosts in Heddle's order, and in the given alphabetical one."""
    job = replace(state.job, hosts=hosts)
    planner = DirectPlanner(planning_engine(None))
    order = asyncio.run(order_ranks(planner, state.intent, job, state.standing))
    alphabetical = emulated(state, hosts)
    if order.hosts == hosts:
        return alphabetical, alphabetical
    return emulated(state, order.hosts), alphabetical


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for each peer, and one for rank orders with each way of naming hosts."""
    states, draws, few = AMOUNT[scale.name]
    found: list[Found] = []
    with screen.progress(TITLE, states) as advance:
        for one in each(partial(run, draws=draws, few=few), range(states), scale.workers):
            found.append(one)
            advance(len(found))
    found.sort(key=lambda one: one.seed)
    ours = np.array([one.ours for one in found])
    first = np.array([one.first_fit for one in found])
    lone = np.array([one.at_random for one in found])
    best = np.array([one.best for one in found])
    order = np.array([one.orders[0] / one.orders[1] - 1 for one in found])
    pairs = [one.orders_by_delivery for one in found]
    by_delivery = np.array([mine / theirs - 1 for mine, theirs in pairs])
    rows = [
        _row("beside first fit", found, ours / first - 1, -0.2),
        _row("beside random hosts", found, ours / lone - 1, -0.3),
        _row(f"beside the best of {draws:,} random", found, ours / best - 1, 0.05),
        _row("rank order alone, on random hosts", found, order, -0.15),
        _row("the same, names by delivery", found, by_delivery, -0.15),
    ]
    for number in (0, 1):
        count = sum(one.unbeaten[number] for one in found)
        row = rows[3 + number]
        note = f"{row.note}; by cuts no order is better in {count}"
        data = {**row.data, "unbeaten": [one.unbeaten[number] for one in found]}
        rows[3 + number] = replace(row, note=note, data=data)
    slower = f"slower in {np.count_nonzero(ours > first * (1 + EQUAL))}"
    beaten = first > np.array([one.line_rate for one in found]) * (1 + EQUAL)
    note = f"{rows[0].note}; first fit is at line rate in {np.count_nonzero(~beaten)}"
    if beaten.any():
        note += f", median of the others {quantile(ours[beaten] / first[beaten] - 1, 0.5):+.1%}"
    figure = f"{rows[0].figure}; {slower}"
    return [replace(rows[0], figure=figure, note=note), *rows[1:]]


def _row(who: str, found: list[Found], more: Floats, target: float) -> Row:
    """Return the row of one peer from the relative extra time.

    The median counts for the target, and the worst is shown.
    """
    median = quantile(more, 0.5)
    return Row(
        TITLE,
        who,
        f"median {median:+.1%}, mean {more.mean():+.1%}, worst {more.max():+.1%}",
        f"{target:+.0%}",
        median <= target,
        f"{len(found)} states; worst: {found[int(more.argmax())].state}",
        {"more": spread(more), "states": [one.state for one in found], "each": more.tolist()},
    )
