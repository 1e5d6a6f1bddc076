"""Which collectives of a job overlap or take turns, and what each may ask of its NICs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.flows import Flows
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.model.plan import arc_loads
from heddle_controller.solve import solve
from heddle_controller.traffic.jobs import SMALL_BYTES, flows_of_job
from heddle_controller.traffic.patterns import patterns_of, phase_names, phases_of, send_pattern
from tests.support.depth import fresh_seeds
from tests.support.small_fabrics import clos

GIB = 1 << 30
RING = Collective(Operation.ALL_REDUCE, Group.DP, GIB)
EXCHANGE = Collective(Operation.ALL_TO_ALL, Group.DP, GIB)


def _job(hosts: int, gpus: int, *collectives: Collective) -> Job:
    names = tuple(f"h{i}" for i in range(hosts))
    return Job("j", names, gpus, Parallelism(tp=gpus), collectives)


def _phase(flows: Flows, name: str) -> Flows:
    return flows.take(np.flatnonzero(flows.phase == flows.phase_names.index(name)))


def test_operations_of_a_group_take_turns_at_full_rate() -> None:
    """A ring and an all-to-all over dp take turns, each with the whole line of its NICs."""
    fabric = clos(8, 2, spines=2)
    flows = flows_of_job(_job(8, 2, RING, EXCHANGE), fabric)
    assert flows.phase_names == ("dp-pairwise", "dp-ring")
    assert set(_phase(flows, "dp-ring").gbps.tolist()) == {400.0}
    assert set(_phase(flows, "dp-pairwise").gbps.tolist()) == {400.0 / 7}
    assert len(set(flows.ids)) == len(flows)
    assert "j/dp-ring/h7-0->h0-0" in flows.ids


def test_the_certificate_holds_for_each_operation_alone() -> None:
    """If the certificate says 1.0, no phase by itself puts more on any link."""
    fabric = clos(8, 2, spines=2)
    flows = flows_of_job(replace(_job(8, 2, RING, EXCHANGE), qps=4), fabric)
    plan = solve(fabric, flows)
    assert plan.certificate.max_utilization == pytest.approx(plan.certificate.lower_bound)
    assert plan.certificate.max_utilization == pytest.approx(1.0)
    for phase in range(len(flows.phase_names)):
        rows = np.flatnonzero(flows.phase[plan.paths.flow] == phase)
        loads = arc_loads(2 * fabric.link_count, flows, plan.paths.take(rows))
        assert (loads / fabric.structure.capacity).max() <= 1.0 + 1e-9


def test_operations_that_send_the_same_way_are_one_phase() -> None:
    """A reduce-scatter and an all-gather on the same rings have the flows of one of them."""
    gather = Collective(Operation.ALL_GATHER, Group.DP, GIB // 4)
    scatter = Collective(Operation.REDUCE_SCATTER, Group.DP, GIB)
    flows = flows_of_job(_job(4, 2, gather, scatter), clos(4, 2))
    alone = flows_of_job(_job(4, 2, scatter), clos(4, 2))
    assert flows.phase_names == ("dp",)
    assert flows.ids == alone.ids
    assert flows.gbps.tolist() == alone.gbps.tolist()
    assert flows.bytes.tolist() == (2 * alone.bytes).tolist()


@pytest.mark.parametrize("marked", [(True, True), (True, False), (False, True)])
def test_operations_that_overlap_share_the_nics_by_bytes(marked: tuple[bool, bool]) -> None:
    """Overlapping operations are one phase, and a NIC's line is divided by their bytes."""
    both = [replace(o, overlap=m) for o, m in zip((RING, EXCHANGE), marked, strict=True)]
    flows = flows_of_job(_job(4, 1, *both), clos(4, 1))
    assert flows.phase_names == ("dp",)
    assert len(flows) == 12
    sent = np.bincount(flows.source, flows.gbps)
    assert sent[sent > 0] == pytest.approx(400.0)
    # Of 1 GiB over four ranks: a ring's hop carries 1.5 GiB, an all-to-all's a quarter.
    hop = flows.ids.index("j/dp/h0-0->h1-0"), flows.ids.index("j/dp/h0-0->h2-0")
    assert flows.bytes[list(hop)] == pytest.approx([1.75 * GIB, 0.25 * GIB])
    assert flows.gbps[hop[0]] == pytest.approx(7 * flows.gbps[hop[1]])


