"""The least time that cuts leave any rank order of the hosts of a job.

Orders change which hosts talk, not how many and how much. So whichever hosts below a leaf or in a
zone form groups: if their number is no multiple of what a group takes, one group at least is partly
elsewhere. A ring or a pipeline then leaves once at least, and a group of which ``a`` of ``n`` hosts
are there and all talk with all sends ``a * (n - a)`` times what one sends to another: that is least
where all other groups are whole. What others send stays as it is. An order that takes no longer
than that is proven to be as good as any by cuts.
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
    """Seconds of the network for one round, which no order of these hosts is estimated below.

    Args:
        flows: Those that the job has on the hosts in any order.
        hosts: Each with as many NICs.
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
    """By how much some flow between hosts is slowed in any order; 1 where nothing is known."""
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
    """How many hosts each group of those that talk takes; 1 where that differs."""
    source, destination = np.nonzero(talk)
    sizes = np.bincount(joined_parts(source, destination, len(talk)))
    return int(sizes[0]) if (sizes == sizes[0]).all() else 1


def _least_sent(talk: Floats, size: int, some: int) -> list[Sent]:
    """What so many hosts of one group send to the rest of it, and get from there, at least.

    Either of the answers, if there are two.
    """
    pair, degree = float(talk[talk > 0].min()), np.count_nonzero(talk, axis=1)
    if (degree == size - 1).all():
        return [(some * (size - some) * pair,) * 2]
    back = (talk > 0) == (talk > 0).T
    ring = (degree == 1).all() and (np.count_nonzero(talk, axis=0) == 1).all()
    return [(pair, pair)] if ring or back.all() else [(pair, 0.0), (0.0, pair)]


def _used(sent: Sent, load: Floats, capacity: Floats) -> float:
    """Utilisation of the fuller of the ways that something is sent, out or in."""
    with np.errstate(divide="ignore"):
        used = (np.array(sent) + load) / capacity
    return float(used[np.array(sent) > 0].max())
