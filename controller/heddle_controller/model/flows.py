"""Flows as arrays, and the identity that packets of a flow carry.

A flow is a wish: so many Gbit/s from one NIC to another, split over so many QPs.
One row a flow. QP ``i`` of a flow leaves with a UDP source port of its own, which
is how a switch can tell the QPs of one pair of NICs apart.
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
"""Phase of a flow that may run at any time: it always adds to the load."""

ROCE_PORT = 4791
"""UDP destination port of RoCEv2."""

FIRST_SOURCE_PORT = 49152
SOURCE_PORT_COUNT = 16384
"""RoCEv2 source ports are the dynamic range, 49152 to 65535."""


class TrafficClass(IntEnum):
    """What a flow asks of its path."""

    BANDWIDTH = 0
    LATENCY = 1


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """All flows, one row each; every array has shape (flows,)."""

    ids: tuple[str, ...]
    source: Ints
    """Node row of the NIC it leaves."""
    destination: Ints
    """Node row of the NIC it is for."""
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
    """How much it matters: the priority of its job, less for what is tiny (``traffic.jobs``)."""
    job_names: tuple[str, ...]
    phase_names: tuple[str, ...]
    bytes: Floats = field(default_factory=lambda: np.empty(0))
    """What it sends at a time; infinite where nobody has said, which is the default."""

    def __post_init__(self) -> None:
        if len(self.bytes) == 0 < len(self.ids):
            object.__setattr__(self, "bytes", np.full(len(self.ids), np.inf))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> Flows:
        """The flows of some rows, names shared."""
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
        """The same flows, each with that many QPs."""
        return replace(self, qps=np.full(len(self), qps, dtype=np.int64))

    def same_as(self, other: Flows) -> bool:
        """Whether both are equal in every column and name."""
        if self is other or len(self) != len(other):
            return self is other
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return all(
            np.array_equal(one, two) if isinstance(one, np.ndarray) else one == two
            for one, two in pairs
        )

    def begins_with(self, other: Flows) -> bool:
        """Whether the flows of another set come first here, in every column and name."""
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]
        return len(self) >= len(other) and all(
            np.array_equal(one[: len(two)], two)
            if isinstance(one, np.ndarray)
            else one[: len(two)] == two
            for one, two in pairs
        )

    def source_ports(self) -> Ints:
        """UDP source port of QP 0 of each flow; ``qp_ports`` gives those of the others.

        Flows between the same two NICs get ports that follow one another in row
        order; the range wraps round when a pair has more than 16,384 QPs.
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
    """UDP source port of some QPs; parallel.

    Args:
        first: Source port of QP 0 of the flow of each QP, as ``Flows.source_ports`` gives it.
        qp: Its number within its flow.
    """
    return FIRST_SOURCE_PORT + (first - FIRST_SOURCE_PORT + qp) % SOURCE_PORT_COUNT


def no_flows() -> Flows:
    """An empty set of flows."""
    return concatenate([])


def concatenate(parts: Sequence[Flows]) -> Flows:
    """All flows of several sets in order; names of jobs and phases are merged.

    Jobs or phases of the same name in two sets become one.
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
    """A column of indexes into ``names``, as indexes into ``rows``; -1 stays."""
    table = np.array([*(rows[name] for name in names), ANY_PHASE], dtype=np.int64)
    return table[column]
