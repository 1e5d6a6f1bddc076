"""Random flows, and flows written as short rows."""

from __future__ import annotations

from random import Random

import numpy as np

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows, TrafficClass

Row = tuple[str, str, float, int, str, str]
"""Source, destination, Gbit/s, QPs, job, phase."""


def flows_of(fabric: Fabric, *rows: Row, names: tuple[str, ...] | None = None) -> Flows:
    """Return flows f0, f1, … (or ``names``) of a fabric."""
    source, destination, gbps, qps, job, phase = zip(*rows, strict=True) if rows else [()] * 6
    demands = Demands(
        ids=names or tuple(f"f{row}" for row in range(len(rows))),
        source=source,
        destination=destination,
        gbps=np.array(gbps, dtype=np.float64),
        job=job,
        phase=phase,
        qps=np.array(qps, dtype=np.int64),
        traffic_class=np.zeros(len(rows), dtype=np.int64),
    )
    return resolve(demands, fabric, origin="test")


def nic_ids(fabric: Fabric) -> list[str]:
    """Return the ids of all NICs."""
    ids = fabric.structure.nodes.ids
    return [ids[row] for row in fabric.rows_of_kind(NodeKind.NIC).tolist()]


def plain_flows(fabric: Fabric, rng: Random, count: int, qps: int, gbps: float = 400.0) -> Flows:
    """Return unphased flows of one rate and one number of QPs between random NICs."""
    nics = nic_ids(fabric)
    pairs = [rng.sample(nics, 2) for _ in range(count)]
    return flows_of(fabric, *((a, b, gbps, qps, "job", "") for a, b in pairs))


def any_flows(
    rng: Random, fabric: Fabric, most: int = 10, qps: tuple[int, ...] = (1, 1, 2, 4, 7, 32)
) -> Flows:
    """Return mixed flows: different rates and QPs, several phases, ends on one leaf too."""
    nics = nic_ids(fabric)
    rows: list[Row] = []
    for _ in range(rng.randint(0, most)):
        source, destination = rng.sample(nics, 2)
        gbps = rng.choice([400.0, 400.0, 100.0, 37.5, 1500.0])
        job = f"j{rng.randrange(3)}"
        rows.append((source, destination, gbps, rng.choice(qps), job, rng.choice(["", "p", "q"])))
    return flows_of(fabric, *rows)


def permutations(fabric: Fabric, rng: Random, sets: int, qps: int = 1) -> Flows:
    """Return random permutations of all NICs at line rate, without NICs that drew themselves."""
    nics = nic_ids(fabric)
    rows: list[Row] = []
    for turn in range(sets):
        to = rng.sample(nics, len(nics))
        rows += [
            (a, b, 400.0, qps, f"j{turn}", "") for a, b in zip(nics, to, strict=True) if a != b
        ]
    return flows_of(fabric, *rows)


def crowded_flows(rng: Random, fabric: Fabric, most: int = 14) -> Flows:
    """Return mixed flows, also in priority and class, that share a few pairs of NICs."""
    nics = nic_ids(fabric)
    pairs = [rng.sample(nics, 2) for _ in range(rng.randint(1, 5))]
    rows: list[Row] = []
    for _ in range(rng.randint(1, most)):
        qps, job = rng.choice((1, 1, 2, 4, 32)), f"j{rng.randrange(3)}"
        gbps, phase = rng.choice([400.0, 400.0, 100.0, 37.5]), rng.choice(["", "p", "q"])
        source, destination = rng.choice(pairs)
        rows.append((source, destination, gbps, qps, job, phase))
    flows = flows_of(fabric, *rows)
    latency = rng.choice([0.0, 0.0, 0.3])
    for row in range(len(flows)):
        flows.weight[row] = rng.choice([1.0, 1.0, 2.0, 5.0])
        if rng.random() < latency:
            flows.traffic_class[row] = TrafficClass.LATENCY
    return flows
