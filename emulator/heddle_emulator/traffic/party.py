"""Jobs as scripts see them: where each rank is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Gpus, Job
from heddle_emulator.traffic.moves import Ranks
from heddle_emulator.traffic.script import Party


def nics_of_ranks(fabric: Fabric, hosts: Sequence[str], gpus: Sequence[Gpus]) -> Ints:
    """NIC row of each rank: GPU ``i`` of a host has its NIC ``i``, modulo its NICs.

    Args:
        fabric: Where the hosts are.
        hosts: In rank order.
        gpus: Those of each host that ranks are on.

    Raises:
        InputError: a host that is not in the fabric, or is named twice.
    """
    known = fabric.structure.nics_of_host
    for place, host in enumerate(hosts):
        if host not in known:
            raise refuse("hosts", host, "is not a host with NICs in the fabric")
        if host in hosts[:place]:
            raise refuse("hosts", host, "is named twice")
    nics = [
        known[host][gpu % len(known[host])]
        for host, part in zip(hosts, gpus, strict=True)
        for gpu in part
    ]
    return np.array(nics, dtype=np.int64)


def gpus_of(job: Job) -> list[Gpus]:
    """The GPUs of each host that ranks of a job are on."""
    return list(job.gpus) or [tuple(range(job.gpus_per_host))] * len(job.hosts)


def party_of(job: Job, fabric: Fabric) -> Party:
    """A job on its hosts.

    Raises:
        InputError: a host that is not in the fabric, or is named twice.
    """
    gpus = gpus_of(job)
    hosts = np.repeat(np.arange(len(gpus), dtype=np.int64), [len(part) for part in gpus])
    nics = nics_of_ranks(fabric, job.hosts, gpus)
    return Party(job.name, nics, hosts, job.qps, job.priority or 1.0, job.traffic_class)


def ranks_of(party: Party, fabric: Fabric, *, pxn: bool | None = None) -> Ranks:
    """Where the ranks of a party sit; ``pxn`` None is "where the fabric's NICs carry rails"."""
    rail = fabric.structure.nodes.rail[party.nics]
    railed = bool((rail != NONE).any())
    return Ranks(party.hosts, rail if railed and pxn is not False else None)
