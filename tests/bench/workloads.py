"""Traffic and damage that several measurements share, drawn from seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass, concatenate
from heddle_emulator.topology import three_tier
from tests.bench.rows import Scale

GBPS = 400.0
CORE_PART = 7
"""One NIC in this many sends across zones, as the links to the cores are that much narrower."""


def published_zones(scale: Scale, zones: int | None = None) -> Fabric:
    """Return zones of the published shape, 1:7 to the cores.

    The default and full scales give 24,576 NICs.
    """
    leaves, spines, nics = scale.zone
    return three_tier(
        zones=zones or scale.zones,
        leaves=leaves,
        spines=spines,
        nics_per_leaf=nics,
        cores=spines,
        taper=7.0,
        name="published-zones",
    )


def flows_of(job: str, source: Ints, destination: Ints, qps: int = 1) -> Flows:
    """Return flows at line rate that may run at any time, named after their job."""
    count = len(source)
    zeros = np.zeros(count, dtype=np.int64)
    return Flows(
        ids=tuple(f"{job}-{row}" for row in range(count)),
        source=source,
        destination=destination,
        gbps=np.full(count, GBPS),
        job=zeros,
        phase=zeros + ANY_PHASE,
        qps=zeros + qps,
        traffic_class=zeros + int(TrafficClass.BANDWIDTH),
        weight=np.ones(count),
        job_names=(job,),
        phase_names=(),
    )


def shuffled(nics: Ints, random: np.random.Generator, apart: Ints | None = None) -> Ints:
    """Return where each NIC sends, so that every NIC is sent to exactly once.

    No NIC sends to itself or, if ``apart`` gives the group of each NIC, within its group. This
    needs groups of which none has half of the NICs or more.
    """
    group = np.arange(len(nics)) if apart is None else apart
    order = random.permutation(len(nics))
    while len(bad := np.flatnonzero(group[order] == group)):
        for place in bad.tolist():
            other = int(random.integers(len(nics)))
            order[place], order[other] = order[other], order[place]
    return nics[order]


def permutations(fabric: Fabric, seed: int, sets: int = 1, qps: int = 1) -> Flows:
    """Return so many permutations of all NICs, all sent at the same time."""
    random = np.random.default_rng([seed, sets])
    nics = fabric.rows_of_kind(NodeKind.NIC)
    return concatenate(
        [flows_of(f"p{turn}", nics, shuffled(nics, random), qps) for turn in range(sets)]
    )


def zone_traffic(fabric: Fabric, seed: int) -> Flows:
    """Return two permutations within each zone, and one across zones.

    The one across zones has a seventh of the NICs. In a fabric of one zone it stays in that zone,
    so that the amount of work is the same.
    """
    random = np.random.default_rng(seed)
    nics = fabric.rows_of_kind(NodeKind.NIC)
    zone = fabric.structure.nodes.zone
    zones = np.unique(zone[nics]).tolist()
    inside = [nics[zone[nics] == z] for z in zones]
    parts = []
    for turn in range(2):
        to = np.concatenate([shuffled(own, random) for own in inside])
        parts.append(flows_of(f"inside{turn}", np.concatenate(inside), to))
    some = np.concatenate(
        [np.sort(random.choice(own, len(own) // CORE_PART, replace=False)) for own in inside]
    )
    if len(zones) == 2:
        to = np.roll(some, len(some) // 2)
    else:
        to = shuffled(some, random, zone[some] if len(zones) > 1 else None)
    return concatenate([*parts, flows_of("across", some, to)])


def between_switches(fabric: Fabric) -> Bools:
    """Return which links are between two switches, shape (links,)."""
    nic, links = fabric.structure.nodes.kind == NodeKind.NIC, fabric.structure.links
    result: Bools = ~nic[links.a] & ~nic[links.b]
    return result


def without(fabric: Fabric, links: Ints) -> Fabric:
    """Return the fabric with these links (by row) down."""
    return fabric.with_links(dict.fromkeys(links.tolist(), State.DOWN))


def frayed(fabric: Fabric, random: np.random.Generator, share: float) -> Fabric:
    """Return the fabric with each link between switches down with probability ``share``."""
    rows = np.flatnonzero(between_switches(fabric))
    return without(fabric, rows[random.random(len(rows)) < share])


def with_speeds(fabric: Fabric, gbps: Ints | Floats) -> Fabric:
    """Return the fabric with other link speeds, in Gbit/s, by link row."""
    structure = fabric.structure
    links = replace(structure.links, gbps=gbps.astype(np.float64))
    return replace(fabric, structure=replace(structure, links=links))
