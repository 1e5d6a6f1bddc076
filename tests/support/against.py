"""Faults in the plan of a drawn case, found by comparing it with exact results.

``python -m tests.support.against FIRST LAST [KIND ...]`` prints the faults of each seed from FIRST
to LAST.

``Fairest`` finds how well the worst-served flow could be served, by trying; it uses nothing of the
planner's. The value of a flow is its max-min fair rate (by the emulator's filling, QPs added up)
over its demand and its priority. A place is the number of QPs on each path. All loop-free paths
that the rules of a plan allow are considered (``exact``), and those that the plan has. In a fabric
of tiers only paths that go up and then down count, since turning up again is the last resort. If
there are few places, all are tried, and the best is the optimum. If there are many, a random search
moves QPs away from the plan's places, and its result is what could be reached.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import comb, inf, prod
from random import Random

import numpy as np

from heddle_controller.model.arrays import Floats, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_controller.model.plan import Paths, Plan, join_paths
from heddle_controller.plan.verify import PlanInvalid, verify_plan
from heddle_controller.solve import solve
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy import strategy
from tests.support.drawn import Case, drawn
from tests.support.exact import CLOSE, Exact
from tests.support.solve_checks import plain_loads

MOST_PATHS = 100
"""Most paths of one flow to consider; the shortest ones are taken."""
MOST_PARTS = 2_000
"""Most partial paths to extend in the search for them."""
MOST_PLACES = 30_000
"""Up to this many ways to place all QPs, all of them are tried."""
AT_ONCE = 2_000

Place = tuple[tuple[int, ...], ...]
"""The number of QPs on each path of each flow."""


@dataclass(frozen=True, slots=True)
class Best:
    """The greatest least value that was found."""

    value: float
    exact: bool
    """Whether it is proven that none is greater."""


class Fairest:
    """Places for the QPs of some flows, and how well these serve the flows."""

    def __init__(self, exact: Exact, limit: Floats) -> None:
        """Start; ``limit`` is the utilisation allowed on each arc, shape (arcs,)."""
        self._exact, self._flows = exact, exact.flows
        self._room = (limit + CLOSE) * exact.fabric.structure.capacity
        self._rows = exact.routed
        kind = exact.fabric.structure.nodes.kind
        self._tiered = bool((kind != NodeKind.SWITCH).all())
        self._cut = False
        """Whether some flow has more paths than are considered."""

    @cached_property
    def paths(self) -> list[list[list[int]]]:
        """The paths that each routed flow may take, up to the limits."""
        return [self._paths(row) for row in self._rows]

    def _paths(self, row: int) -> list[list[int]]:
        exact, flows = self._exact, self._flows
        structure = exact.fabric.structure
        destination = int(flows.destination[row])
        hops, latency = exact.hops(destination), flows.traffic_class[row] == TrafficClass.LATENCY
        first, arcs = structure.out
        source = int(flows.source[row])
        found: list[list[int]] = []
        todo: list[tuple[int, list[int], frozenset[int]]] = [(source, [], frozenset([source]))]
        for node, path, seen in todo:  # the list grows during the loop, shorter paths first
            if node == destination:
                found.append(path)
                continue
            if len(todo) > MOST_PARTS or len(found) > MOST_PATHS:
                self._cut = True
                continue
            for arc in arcs[first[node] : first[node + 1]].tolist():
                head = int(structure.head[arc])
                nic = structure.nodes.kind[head] == NodeKind.NIC and head != destination
                if nic or head in seen or head not in hops or not exact.fabric.plannable[arc]:
                    continue
                if path and self._tiered and self._turns_up(path[-1], arc):
                    continue
                if not latency or hops[head] == hops[node] - 1:
                    todo.append((head, [*path, arc], seen | {head}))
        return found

    def _turns_up(self, before: int, arc: int) -> bool:
        """Return whether a packet that came down goes up again."""
        structure = self._exact.fabric.structure
        kind, tail, head = structure.nodes.kind, structure.tail, structure.head
        return bool(kind[head[before]] < kind[tail[before]] and kind[head[arc]] > kind[tail[arc]])

    def best(self, plan: Plan, random: Random, looks: int = 200) -> Best:
        """Return the best value, or the best found in ``looks`` steps from the plan's places."""
        held = self.least([self.place_of(plan)])[0]
        if not self._rows or held >= 1 / self._flows.weight[self._rows].max() - CLOSE:
            return Best(float(held), exact=True)
        sizes = [len(paths) for paths in self.paths]
        qps = self._flows.qps[self._rows].tolist()
        if not self._cut and prod(map(_ways, qps, sizes)) <= MOST_PLACES:
            whole = [*product(*map(_spreads, qps, sizes))]
            least = (self.least(whole[at : at + AT_ONCE]) for at in range(0, len(whole), AT_ONCE))
            return Best(max(float(values.max()) for values in least), exact=True)
        return Best(self._climb(self.place_of(plan), random, looks), exact=False)

    def place_of(self, plan: Plan) -> Place:
        """Return the place of a plan's QPs; add paths that were not considered before."""
        place = []
        for number, row in enumerate(self._rows):
            own, known = np.flatnonzero(plan.paths.flow == row).tolist(), self.paths[number]
            ways = [plan.paths.of(path).tolist() for path in own]
            known += [way for way in ways if way not in known]
            count = [0] * len(known)
            for path, way in zip(own, ways, strict=True):
                count[known.index(way)] += int(plan.paths.qp_count[path])
            place.append(tuple(count))
        return tuple(place)

    def least(self, places: list[Place]) -> Floats:
        """Return the least value of each place; below 0 if an arc is too full."""
        flows, arcs = self._flows, 2 * self._exact.fabric.link_count
        parts = [self._as_paths(place, number, arcs) for number, place in enumerate(places)]
        everyone = flows.take(np.tile(np.arange(len(flows), dtype=np.int64), len(places)))
        capacity = np.tile(self._exact.fabric.structure.capacity, len(places))
        ratios = flow_ratios(capacity, everyone, join_paths(parts)) / everyone.weight
        least: Floats = ratios.reshape(len(places), -1)[:, self._rows].min(axis=1)
        full = [bool((loads_of(part, flows, arcs) > self._room).any()) for part in parts]
        return np.where(full, -1.0, least)

    def _as_paths(self, place: Place, number: int, arcs: int) -> Paths:
        """Return place ``number`` of many as paths on arcs and flows of its own."""
        flow: list[int] = []
        size: list[int] = []
        ways: list[list[int]] = []
        for row, counts, paths in zip(self._rows, place, self.paths, strict=True):
            for count, path in zip(counts, paths, strict=False):
                if count:
                    flow.append(row + number * len(self._flows))
                    size.append(count)
                    ways.append([arc + number * arcs for arc in path])
        first = starts(np.array([len(way) for way in ways], dtype=np.int64))
        nothing = np.zeros(len(flow), dtype=np.int64)
        return Paths(
            np.array(flow, dtype=np.int64),
            nothing,
            np.array(size, dtype=np.int64) - 1,
            first,
            np.array([arc for way in ways for arc in way], dtype=np.int64),
        )

    def _climb(self, place: Place, random: Random, looks: int) -> float:
        """Move QPs of one or two flows at a time, while that raises the least value."""
        best, value = place, float(self.least([place])[0])
        here, at = best, value
        for look in range(looks):
            tries = [self._moved(here, random) for _ in range(16)]
            least = self.least(tries)
            found = int(least.argmax())
            # A step without gain, now and then, leads out of a dead end.
            if least[found] >= at or (least[found] >= 0 and look % 10 == 9):
                here, at = tries[found], float(least[found])
            if at > value + CLOSE:
                best, value = here, at
            if look % 40 == 39:
                here, at = best, value
        return value

    def _moved(self, place: Place, random: Random) -> Place:
        counts = [[*count] for count in place]
        for _ in range(random.choice([1, 1, 2, 2, 3])):
            of_flow = counts[random.randrange(len(counts))]
            out = random.choice([path for path, count in enumerate(of_flow) if count])
            size = random.choice([1, 1, of_flow[out], random.randint(1, of_flow[out])])
            of_flow[out] -= size
            of_flow[random.randrange(len(of_flow))] += size
        return tuple(tuple(count) for count in counts)


