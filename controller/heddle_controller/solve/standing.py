"""A plan kept ready for links to change: loads, members of arcs, cuts, backups.

Mending takes time in proportion to what the links carried, and a few passes over
flat arrays; at 24,576 NICs that is milliseconds. It covers the usual case, links
between switches that go or come while the flows stay the same; every other change
is for ``Repairer`` to plan over.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Fabric, Ints
from heddle_controller.model.load import arc_loads
from heddle_controller.model.plan import Paths, Plan, join_paths, starts
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.backups import least_shared
from heddle_controller.solve.bound import Bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.carry import inner_paths
from heddle_controller.solve.certificate import certify
from heddle_controller.solve.chains import Limits
from heddle_controller.solve.cuts import Cuts
from heddle_controller.solve.export import merged_chunks, with_nics
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Options
from heddle_controller.solve.search import Search, Target

HASTE = Limits(effort=2000, spare=200, patience=4)
"""How hard to try when a link was lost: a better plan can follow, a quick one cannot."""


LOCAL = 2
"""Arcs of a path within one leaf, which no backup is needed for."""


class Standing:
    """One plan, indexed. Row ``i`` of its paths is chunk ``i`` of the assignment."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.network = Network(plan.fabric)
        paths = plan.paths
        self.assignment = Assignment(self.network, plan.flows)
        self.assignment.load_chunks(inner_paths(self.network, paths))
        total = arc_loads(self.network.arc_count, plan.flows, paths)
        self._chunk_count = len(paths)
        self._regained = False
        """Whether links came back with the newest change: they may serve as backups."""
        self._fixed = total - self.assignment.load[:-1]
        """Load of the arcs that no choice is about."""
        routed = np.bincount(paths.flow, minlength=len(plan.flows)) > 0
        self._cuts = Cuts(self.network, plan.flows, routed)
        order = np.argsort(plan.backups.arcs, kind="stable")
        self._backup_arcs = plan.backups.arcs[order]
        self._backup_flows = plan.backups.flow[plan.backups.owner()[order]]
        self._later_backups: dict[int, set[int]] = {}

    def can_mend(self, fabric: Fabric) -> bool:
        """Whether only links between switches changed, and nothing else needs care.

        Flows without a path and tables that may fill up are for a plan made anew.
        """
        structure = fabric.structure
        if structure is not self.plan.fabric.structure or self.plan.unrouted:
            return False
        if (structure.nodes.table_size != NONE).any():
            return False
        changed = np.flatnonzero(fabric.effective != self.plan.fabric.effective)
        links, level = structure.links, self.network.level
        return bool((level[links.a[changed]] > 0).all() and (level[links.b[changed]] > 0).all())

    def holds(self, plan: Plan) -> bool:
        """Whether rows and chunks still correspond for a plan that ``mend`` made."""
        chunks = len(self.assignment.flow)
        return self.plan is plan and chunks == len(plan.paths) == self._chunk_count

    def mend(self, fabric: Fabric, options: Options) -> Plan | None:
        """The plan with as little changed as the new link states allow.

        None where a flow is left without any path; then nothing of this is usable.
        """
        lost = self._change_links(fabric)
        bound = self._cuts.bound()
        candidates = Candidates(self.network, options.candidate_limit)
        target = self._target(bound)
        search = Search(self.assignment, candidates, target, options.deadline(), HASTE)
        self.assignment.touched.clear()
        homeless = sorted({c for arc in lost.tolist() for c in self.assignment.members(arc)})
        homeless.sort(key=self.assignment.gbps, reverse=True)
        for chunk in homeless:
            self.assignment.move(chunk, np.empty(0, dtype=np.int64))
        for chunk in homeless:
            if not len(search.chains.paths(self.assignment.flow[chunk])):
                return None
            search.settle(chunk)
        search.run_sparing(frozenset(self.assignment.flow[chunk] for chunk in homeless))
        self.plan = self._exported(fabric, candidates, bound, lost)
        return self.plan

    def _change_links(self, fabric: Fabric) -> Ints:
        """Takes on the new states; returns the arcs that can be used no more."""
        before = self.network.usable
        self.network = self.network.with_states(fabric)
        self.assignment.network = self.network
        lost = np.flatnonzero(before & ~self.network.usable)
        regained = np.flatnonzero(self.network.usable & ~before)
        self._cuts.change(lost, usable=False)
        self._cuts.change(regained, usable=True)
        self._regained = len(regained) > 0
        return lost

    def _target(self, bound: Bound) -> Target:
        before = np.array([tier.max_utilization for tier in self.plan.certificate.tiers])
        tiers = np.maximum(bound.tiers, before)
        overall = max(bound.overall, float(tiers.max(initial=0.0)))
        return Target(np.maximum(tiers, min(overall, 1.0)), overall)

    def _exported(self, fabric: Fabric, candidates: Candidates, bound: Bound, lost: Ints) -> Plan:
        assignment, plan = self.assignment, self.plan
        moved = {assignment.flow[chunk] for chunk in assignment.touched}
        for arc in lost.tolist():
            moved.update(self._flows_backed_by(arc))
        if self._regained:
            bare = (np.diff(plan.backups.first) == 0) & (np.diff(plan.paths.first) > LOCAL)
            moved.update(plan.paths.flow[bare].tolist())
        flows = np.array(sorted(moved), dtype=np.int64)
        fresh = self._fresh_paths(flows)
        loads = assignment.load[:-1] + self._fixed
        backups = self._fresh_backups(candidates, fresh)
        result = Plan(
            fabric,
            plan.flows,
            _spliced(plan.paths, flows, fresh),
            _spliced(plan.backups, flows, backups),
            certify(fabric, loads, bound),
        )
        self._note_backups(backups)
        return result

    def _flows_backed_by(self, arc: int) -> set[int]:
        """Flows whose backup uses an arc, and perhaps some whose backup did before."""
        low, high = np.searchsorted(self._backup_arcs, [arc, arc + 1])
        return self._later_backups.get(arc, set()) | set(self._backup_flows[low:high].tolist())

    def _note_backups(self, fresh: Paths) -> None:
        for arc, flow in zip(fresh.arcs.tolist(), fresh.flow[fresh.owner()].tolist(), strict=True):
            self._later_backups.setdefault(arc, set()).add(flow)

    def _fresh_paths(self, flows: Ints) -> Paths:
        """All paths of some flows, as the assignment now has them."""
        assignment, paths = self.assignment, self.plan.paths
        low = np.searchsorted(paths.flow, flows, side="left").tolist()
        high = np.searchsorted(paths.flow, flows, side="right").tolist()
        chunks = [c for begin, end in zip(low, high, strict=True) for c in range(begin, end)]
        chunks += range(len(paths), len(assignment.flow))
        return with_nics(
            self.network, assignment.flows, merged_chunks(assignment, chunks, renumber=False)
        )

    def _fresh_backups(self, candidates: Candidates, fresh: Paths) -> Paths:
        network, flows = self.network, self.assignment.flows
        used = self.assignment.utilization()
        source = network.terminal[flows.source[fresh.flow]].tolist()
        destination = network.terminal[flows.destination[fresh.flow]].tolist()
        pieces = [
            least_shared(network, candidates.between(s, t), fresh.of(row), used)
            for row, (s, t) in enumerate(zip(source, destination, strict=True))
        ]
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        arcs = np.concatenate([*pieces, np.empty(0, dtype=np.int64)])
        inner = Paths(fresh.flow, fresh.first_qp, fresh.last_qp, starts(lengths), arcs)
        return with_nics(network, flows, inner, lengths > 0)


