"""A lower bound, from cuts, on the network time of any rank order of a job's hosts.

An order changes which hosts talk to each other, but not how many they are and how much they send.
Consider the hosts below a leaf or in a zone. If their number is no multiple of the size of a group,
at least one group is partly elsewhere. A ring or a pipeline then leaves at least once. A group with
``a`` of its ``n`` hosts there, all of which talk to all others, sends ``a * (n - a)`` times what
one host sends to another. This is least if all other groups are whole. What other jobs send stays
the same. An order that takes no longer than this bound is proven to be as good as any.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from heddle_controller.model.arrays import NONE, Floats
from heddle_controller.model.flows import Flows
from heddle_controller.model.graphs import joined_parts
from heddle_controller.place.estimate import Surroundings
from heddle_controller.place.order import Hosts

Sent = tuple[float, float]
"""Gbit/s outwards and inwards."""


def least_seconds(flows: Flows, hosts: Hosts, around: Surroundings) -> float:
    """Return a lower bound on the estimated network seconds of one round, for any rank order.

    Args:
        flows: The flows of the job on the hosts in any order.
        hosts: The hosts, which all have the same number of NICs.
        around: What the fabric carries beside the job.
    """
    nics_of_host = around.fabric.structure.nics_of_host
    row = {nic: number for number, host in enumerate(hosts) for nic in nics_of_host[host]}
    ends = [
        np.array([row[nic] for nic in end.tolist()]) for end in (flows.source, flows.destination)
    ]
    total = 0.0
    for phase in np.unique(flows.phase).tolist():
        rows = np.flatnonzero(flows.phase == phase)
        talk = np.zeros((len(hosts), len(hosts)))
        np.add.at(talk, (ends[0][rows], ends[1][rows]), flows.gbps[rows])
        np.fill_diagonal(talk, 0.0)
        lasts = flows.bytes[rows] * 8e-9 / flows.gbps[rows]
        slowed = _least_slowed(talk, hosts, around)
        total += max(float(lasts.max()), float(lasts.min()) * slowed)
    return total


def _least_slowed(talk: Floats, hosts: Hosts, around: Surroundings) -> float:
    """Return by how much some flow between hosts is slowed in any order; 1 if nothing is known."""
    size = _group_size(talk)
    nics_of_host, worst = around.fabric.structure.nics_of_host, 1.0
    for cut in (around.leaves, around.zones):
        parts = [{int(cut.part[nic]) for nic in nics_of_host[host]} for host in hosts]
        if any(len(own) > 1 for own in parts):
            continue  # NICs of such a host may talk with others in either part and leave none
        for part, here in Counter(one for own in parts for one in own).items():
            if part != NONE and here % size:
                ways = _least_sent(talk, size, here % size)
                border = cut.load[:, part], cut.capacity[:, part]
                worst = max(worst, min(_used(sent, *border) for sent in ways))
    return worst


def _group_size(talk: Floats) -> int:
    """Return how many hosts each group of talking hosts has; 1 if the groups differ."""
    source, destination = np.nonzero(talk)
    sizes = np.bincount(joined_parts(source, destination, len(talk)))
    return int(sizes[0]) if (sizes == sizes[0]).all() else 1


def _least_sent(talk: Floats, size: int, some: int) -> list[Sent]:
    """Return the least that ``some`` hosts of a group send to the rest of it and receive from it.

    If there are two possible answers, both are returned, and either may apply.
    """
    pair, degree = float(talk[talk > 0].min()), np.count_nonzero(talk, axis=1)
    if (degree == size - 1).all():
        return [(some * (size - some) * pair,) * 2]
    back = (talk > 0) == (talk > 0).T
    ring = (degree == 1).all() and (np.count_nonzero(talk, axis=0) == 1).all()
    return [(pair, pair)] if ring or back.all() else [(pair, 0.0), (0.0, pair)]


def _used(sent: Sent, load: Floats, capacity: Floats) -> float:
    """Return the higher utilisation of the directions, out and in, in which something is sent."""
    with np.errstate(divide="ignore"):
        used = (np.array(sent) + load) / capacity
    return float(used[np.array(sent) > 0].max())
