"""Flows as arrays, and the UDP source ports that identify their packets.

A flow is a demand: a rate in Gbit/s from one NIC to another, split over some number of QPs. Each
flow is a row. Each QP of a flow uses a UDP source port of its own, so that a switch can tell apart
the QPs between the same two NICs.

*Unannounced* flows belong to no job and no client's demand set. They are found from the counters of
switches, planned as a demand set of their own, and named by their NICs. No client can change that
set, and flows of no other set can have such ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from heddle_controller.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from collections.abc import Sequence

ANY_PHASE = -1
"""Phase of a flow that may run at any time. Such a flow always adds to the load."""

ROCE_PORT = 4791
"""UDP destination port of RoCEv2."""

FIRST_SOURCE_PORT = 49152
SOURCE_PORT_COUNT = 16384
"""RoCEv2 source ports are those of the dynamic range, 49152 to 65535."""


class TrafficClass(IntEnum):
    """What matters most to a flow: bandwidth or latency."""

    BANDWIDTH = 0
    LATENCY = 1


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """All flows, one row each; every array has shape (flows,)."""

    ids: tuple[str, ...]
    source: Ints
    """Node row of the NIC that sends it."""
    destination: Ints
    """Node row of the NIC that receives it."""
    gbps: Floats
    """Wanted rate in Gbit/s."""
    job: Ints
    """Index into ``job_names``."""
    phase: Ints
    """Index into ``phase_names``, or ``ANY_PHASE``."""
    qps: Ints
    """QPs the flow can be split into, at least 1."""
    traffic_class: Ints
    weight: Floats
    """Importance: the priority of its job, less for tiny flows (see ``traffic.jobs``)."""
    job_names: tuple[str, ...]
    phase_names: tuple[str, ...]
    bytes: Floats = field(default_factory=lambda: np.empty(0))
    """Bytes it sends at a time. Infinite where that is not known, which is the default."""

    def __post_init__(self) -> None:
        if len(self.bytes) == 0 < len(self.ids):
            object.__setattr__(self, "bytes", np.full(len(self.ids), np.inf))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> Flows:
        """Return the flows of some rows, in that order. Job and phase names stay the same."""
        return replace(
            self,
            ids=self._ids_of(rows),
            source=self.source[rows],
            destination=self.destination[rows],
            gbps=self.gbps[rows],
            job=self.job[rows],
            phase=self.phase[rows],
            qps=self.qps[rows],
            traffic_class=self.traffic_class[rows],
            weight=self.weight[rows],
            bytes=self.bytes[rows],
        )

    def _ids_of(self, rows: Ints) -> tuple[str, ...]:
        if len(rows) and (np.diff(rows) == 1).all():
            return self.ids[int(rows[0]) : int(rows[-1]) + 1]
        return tuple(map(self.ids.__getitem__, rows.tolist()))

    def with_qps(self, qps: int) -> Flows:
        """Return the same flows, each with ``qps`` QPs."""
        return replace(self, qps=np.full(len(self), qps, dtype=np.int64))

    def same_as(self, other: Flows) -> bool:
        """Return whether both have equal columns and names."""
        if self is other or len(self) != len(other):
            return self is other
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return all(
            np.array_equal(one, two) if isinstance(one, np.ndarray) else one == two
            for one, two in pairs
        )

    def begins_with(self, other: Flows) -> bool:
        """Return whether each column, and each list of names, begins with that of ``other``."""
        if self is other:
            return True
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return len(self) >= len(other) and all(
            np.array_equal(one[: len(two)], two)
            if isinstance(one, np.ndarray)
            else one[: len(two)] == two
            for one, two in pairs
        )

    def source_ports(self) -> Ints:
        """Return the UDP source port of QP 0 of each flow; ``qp_ports`` gives the others.

        Flows between the same two NICs get consecutive ports in row order. The range wraps
        around when two NICs have more than 16,384 QPs.
        """
        order = np.lexsort((np.arange(len(self)), self.destination, self.source))
        qps = self.qps[order]
        before = np.cumsum(qps) - qps
        source, destination = self.source[order], self.destination[order]
        new_pair = np.ones(len(self), dtype=bool)
        new_pair[1:] = (np.diff(source) != 0) | (np.diff(destination) != 0)
        base = np.maximum.accumulate(np.where(new_pair, before, 0))
        ports = np.empty(len(self), dtype=np.int64)
        ports[order] = FIRST_SOURCE_PORT + (before - base) % SOURCE_PORT_COUNT
        return ports


def qp_ports(first: Ints, qp: Ints) -> Ints:
    """Return the UDP source ports of some QPs, given as parallel arrays.

    Args:
        first: Source port of QP 0 of each QP's flow, from ``Flows.source_ports``.
        qp: Number of each QP within its flow.
    """
    return FIRST_SOURCE_PORT + (first - FIRST_SOURCE_PORT + qp) % SOURCE_PORT_COUNT


def no_flows() -> Flows:
    """Return an empty set of flows."""
    return concatenate([])


def concatenate(parts: Sequence[Flows]) -> Flows:
    """Return the flows of several sets, one set after another.

    Jobs, and phases, that have the same name in two sets become one.
    """
    jobs = {name: i for i, name in enumerate(dict.fromkeys(n for p in parts for n in p.job_names))}
    phases = {
        name: i for i, name in enumerate(dict.fromkeys(n for p in parts for n in p.phase_names))
    }

    def ints(name: str) -> Ints:
        return np.concatenate([*(getattr(p, name) for p in parts), np.empty(0, np.int64)])

    def floats(name: str) -> Floats:
        return np.concatenate([*(getattr(p, name) for p in parts), np.empty(0)])

    job = [_renamed(p.job, p.job_names, jobs) for p in parts]
    phase = [_renamed(p.phase, p.phase_names, phases) for p in parts]
    return Flows(
        ids=tuple(chain.from_iterable(p.ids for p in parts)),
        source=ints("source"),
        destination=ints("destination"),
        gbps=floats("gbps"),
        job=np.concatenate([*job, np.empty(0, np.int64)]),
        phase=np.concatenate([*phase, np.empty(0, np.int64)]),
        qps=ints("qps"),
        traffic_class=ints("traffic_class"),
        weight=floats("weight"),
        job_names=tuple(jobs),
        phase_names=tuple(phases),
        bytes=floats("bytes"),
    )


def _renamed(column: Ints, names: tuple[str, ...], rows: dict[str, int]) -> Ints:
    """Translate indexes into ``names`` to the numbers in ``rows``. -1 stays -1."""
    table = np.array([*(rows[name] for name in names), ANY_PHASE], dtype=np.int64)
    return table[column]


SET = "unannounced"
"""Name of the demand set of unannounced flows."""
UNANNOUNCED_JOB = "(unannounced)"
"""Job name of unannounced flows. No real job can have it."""
PREFIX = "unannounced:"
"""Prefix of the ids of unannounced flows."""


def flow_id(source: str, destination: str) -> str:
    """Return the id of the unannounced flow between two NICs, given by id."""
    return f"{PREFIX}{source}->{destination}"


def unannounced_rows(flows: Flows) -> Ints:
    """Return the rows of the unannounced flows, ascending."""
    if UNANNOUNCED_JOB not in flows.job_names:
        return np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(flows.job == flows.job_names.index(UNANNOUNCED_JOB))
    mine = [flows.ids[row].startswith(PREFIX) for row in rows.tolist()]
    return rows[np.array(mine, dtype=np.bool_)]


def first_flows(flows: Flows, count: int) -> Flows:
    """Return the first ``count`` flows, where all later ones are unannounced.

    Drops the job name of unannounced flows if none of the flows that remain uses it.
    """
    told = flows.take(np.arange(count, dtype=np.int64))
    if UNANNOUNCED_JOB not in told.job_names:
        return told
    place = told.job_names.index(UNANNOUNCED_JOB)
    if (told.job == place).any():  # a demand set of a client uses that job name too
        return told
    names = told.job_names[:place] + told.job_names[place + 1 :]
    return replace(told, job=told.job - (told.job > place), job_names=names)
