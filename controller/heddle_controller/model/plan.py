"""A plan as arrays: the arcs that the QPs of each flow take, and how good it is.

Paths are compressed rows: path ``p`` runs over ``arcs[first[p]:first[p + 1]]`` and
carries the QPs ``first_qp[p]`` to ``last_qp[p]`` (both included) of ``flow[p]``.
Paths of one flow stand together, flows in row order, QPs ascending.

Load of arcs, by the rule of the whole project.

Flows of one job with different phases never run together, so a job's load on an
arc is the greatest of its phases, plus its flows that may run at any time; the
load of the arc is the sum over the jobs.

And what differs between two sets of paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal, Protocol, TypeAlias
from weakref import ref

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    distinct,
    stable_order,
    starts,
)
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import ANY_PHASE, Flows, qp_ports
from heddle_controller.model.port_paths import Learned, PortPaths, gathered, no_port_paths


class ArcUses(Protocol):
    """Paths, as far as loads follow from them (``model.plan.Paths``)."""

    @property
    def flow(self) -> Ints:
        """Row of the flow of each path."""

    @property
    def arcs(self) -> Ints:
        """Arcs of all paths, laid end to end."""

    def owner(self) -> Ints:
        """Row of the path of each of these arcs."""

    def gbps(self, flows: Flows) -> Floats:
        """Rate of each path."""


def arc_loads(arc_count: int, flows: Flows, paths: ArcUses) -> Floats:
    """Load of each arc in Gbit/s, shape (arc_count,)."""
    owner = paths.owner()
    return phased_loads(
        arc_count,
        paths.arcs,
        paths.gbps(flows)[owner],
        flows.job[paths.flow][owner],
        flows.phase[paths.flow][owner],
    )


def phased_loads(arc_count: int, arcs: Ints, gbps: Floats, job: Ints, phase: Ints) -> Floats:
    """Load of each arc from parallel arrays, one element a use of an arc."""
    always = phase == ANY_PHASE
    loads = _summed(arcs[always], gbps[always], arc_count)
    arcs, gbps, job, phase = (column[~always] for column in (arcs, gbps, job, phase))
    if not len(arcs):
        return loads
    phases = int(phase.max()) + 1
    jobs = int(job.max()) + 1
    code = (arcs * jobs + job) * phases + phase
    order = stable_order(code)
    code, gbps = code[order], gbps[order]
    starts = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    per_phase = np.add.reduceat(gbps, starts)
    arc_job = code[starts] // phases
    job_starts = np.flatnonzero(np.concatenate([[True], arc_job[1:] != arc_job[:-1]]))
    worst = np.maximum.reduceat(per_phase, job_starts)
    return loads + _summed(arc_job[job_starts] // jobs, worst, arc_count)


def _summed(arcs: Ints, gbps: Floats, arc_count: int) -> Floats:
    return np.bincount(arcs, weights=gbps, minlength=arc_count).astype(np.float64)


def utilization(fabric: Fabric, loads: Floats) -> Floats:
    """Load over capacity of each arc, shape (arcs,)."""
    return loads / fabric.structure.capacity


def worst_by_tier(fabric: Fabric, loads: Floats) -> dict[str, float]:
    """Greatest utilisation in each tier, from the hosts up."""
    structure = fabric.structure
    worst = structure.worst_by_tier(utilization(fabric, loads))
    return dict(zip(structure.tiers, worst.tolist(), strict=True))


Objective: TypeAlias = Literal["headroom", "economy"]
"""Room on links for local repair, where tables have room; or the fewest entries."""


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths of flows, compressed rows."""

    flow: Ints
    """Flow row of each path, ascending, shape (paths,)."""
    first_qp: Ints
    last_qp: Ints
    first: Ints
    """Where each path's arcs begin, shape (paths + 1,)."""
    arcs: Ints
    """Arcs of all paths in order of travel."""

    def __len__(self) -> int:
        return len(self.flow)

    def __reduce__(self) -> tuple[type[Paths], tuple[Ints, ...]]:
        """Pickled without what was found when these were compared with others."""
        return Paths, (self.flow, self.first_qp, self.last_qp, self.first, self.arcs)

    @property
    def qp_count(self) -> Ints:
        """QPs on each path, shape (paths,)."""
        return self.last_qp - self.first_qp + 1

    def of(self, path: int) -> Ints:
        """The arcs of one path."""
        return self.arcs[self.first[path] : self.first[path + 1]]

    def owner(self) -> Ints:
        """The path each element of ``arcs`` belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.first))

    def take(self, rows: Ints) -> Paths:
        """Some of the paths, in the order of ``rows``, in time for those and not for all."""
        begin = self.first[rows]
        lengths = self.first[rows + 1] - begin
        first = starts(lengths)
        within = np.arange(first[-1], dtype=np.int64) - np.repeat(first[:-1], lengths)
        return Paths(
            self.flow[rows],
            self.first_qp[rows],
            self.last_qp[rows],
            first,
            self.arcs[np.repeat(begin, lengths) + within],
        )

    def gbps(self, flows: Flows, rows: Ints | None = None) -> Floats:
        """Rate of each path, or of some: its share of its flow's demand, shape (rows,)."""
        some = slice(None) if rows is None else rows
        flow, count = self.flow[some], self.last_qp[some] - self.first_qp[some] + 1
        return flows.gbps[flow] * count / flows.qps[flow]

    def crosses(self, arcs: Bools) -> Bools:
        """Whether each path uses any of the arcs marked, shape (paths,)."""
        hit = np.zeros(len(self), dtype=np.bool_)
        hit[self.owner()[arcs[self.arcs]]] = True
        return hit


