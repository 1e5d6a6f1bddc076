"""GPU intensity: what a job computes for each second of its slowest link.

Crux (SIGCOMM 2024) gives way to the jobs that lose most computing by a second of network:
with W the FLOPs of an iteration and t the time of the link that has most to carry for it, the
intensity is W / t. Before there is a plan, the links that a job is sure to use are those of its
NICs; which links deeper in the fabric it uses, and with whom it shares them, follows from the plan
that weights are for. So t is the time of its busiest NIC, all phases together.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Job

WEIGHS_ONE = 1e15
"""FLOPs for each second of the slowest link that weigh as much as a job that tells nothing."""

_Sent = tuple[Ints, Ints, Floats]
"""Sending and receiving NICs, and the bytes between them in one round."""


def priority_of(job: Job, fabric: Fabric, sent: Iterable[_Sent]) -> float:
    """The priority that a job tells; else that of its GPU intensity; else 1.

    Args:
        job: What tells it.
        fabric: Where its NICs are.
        sent: What each phase sends.
    """
    if job.priority or not job.flops_per_iteration:
        return job.priority or 1.0
    seconds = slowest_link_seconds(fabric, sent)
    return job.flops_per_iteration / seconds / WEIGHS_ONE if seconds > 0 else 1.0


def slowest_link_seconds(fabric: Fabric, sent: Iterable[_Sent]) -> float:
    """Seconds that the busiest NIC needs, out or in, for all that is sent."""
    total = np.zeros((2, fabric.node_count))
    for source, destination, size in sent:
        for way, nics in enumerate((source, destination)):
            total[way] += np.bincount(nics, size, minlength=fabric.node_count)
    busy = total.max(axis=0)
    rows = np.flatnonzero(busy)
    times = busy[rows] * 8e-9 / fabric.structure.nic_line[rows]
    return float(times.max(initial=0.0))
