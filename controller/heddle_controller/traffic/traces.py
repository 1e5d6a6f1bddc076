"""Traces of collectives: AICB's CSV and SimAI's workload form, told apart by their first line.

A trace lists every collective that one rank of each pipeline stage ran in an iteration. Routes need
less: which kinds of groups move bulk data, by which operation, and roughly how much. So each
(operation, group) becomes one ``Collective``. Its bytes are what one rank puts in during one
iteration, on the stage that puts in most.

Some of a trace is left out or added:

- What runs before the first iteration (AICB's stage ``init…``: model set-up, broadcast of weights,
  tests of the groups) happens once, and is left out.
- A sum of less than ``BULK_BYTES`` an iteration is control traffic (loss values, gradient norms,
  overflow flags), and is left out. At 400 Gbit/s it is over in some 20 microseconds, before
  congestion could matter, and as a flow it would claim a whole NIC.
- Replicas (a dp group) must exchange gradients in every iteration. Still, traces of pipelined jobs
  often stop before the optimizer's step and show only how the group is set up. If such a group has
  no bulk traffic, the all-reduce of ``implied_collectives`` is added with its nominal bytes.

Sizes in traces are those of the whole tensor, which is the output of an all-gather; a rank puts in
one part of it.

A section of AICB's form begins with a line in brackets that names its ranks (``[rank0 ~ rank127]``
or ``[ pp_stage0: [rank0, ...] ]``), followed by its header. The sizes of the groups give the job's
degrees; the number of sections is the number of pipeline stages. The group in which the first and
last stage share the embedding is left out (two ranks; it is no group of the parallelism), and so is
what moves no data. A receive is the other end of a send that is in the trace too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from heddle.text import meant
from heddle_controller.model.files.content import open_content
from heddle_controller.model.job import Collective, Group, Operation, Parallelism
from heddle_controller.traffic.groups import NOMINAL_BYTES, OPERATION_OF, group_size
from heddle_controller.traffic.lines import MOST_BYTES_OF_TRACE, Lines

BULK_BYTES = 1 << 20

Key = tuple[Operation, Group]
Sums = Mapping[Key, int]
"""Bytes one rank of a stage puts in during one iteration."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace says of its job: degrees (0 if it does not say) and bulk collectives."""

    parallelism: Parallelism
    collectives: tuple[Collective, ...]


def summarise(parallelism: Parallelism, stages: Iterable[Sums]) -> Trace:
    """Return a trace, given for each stage the bytes one rank puts in during one iteration."""
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


_COLUMNS = ("comm_type", "comm_group", "comm_group_size", "msg_size")

_AICB_OPERATIONS: dict[str, Operation | None] = {
    "all_reduce": Operation.ALL_REDUCE,
    "all_gather": Operation.ALL_GATHER,
    "all_gather_into_tensor": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "reduce_scatter_tensor": Operation.REDUCE_SCATTER,
    "reduce": Operation.REDUCE_SCATTER,  # a chain to one member: the ring, less one hop
    "all_to_all": Operation.ALL_TO_ALL,
    "broadcast": Operation.BROADCAST,
    "isend": Operation.SEND_RECV,
    "send": Operation.SEND_RECV,
    "irecv": None,
    "recv": None,
    "barrier": None,
    "computation": None,
    "epoch_end": None,
}
_GROUPS: dict[str, Group | None] = {
    "tp_group": Group.TP,
    "pp_group": Group.PP,
    "dp_group": Group.DP,
    "cp_group": Group.CP,
    "ep_group": Group.EP,
    "ep_tp_group": Group.EP,
    "ep_dp_group": Group.DP,
    "embedding_group": None,
    "all": Group.WORLD,
}
_T = TypeVar("_T")

_DEGREES = ("tp", "dp", "cp", "ep", "pp")


