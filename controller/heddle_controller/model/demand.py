"""Flow demands by NIC id, as clients and files give them.

Demands name NICs by id because they outlive the fabric they were given for. ``resolve`` turns them
into the ``Flows`` of one fabric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.errors import (
    CURE,
    MAX_FLOW,
    MAX_NAME,
    MAX_PROBLEMS,
    InputError,
    Problem,
    sensible,
    too_long,
)
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """Demands, as parallel columns of the same length."""

    ids: tuple[str, ...]
    source: tuple[str, ...]
    destination: tuple[str, ...]
    gbps: Floats
    job: tuple[str, ...]
    phase: tuple[str, ...]
    """An empty string means that the flow may run at any time."""
    qps: Ints
    traffic_class: Ints

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """What each demand sends once, and from when. Plans are made for rates and do not use it."""

    bytes: Floats
    """Bytes to send; infinite if not given."""
    start: Floats
    """Time to begin, in seconds; 0 if not given."""


def resolve(
    demands: Demands, fabric: Fabric, weights: Mapping[str, float] | None = None, *, origin: str
) -> Flows:
    """Return the demands as flows of a fabric, row by row.

    ``weights`` gives the weight of jobs by name; jobs that are not in it weigh 1.

    Raises:
        InputError: with ``origin`` as its source and a problem for each faulty demand (at most
            ``MAX_PROBLEMS``): an unknown NIC, a switch in place of a NIC, equal source and
            destination, a rate that is not ``sensible``, fewer than 1 QP, a repeated id, or a
            name that is too long.
    """
    index = fabric.structure.index
    source = np.array([index.get(nic, -1) for nic in demands.source], dtype=np.int64)
    destination = np.array([index.get(nic, -1) for nic in demands.destination], dtype=np.int64)
    problems = _long_names(demands) or _problems(demands, fabric, source, destination)
    if problems:
        raise InputError(origin, *problems)
    jobs = {name: row for row, name in enumerate(dict.fromkeys(demands.job))}
    names = dict.fromkeys(name for name in demands.phase if name)
    phases = {"": ANY_PHASE} | {name: row for row, name in enumerate(names)}
    weight = np.array([(weights or {}).get(name, 1.0) for name in jobs])
    job = np.array([jobs[name] for name in demands.job], dtype=np.int64)
    return Flows(
        ids=demands.ids,
        source=source,
        destination=destination,
        gbps=demands.gbps,
        job=job,
        phase=np.array([phases[name] for name in demands.phase], dtype=np.int64),
        qps=demands.qps,
        traffic_class=demands.traffic_class,
        weight=weight[job] if len(job) else np.empty(0),
        job_names=tuple(jobs),
        phase_names=tuple(names),
    )


def _long_names(demands: Demands) -> list[Problem]:
    """Return problems of ids, jobs and phases whose names are too long."""
    found = []
    for column, what, most in (
        (demands.ids, "the id", MAX_FLOW),
        (demands.job, "job", MAX_NAME),
        (demands.phase, "phase", MAX_NAME),
    ):
        if max(map(len, column), default=0) > most:
            rows = [row for row, name in enumerate(column) if len(name) > most][:MAX_PROBLEMS]
            found += [
                Problem(f"flow {demands.ids[row][:80]!r}", too_long(what, len(column[row]), most))
                for row in rows
            ]
    return found[:MAX_PROBLEMS]


def _problems(demands: Demands, fabric: Fabric, source: Ints, destination: Ints) -> list[Problem]:
    kind = np.append(fabric.structure.nodes.kind, NONE)
    last = dict(zip(demands.ids, range(len(demands)), strict=True))
    last_row = np.array([last[flow] for flow in demands.ids], dtype=np.int64)
    checks = [
        (source == NONE, "source {source!r} is not in the fabric; name one of its NICs"),
        (destination == NONE, "destination {destination!r} is not in the fabric; name a NIC of it"),
        ((source != NONE) & (kind[source] != NodeKind.NIC), "source {source!r} is a switch"),
        (
            (destination != NONE) & (kind[destination] != NodeKind.NIC),
            "destination {destination!r} is a switch",
        ),
        (
            (source != NONE) & (source == destination),
            "source and destination are both {source!r}; drop the flow",
        ),
        (
            ~sensible(demands.gbps),
            f"gbps is {{gbps:g}}; {CURE}",
        ),
        (demands.qps < 1, "qps is {qps}; give 1 or more"),
        (last_row != np.arange(len(demands)), "this id is used twice; give each flow its own"),
    ]
    found = [
        (int(row), _problem(demands, int(row), text))
        for bad, text in checks
        for row in np.flatnonzero(bad)[:MAX_PROBLEMS]
    ]
    return [problem for _, problem in sorted(found, key=lambda f: f[0])[:MAX_PROBLEMS]]


def _problem(demands: Demands, row: int, text: str) -> Problem:
    said = text.format(
        source=demands.source[row][:80],
        destination=demands.destination[row][:80],
        gbps=demands.gbps[row],
        qps=demands.qps[row],
    )
    return Problem(f"flow {demands.ids[row][:80]!r}", said)
