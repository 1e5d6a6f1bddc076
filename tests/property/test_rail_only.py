"""Rail-only fabrics: networks that no link joins, each with a NIC of every host."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, plan_anew
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.topology import rail_optimised
from tests.support.depth import examples
from tests.support.solve_checks import check_certificate, check_paths
from tests.support.solve_fabrics import SEEDS, frayed
from tests.support.solve_reference import is_joined

RAILS = 2


def drawn(rng: Random) -> Fabric:
    """Return a fabric that may not say which rail a NIC is on."""
    fabric = rail_optimised(
        units=rng.randint(1, 3),
        servers=2 * rng.randint(1, 2),
        rails=RAILS,
        spines=rng.randint(1, 3),
        parallel=rng.randint(1, 2),
        rail_only=True,
    )
    structure = fabric.structure
    if rng.random() < 0.5:
        unsaid = replace(structure.nodes, rail=np.full(fabric.node_count, NONE, dtype=np.int64))
        fabric = replace(fabric, structure=replace(structure, nodes=unsaid))
    return parse_fabric(fabric_document(fabric), "a test")


@settings(max_examples=examples(20, deep=400))
@given(SEEDS)
def test_jobs_stay_on_rails(seed: int) -> None:
    """Flows of all ranks have paths, also after losses if links still join their ends."""
    rng = Random(seed)
    fabric = drawn(rng)
    hosts = [*fabric.structure.host_names]
    rng.shuffle(hosts)
    half = len(hosts) // 2
    jobs = [
        Job("a", tuple(hosts[:half]), RAILS, Parallelism(tp=1, ep=half)),
        Job("b", tuple(hosts[half:]), RAILS, Parallelism(tp=rng.randint(1, RAILS))),
    ]
    flows = flows_of_jobs(jobs, fabric)
    plan = plan_anew(fabric, flows)
    assert not plan.unrouted
    repairer = Repairer(plan)
    for _ in range(3):
        check_paths(plan)
        check_certificate(plan)
        verify_plan(plan)
        fabric = frayed(rng, fabric, 0.3)
        plan = repairer.repair(fabric, flows)
        for row in plan.unrouted:
            assert not is_joined(fabric, int(flows.source[row]), int(flows.destination[row]))


def test_a_host_without_a_nic_on_a_rail_is_refused() -> None:
    """A fabric is rail-only if each network has a NIC of every host; else a cable was forgotten."""
    document = fabric_document(rail_optimised(servers=2, rails=2, spines=1, rail_only=True))
    parse_fabric(document, "a test")
    lost = document["nodes"][-1]["id"]
    document["nodes"].pop()
    document["edges"] = [e for e in document["edges"] if lost not in (e["source"], e["target"])]
    with pytest.raises(InputError, match="half-connected"):
        parse_fabric(document, "a test")
