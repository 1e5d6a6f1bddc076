"""A recorded iteration of a training job, summed up to what matters for routes.

A trace lists every collective that one rank of each pipeline stage ran. Routes
need less: which kinds of groups move bulk data, by which operation, and roughly
how much. So each (operation, group) becomes one ``Collective`` whose bytes are
what one rank puts in during one iteration, on the stage that puts in most.

Not everything in a trace is traffic worth a route:

- What runs before the first iteration (AICB's stage ``init…``: model set-up,
  broadcast of weights, tests of the groups) happens once, and is left out.
- A sum of less than ``BULK_BYTES`` an iteration is control traffic (loss values,
  gradient norms, overflow flags). At 400 Gbit/s it is over in some 20
  microseconds, before congestion could matter, and as a flow it would claim a
  whole NIC. It is left out.
- Replicas (a dp group) must exchange gradients every iteration; still, traces of
  pipelined jobs often stop before the optimizer's step and show the group only
  being set up. If nothing bulk is left of a group that is there, the all-reduce
  of ``implied`` is put in, with its nominal bytes.

Sizes in traces are those of the whole tensor, which for an all-gather is what
comes out; a rank puts in one part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heddle_controller.model.job import Collective, Group, Operation, Parallelism
from heddle_controller.traffic.groups import group_size
from heddle_controller.traffic.implied import NOMINAL_BYTES, OPERATION_OF

BULK_BYTES = 1 << 20

Key = tuple[Operation, Group]
Sums = Mapping[Key, int]
"""Bytes one rank of a stage puts in during one iteration."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace says of its job: degrees (0 where it does not tell) and bulk traffic."""

    parallelism: Parallelism
    collectives: tuple[Collective, ...]


def summarise(parallelism: Parallelism, stages: Iterable[Sums]) -> Trace:
    """A trace from the bytes one rank puts in during one iteration, a mapping a stage."""
    most: dict[Key, int] = {}
    for sums in stages:
        for key, total in sums.items():
            most[key] = max(most.get(key, 0), total)
    bulk = {key: total for key, total in most.items() if total >= BULK_BYTES}
    if group_size(parallelism, Group.DP) > 1 and all(group is not Group.DP for _, group in bulk):
        bulk[OPERATION_OF[Group.DP], Group.DP] = NOMINAL_BYTES
    order = list(Group)
    keys = sorted(bulk, key=lambda key: (order.index(key[1]), key[0]))
    return Trace(parallelism, tuple(Collective(*key, bulk[key]) for key in keys))
