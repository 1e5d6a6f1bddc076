"""SimAI's workload form of a trace: the layers one rank runs, a line a layer.

The first line tells degrees and pipeline, the second how many layers follow. A
layer has three passes, each with compute time, collective and bytes: forward,
gradient of the input, gradient of the weights. A collective's name tells its
group: plain is tp in the first two passes and dp in the third, ``_EP`` is ep,
``_DP_EP`` the replicas of one expert, which are a part of dp.

Layers stand as often as they run in an iteration, but the pipeline's traffic does
not: ``pp_comm`` is what one micro-batch hands on, and ``ga`` the micro-batches. A
stage in the middle sends as much back as on.
"""

from __future__ import annotations

import re
from collections import defaultdict

from heddle_controller.model.job import Group, Operation, Parallelism
from heddle_controller.traffic.lines import Lines
from heddle_controller.traffic.summary import Key, Trace, summarise

MARK = "model_parallel_NPU_group"

_SETTING = re.compile(r"([A-Za-z_]+):?\s+([0-9]+)(?:\.0+)?(?=\s|$)")
_COLLECTIVE = re.compile(r"(ALLREDUCE|ALLGATHER|REDUCESCATTER|ALLTOALL)(_EP|_DP_EP)?")
_OPERATIONS = {
    "ALLREDUCE": Operation.ALL_REDUCE,
    "ALLGATHER": Operation.ALL_GATHER,
    "REDUCESCATTER": Operation.REDUCE_SCATTER,
    "ALLTOALL": Operation.ALL_TO_ALL,
}
_PASSES = ((3, Group.TP), (6, Group.TP), (9, Group.DP))
"""Column of each pass's collective, and the group of a plain one; bytes stand beside."""
_CELLS = 11


def is_header(line: str) -> bool:
    """Whether a file that starts with this line is of this form."""
    return MARK in line


def parse_simai(first: str, lines: Lines) -> Trace:
    """The summary of a workload; ``first`` is the line already taken from ``lines``.

    Raises:
        InputError: with the line to blame.
    """
    settings = {name: int(value) for name, value in _SETTING.findall(first)}
    tp, ep, pp = (settings.get(name, 0) or 1 for name in (MARK, "ep", "pp"))
    dp = max(1, settings.get("all_gpus", 0) // (tp * pp))
    sizes = {Group.TP: tp, Group.DP: dp, Group.EP: ep}
    told = lines.size(next(lines, "").strip(), "the number of layers")
    sums: dict[Key, int] = defaultdict(int)
    layers = 0
    for line in lines:
        if line.strip():
            _layer(line.split(), sizes, sums, lines)
            layers += 1
    if layers != told:
        raise lines.refuse(f"{layers} layers, but line 2 tells {told}; is the file cut off?")
    if pp > 1:
        ends = min(pp - 1, 2)
        handed = settings.get("pp_comm", 0) * max(1, settings.get("ga", 1))
        sums[Operation.SEND_RECV, Group.PP] += ends * handed
    return summarise(Parallelism(tp=tp, pp=pp, dp=dp, ep=ep), [sums])


def _layer(cells: list[str], sizes: dict[Group, int], sums: dict[Key, int], lines: Lines) -> None:
    """Adds the collectives of one layer."""
    if len(cells) < _CELLS:
        raise lines.refuse(f"has {len(cells)} cells, a layer has {_CELLS}; is the file cut off?")
    for column, plain in _PASSES:
        if cells[column] == "NONE":
            continue
        match = _COLLECTIVE.fullmatch(cells[column])
        if not match:
            known = ", ".join(_OPERATIONS)
            raise lines.refuse(f"unknown collective {cells[column][:40]!r}; known are {known}")
        operation, suffix = _OPERATIONS[match[1]], match[2]
        group = {None: plain, "_EP": Group.EP, "_DP_EP": Group.DP}[suffix]
        members = max(1, sizes[group] // sizes[Group.EP]) if suffix == "_DP_EP" else sizes[group]
        total = lines.size(cells[column + 1], "bytes")
        sums[operation, group] += total // members if operation is Operation.ALL_GATHER else total
