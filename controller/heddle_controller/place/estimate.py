"""Estimates by cuts what a job would get on hosts, cheaply enough to compare hundreds of choices.

All traffic that leaves a leaf, or a zone, shares the links that leave it. A planner that divides
flows well makes each of these links as full as all of them are together. So this is how much a flow
is slowed down. Only the planner can tell what a plan really achieves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.graphs import joined_parts
from heddle_controller.model.plan import Plan, phased_loads
from heddle_controller.place.order import Hosts


@dataclass(frozen=True, slots=True, order=True)
class Estimate:
    """What a choice of hosts costs. Less is better, and fields count in order."""

    seconds: float
    """Network time of one round of the job's collectives."""
    crowding: float
    """Gbit/s of other jobs out of or into places that this job overloads."""
    cross_zone_gbps: float
    """Gbit/s of the job between zones, in the phase that sends most there."""


@dataclass(frozen=True, slots=True, eq=False)
class _Border:
    """Parts of a fabric, with the capacity and load of the links out of and into each part."""

    part: Ints
    """Part of each node, shape (nodes,); ``NONE`` for a node in no part."""
    capacity: Floats
    """Gbit/s of the links outwards and inwards, shape (2, parts)."""
    load: Floats
    """Gbit/s that others have to send out of and into each part at once, shape (2, parts)."""

    def used(self) -> Floats:
        """Return the utilisation outwards and inwards, shape (2, parts)."""
        return _over(self.load, self.capacity)


@dataclass(frozen=True, slots=True, eq=False)
class _RankFlows:
    """The flows of a job, with hosts given by their position in rank order."""

    source: Ints
    """Position of the host times ``nics``, plus the position of the NIC in the host."""
    destination: Ints
    """The same for the destination."""
    gbps: Floats
    phase: Ints
    """Phase of each flow, numbered from 0 without gaps."""
    lasts: Floats
    """Seconds that each flow takes at the rate it asks for."""
    nics: int
    """Most NICs that a host has."""
    phases: int
    """Number of phases."""


class Surroundings:
    """A fabric and what others send through it, as far as it matters to a new job."""

    def __init__(self, fabric: Fabric, flows: Flows, rows: Ints | None = None) -> None:
        """Take a fabric and the flows of others; ``rows`` are those that send, None for all."""
        self.fabric = fabric
        structure = fabric.structure
        some = slice(None) if rows is None else rows
        self._ends = flows.source[some], flows.destination[some]
        self._gbps, self._job, self._phase = flows.gbps[some], flows.job[some], flows.phase[some]
        self.zone = zone_of_nodes(fabric)
        is_nic = structure.nodes.kind == NodeKind.NIC
        self._inner = np.flatnonzero(
            fabric.plannable & ~is_nic[structure.tail] & ~is_nic[structure.head]
        )

    @classmethod
    def of_plan(cls, fabric: Fabric, plan: Plan, without: str = "") -> Surroundings:
        """Take the flows that have a path in a plan, leaving out those of one job."""
        flows = plan.flows
        sends = np.ones(len(flows), dtype=np.bool_)
        sends[list(plan.unrouted)] = False
        if without in flows.job_names:
            sends &= flows.job != flows.job_names.index(without)
        if plan.fabric.structure is not fabric.structure:
            # The fabric was replaced since: rows of nodes are others, and some NICs are gone.
            index, ids = fabric.structure.index, plan.fabric.structure.nodes.ids
            row = np.array([index.get(node, NONE) for node in ids], dtype=np.int64)
            source, destination = row[flows.source], row[flows.destination]
            sends &= (source != NONE) & (destination != NONE)
            flows = replace(flows, source=source, destination=destination)
        return cls(fabric, flows, np.flatnonzero(sends))

    @cached_property
    def leaves(self) -> _Border:
        """Each leaf with its NICs as a part. A NIC with several links makes its leaves one part."""
        structure = self.fabric.structure
        count = self.fabric.node_count
        is_nic = structure.nodes.kind == NodeKind.NIC
        near = np.flatnonzero(is_nic[structure.tail])
        label = joined_parts(structure.tail[near], structure.head[near], count)
        _, dense = np.unique(label[is_nic], return_inverse=True)
        part_of_label = np.full(int(label.max(initial=0)) + 1, NONE, dtype=np.int64)
        part_of_label[label[is_nic]] = dense
        return self._cut(part_of_label[label])

    @cached_property
    def zones(self) -> _Border:
        """Each zone as a part; no parts without zones."""
        return self._cut(self.zone)

    def _cut(self, part: Ints) -> _Border:
        structure, inner = self.fabric.structure, self._inner
        count = int(part.max(initial=NONE)) + 1
        capacity, load = np.zeros((2, count)), np.zeros((2, count))
        ends = part[structure.tail[inner]], part[structure.head[inner]]
        for way, end in enumerate(ends):
            rows = (ends[0] != ends[1]) & (end != NONE)
            capacity[way] = np.bincount(end[rows], structure.capacity[inner[rows]], minlength=count)
        # Not the loads of links: these add up different phases of a job, each at its worst link.
        flow_ends = part[self._ends[0]], part[self._ends[1]]
        for way, end in enumerate(flow_ends):
            rows = (flow_ends[0] != flow_ends[1]) & (end != NONE)
            columns = (self._gbps[rows], self._job[rows], self._phase[rows])
            load[way] = phased_loads(count, end[rows], *columns)
        return _Border(part, capacity, load)