def loads_of(paths: Paths, flows: Flows, arcs: int) -> Floats:
    """Return Gbit/s on each arc: the worst phase of each job, summed over jobs."""
    by_job: dict[int, dict[int, Floats]] = {}
    for path in range(len(paths)):
        row = int(paths.flow[path]) % len(flows)
        of_job = by_job.setdefault(int(flows.job[row]), {})
        load = of_job.setdefault(int(flows.phase[row]), np.zeros(arcs))
        load[paths.of(path) % arcs] += float(
            paths.qp_count[path] * flows.gbps[row] / flows.qps[row]
        )
    total = np.zeros(arcs)
    for phases in by_job.values():
        total += phases.pop(ANY_PHASE, np.zeros(arcs))
        total += np.max([*phases.values(), np.zeros(arcs)], axis=0)
    return total


def _ways(qps: int, paths: int) -> float:
    return inf if paths == 0 else float(comb(qps + paths - 1, paths - 1))


def _spreads(qps: int, paths: int) -> list[tuple[int, ...]]:
    """Return every way to put so many QPs on so many paths."""
    found = []
    for chosen in combinations_with_replacement(range(paths), qps):
        count = [0] * paths
        for path in chosen:
            count[path] += 1
        found.append(tuple(count))
    return found


HASHES = 8
"""Number of hashes that must not serve their slowest flow better than a plan does."""
WORTH = 1e-3
"""Relative gain of the slowest flow that a plan may miss."""


