"""The collectives that a parallelism implies, for a job that names none.

Training frameworks leave little choice: tensor-parallel ranks add up partial
results (all-reduce), context-parallel ranks pass keys and values round
(send/recv), data-parallel replicas add up gradients (all-reduce), pipeline stages
hand on activations and gradients (send/recv), experts exchange tokens
(all-to-all).

Which NICs talk follows from the kind alone. Bytes are nominal, one gibibyte a
rank and iteration: they tell that the traffic is bulk, not how much there is.
"""

from __future__ import annotations

from heddle_controller.model.job import Collective, Group, Operation, Parallelism
from heddle_controller.traffic.groups import group_size

NOMINAL_BYTES = 1 << 30

OPERATION_OF = {
    Group.TP: Operation.ALL_REDUCE,
    Group.CP: Operation.SEND_RECV,
    Group.DP: Operation.ALL_REDUCE,
    Group.PP: Operation.SEND_RECV,
    Group.EP: Operation.ALL_TO_ALL,
}


def implied_collectives(parallelism: Parallelism) -> tuple[Collective, ...]:
    """One collective for each group kind of a resolved parallelism with several members."""
    return tuple(
        Collective(operation, group, NOMINAL_BYTES)
        for group, operation in OPERATION_OF.items()
        if group_size(parallelism, group) > 1
    )