class Estimator:
    """Estimates one job on any hosts that have as many NICs as those its flows are known for."""

    def __init__(self, around: Surroundings, flows: Flows, hosts: Hosts) -> None:
        """Take the flows that the job has on ``hosts``, which are in rank order."""
        self._around = around
        self._nics_of_host = around.fabric.structure.nics_of_host
        self._shape = _shape_of(flows, [self._nics_of_host[host] for host in hosts])
        self._base = [around.leaves, around.zones]

    def of(self, hosts: Hosts) -> Estimate:
        """Return the estimate for hosts in rank order."""
        shape = self._shape
        nics = _resized([self._nics_of_host[host] for host in hosts], shape.nics)
        ends = nics[shape.source], nics[shape.destination]
        slowed, crowding, crossing = np.ones(len(shape.source)), 0.0, 0.0
        for cut in self._base:
            count = cut.load.shape[1]
            parts = cut.part[ends[0]], cut.part[ends[1]]
            apart = parts[0] != parts[1]
            worst = np.zeros((2, count))
            for way in (0, 1):
                rows = np.flatnonzero(apart & (parts[way] != NONE))
                code = shape.phase[rows] * count + parts[way][rows]
                sent = np.bincount(code, shape.gbps[rows], minlength=shape.phases * count)
                sent = sent.reshape(shape.phases, count)
                used = _over(sent + cut.load[way], cut.capacity[way])
                np.maximum.at(slowed, rows, used.ravel()[code])
                worst[way] = sent.max(axis=0, initial=0.0)
            over = (worst + cut.load > cut.capacity * (1 + 1e-9)) & (worst > 0)
            crowding += float(cut.load[over].sum())
            if cut is self._around.zones:
                between = np.bincount(shape.phase[apart], shape.gbps[apart], minlength=shape.phases)
                crossing = float(between.max(initial=0.0))
        longest = np.zeros(shape.phases)
        np.maximum.at(longest, shape.phase, shape.lasts * slowed)
        return Estimate(float(f"{longest.sum():.6g}"), crowding, crossing)


def _resized(rows: Sequence[Sequence[int]], length: int) -> Ints:
    """Return all rows, joined, each repeated or cut to one length."""
    if all(len(row) == length for row in rows):
        return np.array(rows, dtype=np.int64).ravel()
    return np.concatenate([np.resize(row, length) for row in rows])


def cross_zone_gbps(flows: Flows, zone: Ints) -> float:
    """Return the Gbit/s that flows of one job send between zones, in the phase that sends most.

    ``zone`` is the zone of each node (``zone_of_nodes``).
    """
    apart = zone[flows.source] != zone[flows.destination]
    phase = flows.phase[apart] + 1  # a flow without a phase has -1
    return float(np.bincount(phase, flows.gbps[apart]).max(initial=0.0))


def _shape_of(flows: Flows, nics_of_hosts: list[tuple[int, ...]]) -> _RankFlows:
    count = max(map(len, nics_of_hosts))
    places = [row * count + at for row, own in enumerate(nics_of_hosts) for at in range(len(own))]
    nics = np.array([nic for own in nics_of_hosts for nic in own], dtype=np.int64)
    place = np.full(int(nics.max()) + 1, NONE, dtype=np.int64)
    place[nics] = places
    names, phase = np.unique(flows.phase, return_inverse=True)
    lasts = np.where(np.isfinite(flows.bytes), flows.bytes * 8e-9 / flows.gbps, 1.0)
    return _RankFlows(
        place[flows.source],
        place[flows.destination],
        flows.gbps,
        phase.astype(np.int64),
        lasts,
        count,
        len(names),
    )


def zone_of_nodes(fabric: Fabric) -> Ints:
    """Return the zone of each node, shape (nodes,). A NIC without one has that of its switch."""
    structure = fabric.structure
    zone: Ints = structure.zones.copy()
    is_nic = structure.nodes.kind == NodeKind.NIC
    rows = np.flatnonzero(is_nic[structure.tail] & (zone[structure.tail] == NONE))
    zone[structure.tail[rows]] = zone[structure.head[rows]]
    return zone


def _over(load: Floats, capacity: Floats) -> Floats:
    """Return load over capacity; 0 where there is no load, else infinite without capacity."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(load > 0, load / capacity, 0.0)
    return found