def faults(case: Case, plan: Plan) -> Iterator[str]:
    """Yield all faults of a plan, each with what would be right."""
    yield from soundness(case, plan)
    yield from distance(case, plan)
    yield from unfairness(case, plan, looks=40)
    yield from hashed_better(case, plan)


def soundness(case: Case, plan: Plan) -> Iterator[str]:
    """Yield faults: an invalid plan, routable flows left out, or wrong bounds."""
    try:
        verify_plan(plan)
    except PlanInvalid as invalid:
        yield f"invalid: {invalid}"
        return
    exact = Exact(case.fabric, case.flows)
    left = {*range(len(case.flows))} - {*exact.routed}
    if left != {*plan.unrouted}:
        yield f"unrouted: {sorted(plan.unrouted)}, where no way exists for {sorted(left)}"
        return
    told = plan.certificate
    best, tiers = exact.least(), case.fabric.structure.tier_of_arc
    if told.lower_bound > best.high * (1 + CLOSE):
        yield f"bound: {told.lower_bound:.6g} is above the optimum {best.high:.6g}"
    for number, tier in enumerate(told.tiers):
        if tier.lower_bound > CLOSE:
            least = exact.least(tiers == number).high
            if tier.lower_bound > least * (1 + CLOSE):
                yield f"bound: {tier.lower_bound:.6g} of {tier.tier} is above {least:.6g}"


def distance(case: Case, plan: Plan) -> Iterator[str]:
    """Yield a fault if the worst link is fuller than in the best plan of whole QPs.

    Other links may be as full as that one if that helps the slowest flow.
    """
    overall = float(utilization_of(plan).max(initial=0.0))
    best = Exact(case.fabric, case.flows).least()
    if best.exact and overall > best.high * (1 + CLOSE):
        bound = plan.certificate.lower_bound
        yield f"load: {overall:.6g}, optimum {best.high:.6g}, bound {bound:.6g}"


def unfairness(case: Case, plan: Plan, looks: int = 0) -> Iterator[str]:
    """Yield a fault if a flow's least value could be raised without making the worst link fuller.

    If there are too many places to try all, the search takes ``looks`` steps. Flows without a path
    do not count.
    """
    exact, used = Exact(case.fabric, case.flows), utilization_of(plan)
    if not exact.routed:
        return
    fairest = Fairest(exact, np.full(len(used), max(1.0, float(used.max()))))
    held = float(fairest.least([fairest.place_of(plan)])[0])
    best = fairest.best(plan, Random(case.seed), looks)
    if best.value > held * (1 + WORTH):
        yield f"fairness: least value {held:.6g}, could be {best.value:.6g}"


def hashed_better(case: Case, plan: Plan) -> Iterator[str]:
    """Yield a fault if a hash at equal QPs serves its slowest flow better with no fuller link.

    The hash may not use links in maintenance or lose packets. All flows must have one priority, and
    none may be of class latency, which has to take a shortest path, because hashing ignores that.
    """
    fabric, flows = case.fabric, case.flows
    bound = flows.traffic_class == TrafficClass.LATENCY
    if plan.unrouted or bound.any() or (flows.weight != flows.weight[:1]).any():
        return
    capacity = fabric.structure.capacity
    slowest = float(flow_ratios(capacity, flows, plan.paths).min())
    most = max(1.0, float(utilization_of(plan).max()))
    for seed in range(HASHES):
        hashed = strategy("ecmp")(fabric, flows, seed)
        whole = int(hashed.paths.qp_count.sum()) == int(flows.qps.sum())
        alike = whole and bool(fabric.plannable[hashed.paths.arcs].all())
        fuller = float((hashed.loads / capacity).max()) > most * (1 + CLOSE)
        if alike and not fuller and hashed.slowest > slowest * (1 + WORTH):
            yield f"hashing: slowest flow {slowest:.6g}, hash {seed} has {hashed.slowest:.6g}"
            return


def utilization_of(plan: Plan) -> Floats:
    """Return load over capacity of each arc, computed one flow after another."""
    return plain_loads(plan.fabric, plan.flows, plan.paths) / plan.fabric.structure.capacity


def digest(plan: Plan) -> str:
    """Return a text that is equal for plans that are equal to the last bit."""
    columns = ("flow", "first_qp", "last_qp", "first", "arcs")
    text = hashlib.sha256(repr((plan.certificate, sorted(plan.unrouted.items()))).encode())
    for paths in (plan.paths, plan.backups):
        for column in columns:
            text.update(np.ascontiguousarray(getattr(paths, column)).tobytes())
    return text.hexdigest()


def main(first: int, last: int, kinds: list[str]) -> None:
    """Print the faults of the cases of some seeds."""
    cases = (drawn(seed) for seed in range(first, last + 1))
    for case in cases:
        if not kinds or case.kind in kinds:
            for fault in faults(case, solve(case.fabric, case.flows)):
                sys.stdout.write(f"{case}: {fault}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
