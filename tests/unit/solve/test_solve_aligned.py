"""The phases of jobs that share leaves use the same links, so that no link is overfull."""

import random

import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.solve import solve
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.topology import clos, three_tier


def _scattered(seed: int) -> tuple[Fabric, Flows]:
    """Three jobs with experts, each on twelve hosts spread over a fabric of twelve leaves."""
    draw = random.Random(seed)
    fabric = clos(leaves=12, spines=16, nics_per_leaf=16, nics_per_host=4)
    hosts = sorted(fabric.structure.nics_of_host)
    draw.shuffle(hosts)
    jobs = [
        Job(f"j{row}", tuple(hosts[12 * row : 12 * row + 12]), 4, Parallelism(tp=4, ep=4))
        for row in range(3)
    ]
    return fabric, concatenate([flows_of_job(job, fabric) for job in jobs])


@pytest.mark.parametrize("seed", range(4))
def test_jobs_of_two_phases_that_share_leaves_fill_no_link_twice(seed: int) -> None:
    """Rings and all-to-alls of three scattered jobs fill no link above its capacity."""
    certificate = solve(*_scattered(seed)).certificate
    assert certificate.max_utilization == pytest.approx(1.0), f"seed {seed}"
    assert certificate.gap == pytest.approx(0.0, abs=1e-6), f"seed {seed}"


@pytest.mark.parametrize("seed", [0, 4])
def test_a_tier_is_at_its_bound_beside_one_that_is_not(seed: int) -> None:
    """No core link is overfull, although phases that share leaves fill some links below them.

    Each NIC sends its whole line in one QP of a ring, and all leaves are shared by three jobs.
    """
    draw = random.Random(seed)
    fabric = three_tier(
        zones=2, leaves=6, spines=8, nics_per_leaf=8, cores=8, taper=1.5, nics_per_host=4
    )
    hosts = sorted(fabric.structure.nics_of_host)
    draw.shuffle(hosts)
    jobs = [
        Job(f"j{row}", tuple(hosts[8 * row : 8 * row + 8]), 4, Parallelism(tp=4, ep=4))
        for row in range(3)
    ]
    flows = concatenate([flows_of_job(job, fabric) for job in jobs])
    core = next(one for one in solve(fabric, flows).certificate.tiers if one.tier == "spine-core")
    assert core.max_utilization <= 1 + 1e-6, f"seed {seed}"


def test_equal_input_gives_equal_plans() -> None:
    """The search draws numbers from a fixed seed: two runs give the same paths."""
    first, second = (solve(*_scattered(1)).paths for _ in range(2))
    assert first.arcs.tolist() == second.arcs.tolist()
    assert first.first.tolist() == second.first.tolist()
