"""A plan with its indexes kept ready for repair: loads, flows on each arc, cuts and backups.

A repair takes time in proportion to what changed, and a few passes over flat arrays. At 24,576 NICs
that is milliseconds. It covers the usual cases: links and switches that go down or come back, and
jobs that come, change or end. A NIC may lose its links and its flows their path; they get a path
again when a link is back. Every other change is left to ``Repairer``.

A chunk is a range of QPs of one flow that share a path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct, ranges
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows, TrafficClass
from heddle_controller.model.kept import kept_flows, plan_with_kept
from heddle_controller.model.plan import (
    Paths,
    Plan,
    arc_loads,
    join_paths,
    no_paths,
    phased_loads,
)
from heddle_controller.solve.assignment import (
    Assignment,
    inner_paths,
    merged_chunks,
    of_sole_links,
    with_nics,
)
from heddle_controller.solve.bounds.cuts import Bound, Cuts, certify_worst
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes, coloured_paths
from heddle_controller.solve.fairness.balance import balance_qps
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options
from heddle_controller.solve.phases import copied, loads_of_job, only_appended
from heddle_controller.solve.repair.spare_paths import (
    MANY_BACKUPS,
    SparePaths,
    backups_for,
    poor_backups,
    with_flows_replaced,
)
from heddle_controller.solve.search.search import TOLERANCE, LoadTarget, Search, SearchLimits
from heddle_controller.solve.tables import TableRoom, is_told_anew, limited, short_of_ports
from heddle_controller.solve.unrouted import Reasons

HASTE = SearchLimits(effort=2000, spare=200, patience=4)
"""How hard to try after a lost link. Speed counts, since a better plan can follow later."""
ALONE = SearchLimits(effort=200, spare=200, patience=4)
"""How hard to try while all other flows stay. What needs more effort mostly needs them to move."""
_MANY = 64
"""With at least this many flows without a path, they are coloured among themselves first."""
_EMPTY = np.empty(0, dtype=np.int64)


class IncrementalPlan:
    """One plan with its indexes, repaired after each change."""

    def __init__(self, plan: Plan, network: Network, planes: Planes | None) -> None:
        """Index a plan. ``network`` and ``planes`` are those of its fabric."""
        self.plan = plan
        self.network = network
        self._planes = planes
        paths = plan.paths
        self.assignment = Assignment(network, plan.flows)
        self.assignment.load_chunks(inner_paths(network, paths))
        self.assignment.prepare()
        self._chunks = Chunks(paths, len(plan.flows))
        loads = arc_loads(network.arc_count, plan.flows, paths)
        self._fixed = loads - self.assignment.load[:-1]
        """Gbit/s of the arcs of single-homed NICs, which allow no choice of path; shape (arcs,)."""
        self._routed = np.bincount(paths.flow, minlength=len(plan.flows)) > 0
        self._cuts = Cuts(network, plan.flows, self._routed)
        self._cuts.prepare()
        self._spare_ways = SparePaths(network, plan)
        self._backed = True
        """Whether new paths get backups."""
        self._seeking = True
        """Whether poor backups are looked at again, since better ones may exist now."""
        self._terminal = network.terminal
        """``network.terminal`` as of the last repair."""
        self._home = network.nic_arc
        """The arc out of each single-homed NIC, by node; ``NONE`` for other nodes."""
        fixed = (network.level == NodeKind.NIC) & ~network.several
        self._may_change = ~fixed | (self._home != NONE)
        """Nodes whose links may change state: all but NICs whose only link was down at first."""
        used = np.concatenate([paths.arcs, plan.backups.arcs])
        self._tables = TableRoom.beside(plan.fabric, plan.flows, paths)
        self._sound = bool(
            network.usable[used].all()
            and self._routed.any()
            and not any(map(is_told_anew, plan.notes))  # no table was too small for the flows
            and not short_of_ports(plan.flows).any()
        )
        self._worst_fixed = self._worst_by_tier(self._fixed)
        self._reached = self._worst_by_tier(loads)
        """Worst utilisation of each tier in the current plan, shape (tiers,)."""

    def copy(self, *, backups: bool = True) -> IncrementalPlan:
        """Return a copy that is repaired independently of this one.

        Without ``backups``, new paths of the copy get no backups, and other paths keep theirs.
        """
        own = "assignment", "_chunks", "_cuts", "_spare_ways", "_routed", "_fixed"
        return copied(self, *own, _backed=self._backed and backups)

    def warm_up(self, options: Options) -> None:
        """Run a repair without any change, so that every index is built before the first loss.

        The plan stays the same object. Nothing is done if the plan cannot be repaired here, or if
        it leaves out flows that links could carry, since a repair would then change it.
        """
        plan, poor = self.plan, dict(self._spare_ways.poor)
        waiting = attached(self.network, plan.flows) & ~self._routed
        if self._sound and not waiting.any():
            _ = plan.fabric.structure.out
            self.repair(plan.fabric, plan.flows, options)
            self._seeking, self._spare_ways.poor = self._spare_ways.poor != poor, poor
            self.plan = plan

    def take_flows(self, fabric: Fabric, flows: Flows) -> None:
        """Take on flows of jobs that came, changed or ended, if ``repair`` can go on from there.

        Flows that are kept (``model.kept``) stay on their paths and backups, and others have none
        yet. This takes a few passes over flat arrays. Flows that only follow the known ones are
        left to ``repair``. ``fabric`` is the fabric of the flows.
        """
        known, network = self.plan.flows, self.network
        if not self._sound or fabric.structure is not self.plan.fabric.structure:
            return
        if self._may_follow(flows) or short_of_ports(flows).any():
            return
        kept = kept_flows(known, flows)
        rest = None if kept is None else plan_with_kept(self.plan, kept)
        if kept is None or rest is None or not len(rest.paths):
            return
        gone, altered = kept.gone, kept.altered
        self._routed = np.zeros(len(flows), dtype=np.bool_)
        self._routed[rest.paths.flow] = True
        self._cuts.keep(kept, self._routed)
        self._spare_ways.renumber(kept.row)
        if limited(rest.fabric).any():
            self._tables = TableRoom.beside(rest.fabric, flows, rest.paths)
        changed = self.plan.paths.of_flows(gone).arcs, rest.paths.of_flows(altered).arcs
        arcs = np.concatenate(changed)
        arcs = distinct(arcs[~of_sole_links(network)[arcs]])
        self.assignment.keep(kept, inner_paths(network, rest.paths), arcs)
        self.assignment.prepare()
        ends = (known.source, flows.source), (known.destination, flows.destination)
        self._fix(*(np.append(was[gone], now[altered]) for was, now in ends))
        worst = self._worst_by_tier(self.assignment.load[:-1])
        self._reached = np.maximum(worst, self._worst_fixed)
        self._chunks = Chunks(rest.paths, len(flows))
        self.plan = rest

    def can_repair(self, fabric: Fabric, flows: Flows) -> bool:
        """Whether ``repair`` covers all that changed."""
        structure = fabric.structure
        if not self._sound or structure is not self.plan.fabric.structure:
            return False
        if not self._may_follow(flows):
            return False
        changed = np.flatnonzero(fabric.effective != self.plan.fabric.effective)
        ends = structure.links.a[changed], structure.links.b[changed]
        return all(bool(self._may_change[end].all()) for end in ends)

    def _may_follow(self, flows: Flows) -> bool:
        """Whether ``flows`` are the known ones, or these followed by new ones."""
        known = self.plan.flows
        if flows.same_as(known):
            return True
        follows = flows.begins_with(known) and only_appended(len(known), flows)
        return follows and not short_of_ports(flows).any()

    def repair(self, fabric: Fabric, flows: Flows, options: Options) -> Plan | None:
        """Return the plan, changed as little as the new states and flows allow.

        Returns None if no flow has a path any more, if links were drained and some flow is left
        without a path, or if a table is too small. After that this object must not be used.
        """
        assignment = self.assignment
        assignment.touched.clear()
        lost, regained = self._take_links(fabric)
        candidates = Candidates(self.network, options.candidate_limit)
        without = {c for arc in lost.tolist() for c in assignment.members(arc)}
        without.update(self._detours(candidates, regained))
        homeless = sorted(without)
        gone, came, bare = self._take_flows(flows, candidates, self._flows_of(homeless))
        drained = fabric.effective[lost >> 1] == State.DRAINED
        if not self._routed.any() or (gone and drained.any()):
            return None
        homeless = [chunk for chunk in homeless if self._routed[assignment.flow[chunk]]]
        bound = self._cuts.bound()
        used = self._settle(candidates, bound, options, (homeless, self._chunks.of(bare)))
        moved = {*self._flows_of(assignment.touched), *gone, *came}
        moved |= self._spare_ways.flows_over(self.plan.backups, lost)
        self._seek(regained)
        world = fabric, flows, candidates
        return self._put_together(world, moved, used, bound, self._unrouted())

    def beside(self, fabric: Fabric, flows: Flows, options: Options) -> tuple[Plan, bool] | None:
        """Return the plan with one new job added while all other flows keep their paths.

        Also returns whether ``repair`` would give the same plan. This object does not change, and
        the new paths have no backups. The time taken is in proportion to the new job, since all
        other flows are only load to it. Returns None if anything else changed, or if a flow of the
        job has no path.
        """
        come, network = self._newcomers(fabric, flows), self.network
        if come is None:
            return None
        own, routed = flows.take(come), np.append(self._routed, np.ones(len(come), dtype=np.bool_))
        cuts = self._cuts.copy()
        cuts.recount(flows, routed, come)
        bound, known = cuts.bound(), self.plan
        found = self._placed_alone(own, self._target(bound), options)
        if found is None:
            return None
        inner, more, same = found
        if same is None:  # where links are overloaded, ``repair`` may exchange QPs by weight
            over = (self.assignment.load[:-1] + more) * network.per_gbps[:-1] > 1
            same = not (over[network.chosen].any() and (flows.weight != flows.weight[:1]).any())
        nothing = Paths(inner.flow, inner.first_qp, inner.last_qp, 0 * inner.first, _EMPTY)
        of_nics = _loads_of_job(network, own, with_nics(network, own, nothing))
        worst = np.maximum(
            self._worst_by_tier(self.assignment.load[:-1] + more),
            self._worst_by_tier(self._fixed + of_nics),
        )
        fresh = with_nics(network, own, inner)
        fresh = replace(fresh, flow=fresh.flow + len(known.flows))
        paths = join_paths([known.paths, fresh])
        if self._tables.after(flows, come, known.paths, paths) is None:
            return None
        none = np.full(len(fresh), known.backups.first[-1], dtype=np.int64)
        first = np.append(known.backups.first, none)
        backups = replace(paths, first=first, arcs=known.backups.arcs)
        certificate = certify_worst(fabric, worst, bound)
        plan = Plan(fabric, flows, paths, backups, certificate, dict(known.unrouted), known.notes)
        return plan.with_loads(known.loads + more + of_nics), same

    def _newcomers(self, fabric: Fabric, flows: Flows) -> Ints | None:
        """Return the rows of a new job's flows, or None if that is not all that changed."""
        known = self.plan
        if (
            not self._sound
            or fabric.structure is not known.fabric.structure
            or self.network.terminal is not self._terminal
            or not np.array_equal(fabric.effective, known.fabric.effective)
            or attached(self.network, known.flows, np.flatnonzero(~self._routed)).any()
            or not flows.begins_with(known.flows)
            or short_of_ports(flows).any()
        ):
            return None
        come = np.arange(len(known.flows), len(flows), dtype=np.int64)
        job = flows.job[come]
        new = len(come) and known.flows.job.max() < job.min() == job.max()
        return come if new and attached(self.network, flows, come).all() else None

    def _placed_alone(
        self, own: Flows, target: LoadTarget, options: Options
    ) -> tuple[Paths, Floats, bool | None] | None:
        """Place new flows on top of what links carry, while all others stay.

        Args:
            own: The new flows.
            target: Load that each tier may have.
            options: Limits on candidates and time.

        Returns:
            Paths between terminals, what they add to each arc in Gbit/s, and whether each tier
            keeps to its target: True if colouring alone achieves it, None if it took a search,
            False if not. None in place of all if some flow has no path.
        """
        network, limit = self.network, target.bounds + TOLERANCE
        every = np.arange(len(own), dtype=np.int64)
        coloured = no_paths()
        if len(every) >= _MANY and self.planes is not None:
            coloured = coloured_paths(self.planes, own, every)
        more = _loads_of_job(network, own, coloured)
        worst = self._worst_by_tier(self.assignment.load[:-1] + more)
        bare = np.flatnonzero(np.bincount(coloured.flow, minlength=len(own)) == 0)
        if not len(bare) and (worst <= limit).all():
            return coloured, more, True
        alone = Assignment(network, own)
        alone.load_chunks(coloured)
        alone.load += self.assignment.load
        search = Search(
            alone,
            Candidates(network, options.candidate_limit),
            target,
            options.deadline(),
            ALONE,
        )
        alone.place_whole(bare.tolist())
        for chunk in sorted(range(len(coloured), len(alone.flow)), key=alone.gbps, reverse=True):
            if not len(search.chains.paths(alone.flow[chunk])):
                return None
            search.settle(chunk)
        enough = (self._worst_by_tier(alone.load[:-1]) <= limit).all() or search.run_alone()
        inner = merged_chunks(alone, renumber=False)
        return inner, _loads_of_job(network, own, inner), None if enough else False

    def _put_together(
        self,
        world: tuple[Fabric, Flows, Candidates],
        moved: set[int],
        used: Floats,
        bound: Bound,
        unrouted: dict[int, str],
    ) -> Plan | None:
        """Return and keep the plan with new paths and backups for some flows.

        Returns None if a table has no room for them. After that this object must not be used.

        Args:
            world: Fabric, flows and candidates.
            moved: Rows of the flows to write again. Flows with poor backups are added if better
                ones may exist.
            used: Utilisation of each arc and of the padding, shape (arcs + 1,).
            bound: What no plan can beat.
            unrouted: Why flows have no path, by flow row.
        """
        fabric, flows, candidates = world
        poor = self._spare_ways.poor
        doubtful = poor.keys() - moved if self._seeking and self._backed else set()
        changed = np.array(sorted({*moved, *doubtful}), dtype=np.int64)
        fresh = self._fresh_paths(changed)
        spare, found = self._backups(candidates, flows, fresh, used)
        if stay := {row for row in doubtful if found.get(row, 0) >= poor[row]}:
            changed = changed[~np.isin(changed, [*stay])]
            rows = np.flatnonzero(~np.isin(fresh.flow, [*stay]))
            fresh, spare = fresh.take(rows), spare.take(rows)
            found = {row: cost for row, cost in found.items() if row not in stay}
        pair = self.plan.paths, self.plan.backups
        paths, backups = with_flows_replaced(*pair, changed, (fresh, spare))
        tables = self._tables.after(flows, changed, self.plan.paths, paths)
        if tables is None:
            return None
        self._tables = tables
        self._spare_ways.note(changed, spare, found)
        self._seeking = False
        self._reached = np.maximum(fabric.structure.worst_by_tier(used[:-1]), self._worst_fixed)
        certificate = certify_worst(fabric, self._reached, bound)
        notes = self.plan.notes
        self.plan = Plan(fabric, flows, paths, backups, certificate, unrouted, notes)
        return self.plan

    def _backups(
        self, candidates: Candidates, flows: Flows, fresh: Paths, used: Floats
    ) -> tuple[Paths, dict[int, int]]:
        """Return backups of new paths, row for row, and ``poor_backups`` of them."""
        if not self._backed:
            none = np.zeros(len(fresh) + 1, dtype=np.int64)
            return Paths(fresh.flow, fresh.first_qp, fresh.last_qp, none, _EMPTY), {}
        planes = self.planes if len(fresh) >= MANY_BACKUPS else None
        spare = backups_for((self.network, candidates, planes), flows, fresh, used)
        return spare, poor_backups(self.network, flows, fresh, spare)

    def relieve(self, options: Options) -> Plan | None:
        """Return the plan with a few flows moved so that it meets its bounds.

        No tier is then fuller than its bound, and no arc with a choice of path is fuller than the
        cuts around its own switches and zones prove. Both may be as full as the bound of the worst
        link, up to line rate. Returns None if a little effort does not achieve this. After that
        this object must not be used.
        """
        plan, assignment = self.plan, self.assignment
        assignment.touched.clear()
        candidates, bound = Candidates(self.network, options.candidate_limit), self._cuts.bound()
        overall = max(bound.overall, float(bound.tiers.max(initial=0.0)))
        chosen, arcs = self.network.chosen, np.full(self.network.arc_count + 1, np.inf)
        arcs[chosen] = np.maximum(self._cuts.of_arcs(chosen), min(overall, 1.0))
        used = assignment.utilization()
        if np.count_nonzero(used[chosen] > arcs[chosen] + TOLERANCE) > HASTE.effort:
            return None  # looking at one chunk of each of them is already too much
        target = LoadTarget(np.maximum(bound.tiers, min(overall, 1.0)), overall, arcs)
        Search(assignment, candidates, target, options.deadline(), HASTE).run()
        used = assignment.utilization()
        worst = plan.fabric.structure.worst_by_tier(used[:-1])
        over = (used[chosen] > arcs[chosen] + TOLERANCE).any()
        if over or (np.maximum(worst, self._worst_fixed) > target.bounds + TOLERANCE).any():
            return None
        self._chunks.take_on(assignment)
        moved = {*self._flows_of(assignment.touched)}
        world = plan.fabric, plan.flows, candidates
        return self._put_together(world, moved, used, bound, dict(plan.unrouted))

    def _seek(self, regained: Ints) -> None:
        """Have poor backups looked at again if any arcs came back.

        A NIC that has another link again may leave its flows better backups than before.
        """
        self._seeking |= len(regained) > 0
        back = self.network.several[self.network.tail[regained]]
        if back.any():
            plan, nics = self.plan, np.zeros(self.network.fabric.node_count, dtype=np.bool_)
            nics[self.network.tail[regained[back]]] = True
            near = np.flatnonzero(nics[plan.flows.source] | nics[plan.flows.destination])
            some = plan.paths.of_flows(near), plan.backups.of_flows(near)
            self._spare_ways.poor |= poor_backups(self.network, plan.flows, *some)

    def _flows_of(self, chunks: Iterable[int]) -> list[int]:
        return [self.assignment.flow[chunk] for chunk in chunks]

    def _take_links(self, fabric: Fabric) -> tuple[Ints, Ints]:
        """Adopt the states of a fabric; return the arcs that became unusable, and usable."""
        before = self.network.usable
        self.network = self.network.with_states(fabric)
        self.assignment.network = self.network
        changed = np.flatnonzero(before != self.network.usable)
        lost, regained = changed[before[changed]], changed[~before[changed]]
        self._cuts.change(lost, usable=False)
        self._cuts.change(regained, usable=True)
        return lost, regained

    def _take_flows(
        self, flows: Flows, candidates: Candidates, homeless: list[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Adopt flows, some of which may be new.

        ``homeless`` are the flows that lost a path.

        Returns:
            Flows that have no path any more, flows that get one, and those of the latter that
            still have to be placed.
        """
        assignment, known = self.assignment, len(self._routed)
        if len(flows) > known:
            assignment.extend(flows)
            more = np.zeros(len(flows) - known, dtype=np.bool_)
            self._routed = np.append(self._routed, more)
        cut_off, came = self._attached_now(flows)
        self._chunks.make(assignment, came)
        bare = self._uncoloured(came)
        stuck = {row for row in {*homeless, *bare} if not self._can_go(candidates, row)}
        gone = {*cut_off, *stuck}
        came, bare = ([row for row in rows if row not in stuck] for rows in (came, bare))
        self._routed[list(gone)], self._routed[came] = False, True
        changed = np.array(sorted({*gone, *came}), dtype=np.int64)
        if len(changed) or len(flows) > known:
            self._cuts.recount(flows, self._routed, changed)
            self._fix(flows.source[changed], flows.destination[changed])
        for chunk in self._chunks.of(gone):
            assignment.move(chunk, _EMPTY)
        return sorted(gone), came, bare

    def _detours(self, candidates: Candidates, regained: Ints) -> list[int]:
        """Return the chunks of latency flows for which arcs that came back give a shorter path."""
        network, flows = self.network, self.plan.flows
        if not len(regained) or not (flows.traffic_class == TrafficClass.LATENCY).any():
            return []
        chunks = self.assignment.chunks()
        lengths, near = np.diff(chunks.first), np.zeros(len(chunks), dtype=np.bool_)
        ends = [network.terminal[nics[chunks.flow]] for nics in (flows.source, flows.destination)]
        # A shorter path crosses a link that came back, so it passes one end of the link.
        links = distinct(regained >> 1) << 1
        passed = min((distinct(side[links]) for side in (network.tail, network.head)), key=len)
        for node in passed.tolist():
            hops = network.hops_from(node)
            near |= hops[ends[0]] + hops[ends[1]] < lengths
        rows = np.flatnonzero(near)
        found: list[int] = rows[candidates.detours(flows, chunks.take(rows))].tolist()
        return found

    def _attached_now(self, flows: Flows) -> tuple[list[int], list[int]]:
        """Return the flows with a NIC that is cut off, and the flows that may get a path now.

        The first are only those that had a path or are new, and so have no reason for having none.
        """
        if self.network.terminal is self._terminal:
            rows = np.flatnonzero(~self._routed)
            if not len(rows):
                return [], []
        else:
            rows = np.arange(len(flows), dtype=np.int64)
        self._terminal = self.network.terminal
        near = attached(self.network, flows, rows)
        told = np.isin(rows, [*self.plan.unrouted])
        cut_off = rows[~near & ~told]
        return cut_off.tolist(), rows[near & ~self._routed[rows]].tolist()

    def _can_go(self, candidates: Candidates, row: int) -> bool:
        flows, terminal = self.assignment.flows, self.network.terminal
        ends = int(terminal[flows.source[row]]), int(terminal[flows.destination[row]])
        return NONE not in ends and len(candidates.between(*ends)) > 0

    def _fix(self, sources: Ints, destinations: Ints) -> None:
        """Compute the load of arcs out of some NICs and into others again."""
        flows, home = self.assignment.flows, self._home
        into = np.where(home != NONE, home ^ 1, NONE)
        marked = np.zeros(self.network.arc_count + 1, dtype=np.bool_)
        marked[home[sources]] = marked[into[destinations]] = True
        marked[NONE] = False
        arcs = home[flows.source], into[flows.destination]
        rows = [np.flatnonzero(self._routed & marked[of_end]) for of_end in arcs]
        uses = np.concatenate([of_end[own] for of_end, own in zip(arcs, rows, strict=True)])
        both = np.concatenate(rows)
        together = flows.gbps[both], flows.job[both], flows.phase[both]
        loads = phased_loads(self.network.arc_count, uses, *together)
        self._fixed[marked[:-1]] = loads[marked[:-1]]
        self._worst_fixed = self._worst_by_tier(self._fixed)

    def _worst_by_tier(self, loads: Floats) -> Floats:
        used = loads * self.network.per_gbps[:-1]
        return self.network.fabric.structure.worst_by_tier(used)

    def _target(self, bound: Bound) -> LoadTarget:
        tiers = np.maximum(bound.tiers, self._reached)
        overall = max(bound.overall, float(tiers.max(initial=0.0)))
        return LoadTarget(np.maximum(tiers, min(overall, 1.0)), overall)

    def _settle(
        self,
        candidates: Candidates,
        bound: Bound,
        options: Options,
        chunks: tuple[list[int], list[int]],
    ) -> Floats:
        """Give chunks a path each and make room.

        ``chunks`` are those that lost their path, and those of new flows still to be placed.
        Returns the utilisation of each arc and of the padding, shape (arcs + 1,).
        """
        assignment, target = self.assignment, self._target(bound)
        homeless, came = chunks
        for chunk in homeless:
            assignment.move(chunk, _EMPTY)
        search: Search | None = None
        if homeless or came:
            search = Search(assignment, candidates, target, options.deadline(), HASTE)
            for chunk in sorted([*homeless, *came], key=assignment.gbps, reverse=True):
                search.settle(chunk)
        used = assignment.utilization()
        worst = self.network.fabric.structure.worst_by_tier(used[:-1])
        if (worst > target.bounds + TOLERANCE).any():
            search = search or Search(assignment, candidates, target, options.deadline(), HASTE)
            search.run_sparing(frozenset(self._flows_of(assignment.touched)))
            used = assignment.utilization()
        if search is not None and balance_qps(
            search, frozenset(self._flows_of(assignment.touched))
        ):
            used = assignment.utilization()
        self._chunks.take_on(assignment)
        return used

    @property
    def planes(self) -> Planes | None:
        """The planes for the current link states; None without tiers. Updated on demand."""
        if self._planes is not None and self._planes.network is not self.network:
            self._planes = self._planes.with_states(self.network)
        return self._planes

    def _uncoloured(self, came: list[int]) -> list[int]:
        """Colour new flows among themselves; return those that are still without a path."""
        assignment, flows = self.assignment, self.assignment.flows
        if len(came) < _MANY or self.planes is None:
            return came
        chunks = np.array(self._chunks.of(came), dtype=np.int64)
        flow, first, last = (
            np.array(list(map(column.__getitem__, chunks.tolist())), dtype=np.int64)
            for column in (assignment.flow, assignment.first_qp, assignment.last_qp)
        )
        whole = last - first + 1 == flows.qps[flow]
        own = np.full(len(flows), NONE, dtype=np.int64)
        own[flow[whole]] = chunks[whole]
        coloured = coloured_paths(self.planes, flows, np.flatnonzero(own != NONE))
        assignment.put(own[coloured.flow].tolist(), coloured)
        placed = set(coloured.flow.tolist())
        return [flow for flow in came if flow not in placed]

    def _unrouted(self) -> dict[int, str]:
        """Return why flows have no path, by flow row, in the states that links have now."""
        if self._routed.all():
            return {}
        network, flows = self.network, self.assignment.flows
        reasons, of_nic, found = Reasons(network), dict[int, str](), dict[int, str]()
        for row in np.flatnonzero(~self._routed).tolist():
            ends = int(flows.source[row]), int(flows.destination[row])
            key = next((nic for nic in ends if network.terminal[nic] == NONE), -1 - row)
            if key not in of_nic:
                of_nic[key] = reasons.of(*ends)
            found[row] = of_nic[key]
        return found

    def _fresh_paths(self, flows: Ints) -> Paths:
        """Return all paths of some flows from the assignment, from NIC to NIC."""
        assignment = self.assignment
        chunks = sorted(self._chunks.of(flows[self._routed[flows]].tolist()))
        return with_nics(
            self.network, assignment.flows, merged_chunks(assignment, chunks, renumber=False)
        )


def _loads_of_job(network: Network, flows: Flows, paths: Paths) -> Floats:
    """Return the Gbit/s that paths of one job's flows add to each arc, shape (arcs,)."""
    owner = paths.owner()
    gbps, phase = paths.gbps(flows)[owner], flows.phase[paths.flow][owner]
    return loads_of_job(network.arc_count, paths.arcs, gbps, phase)


class Chunks:
    """Finds the chunks of each flow."""

    def __init__(self, paths: Paths, flows: int) -> None:
        """Take the paths of a plan; chunk ``i`` is their row ``i``. ``flows`` is the flow count."""
        self._first = np.searchsorted(paths.flow, np.arange(flows + 1))
        self._made: Ints = np.full(flows, NONE, dtype=np.int64)
        """The chunk of all QPs that was made later for each flow, shape (flows,)."""
        self._later: dict[int, tuple[int, ...]] = {}
        """Chunks that were split off, by flow."""
        self._known = len(paths)

    def copy(self) -> Chunks:
        """Return a copy that changes independently of this one."""
        return copied(self, "_made", "_later")

    def of(self, flows: Iterable[int]) -> list[int]:
        """Return the chunks of some flows, each once, whether they have a path or not."""
        rows: Ints = np.fromiter(flows, dtype=np.int64)
        loaded, made = rows[rows < len(self._first) - 1], self._made[rows[rows < len(self._made)]]
        found: list[int] = ranges(self._first[loaded], self._first[loaded + 1]).tolist()
        found += made[made != NONE].tolist()
        for flow in self._later.keys() & set(rows.tolist()) if self._later else ():
            found += self._later[flow]
        return found

    def make(self, assignment: Assignment, flows: list[int]) -> None:
        """Make a chunk of all QPs for each of the flows that has no chunk."""
        self.take_on(assignment)
        more = max(flows, default=NONE) + 1 - len(self._made)
        if more > 0:
            self._made = np.append(self._made, np.full(more, NONE, dtype=np.int64))
        rows = np.array(flows, dtype=np.int64)
        loaded = np.minimum(rows, len(self._first) - 2)
        empty = (rows > loaded) | (self._first[loaded] == self._first[loaded + 1])
        bare = rows[empty & (self._made[rows] == NONE)]
        assignment.place_whole(bare.tolist())
        self._made[bare] = np.arange(self._known, self._known + len(bare))
        self._known = len(assignment.flow)

    def take_on(self, assignment: Assignment) -> None:
        """Record the chunks that the assignment has split off since the last call."""
        for chunk in range(self._known, len(assignment.flow)):
            flow = assignment.flow[chunk]
            self._later[flow] = (*self._later.get(flow, ()), chunk)
        self._known = len(assignment.flow)
