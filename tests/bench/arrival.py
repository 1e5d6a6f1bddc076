"""A job arrives while 24,576 NICs are busy: how soon it has paths, and how many others move."""

from __future__ import annotations

import time

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import concatenate
from heddle_controller.plan.diff import changed_flows
from heddle_controller.solve import Repairer
from tests.bench.planned import planned, size_of
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.bench.workloads import flows_of, shuffled

MOST_SECONDS = 0.1
MOST_OTHERS = 0.01
NICS = 1024
"""NICs of the arriving job, or a sixth of all NICs on a smaller fabric."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Add a job in one zone whose NICs each send to another one of the job."""
    plan = planned(scale)
    fabric = plan.fabric
    nics = fabric.rows_of_kind(NodeKind.NIC)
    size = min(NICS, len(nics) // 6)
    title = f"arrival of a job of {size:,} NICs, {size_of(fabric)} busy"
    seconds, work, others = [], [], []
    with screen.progress(title, scale.arrival_runs) as advance:
        for seed in range(scale.arrival_runs):
            random = np.random.default_rng([2, seed])
            own = _whole_hosts(fabric, nics, size, random)
            job = flows_of("arriving", own, shuffled(own, random))
            flows = concatenate([plan.flows, job])
            repairer = Repairer(plan)
            begin, before = time.perf_counter(), time.process_time()
            after = repairer.repair(fabric, flows)
            seconds.append(time.perf_counter() - begin)
            work.append(time.process_time() - before)
            others.append(len(changed_flows(plan, after)) / len(plan.flows))
            advance(len(seconds))
    median = quantile(seconds, 0.5)
    return [
        Row(
            title,
            "Heddle",
            f"{median * 1e3:.0f} ms median, worst {max(seconds) * 1e3:.0f} ms",
            f"< {MOST_SECONDS * 1e3:.0f} ms",
            median < MOST_SECONDS,
            f"{len(seconds)} arrivals, each into the same plan;"
            f" processor median {quantile(work, 0.5) * 1e3:.0f} ms",
            {"seconds": seconds, "processor_seconds": work},
        ),
        Row(
            title,
            "  others moved",
            f"{max(others):.2%} at most",
            f"<= {MOST_OTHERS:.0%}",
            max(others) <= MOST_OTHERS,
            data={"part": others},
        ),
    ]


def _whole_hosts(fabric: Fabric, nics: Ints, size: int, random: np.random.Generator) -> Ints:
    """Return NICs of randomly drawn hosts of one zone, filling one host after another."""
    zone, host = fabric.structure.nodes.zone, fabric.structure.nodes.host
    inside = nics[zone[nics] == random.choice(np.unique(zone[nics]))]
    names, which = np.unique(host[inside], return_inverse=True)
    order = random.permutation(len(names))[which]
    return np.sort(inside[np.argsort(order, kind="stable")][:size])
