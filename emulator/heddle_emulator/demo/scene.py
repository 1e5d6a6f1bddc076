"""The scene of the demo: a small fabric like the published ones, and jobs that share it.

There are two zones, each of 16 racks of two 8-GPU hosts, joined at a seventh of their width. Jobs
whose collectives take turns get whole racks, as from a scheduler that knows the fabric. The others
share the remaining racks. Racks and hosts come in the random order in which they became free, so
nearly every flow has to go up to the spines. One job is in both zones. The dual-ToR fabric has one
zone; there, two halves of its racks stand for the zones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_emulator.topology import dual_tor, three_tier

GPUS = 8
_MIB = 1 << 20
REDUCE, EXCHANGE, PASS = Operation.ALL_REDUCE, Operation.ALL_TO_ALL, Operation.SEND_RECV


@dataclass(frozen=True, slots=True)
class Part:
    """A job of the scene: how many hosts in each zone, and what it runs."""

    name: str
    what: str
    hosts: tuple[int, int]
    parallelism: Parallelism
    collectives: tuple[Collective, ...]
    whole_racks: bool = True


PARTS = (
    Part(
        "llama-65b",
        "TP 2, PP 8, DP 8",
        (16, 0),
        Parallelism(tp=2, pp=8, dp=8),
        (
            Collective(REDUCE, Group.TP, 256 * _MIB),
            Collective(PASS, Group.PP, 64 * _MIB),
            Collective(REDUCE, Group.DP, 4096 * _MIB),
        ),
    ),
    Part(
        "moe-8x22b",
        "EP 16, DP 64: experts",
        (8, 0),
        Parallelism(dp=64, ep=16),
        (Collective(EXCHANGE, Group.EP, 128 * _MIB), Collective(REDUCE, Group.DP, 2048 * _MIB)),
    ),
    Part(
        "llama-70b",
        "TP 8, PP 2, DP 4: both zones",
        (4, 4),
        Parallelism(tp=8, pp=2, dp=4),
        (Collective(PASS, Group.PP, 64 * _MIB), Collective(REDUCE, Group.DP, 2048 * _MIB)),
    ),
    Part(
        "dlrm",
        "all to all: recommendation",
        (0, 8),
        Parallelism(dp=64),
        (Collective(EXCHANGE, Group.WORLD, 512 * _MIB),),
    ),
    Part(
        "gpt-13b",
        "TP 8, DP 14",
        (0, 14),
        Parallelism(tp=8, dp=14),
        (Collective(REDUCE, Group.TP, 256 * _MIB), Collective(REDUCE, Group.DP, 3072 * _MIB)),
        whole_racks=False,
    ),
    Part(
        "vit-22b",
        "TP 8, DP 6",
        (0, 6),
        Parallelism(tp=8, dp=6),
        (Collective(REDUCE, Group.TP, 256 * _MIB), Collective(REDUCE, Group.DP, 1024 * _MIB)),
        whole_racks=False,
    ),
)
"""Jobs of whole racks come first, because they are placed while there are whole racks."""


def _three_tier() -> Fabric:
    """Build 512 NICs, 32 leaves, 32 spines, 16 cores; 400 Gbit/s; 1:1 in a zone, 7:1 between."""
    return three_tier(
        zones=2, leaves=16, spines=16, nics_per_leaf=16, cores=16, taper=7.0, name="demo-512"
    )


def _dual_tor() -> Fabric:
    """Build 512 NICs with two 200 Gbit/s links each on 32 pairs of leaves, 8 spines; 1:1."""
    return dual_tor(pairs=32, spines=8, nics_per_pair=16, name="demo-dual-tor-512")


FABRICS: Mapping[str, Callable[[], Fabric]] = {"three-tier": _three_tier, "dual-tor": _dual_tor}
"""The fabrics that the scene can run on, by name; the first is the default."""


def scene_jobs(fabric: Fabric, seed: int) -> list[Job]:
    """Return the jobs on hosts drawn from the seed; no host is in two jobs."""
    random = np.random.default_rng(seed)
    racks = [random.permutation(hosts).tolist() for hosts in _racks(fabric)]
    jobs = []
    for part in PARTS:
        if not part.whole_racks:
            racks = [random.permutation(_flat(zone))[:, None].tolist() for zone in racks]
        hosts = []
        for zone, count in enumerate(part.hosts):
            given: list[str] = []
            while len(given) < count:
                given += racks[zone].pop()
            hosts += random.permutation(given).tolist()
        jobs.append(Job(part.name, tuple(hosts), GPUS, part.parallelism, part.collectives))
    return jobs


def _racks(fabric: Fabric) -> list[list[list[str]]]:
    """Return hosts by zone (or half of the only one) and by first leaf of their first NIC."""
    structure = fabric.structure
    zones: list[dict[int, list[str]]] = [{} for _ in structure.zone_names]
    first, arcs = structure.out
    for host, nics in structure.nics_of_host.items():
        leaf = int(structure.head[arcs[first[nics[0]]]])
        zones[int(structure.nodes.zone[nics[0]])].setdefault(leaf, []).append(host)
    racks = [list(zone.values()) for zone in zones]
    if len(racks) == 1:
        half = len(racks[0]) // 2
        racks = [racks[0][:half], racks[0][half:]]
    return racks


def _flat(racks: list[list[str]]) -> list[str]:
    return [host for rack in racks for host in rack]
