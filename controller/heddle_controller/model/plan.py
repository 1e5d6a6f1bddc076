"""A plan as arrays: the arcs that the QPs of each flow take, and how good the plan is.

Paths are compressed rows: path ``p`` runs over ``arcs[first[p]:first[p + 1]]`` and carries the QPs
``first_qp[p]`` to ``last_qp[p]`` (both included) of ``flow[p]``. Paths are sorted by flow row and
then by QP.

The module also computes the loads of arcs, by the rule that the whole project uses. Flows of one
job with different phases never run at the same time. So a job's load on an arc is the greatest load
of any of its phases, plus that of its flows that may run at any time. The load of the arc is the
sum over all jobs.

It also finds where two sets of paths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal, Protocol, TypeAlias
from weakref import ref

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    cut_rows,
    distinct,
    ranges,
    stable_order,
    starts,
)
from heddle_controller.model.edits import CompressedRows, Edit
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import ANY_PHASE, Flows, qp_ports
from heddle_controller.model.port_paths import Learned, PortPaths, gathered, no_port_paths


class ArcUses(Protocol):
    """The part of ``Paths`` that loads are computed from."""

    @property
    def flow(self) -> Ints:
        """Flow row of each path, shape (paths,)."""

    @property
    def arcs(self) -> Ints:
        """Arcs of all paths, one path after another."""

    def owner(self) -> Ints:
        """Path row of each element of ``arcs``."""

    def gbps(self, flows: Flows) -> Floats:
        """Rate of each path in Gbit/s, shape (paths,)."""


def arc_loads(arc_count: int, flows: Flows, paths: ArcUses) -> Floats:
    """Return the load of each arc in Gbit/s, shape (arc_count,)."""
    owner = paths.owner()
    if (flows.phase == ANY_PHASE).all():
        return _summed(paths.arcs, paths.gbps(flows)[owner], arc_count)
    return phased_loads(
        arc_count,
        paths.arcs,
        paths.gbps(flows)[owner],
        flows.job[paths.flow][owner],
        flows.phase[paths.flow][owner],
    )


def phased_loads(arc_count: int, arcs: Ints, gbps: Floats, job: Ints, phase: Ints) -> Floats:
    """Return the load of each arc in Gbit/s, shape (arc_count,).

    The arrays are parallel, with one element for each use of an arc by a path. ``job`` and
    ``phase`` are indexes as in ``Flows``.
    """
    (loads,) = PhasedUses(arc_count, arcs, job, phase).sums(gbps).totals
    return loads


class PhasedUses:
    """Uses of places by jobs whose phases take turns. Amounts of uses add up as loads do on arcs.

    Of a job's phases only the one with the greatest sum counts, for each amount separately.
    """

    def __init__(self, count: int, place: Ints, job: Ints, phase: Ints) -> None:
        """Index the uses.

        Args:
            count: Number of places.
            place: Place of each use, shape (uses,), 0 to ``count - 1``.
            job: Job of each use, as in ``Flows``.
            phase: Phase of each use, as in ``Flows``.
        """
        self.count, self.place = count, place
        always = phase == ANY_PHASE
        self.simple = bool(always.all())
        """Whether no use has a phase, so that all uses of a place meet its total."""
        if self.simple:
            return
        rows = np.flatnonzero(~always)
        self._always = np.flatnonzero(always)
        self.jobs, self.phases = int(job[rows].max()) + 1, int(phase[rows].max()) + 1
        code = (place[rows] * self.jobs + job[rows]) * self.phases + phase[rows]
        order = stable_order(code)
        self._rows, code = rows[order], code[order]
        self._first = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
        self.slot = code[self._first]
        """Place, job and phase of each sum of a phase, as one number; ascending."""
        share = self.slot // self.phases
        self._begin = np.flatnonzero(np.concatenate([[True], share[1:] != share[:-1]]))
        self.share = share[self._begin]
        """Place and job of each sum of a job, as one number; ascending."""

    def sums(self, *amounts: Floats) -> PhasedSums:
        """Add up amounts of the uses, each of shape (uses,)."""
        if self.simple:
            return PhasedSums(self, [_summed(self.place, one, self.count) for one in amounts])
        of_slot = [np.add.reduceat(one[self._rows], self._first) for one in amounts]
        of_share = [np.maximum.reduceat(one, self._begin) for one in of_slot]
        where, always = self.share // self.jobs, self._always
        totals = [
            _summed(self.place[always], one[always], self.count) + _summed(where, most, self.count)
            for one, most in zip(amounts, of_share, strict=True)
        ]
        return PhasedSums(self, totals, of_slot, of_share)


@dataclass(frozen=True, slots=True, eq=False)
class PhasedSums:
    """Sums of several amounts of uses in each place."""

    uses: PhasedUses
    totals: list[Floats]
    """The sums of each amount, each of shape (places,)."""
    of_slot: Sequence[Floats] = ()
    """The sums of phases."""
    of_share: Sequence[Floats] = ()
    """The greatest sums of jobs."""

    def met_by(self, place: Ints, job: Ints, phase: Ints) -> list[Floats]:
        """Return the sums that uses meet in their places, each of shape (uses,).

        A use meets the sum of its own phase, instead of the greatest of its job. ``place``, ``job``
        and ``phase`` have one element for each use.
        """
        met, uses = [totals[place] for totals in self.totals], self.uses
        if uses.simple:
            return met
        share = place * uses.jobs + job
        turns = np.flatnonzero((phase != ANY_PHASE) & (job < uses.jobs))
        at = np.searchsorted(uses.share, share[turns]).clip(max=len(uses.share) - 1)
        there = uses.share[at] == share[turns]
        turns, at = turns[there], at[there]
        slot = share[turns] * uses.phases + phase[turns]
        own = np.searchsorted(uses.slot, slot).clip(max=len(uses.slot) - 1)
        known = (uses.slot[own] == slot) & (phase[turns] < uses.phases)
        for sums, of_slot, of_share in zip(met, self.of_slot, self.of_share, strict=True):
            sums[turns] += np.where(known, of_slot[own], 0.0) - of_share[at]
        return met


def _summed(arcs: Ints, gbps: Floats, arc_count: int) -> Floats:
    return np.bincount(arcs, weights=gbps, minlength=arc_count).astype(np.float64)


def utilization(fabric: Fabric, loads: Floats) -> Floats:
    """Return load divided by capacity of each arc, shape (arcs,)."""
    return loads / fabric.structure.capacity


def worst_by_tier(fabric: Fabric, loads: Floats) -> dict[str, float]:
    """Return the greatest utilisation in each tier, by tier name, from the hosts up."""
    structure = fabric.structure
    worst = structure.worst_by_tier(utilization(fabric, loads))
    return dict(zip(structure.tiers, worst.tolist(), strict=True))


Objective: TypeAlias = Literal["headroom", "economy"]
"""What a plan spends table space on: "headroom" leaves room on links for local repair where
tables allow it, "economy" uses the fewest entries."""


WHOSE = ("flow", "first_qp", "last_qp")
"""Columns of paths that say which flow and which QPs a path belongs to."""


@dataclass(frozen=True, eq=False)
class Paths:
    """Paths of flows, as compressed rows."""

    flow: Ints
    """Flow row of each path, ascending, shape (paths,)."""
    first_qp: Ints
    last_qp: Ints
    first: Ints
    """Where each path's arcs begin in ``arcs``, shape (paths + 1,)."""
    arcs: Ints
    """Arcs of all paths, each path's in order of travel."""

    def __len__(self) -> int:
        return len(self.flow)

    def __reduce__(self) -> tuple[type[Paths], tuple[Ints, ...]]:
        """Pickle without the kept results of comparisons with other paths."""
        return Paths, (self.flow, self.first_qp, self.last_qp, self.first, self.arcs)

    @property
    def qp_count(self) -> Ints:
        """Number of QPs on each path, shape (paths,)."""
        return self.last_qp - self.first_qp + 1

    def of(self, path: int) -> Ints:
        """Return the arcs of one path, in order of travel."""
        return self.arcs[self.first[path] : self.first[path + 1]]

    def qp_numbers(self) -> Ints:
        """Return the number of every QP within its flow, path after path."""
        return ranges(self.first_qp, self.last_qp + 1)

    def owner(self) -> Ints:
        """Return the row of the path that each element of ``arcs`` belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.first))

    def take(self, rows: Ints) -> Paths:
        """Return some of the paths, in the order of ``rows``.

        The time depends on the number of paths taken, not on the number of all paths.
        """
        first, places = cut_rows(self.first, rows)
        return Paths(
            self.flow[rows],
            self.first_qp[rows],
            self.last_qp[rows],
            first,
            self.arcs[places],
        )

    def of_flows(self, flows: Ints) -> Paths:
        """Return the paths of some flows, given ascending. All paths must be in order of flows."""
        low, high = (np.searchsorted(self.flow, flows, side) for side in ("left", "right"))
        return self.take(ranges(low, high))

    def gbps(self, flows: Flows, rows: Ints | None = None) -> Floats:
        """Return the rate of each path, or of those in ``rows``, in Gbit/s, shape (rows,).

        A path's rate is its flow's demand times its part of the flow's QPs.
        """
        some = slice(None) if rows is None else rows
        flow, count = self.flow[some], self.last_qp[some] - self.first_qp[some] + 1
        return flows.gbps[flow] * count / flows.qps[flow]

    def crosses(self, arcs: Bools) -> Bools:
        """Return whether each path uses any of the marked arcs, shape (paths,).

        Args:
            arcs: Marks arcs of the fabric, shape (arcs of the fabric,).
        """
        hit = np.zeros(len(self), dtype=np.bool_)
        hit[self.owner()[arcs[self.arcs]]] = True
        return hit


def join_paths(parts: Sequence[Paths]) -> Paths:
    """Return the paths of several sets, one set after another."""
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
    """Return an empty set of paths."""
    empty = np.empty(0, dtype=np.int64)
    return Paths(empty, empty, empty, np.zeros(1, dtype=np.int64), empty)


@dataclass(frozen=True, slots=True)
class TierCertificate:
    """The worst utilisation of a tier, and a proven lower bound of it."""

    tier: str
    max_utilization: float
    lower_bound: float


@dataclass(frozen=True, slots=True)
class AfterLoss:
    """What the worst single loss does after agents switched to backups, and before a new plan."""

    kind: str
    """What is lost, one at a time: "link" or "switch"."""
    worst_utilization: float
    """Greatest load over capacity of any arc after any of the losses."""
    slowest_flow: float
    """The smallest part of its demand that any flow gets after any of the losses, 0 to 1.

    A flow whose path and backup are both lost gets nothing. Flows whose NIC is cut off at the NIC
    itself are not counted.
    """
    of: str
    """The loss that slows a flow most: the id of a switch, or a link as ``A,B,KEY``."""
    lower_bound: float
    """Lower bound of ``worst_utilization`` for any choice of backups for the same paths."""
    stranded: int
    """How many flows lose a path by the loss ``of`` and have no backup that survives it and that
    some switch has an entry for. Flows whose NIC is cut off at the NIC itself do not count."""


@dataclass(frozen=True, slots=True)
class Turn:
    """When a job should begin its iterations, so that jobs share links in turns."""

    job: str
    shift_seconds: float
    """Start of its first iteration, after a time common to all jobs; less than the pace."""
    pace_seconds: float
    """Time from the start of an iteration to the start of the next."""
    saved: float
    """Part of its mean iteration time that it is expected to save, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good a plan is: its worst utilisation, a proven lower bound, and the kind of proof.

    ``proof`` is "cut" (a set of arcs that must share a load), "lp" (the dual of a linear
    programme) or "none" (there is no load).
    """

    max_utilization: float = 0.0
    lower_bound: float = 0.0
    proof: str = "none"
    tiers: tuple[TierCertificate, ...] = ()
    after_loss: tuple[AfterLoss, ...] = ()
    """For losses of single links and of single switches. Empty if it was not computed."""
    unprotected: int = 0
    """Number of flows that some single loss stops, because no switch can turn them to a backup.
    0 if it was not computed."""
    unprotected_flows: tuple[str, ...] = ()
    """Ids of the first of these flows."""
    turns: tuple[Turn, ...] | None = None
    """For the jobs that gain by taking turns in time. None if it was not computed."""

    @property
    def gap(self) -> float:
        """``max_utilization / lower_bound - 1``, or 0 if the lower bound is 0."""
        return self.max_utilization / self.lower_bound - 1 if self.lower_bound > 0 else 0.0

    def within(self, share: float) -> bool:
        """Return whether the bounds show that no plan beats this one by ``share``.

        "Beats" is meant as in ``Plan.beats``, for plans that route as many flows.
        """
        pairs = [(self.max_utilization, self.lower_bound)]
        pairs += [(tier.max_utilization, max(tier.lower_bound, IDLE)) for tier in self.tiers]
        return all(_gain(reached, least) < share for reached, least in pairs)

    def worst_tiers(self) -> list[float]:
        """Return the worst utilisation of each tier, worst first, but at least ``IDLE``."""
        return sorted((max(tier.max_utilization, IDLE) for tier in self.tiers), reverse=True)


IDLE = 1.0
"""Utilisation up to which a link slows no flow."""
_EQUAL = 1e-9


def _gain(worst: float, other: float) -> float:
    """Return by what part of ``other`` the utilisation ``worst`` is above it; 0 if either is 0."""
    return worst / other - 1 if worst > 0 < other else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class NicPorts:
    """UDP source ports that make QPs take their paths, where switches hash and hold no entries.

    ``port`` and ``backup`` have one element for each QP that has a path, in the order of paths and
    then of QPs.
    """

    port: Ints
    """The port that takes the QP over its path; ``NONE`` where entries carry the flow."""
    backup: Ints
    """The port that takes the QP over the backup of its path; ``NONE`` if there is none."""
    probes: Ints
    """How many ports between the two NICs of each flow should have a known path, shape (flows,).
    0 means that entries carry the flow."""

    def same_as(self, other: NicPorts | None) -> bool:
        """Return whether both are equal in every column."""
        return other is not None and all(
            np.array_equal(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """Every flow's paths and backups on one fabric, with a certificate.

    ``backups`` is parallel to ``paths``. A path without a backup has one with no arcs.
    ``unrouted`` maps the row of each flow without a path to the reason.
    """

    fabric: Fabric
    flows: Flows
    paths: Paths
    backups: Paths
    certificate: Certificate = Certificate()
    unrouted: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the plan gave up and why, as text for people."""
    nic_ports: NicPorts | None = None
    """Source ports of the flows that switches hash. None if entries in switches carry all flows."""

    def qp_ports(self) -> Ints:
        """Return the UDP source port of each QP with a path, in order of paths, then of QPs."""
        first = np.repeat(self.flows.source_ports()[self.paths.flow], self.paths.qp_count)
        usual = qp_ports(first, self.paths.qp_numbers())
        chosen = self.nic_ports
        return usual if chosen is None else np.where(chosen.port == NONE, usual, chosen.port)

    def known_ways(self) -> PortPaths:
        """Return the ways that this plan's ports are known to take: its paths and backups."""
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
        """Mark the flows that source ports carry instead of entries, shape (flows,)."""
        if self.nic_ports is None:
            return np.zeros(len(self.flows), dtype=np.bool_)
        return self.nic_ports.probes > 0

    @cached_property
    def loads(self) -> Floats:
        """Load of each arc in Gbit/s, shape (arcs,)."""
        return arc_loads(len(self.fabric.structure.tail), self.flows, self.paths)

    def with_loads(self, loads: Floats) -> Plan:
        """Set ``loads`` where they are already known, and return this plan itself."""
        self.__dict__["loads"] = loads  # where the cached property keeps its value
        return self

    def beats(self, other: Plan, share: float) -> bool:
        """Return whether this plan is better than another one of the same flows.

        A plan that routes more flows is better. If both route as many, this plan is better if the
        other's worst utilisation is higher by at least ``share`` (relative). It is also better if
        its own worst utilisation is not higher, and it has the lower value at the first place
        where the sorted worst utilisations of the tiers (``Certificate.worst_tiers``) differ by
        ``share``.
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


def edit_of(old: Paths, new: Paths) -> Edit:
    """Return the difference between two sets of paths.

    It may have paths that go and come again as they were. ``new`` keeps it, because several callers
    ask for it. If ``new`` was made from a third set and that one from ``old``, no path is compared.

    Args:
        old: The earlier paths.
        new: The later paths, of the same flows, or of these and more after them.
    """
    if old is new:
        none = np.empty(0, dtype=np.int64)
        return Edit(none, none)
    for of, known in _kept(new):
        if of() is old:
            return known
    found = _through_another(old, new) or _compared(old, new)
    _keep(old, new, found)
    return found


def edited_paths(old: Paths, edit: Edit, fresh: Paths) -> Paths:
    """Return the paths after an edit; ``fresh`` are those that come. The result keeps the edit."""
    (flow, first_qp, last_qp), first, arcs = _rows_of(old).edited(edit, _rows_of(fresh))
    new = Paths(flow, first_qp, last_qp, first, arcs)
    _keep(old, new, edit)
    return new


def in_parallel(backups: Paths, paths: Paths) -> Paths:
    """Return backups that share the columns of flows and QPs with their paths, as the same arrays.

    The backups must have equal columns. What they keep of comparisons stays.
    """
    if all(getattr(backups, one) is getattr(paths, one) for one in WHOSE):
        return backups
    shared = replace(backups, **{one: getattr(paths, one) for one in WHOSE})
    vars(shared)[_EDITS] = _kept(backups)
    return shared


def differing(old: Paths, new: Paths, flows: int) -> Bools:
    """Mark all flows that have different paths than before, or different QPs on them; maybe others.

    Args:
        old: The earlier paths.
        new: The later paths, of the same flows or of these and later ones.
        flows: Number of flows. The result has shape (flows,).
    """
    gone, came = edit_of(old, new)
    result = np.zeros(flows, dtype=np.bool_)
    result[old.flow[gone]] = True
    result[new.flow[came]] = True
    return result


_EDITS, _COMPARED_WITH = "edits", 2
_Kept = list[tuple["ref[Paths]", Edit]]


def _kept(paths: Paths) -> _Kept:
    """Earlier comparisons of these paths: with which paths, and the result."""
    known: _Kept = vars(paths).get(_EDITS, [])
    return known


def _keep(old: Paths, new: Paths, edit: Edit) -> None:
    vars(new)[_EDITS] = [*_kept(new), (ref(old), edit)][-_COMPARED_WITH:]


def _rows_of(paths: Paths) -> CompressedRows:
    return CompressedRows((paths.flow, paths.first_qp, paths.last_qp), paths.first, paths.arcs)


def _through_another(old: Paths, new: Paths) -> Edit | None:
    for of, later in _kept(new):
        other = of()
        if other is None:
            continue
        for earlier_of, earlier in _kept(other):
            if earlier_of() is old:
                return earlier.then(later)
    return None


def _compared(old: Paths, new: Paths) -> Edit:
    names = (*WHOSE, "first")
    pairs = ((getattr(old, name), getattr(new, name)) for name in names)
    if all(one is other or np.array_equal(one, other) for one, other in pairs):
        places = np.flatnonzero(old.arcs != new.arcs)
        rows = distinct(np.searchsorted(new.first, places, side="right") - 1)
        return Edit(rows, rows)
    flows = 1 + max(int(paths.flow.max(initial=0)) for paths in (old, new))
    begin = [starts(np.bincount(paths.flow, minlength=flows)) for paths in (old, new)]
    differs = np.diff(begin[0]) != np.diff(begin[1])
    if len(old) and not differs.all():
        differs[new.flow[_other_rows(old, new, begin[1] - begin[0])]] = True
    return Edit(np.flatnonzero(differs[old.flow]), np.flatnonzero(differs[new.flow]))


def _other_rows(old: Paths, new: Paths, later: Ints) -> Ints:
    """Return the rows of paths that differ from the path of the same place in their flow before.

    Some rows may be repeated, or be of flows with another number of paths than before.

    Args:
        old: The earlier paths.
        new: The later paths.
        later: By how many rows the paths of each flow begin later than before, shape (flows + 1,).
    """
    partner = np.arange(len(new)) - later[new.flow]
    shift = old.first.take(partner, mode="clip") - new.first[:-1]
    other = old.first[1:].take(partner, mode="clip") - new.first[1:] != shift
    for name in ("first_qp", "last_qp"):
        other |= getattr(old, name).take(partner, mode="clip") != getattr(new, name)
    rows = np.flatnonzero(other)
    if not len(old.arcs):
        return rows
    # Arcs of equally long paths are as far apart as the paths' beginnings are. Most paths in a row
    # are equally far from those before.
    run = np.flatnonzero(np.diff(shift, prepend=shift[:1] - 1))
    lengths = np.diff(new.first[np.append(run, len(new))])
    at = np.arange(len(new.arcs)) + np.repeat(shift[run], lengths)
    places = np.flatnonzero(old.arcs.take(at, mode="clip") != new.arcs)
    return np.append(rows, np.searchsorted(new.first, places, side="right") - 1)


def exposed_paths(job: Ints, paths: Paths, full: Bools) -> Bools:
    """Mark paths that cross no over-full link but share one with another job's path to such a link.

    They are victims. In a lossless fabric, a flow towards an over-full link is paused on every link
    before it, and so is every flow that shares one of these links (Zhu et al., DCQCN, SIGCOMM
    2015).

    Args:
        job: Job of each flow, shape (flows,).
        paths: Paths of these flows, from NIC to NIC.
        full: Marks the over-full arcs, shape (arcs,).

    Returns:
        A mark for each path, shape (paths,).
    """
    owner, arcs = paths.owner(), paths.arcs
    over = full[arcs]
    if not over.any():
        return np.zeros(len(paths), dtype=np.bool_)
    before: Ints = np.cumsum(over) - over
    until = np.append(before, np.count_nonzero(over))[paths.first]
    ahead = until[1:][owner] - before - over > 0
    of_path = job[paths.flow[owner]]
    least = np.full(len(full), np.iinfo(np.int64).max)
    most = np.full(len(full), -1, dtype=np.int64)
    np.minimum.at(least, arcs[ahead], of_path[ahead])
    np.maximum.at(most, arcs[ahead], of_path[ahead])
    fed = (most[arcs] >= 0) & ((least[arcs] != of_path) | (most[arcs] != of_path))
    at_risk = np.bincount(owner[fed], minlength=len(paths)) > 0
    exposed: Bools = at_risk & (until[1:] == until[:-1])
    return exposed
