"""Patterns and matrices as flows of a fabric, and flows as a file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.errors import LEAST, refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.content import write_content
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_emulator.traffic.matrix import PATTERNS, incasts


def flows_between(
    fabric: Fabric,
    pattern: str,
    *,
    seed: int = 0,
    nics: int | None = None,
    gbps: float | None = None,
    qps: int = 1,
    fan_in: int | None = None,
    size: float = np.inf,
) -> Flows:
    """Return the flows of a pattern over all NICs of a fabric, or over ``nics`` drawn by seed.

    Without ``gbps``, a sender divides its line rate evenly over its flows. ``fan_in`` makes groups
    of an incast with so many senders each. ``size`` is the bytes that each flow sends.

    Raises:
        InputError: Fewer than 2 NICs, or more than there are; a rate that is not above 0; no QP; or
            ``fan_in`` with another pattern than incast.
    """
    random = np.random.default_rng(seed)
    rows = fabric.rows_of_kind(NodeKind.NIC)
    count = len(rows) if nics is None else nics
    if count <= 1 or count > len(rows):
        reason = f"is {count}; give 2 or more, and at most the {len(rows)} of the fabric"
        raise refuse("traffic", "nics", reason)
    if gbps is not None and not (np.isfinite(gbps) and gbps > 0):
        raise refuse("traffic", "gbps", f"is {gbps:g}; give a number above 0")
    if qps < 1:
        raise refuse("traffic", "qps", f"is {qps}; give 1 or more")
    if count < len(rows):
        rows = np.sort(random.choice(rows, count, replace=False))
    if fan_in is None:
        source, destination = PATTERNS[pattern](count, random)
    elif pattern == "incast":
        source, destination = incasts(count, fan_in, random)
    else:
        raise refuse("traffic", "fan-in", "goes with incast alone; leave it out")
    rate = line_rates(fabric)[rows[source]] / np.bincount(source, minlength=count)[source]
    each = rate if gbps is None else gbps
    return _flows(pattern, (rows[source], rows[destination]), each, qps, size)


def flows_by(fabric: Fabric, matrix: Floats, *, qps: int = 1) -> Flows:
    """Return flows by a matrix of bytes over the first NICs of a fabric, host by host.

    With their rates all flows end at once, and the busiest NIC is at its line rate. Only flows that
    would be slower than a flow may be end earlier. Their bytes are those of the matrix.

    Raises:
        InputError: There are fewer NICs than ranks, or no QP.
    """
    known = fabric.structure.nics_of_host.values()
    rows = np.concatenate([np.empty(0, dtype=np.int64), *known]).astype(np.int64)
    if len(matrix) > len(rows):
        reason = f"has {len(matrix)} ranks; the fabric has {len(rows)} NICs"
        raise refuse("traffic", "matrix", reason)
    if qps < 1:
        raise refuse("traffic", "qps", f"is {qps}; give 1 or more")
    first, second = np.nonzero((matrix > 0) & ~np.eye(len(matrix), dtype=np.bool_))
    source, destination, size = rows[first], rows[second], matrix[first, second]
    line, seconds = line_rates(fabric), 0.0
    for end in (source, destination):
        total = np.bincount(end, weights=size, minlength=len(line))[end]
        seconds = max(seconds, float((total / line[end]).max()))
    rates = np.maximum(size / seconds, LEAST)
    return _flows("matrix", (source, destination), rates, qps, size)


def line_rates(fabric: Fabric) -> Floats:
    """Return the Gbit/s that each node could send over all its links together, shape (nodes,)."""
    structure = fabric.structure
    rates = np.zeros(fabric.node_count)
    rates += np.bincount(structure.tail, weights=structure.capacity, minlength=fabric.node_count)
    return rates


def _flows(
    job: str, ends: tuple[Ints, Ints], gbps: Floats | float, qps: int, size: Floats | float
) -> Flows:
    count = len(ends[0])
    return Flows(
        ids=tuple(f"f{row}" for row in range(count)),
        source=ends[0],
        destination=ends[1],
        gbps=np.broadcast_to(np.asarray(gbps, dtype=np.float64), (count,)).copy(),
        job=np.zeros(count, dtype=np.int64),
        phase=np.full(count, ANY_PHASE, dtype=np.int64),
        qps=np.full(count, qps, dtype=np.int64),
        traffic_class=np.full(count, TrafficClass.BANDWIDTH, dtype=np.int64),
        weight=np.ones(count),
        job_names=(job,),
        phase_names=(),
        bytes=np.broadcast_to(np.asarray(size, dtype=np.float64), (count,)).copy(),
    )


def save_flows(fabric: Fabric, flows: Flows, path: Path) -> None:
    """Write flows as CSV, compressed if the name ends in ``.gz``.

    There is a column of bytes if any flow has bytes.

    Raises:
        InputError: The file cannot be written.
    """
    ids = fabric.structure.nodes.ids
    phases = (*flows.phase_names, "")  # ANY_PHASE is -1: the last
    classes = {int(kind): kind.name.lower() for kind in TrafficClass}
    columns: dict[str, Iterable[object]] = {
        "flow": flows.ids,
        "src": map(ids.__getitem__, flows.source.tolist()),
        "dst": map(ids.__getitem__, flows.destination.tolist()),
        "gbps": flows.gbps.tolist(),
        "job": map(flows.job_names.__getitem__, flows.job.tolist()),
        "phase": map(phases.__getitem__, flows.phase.tolist()),
        "qps": flows.qps.tolist(),
        "class": map(classes.__getitem__, flows.traffic_class.tolist()),
    }
    if np.isfinite(flows.bytes).any():
        columns["bytes"] = (size if math.isfinite(size) else "" for size in flows.bytes.tolist())
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_content(path, text.getvalue().encode())
