"""Jobs as scripts see them: where each rank is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import NONE, Fabric, Ints
from heddle_controller.model.job import Job
from heddle_emulator.traffic.moves import Ranks
from heddle_emulator.traffic.script import Party


def nics_of_ranks(fabric: Fabric, hosts: Sequence[str], gpus_per_host: int) -> Ints:
    """NIC row of each rank: GPU ``i`` of a host has its NIC ``i``, modulo its NICs.

    Raises:
        InputError: a host that is not in the fabric, or is named twice.
    """
    known = fabric.structure.nics_of_host
    for place, host in enumerate(hosts):
        if host not in known:
            raise refuse("hosts", host, "is not a host with NICs in the fabric")
        if host in hosts[:place]:
            raise refuse("hosts", host, "is named twice")
    nics = [np.resize(known[host], gpus_per_host) for host in hosts]
    return np.concatenate([np.empty(0, dtype=np.int64), *nics]).astype(np.int64)


def party_of(job: Job, fabric: Fabric) -> Party:
    """A job on its hosts.

    Raises:
        InputError: a host that is not in the fabric, or is named twice.
    """
    nics = nics_of_ranks(fabric, job.hosts, job.gpus_per_host)
    return Party(job.name, nics, job.gpus_per_host, job.qps, job.priority, job.traffic_class)


def ranks_of(party: Party, fabric: Fabric, *, pxn: bool | None = None) -> Ranks:
    """Where the ranks of a party sit; ``pxn`` None is "where the fabric's NICs carry rails"."""
    rail = fabric.structure.nodes.rail[party.nics]
    railed = bool((rail != NONE).any())
    return Ranks(party.gpus_per_host, rail if railed and pxn is not False else None)
