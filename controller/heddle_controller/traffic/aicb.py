"""AICB's CSV form of a trace: what one rank of each pipeline stage ran, a row a collective.

A section begins with a line in brackets that names its ranks (``[rank0 ~ rank127]``
or ``[ pp_stage0: [rank0, ...] ]``) and then its header. The groups' sizes tell the
job's degrees; the number of sections tells the pipeline's stages.

Left out: the group that joins the first and last stage to share the embedding
(two ranks; it is no group of the parallelism) and what moves no data. A receive is
the other end of a send that is in the trace too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from typing import TypeVar

from heddle_controller.model.job import Group, Operation, Parallelism
from heddle_controller.traffic.lines import Lines
from heddle_controller.traffic.summary import Key, Trace, summarise

_COLUMNS = ("comm_type", "comm_group", "comm_group_size", "msg_size")

_OPERATIONS: dict[str, Operation | None] = {
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
    """Running sums of one section."""

    sums: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    iterations: int = 0
    begun: bool = False

    def per_iteration(self) -> dict[Key, int]:
        return {key: total // max(1, self.iterations) for key, total in self.sums.items()}


def parse_aicb(first: str, lines: Lines) -> Trace:
    """The summary of a trace; ``first`` is the line already taken from ``lines``.

    Raises:
        InputError: with the line to blame.
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
    """Adds one row to its stage's sums and to the sizes of groups."""
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
    operation = _known(_OPERATIONS, kind, _COLUMNS[0], lines)
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
    """Whether a row belongs to what runs once, before the first iteration."""
    row = columns.get("stage", len(cells))
    return row < len(cells) and cells[row].strip().split(".")[0] == "init"


def _known(names: dict[str, _T], name: str, column: str, lines: Lines) -> _T:
    if name in names:
        return names[name]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
    raise lines.refuse(f"unknown {column} {name[:40]!r}; {hint}")
