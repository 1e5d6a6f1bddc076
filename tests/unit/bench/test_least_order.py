"""The least time of rank orders: no order is estimated below it, and some orders reach it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.place.estimate import Estimator, Surroundings
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.topology import clos, rail_optimised, three_tier
from tests.bench.least_order import least_seconds
from tests.support.solve_flows import flows_of, nic_ids

FABRICS: dict[str, Fabric] = {
    "zones": three_tier(
        zones=3, leaves=2, spines=2, nics_per_leaf=8, nics_per_host=2, cores=2, taper=4.0
    ),
    "leaves": clos(leaves=4, spines=2, nics_per_leaf=8, nics_per_host=2),
    "rails": rail_optimised(units=2, servers=6, rails=2, spines=2),
}
SHAPES = {
    "ring": Parallelism(tp=2),
    "experts": Parallelism(tp=2, ep=3),
    "all": Parallelism(tp=2, ep=6),
    "pairs": Parallelism(tp=2, pp=3),
    "stages": Parallelism(tp=2, pp=2),
}


def others(fabric: Fabric, draw: random.Random) -> Flows:
    """Flows of other jobs between any NICs."""
    nics = nic_ids(fabric)
    pairs = [draw.sample(nics, 2) for _ in range(3 * len(nics))]
    return flows_of(
        fabric, *((a, b, draw.choice([50.0, 200.0, 400.0]), 1, "other", "") for a, b in pairs)
    )


@pytest.mark.parametrize("kind", FABRICS)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_order_takes_less(kind: str, shape: str) -> None:
    """Over all orders of six drawn hosts beside drawn loads, none takes less than the bound.

    Rings and all-to-all reach it, except where each host is below several leaves: there the bound
    is loose.
    """
    for seed in range(4):
        draw = random.Random(f"{kind} {shape} {seed}")
        fabric = FABRICS[kind]
        hosts = tuple(sorted(draw.sample(sorted(fabric.structure.nics_of_host), 6)))
        around = Surroundings(fabric, others(fabric, draw))
        flows = flows_of_job(Job("new", hosts, 2, SHAPES[shape]), fabric)
        estimator = Estimator(around, flows, hosts)
        reached = min(estimator.of(order).seconds for order in permutations(hosts))
        least = least_seconds(flows, hosts, around)
        assert least <= reached * (1 + 1e-5), f"{kind}, {shape}, seed {seed}"
        if shape in {"ring", "all"} and kind != "rails":
            assert reached == pytest.approx(least, rel=1e-5), f"{kind}, {shape}, seed {seed}"


def test_alphabetical_order_is_the_best_of_a_ring_where_names_tell_places() -> None:
    """Alphabetical order leaves each leaf and each zone once, which is best beside any load."""
    draw, fabric = random.Random(7), FABRICS["zones"]
    known = sorted(fabric.structure.nics_of_host)
    for count in range(4, len(known), 3):
        hosts = tuple(sorted(draw.sample(known, count)))
        around = Surroundings(fabric, others(fabric, draw))
        flows = flows_of_job(Job("new", hosts, 2, SHAPES["ring"]), fabric)
        estimate = Estimator(around, flows, hosts).of(hosts).seconds
        assert estimate == pytest.approx(least_seconds(flows, hosts, around), rel=1e-5), count


def test_an_order_that_leaves_leaves_more_often_is_above_it() -> None:
    """A ring that alternates between leaves, whose links others fill, takes longer."""
    fabric = FABRICS["leaves"]
    hosts = tuple(sorted(fabric.structure.nics_of_host)[:8])
    nics, uplink = nic_ids(fabric), float(fabric.structure.capacity.min())
    each = 0.9 * 2 * uplink / 8  # eight NICs fill two uplinks to nine tenths
    pairs = zip(nics, nics[8:] + nics[:8], strict=True)
    rows = [(one, other, each, 1, "other", "") for one, other in pairs]
    around = Surroundings(fabric, flows_of(fabric, *rows))
    job = Job("new", hosts, 2, SHAPES["ring"])
    flows = flows_of_job(job, fabric)
    fro = replace(
        job, hosts=tuple(host for pair in zip(hosts[:4], hosts[4:], strict=True) for host in pair)
    )
    assert (
        Estimator(around, flows, hosts).of(fro.hosts).seconds
        > least_seconds(flows, hosts, around) * 1.5
    )
