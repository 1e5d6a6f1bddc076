"""Read the fabric of a drill, its demands and jobs, and the delays of control.

A fabric is the name of a file, or one of the builders with its counts. Demands are lines between
NICs, hosts or leaves, or a pattern. Jobs are written as in jobs.yaml, with two more fields::

    jobs:
      - job: big
        hosts: [l0-h0, l1-h0]
        gpus_per_host: 8
        parallelism: {dp: 16}
        collectives: [{operation: all_reduce, group: dp, bytes: 64MB}]
        compute: 10ms       # of an iteration, in which nothing is sent; none by default
        iterations: 20      # without it, until the run ends
    control: {detect: 1ms, notice: 500us, report: 1ms, plan: 20ms, push: 5ms, bgp: 100ms}

A job that a step submits does not run before that step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.errors import InputError, Problem
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.records import short
from heddle_controller.model.files.yaml_text import Record
from heddle_controller.model.flows import Flows, TrafficClass, concatenate, no_flows
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.jobs import host_problems
from heddle_controller.traffic.jobs_file import read_job
from heddle_emulator import topology
from heddle_emulator.drill.load.steps import CURE, parse_seconds
from heddle_emulator.drill.scenario import MOST_ITERATIONS, ControlDelays, JobSpec
from heddle_emulator.traffic.matrix import PATTERNS
from heddle_emulator.traffic.table import flows_between

_BUILDERS = {
    "clos": topology.clos,
    "three_tier": topology.three_tier,
    "rail": topology.rail_optimised,
    "dual_tor": topology.dual_tor,
    "random_regular": topology.random_regular,
    "dragonfly": topology.dragonfly,
}


def read_fabric(path: Path, fields: Fields) -> Fabric | None:
    """Return the fabric that a record names by file or by shape and counts; None if it is wrong.

    A file's path is relative to ``path``. With ``ipv6: true`` the fabric has IPv6 addresses. With
    ``forwarding: ecmp`` its switches only hash.
    """
    fabric = _fabric(path, fields)
    hashes = fields.choice("forwarding", {"programmed": False, "ecmp": True}, False)
    if fields.flag("ipv6") and fabric is not None:
        fabric = topology.with_ipv6(fabric)
    return topology.hashing(fabric) if hashes and fabric is not None else fabric


def _fabric(path: Path, fields: Fields) -> Fabric | None:
    value = fields.record.get("fabric")
    if isinstance(value, str):
        return load_fabric_file(path.parent / value)
    shapes = ", ".join(_BUILDERS)
    if not isinstance(value, Record) or len(value) != 1 or next(iter(value)) not in _BUILDERS:
        fields.fault(f"fabric is {short(value)}; give a file's name, or one of {shapes}: {{...}}")
        return None
    ((shape, options),) = value.items()
    if not isinstance(options, Record):
        fields.fault(f"fabric {shape} is {short(options)}; give its counts")
        return None
    builder: Any = _BUILDERS[shape]
    if not _fits(
        Fields(options, f"fabric {shape} (line {options.line})", fields.problems), builder
    ):
        return None
    try:
        built: Fabric = builder(**options)
    except InputError as error:
        told = [
            Problem(f"fabric (line {options.line}), {p.record}", p.reason) for p in error.problems
        ]
        fields.problems.extend(told)
    else:
        return built
    return None


_NUMBERS: Mapping[str, tuple[frozenset[type], str]] = {
    "int": (frozenset({int}), "a whole number"),
    "float": (frozenset({int, float}), "a number"),
}


def _fits(own: Fields, builder: Callable[..., Fabric]) -> bool:
    """Report options that a builder does not know, misses, or needs in another form."""
    before, known = len(own.problems), signature(builder).parameters
    own.only(*known)
    for name, option in known.items():
        kinds, form = _NUMBERS.get(str(option.annotation), (frozenset({str}), "a word"))
        if name not in own.record and option.default is option.empty:
            own.fault(f"has no {name}; give {form}")
        elif name in own.record and type(own.record[name]) not in kinds:
            own.fault(f"{name} is {short(own.record[name])}; give {form}")
    return len(own.problems) == before


JOB = "drill"
_MOST = 1_000_000


class _Line(NamedTuple):
    source: str
    destination: str
    gbps: float
    qps: int


def read_demands(fields: Fields, fabric: Fabric) -> Flows:
    """Return the flows of a record's ``demands``, with ids f0, f1 and so on; empty without any."""
    parts = [
        _pattern(own, fabric) if "pattern" in own.record else _lines(own, fabric)
        for own in fields.records("demands", "{from, to, gbps} or {pattern}")
    ]
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
    gbps, qps, most = own.positive("gbps", 1.0), own.integer("qps", 1), own.integer("nics", _MOST)
    groups = [list(_nics(own, fabric, end))[:most] for end in ends]
    count = len(groups[0]) * len(groups[1])
    if count > _MOST:
        own.fault(f"makes {count:,} flows; give leaves with fewer NICs")
        return no_flows()
    lines = [_Line(a, b, gbps, qps) for a in groups[0] for b in groups[1] if a != b]
    return _told(own, lambda: resolve(_demands(lines), fabric, origin=own.label))


def _nics(own: Fields, fabric: Fabric, end: str) -> Iterator[str]:
    """Yield the NIC itself, or the NICs of a host, or the NICs attached to a switch."""
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
    heads = structure.head[structure.leaving(row)]
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


OWN = ("compute", "iterations")
TIMES = ("detect", "silent", "notice", "report", "plan", "push", "bgp")


def read_drill_jobs(fields: Fields, path: Path, fabric: Fabric) -> tuple[JobSpec, ...]:
    """Return the jobs, in order of the file."""
    found = []
    for row, record in enumerate(fields.entries("jobs")):
        if not isinstance(record, Record):
            fields.fault(f"jobs[{row}] is {short(record)}; give a mapping with 'job: NAME'")
            continue
        plain = Record({key: value for key, value in record.items() if key not in OWN})
        plain.line = record.line
        jobs, problems = read_job(path, row, plain)
        fields.problems += problems
        own = Fields(record, f"jobs[{row}] (line {record.line})", fields.problems)
        compute = _time(own, "compute", 0.0)
        iterations = own.integer("iterations", 0, least=0)
        if iterations > MOST_ITERATIONS:
            own.fault(f"iterations is {iterations:,}; give at most {MOST_ITERATIONS:,}")
        for job in jobs:
            for problem in host_problems(job, fabric):
                own.fault(f"{problem.record} {problem.reason}")
            found.append(JobSpec(job, compute, iterations, record.line))
    return tuple(found)


def read_control(fields: Fields) -> ControlDelays:
    """Return the delays of control, with defaults for those that the file leaves out."""
    own = fields.inner("control", "{plan: 20ms}")
    if own is None:
        return ControlDelays()
    own.only(*TIMES, "measured")
    plain = ControlDelays()
    times = {name: _time(own, name, getattr(plain, name)) for name in TIMES}
    return ControlDelays(**times, measured=own.flag("measured"))


def _time(own: Fields, name: str, default: float) -> float:
    if name not in own.record:
        return default
    value = parse_seconds(own.record[name])
    if value is None:
        own.fault(f"{name} is {short(own.record[name])}; {CURE}")
        return default
    return value