def test_other_groups_take_turns_whatever_one_says() -> None:
    """Overlap counts within its group; a pipeline beside it stays a phase at full rate."""
    stages = Collective(Operation.SEND_RECV, Group.PP, GIB)
    wanted = [replace(RING, overlap=True), EXCHANGE, stages]
    job = replace(_job(8, 1, *wanted), parallelism=Parallelism(pp=2, dp=4))
    flows = flows_of_job(job, clos(8, 1))
    assert flows.phase_names == ("pp", "dp")
    assert set(_phase(flows, "pp").gbps.tolist()) == {400.0}


def test_what_is_tiny_asks_for_less() -> None:
    """Below 64 KiB at a time, rate and weight fall with bytes; above, they do not change."""
    fabric = clos(4, 1)
    for size, part in ((SMALL_BYTES, 1.0), (1 << 40, 1.0), (1024, 1 / 64), (1, 1 / 65536)):
        job = replace(_job(4, 1, replace(RING, bytes=size)), priority=2.0)
        flows = flows_of_job(job, fabric)
        assert flows.gbps == pytest.approx(400.0 * part)
        assert flows.weight == pytest.approx(2.0 * part)
        assert flows.bytes == pytest.approx(1.5 * size)


def test_many_small_collectives_cost_no_more_than_one() -> None:
    """A collective that is given a hundred thousand times is one collective of all their bytes."""
    phases = phases_of([RING, EXCHANGE] * 50_000)
    assert {name: [c.bytes for c in own] for name, own in phases.items()} == {
        "dp-pairwise": [50_000 * GIB],
        "dp-ring": [50_000 * GIB],
    }


def _drawn(random: Random) -> Job:
    """Draw a job on whole hosts with any collectives that it can run."""
    parallelism = Parallelism(
        tp=random.choice([1, 2]),
        cp=random.choice([1, 2]),
        dp=random.choice([2, 4]),
        pp=random.choice([1, 2, 3]),
    )
    ranks = parallelism.tp * parallelism.cp * parallelism.dp * parallelism.pp
    gpus = random.choice([n for n in (1, 2, 4) if ranks % n == 0 and ranks > n])
    groups = [Group.DP, Group.WORLD, *([Group.PP] if parallelism.pp > 1 else [])]
    collectives = []
    for _ in range(random.randint(1, 5)):
        operation, group = random.choice([*Operation]), random.choice(groups)
        algorithm: Algorithm = random.choice([*patterns_of(operation, group)])
        size, overlap = random.choice([1 << 20, 3 << 20, GIB]), random.random() < 0.2
        collectives.append(Collective(operation, group, size, algorithm, overlap))
    hosts = tuple(f"h{n}" for n in range(ranks // gpus))
    return Job("j", hosts, gpus, parallelism, tuple(collectives))


@pytest.mark.deep
def test_each_phase_is_planned_as_if_it_were_alone() -> None:
    """A phase has the flows and rates of a job that runs only that; order does not matter."""
    for seed in fresh_seeds(30):
        random = Random(seed)
        job = _drawn(random)
        nics = random.choice([job.gpus_per_host, 1])
        fabric = clos(len(job.hosts), nics, rails=random.random() < 0.5)
        flows = flows_of_job(job, fabric)
        names = phase_names(job.collectives)
        for name in flows.phase_names:
            own = [c for c in job.collectives if names[send_pattern(c)] == name]
            alone = flows_of_job(replace(job, collectives=tuple(own)), fabric)
            part = _phase(flows, name)
            assert alone.phase_names == (name.split("-")[0],), f"seed {seed}"
            for column in ("source", "destination", "gbps", "bytes", "weight"):
                found, expected = getattr(part, column), getattr(alone, column)
                assert found.tolist() == expected.tolist(), f"seed {seed}"
            for end in (part.source, part.destination):
                asked = np.bincount(end, weights=part.gbps)
                assert asked.max() <= 400.0 * (1 + 1e-9), f"seed {seed}"
        shuffled = random.sample(job.collectives, len(job.collectives))
        again = flows_of_job(replace(job, collectives=tuple(shuffled)), fabric)
        assert again.ids == flows.ids, f"seed {seed}"
        assert again.gbps == pytest.approx(flows.gbps), f"seed {seed}"
