"""Demands of a drill: lines between NICs, between leaves, or a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.errors import InputError, Problem
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.records import short
from heddle_controller.model.flows import Flows, TrafficClass, concatenate, no_flows
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.yaml_text import Record
from heddle_emulator.traffic.patterns import PATTERNS
from heddle_emulator.traffic.table import flows_between

JOB = "drill"
MOST = 1_000_000


class _Line(NamedTuple):
    source: str
    destination: str
    gbps: float
    qps: int


def read_demands(fields: Fields, fabric: Fabric) -> Flows:
    """The flows of a record's ``demands``, ids counted through; none where it has none."""
    parts = []
    for row, record in enumerate(fields.entries("demands")):
        if not isinstance(record, Record):
            fields.fault(
                f"demands[{row}] is {short(record)}; give {{from, to, gbps}} or {{pattern}}"
            )
            continue
        own = Fields(record, f"demands[{row}] (line {record.line})", fields.problems)
        parts.append(_pattern(own, fabric) if "pattern" in record else _lines(own, fabric))
    flows = concatenate(parts) if parts else no_flows()
    return replace(flows, ids=tuple(f"f{row}" for row in range(len(flows))))


def _pattern(own: Fields, fabric: Fabric) -> Flows:
    own.only("pattern", "seed", "gbps", "qps", "nics")
    name = own.choice("pattern", {name: name for name in PATTERNS})
    seed, qps = own.integer("seed", 0, least=0), own.integer("qps", 1)
    gbps = own.positive("gbps", 1.0) if "gbps" in own.record else None
    nics = own.integer("nics", 2) if "nics" in own.record else None
    return _told(own, lambda: flows_between(fabric, name, seed=seed, nics=nics, gbps=gbps, qps=qps))


def _lines(own: Fields, fabric: Fabric) -> Flows:
    own.only("from", "to", "gbps", "qps", "nics")
    ends = [own.text(name, "name a NIC, a host or a leaf") for name in ("from", "to")]
    gbps, qps, most = own.positive("gbps", 1.0), own.integer("qps", 1), own.integer("nics", MOST)
    groups = [list(_nics(own, fabric, end))[:most] for end in ends]
    count = len(groups[0]) * len(groups[1])
    if count > MOST:
        own.fault(f"makes {count:,} flows; give leaves with fewer NICs")
        return no_flows()
    lines = [_Line(a, b, gbps, qps) for a in groups[0] for b in groups[1] if a != b]
    return _told(own, lambda: resolve(_demands(lines), fabric, origin=own.label))


def _nics(own: Fields, fabric: Fabric, end: str) -> Iterator[str]:
    """The NIC itself, or those of a host, or those that hang on a switch."""
    structure = fabric.structure
    if end in structure.nics_of_host:
        yield from (structure.nodes.ids[nic] for nic in structure.nics_of_host[end])
        return
    row = structure.index.get(end)
    if row is None:
        if end:
            own.fault(f"there is no node {end} in the fabric")
        return
    if structure.nodes.kind[row] == NodeKind.NIC:
        yield end
        return
    first, arcs = structure.out
    heads = structure.head[arcs[first[row] : first[row + 1]]]
    nics = heads[structure.nodes.kind[heads] == NodeKind.NIC].tolist()
    if not nics:
        own.fault(f"{end} has no NICs; name a leaf or a NIC")
    yield from (structure.nodes.ids[nic] for nic in nics)


def _demands(lines: list[_Line]) -> Demands:
    return Demands(
        ids=tuple(f"f{row}" for row in range(len(lines))),
        source=tuple(line.source for line in lines),
        destination=tuple(line.destination for line in lines),
        gbps=np.array([line.gbps for line in lines], dtype=np.float64),
        job=(JOB,) * len(lines),
        phase=("",) * len(lines),
        qps=np.array([line.qps for line in lines], dtype=np.int64),
        traffic_class=np.full(len(lines), TrafficClass.BANDWIDTH, dtype=np.int64),
    )


def _told(own: Fields, make: Callable[[], Flows]) -> Flows:
    try:
        return make()
    except InputError as error:
        own.problems += [Problem(f"{own.label}, {p.record}", p.reason) for p in error.problems]
        return no_flows()
