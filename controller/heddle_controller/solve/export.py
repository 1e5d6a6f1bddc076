"""From an assignment to the arrays of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, starts
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.network import Network

_AT_ONCE = 4096
"""Pieces of an array that are joined in one go."""


def exported_paths(assignment: Assignment, *, renumber: bool) -> Paths:
    """All paths with the NIC arcs at both ends.

    ``renumber`` joins the QPs of a flow that share a path and numbers them anew;
    otherwise each QP keeps its number, so that a repair moves no other.
    """
    everything = list(range(len(assignment.flow)))
    inner = merged_chunks(assignment, everything, renumber=renumber)
    return with_nics(assignment.network, assignment.flows, inner)


def merged_chunks(assignment: Assignment, chunks: list[int], *, renumber: bool) -> Paths:
    """Chunks as paths between terminals, by flow and QP; neighbours of one path joined."""
    whole = len(chunks) == len(assignment.flow)
    columns = (assignment.flow, assignment.first_qp, assignment.last_qp)
    flow, first_qp, last_qp = (
        np.array(column if whole else [column[c] for c in chunks], dtype=np.int64)
        for column in columns
    )
    order = np.lexsort((first_qp, flow))
    flow, first_qp, last_qp = flow[order], first_qp[order], last_qp[order]
    inner = [assignment.path[chunks[place]] for place in order.tolist()]
    split = np.flatnonzero(np.bincount(flow, minlength=1)[flow] > 1) if len(flow) else flow
    if len(split):
        keep = _merge(flow, first_qp, last_qp, inner, split, renumber=renumber)
        flow, first_qp, last_qp = flow[keep], first_qp[keep], last_qp[keep]
        inner = [path for path, kept in zip(inner, keep.tolist(), strict=True) if kept]
    lengths = np.array([len(path) for path in inner], dtype=np.int64)
    return Paths(flow, first_qp, last_qp, starts(lengths), concatenated(inner))


def concatenated(pieces: Sequence[Ints]) -> Ints:
    """All pieces, one after the other.

    Not tens of thousands in one go: whoever wants the interpreter would wait for all of them.
    """
    empty = np.empty(0, dtype=np.int64)
    parts = (pieces[at : at + _AT_ONCE] for at in range(0, len(pieces), _AT_ONCE))
    return np.concatenate([empty, *(np.concatenate(part) for part in parts)])


def _merge(
    flow: Ints,
    first_qp: Ints,
    last_qp: Ints,
    inner: list[Ints],
    split: Ints,
    *,
    renumber: bool,
) -> Bools:
    """Joins rows of equal flow and path among ``split``; marks the rows that stay."""
    keep = np.ones(len(flow), dtype=np.bool_)
    if renumber:
        holder: dict[tuple[int, bytes], int] = {}
        for row in split.tolist():
            name = (int(flow[row]), inner[row].tobytes())
            if name in holder:
                last_qp[holder[name]] += last_qp[row] - first_qp[row] + 1
                keep[row] = False
            else:
                holder[name] = row
        for before, row in pairwise(split[keep[split]].tolist()):
            if flow[before] == flow[row]:
                size = last_qp[row] - first_qp[row]
                first_qp[row] = last_qp[before] + 1
                last_qp[row] = first_qp[row] + size
        return keep
    last = int(split[0])
    for row in split[1:].tolist():
        if flow[row] == flow[last] and np.array_equal(inner[row], inner[last]):
            last_qp[last] = last_qp[row]
            keep[row] = False
        else:
            last = row
    return keep


def with_nics(network: Network, flows: Flows, inner: Paths, keep: Bools | None = None) -> Paths:
    """Paths with the arcs of single-homed NICs put before and after.

    Rows not marked by ``keep`` stay without arcs.
    """
    kept = np.ones(len(inner), dtype=np.bool_) if keep is None else keep
    out = np.where(kept, network.nic_arc[flows.source[inner.flow]], NONE)
    into = np.where(kept, network.nic_arc[flows.destination[inner.flow]], NONE)
    before, after = out != NONE, into != NONE
    first = starts(np.diff(inner.first) + before + after)
    arcs = np.empty(int(first[-1]), dtype=np.int64)
    within = np.ones(len(arcs), dtype=np.bool_)
    heads, tails = first[:-1][before], first[1:][after] - 1
    arcs[heads], arcs[tails] = out[before], into[after] ^ 1
    within[heads], within[tails] = False, False
    arcs[within] = inner.arcs
    return Paths(inner.flow, inner.first_qp, inner.last_qp, first, arcs)