@dataclass(slots=True)
class _Stage:
    """The running sums of one section."""

    sums: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    iterations: int = 0
    begun: bool = False

    def per_iteration(self) -> dict[Key, int]:
        return {key: total // max(1, self.iterations) for key, total in self.sums.items()}


def parse_aicb(first: str, lines: Lines) -> Trace:
    """Return the summary of an AICB trace; ``first`` is the line already taken from ``lines``.

    Raises:
        InputError: the trace is faulty; the error names the line.
    """
    stages: list[_Stage] = []
    sizes: dict[str, int] = defaultdict(int)
    columns: dict[str, int] = {}
    for line in chain([first], lines):
        if line.startswith("["):
            stages.append(_Stage())
        elif _COLUMNS[0] in line or not columns:
            columns = _columns(line, lines)
        elif line.strip():
            if not stages:
                stages.append(_Stage())
            _row(line.split(","), columns, stages[-1], sizes, lines)
    if not columns:
        raise lines.refuse(f"no header; a trace has the columns {', '.join(_COLUMNS)}")
    degrees = {name: sizes[f"{name}_group"] for name in _DEGREES}
    degrees["pp"] = max(degrees["pp"], len(stages))
    return summarise(Parallelism(**degrees), (stage.per_iteration() for stage in stages))


def _columns(line: str, lines: Lines) -> dict[str, int]:
    names = {name.strip(): row for row, name in enumerate(line.split(","))}
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        shown = ", ".join(_COLUMNS)
        reason = f"no trace: a section's header has the columns {shown}; {missing[0]} is missing"
        raise lines.refuse(reason)
    return names


def _row(
    cells: list[str], columns: dict[str, int], stage: _Stage, sizes: dict[str, int], lines: Lines
) -> None:
    """Add one row to its stage's sums and to the sizes of groups."""
    try:
        kind, group_name, size, message = (cells[columns[name]].strip() for name in _COLUMNS)
    except IndexError:
        raise lines.refuse(
            f"has {len(cells)} cells, fewer than its header; is it cut off?"
        ) from None
    kind, group_name = kind.removeprefix("CommType."), group_name.removeprefix("CommGroup.")
    if kind == "epoch_end":
        stage.iterations += stage.begun
        stage.begun = False
        return
    operation = _known(_AICB_OPERATIONS, kind, _COLUMNS[0], lines)
    group = _known(_GROUPS, group_name, _COLUMNS[1], lines) if group_name != "None" else None
    members = lines.size(size, _COLUMNS[2]) if group else 0
    sizes[group_name] = max(sizes[group_name], members)
    if _is_setup(cells, columns):
        return
    stage.begun = True
    if operation and group:
        total = lines.size(message, _COLUMNS[3])
        shared = operation is Operation.ALL_GATHER
        stage.sums[operation, group] += total // max(1, members) if shared else total


def _is_setup(cells: list[str], columns: dict[str, int]) -> bool:
    """Return whether a row belongs to what runs once, before the first iteration."""
    row = columns.get("stage", len(cells))
    return row < len(cells) and cells[row].strip().split(".")[0] == "init"


def _known(names: dict[str, _T], name: str, column: str, lines: Lines) -> _T:
    if name in names:
        return names[name]
    raise lines.refuse(f"unknown {column} {name[:40]!r}; {meant(name, names)}")


MARK = "model_parallel_NPU_group"

_SETTING = re.compile(r"([A-Za-z_]+):?\s+([0-9]+)(?:\.0+)?(?=\s|$)")
_COLLECTIVE = re.compile(r"(ALLREDUCE|ALLGATHER|REDUCESCATTER|ALLTOALL)(_EP|_DP_EP)?")
_SIMAI_OPERATIONS = {
    "ALLREDUCE": Operation.ALL_REDUCE,
    "ALLGATHER": Operation.ALL_GATHER,
    "REDUCESCATTER": Operation.REDUCE_SCATTER,
    "ALLTOALL": Operation.ALL_TO_ALL,
}
_PASSES = ((3, Group.TP), (6, Group.TP), (9, Group.DP))
"""Column of each pass's collective, and its group if it has no suffix. The next column has the
bytes."""
_CELLS = 11


def is_header(line: str) -> bool:
    """Return whether a file that starts with this line has SimAI's workload form."""
    return MARK in line


def parse_simai(first: str, lines: Lines) -> Trace:
    """Return the summary of a SimAI workload; ``first`` is the line already taken from ``lines``.

    Raises:
        InputError: the workload is faulty; the error names the line.
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
    """Add the collectives of one layer."""
    if len(cells) < _CELLS:
        raise lines.refuse(f"has {len(cells)} cells, a layer has {_CELLS}; is the file cut off?")
    for column, plain in _PASSES:
        if cells[column] == "NONE":
            continue
        match = _COLLECTIVE.fullmatch(cells[column])
        if not match:
            known = ", ".join(_SIMAI_OPERATIONS)
            raise lines.refuse(f"unknown collective {cells[column][:40]!r}; known are {known}")
        operation, suffix = _SIMAI_OPERATIONS[match[1]], match[2]
        group = {None: plain, "_EP": Group.EP, "_DP_EP": Group.DP}[suffix]
        members = max(1, sizes[group] // sizes[Group.EP]) if suffix == "_DP_EP" else sizes[group]
        total = lines.size(cells[column + 1], "bytes")
        sums[operation, group] += total // members if operation is Operation.ALL_GATHER else total


def load_trace(path: Path) -> Trace:
    """Read a trace, plain or gzip, in AICB's CSV or SimAI's workload form.

    Raises:
        InputError: the file cannot be read or has neither form; the error names the line.
    """
    with open_content(path, MOST_BYTES_OF_TRACE) as file:
        lines = Lines(file, path)
        first = next((line for line in lines if line.strip()), "")
        return parse_simai(first, lines) if is_header(first) else parse_aicb(first, lines)