def join_paths(parts: Sequence[Paths]) -> Paths:
    """All paths of several sets, one set after another."""
    offsets = np.cumsum([0, *(len(part.arcs) for part in parts)]).tolist()
    firsts = [part.first[:-1] + offset for part, offset in zip(parts, offsets, strict=False)]
    return Paths(
        np.concatenate([part.flow for part in parts]),
        np.concatenate([part.first_qp for part in parts]),
        np.concatenate([part.last_qp for part in parts]),
        np.concatenate([*firsts, np.array(offsets[-1:], dtype=np.int64)]),
        np.concatenate([part.arcs for part in parts]),
    )


def no_paths() -> Paths:
    """An empty set of paths."""
    empty = np.empty(0, dtype=np.int64)
    return Paths(empty, empty, empty, np.zeros(1, dtype=np.int64), empty)


@dataclass(frozen=True, slots=True)
class TierCertificate:
    """One tier's worst utilisation, and the proven least it could be."""

    tier: str
    max_utilization: float
    lower_bound: float


@dataclass(frozen=True, slots=True)
class AfterLoss:
    """What the worst single loss does, once agents have turned flows to backups, and no more."""

    kind: str
    """"link" or "switch": what is lost, one at a time."""
    worst_utilization: float
    """Load over capacity of the fullest link after any of the losses."""
    slowest_flow: float
    """The least part of its demand that a flow gets after any of them, 0 to 1.

    A flow whose path and backup are both lost gets nothing. Flows whose NIC is cut off at the NIC
    itself are not counted.
    """
    of: str
    """The loss that slows a flow most: a switch, or a link as A,B[,KEY]."""
    lower_bound: float
    """No other backups for the same paths have a fullest link below this."""
    stranded: int
    """Flows without a backup that some switch has an entry for and that holds after that loss."""


@dataclass(frozen=True, slots=True)
class Turn:
    """When a job had best begin its iterations."""

    job: str
    shift_seconds: float
    """Of the first, after the time that all jobs count from; less than the pace."""
    pace_seconds: float
    """From one to the next."""
    saved: float
    """Part of its mean iteration that it is expected to save, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good a plan is: the worst link, what no plan can beat, and why.

    ``proof`` is "cut" (a set of arcs that all have to share a load), "lp" (the
    dual of a linear programme) or "none" (no load at all).
    """

    max_utilization: float = 0.0
    lower_bound: float = 0.0
    proof: str = "none"
    tiers: tuple[TierCertificate, ...] = ()
    after_loss: tuple[AfterLoss, ...] = ()
    """Of single links, and of single switches; empty where nobody has worked it out."""
    unprotected: int = 0
    """Flows that some single loss stops, as no switch can turn them to a backup; 0 where nobody has
    worked it out."""
    unprotected_flows: tuple[str, ...] = ()
    """The first of these, by id."""
    turns: tuple[Turn, ...] | None = None
    """Of the jobs that gain by turns in time; None where nobody has worked it out."""

    @property
    def gap(self) -> float:
        """``max_utilization / lower_bound - 1``; 0 where there is no load."""
        return self.max_utilization / self.lower_bound - 1 if self.lower_bound > 0 else 0.0

    def within(self, share: float) -> bool:
        """Whether no plan can be better by so much, as ``Plan.beats`` counts it."""
        pairs = [(self.max_utilization, self.lower_bound)]
        pairs += [(tier.max_utilization, max(tier.lower_bound, IDLE)) for tier in self.tiers]
        return all(_gain(reached, least) < share for reached, least in pairs)

    def worst_tiers(self) -> list[float]:
        """Worst utilisation of each tier, worst first, as far as flows are slower for it."""
        return sorted((max(tier.max_utilization, IDLE) for tier in self.tiers), reverse=True)