def _spliced(paths: Paths, flows: Ints, fresh: Paths) -> Paths:
    """The paths with those of some flows, ascending, replaced by others."""
    low = np.searchsorted(paths.flow, flows, side="left")
    high = np.searchsorted(paths.flow, flows, side="right")
    new_low = np.searchsorted(fresh.flow, flows, side="left")
    new_high = np.searchsorted(fresh.flow, flows, side="right")
    if np.array_equal(high - low, new_high - new_low) and np.array_equal(
        np.diff(paths.first)[_ranges(low, high)], np.diff(fresh.first)
    ):
        rows = _ranges(low, high)
        arcs = paths.arcs.copy()
        arcs[_ranges(paths.first[rows], paths.first[rows + 1])] = fresh.arcs
        first_qp, last_qp = paths.first_qp.copy(), paths.last_qp.copy()
        first_qp[rows], last_qp[rows] = fresh.first_qp, fresh.last_qp
        return Paths(paths.flow, first_qp, last_qp, paths.first, arcs)
    keep = np.ones(len(paths), dtype=np.bool_)
    keep[_ranges(low, high)] = False
    both = join_paths([paths.take(np.flatnonzero(keep)), fresh])
    return both.take(np.argsort(both.flow, kind="stable"))


def _ranges(low: Ints, high: Ints) -> Ints:
    """All numbers from each low to below each high, in order."""
    lengths = high - low
    offset = np.cumsum(lengths) - lengths
    return np.repeat(low - offset, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