IDLE = 1.0
"""Worst utilisation below which no flow is slower for it."""
_EQUAL = 1e-9


def _gain(worst: float, other: float) -> float:
    """By how much one worst utilisation is above another, relative to that."""
    return worst / other - 1 if worst > 0 < other else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class NicPorts:
    """UDP source ports that take QPs over their paths, where switches hash and hold no entries.

    ``port`` and ``backup`` have one element for each QP that has a path, in the order of paths and
    then of QPs.
    """

    port: Ints
    """``NONE`` where entries carry the flow."""
    backup: Ints
    """The port that takes the QP over the backup of its path; ``NONE`` where there is none."""
    probes: Ints
    """Ports wanted known of the two NICs of each flow, shape (flows,); 0: entries carry it."""

    def same_as(self, other: NicPorts | None) -> bool:
        """Whether both are equal in every column."""
        return other is not None and all(
            np.array_equal(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """Every flow's paths and backups on one fabric, with a certificate.

    ``backups`` is parallel to ``paths``; a path without a backup has one of no
    arcs. ``unrouted`` gives the reason for each flow row without a path.
    """

    fabric: Fabric
    flows: Flows
    paths: Paths
    backups: Paths
    certificate: Certificate = Certificate()
    unrouted: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the plan gave up and why, for people."""
    nic_ports: NicPorts | None = None
    """Where ports carry flows; None where entries in switches carry all, see ``qp_ports``."""

    def qp_ports(self) -> Ints:
        """UDP source port of each QP that has a path, in the order of paths and then of QPs."""
        count = self.paths.qp_count
        bounds = starts(count)
        qp = np.arange(bounds[-1]) - np.repeat(bounds[:-1] - self.paths.first_qp, count)
        usual = qp_ports(np.repeat(self.flows.source_ports()[self.paths.flow], count), qp)
        chosen = self.nic_ports
        return usual if chosen is None else np.where(chosen.port == NONE, usual, chosen.port)

    def known_ways(self) -> PortPaths:
        """What the plan itself says of the paths of source ports."""
        ports = self.nic_ports
        if ports is None:
            return no_port_paths()
        parts = []
        count = self.paths.qp_count
        for paths, column in ((self.paths, ports.port), (self.backups, ports.backup)):
            path = np.repeat(np.arange(len(paths)), count)
            rows = np.flatnonzero((column != NONE) & (np.diff(paths.first)[path] > 0))
            parts.append((paths.take(path[rows]), column[rows]))
        ways = join_paths([way for way, _ in parts])
        ends = np.stack([self.flows.source[ways.flow], self.flows.destination[ways.flow]])
        learned = np.full(len(ways), int(Learned.PROBED), dtype=np.int64)
        port = np.concatenate([column for _, column in parts])
        return gathered(ends, port, learned, (ways.first, ways.arcs))

    @property
    def by_ports(self) -> Bools:
        """Flows that source ports carry, and no entries, shape (flows,)."""
        if self.nic_ports is None:
            return np.zeros(len(self.flows), dtype=np.bool_)
        return self.nic_ports.probes > 0

    @cached_property
    def loads(self) -> Floats:
        """Load of each arc in Gbit/s, shape (arcs,)."""
        return arc_loads(len(self.fabric.structure.tail), self.flows, self.paths)

    def with_loads(self, loads: Floats) -> Plan:
        """This plan, whose loads are known without adding all up."""
        self.__dict__["loads"] = loads  # where the cached property keeps its answer
        return self

    def beats(self, other: Plan, share: float) -> bool:
        """Whether this is better than another plan of the same flows by so much.

        It routes more flows; or as many, and the worst link of the other is fuller by that share;
        or it is no fuller, and so is the worst tier in which they differ by that share, as far
        as flows are slower for it.
        """
        if len(self.unrouted) != len(other.unrouted):
            return len(self.unrouted) < len(other.unrouted)
        mine, theirs = self.certificate, other.certificate
        if _gain(theirs.max_utilization, mine.max_utilization) >= share:
            return True
        if _gain(mine.max_utilization, theirs.max_utilization) > _EQUAL:
            return False
        for one, two in zip(mine.worst_tiers(), theirs.worst_tiers(), strict=False):
            if max(_gain(one, two), _gain(two, one)) >= share:
                return one < two
        return False


def changed_places(old: Paths, new: Paths) -> Ints | None:
    """Where in ``arcs`` two sets of paths differ; None where anything else of them does.

    Compared once: many ask, and the new ones keep what was found. Where each of both was compared
    with a third, nothing but what differed there is looked at.
    """
    if old is new:
        return np.empty(0, dtype=np.int64)
    for of, known in _kept(new):
        if of() is old:
            return known
    between = _through_another(old, new)
    found = _compared(old, new) if between is None else between
    keep_places(old, new, found)
    return found


def keep_places(old: Paths, new: Paths, places: Ints | None) -> None:
    """Note what ``changed_places`` says, for whoever made the new ones of the old ones by that."""
    vars(new)[_PLACES] = [*_kept(new), (ref(old), places)][-_COMPARED_WITH:]


_PLACES, _COMPARED_WITH = "changed_places", 2
_Kept = list[tuple["ref[Paths]", Ints | None]]


def _kept(paths: Paths) -> _Kept:
    """Earlier comparisons and their results, as a cached property keeps its own."""
    known: _Kept = vars(paths).get(_PLACES, [])
    return known


def _through_another(old: Paths, new: Paths) -> Ints | None:
    for of, later in _kept(new):
        other = of()
        if other is None or later is None:
            continue
        for earlier_of, earlier in _kept(other):
            if earlier_of() is old and earlier is not None:
                perhaps = distinct(np.append(earlier, later))
                found: Ints = perhaps[old.arcs[perhaps] != new.arcs[perhaps]]
                return found
    return None


def _compared(old: Paths, new: Paths) -> Ints | None:
    pairs = (
        (getattr(old, name), getattr(new, name))
        for name in ("flow", "first_qp", "last_qp", "first")
    )
    if not all(one is other or np.array_equal(one, other) for one, other in pairs):
        return None
    return np.flatnonzero(old.arcs != new.arcs) if old.arcs.shape == new.arcs.shape else None


def changed_rows(old: Paths, new: Paths) -> Ints | None:
    """Which paths have other arcs, ascending; None where anything else of any differs."""
    places = changed_places(old, new)
    if places is None:
        return None
    return distinct(np.searchsorted(new.first, places, side="right") - 1)


def differing(old: Paths, new: Paths, flows: int) -> Bools:
    """Which of so many flows have other paths than before, or other QPs on them."""
    result = np.zeros(flows, dtype=np.bool_)
    rows = changed_rows(old, new)
    if rows is not None:
        result[new.flow[rows]] = True
        return result
    width = int(max(old.first_qp.max(initial=0), new.first_qp.max(initial=0))) + 1
    codes = old.flow * width + old.first_qp, new.flow * width + new.first_qp
    partner = np.minimum(np.searchsorted(codes[0], codes[1]), max(len(old) - 1, 0))
    same = np.zeros(len(new), dtype=np.bool_)
    if len(old):
        same = (codes[0][partner] == codes[1]) & (old.last_qp[partner] == new.last_qp)
        same &= np.diff(old.first)[partner] == np.diff(new.first)
    # Rows that are alike but for their arcs have these as far from one another as their beginnings.
    if len(old.arcs):
        shift = np.where(same, old.first[partner] - new.first[:-1], 0)
        at = np.arange(len(new.arcs)) + np.repeat(shift, np.diff(new.first))
        other = np.flatnonzero(old.arcs.take(at, mode="clip") != new.arcs)
        same[np.searchsorted(new.first, other, side="right") - 1] = False
    kept = np.zeros(len(old), dtype=np.bool_)
    kept[partner[same]] = True
    result[new.flow[~same]] = True
    result[old.flow[~kept]] = True
    return result
