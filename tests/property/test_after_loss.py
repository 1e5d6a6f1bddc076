"""The N-1 certificate against brute force: each loss is tried by itself, with other code."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from heddle_agent.fib import Link
from heddle_agent.table import Forwarding, GroupKey
from heddle_controller.model.arrays import NONE, Ints, starts
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_controller.solve.losses import after_losses, better_backups, protected
from heddle_controller.solve.losses.moves import Kind
from heddle_emulator.strategy import Outcome, whole
from heddle_emulator.switches import Switches, next_hop
from heddle_emulator.topology import clos, dual_tor, three_tier
from heddle_emulator.walk import measure
from tests.support.agent_worlds import push, take
from tests.support.depth import examples
from tests.support.plan_chance import random_fabric, random_plan, with_failures
from tests.support.solve_flows import any_flows, flows_of, nic_ids, permutations

SEEDS = st.integers(0, 2**32 - 1)
CLOSE = 1e-6
MOST_CHOICES = 5_000
"""Most choices of backups for one loss that are all tried."""


def single_losses(fabric: Fabric) -> dict[str, dict[str, list[int]]]:
    """The links that each single loss takes, by kind of loss and by its name."""
    structure = fabric.structure
    kind, ids, links = structure.nodes.kind, structure.nodes.ids, structure.links
    found: dict[str, dict[str, list[int]]] = {"link": {}, "switch": {}}
    for row, (a, b) in enumerate(zip(links.a.tolist(), links.b.tolist(), strict=True)):
        if NodeKind.NIC in {kind[a], kind[b]} or not fabric.carries[2 * row]:
            continue
        found["link"][f"{ids[a]},{ids[b]},{links.key[row]}"] = [row]
        for end in (a, b):
            beside = np.flatnonzero((links.a == end) | (links.b == end)).tolist()
            found["switch"][ids[end]] = beside
    return found


def hops_left(fabric: Fabric, destination: int) -> dict[int, int]:
    """The number of links between each switch and the NIC's nearest switch, with all links up."""
    structure = fabric.structure
    nics = structure.nodes.kind == NodeKind.NIC
    ends = [*zip(structure.tail.tolist(), structure.head.tolist(), strict=True)]
    edge = {tail for tail, head in ends if head == destination}
    left, breadth = dict.fromkeys(edge, 0), 0
    while edge:
        breadth += 1
        edge = {a for a, b in ends if b in edge and a not in left and not nics[a]}
        left |= dict.fromkeys(edge, breadth)
    return left


def turned_to(plan: Plan, row: int) -> bool:
    """Return whether a path, taken by itself, has a backup that some switch has an entry for.

    The backup must leave the path at a switch where routing has a choice or would take another hop.
    From there on, each hop of the backup comes nearer to the destination, so that plain routing can
    carry the rest of it.
    """
    structure = plan.fabric.structure
    way, spare = plan.paths.of(row).tolist(), plan.backups.of(row).tolist()
    same = 0
    while same < min(len(way), len(spare)) and way[same] == spare[same]:
        same += 1
    if not same or same in {len(way), len(spare)}:
        return False
    destination = int(plan.flows.destination[plan.paths.flow[row]])
    left = hops_left(plan.fabric, destination)
    tail, head = structure.tail.tolist(), structure.head.tolist()
    here = tail[way[same]]
    ways, rounds = (
        {arc >> 1 for arc in one[same:] if head[arc] != destination} for one in (way, spare)
    )
    if here not in left or ways & rounds:
        return False
    nearer = [
        arc
        for arc in np.flatnonzero(structure.tail == here).tolist()
        if (head[arc] == destination if left[here] == 0 else left.get(head[arc]) == left[here] - 1)
    ]
    if nearer == [way[same]] and len(way) - same == left[here] + 1:
        return False  # routing goes there by itself, so there is no entry
    after = [left[tail[arc]] for arc in spare[same + 1 :]]
    return after[:1] <= [left[here]] and all(b == a - 1 for a, b in pairwise(after))


def left_after(plan: Plan, lost: list[int]) -> tuple[Paths, set[int]]:
    """Return the paths and backups that carry QPs after a loss, and the flows that it cuts off."""
    structure, flows = plan.fabric.structure, plan.flows
    dead = set(lost)
    taken: list[list[int]] = []
    kept: list[int] = []
    apart: set[int] = set()
    for row in range(len(plan.paths)):
        way, spare = plan.paths.of(row).tolist(), plan.backups.of(row).tolist()
        flow = int(plan.paths.flow[row])
        if not dead.intersection(arc >> 1 for arc in way):
            taken.append(way)
        elif turned_to(plan, row) and not dead.intersection(arc >> 1 for arc in spare):
            taken.append(spare)
        else:
            target = int(flows.destination[flow])
            into = [
                arc
                for arc in np.flatnonzero(structure.head == target).tolist()
                if plan.fabric.carries[arc]
            ]
            if (way[0] >> 1) in dead or all(arc >> 1 in dead for arc in into):
                apart.add(flow)
            continue
        kept.append(row)
    some = plan.paths.take(np.array(kept, dtype=np.int64))
    first = starts(np.array([len(way) for way in taken], dtype=np.int64))
    arcs = np.array([arc for way in taken for arc in way], dtype=np.int64)
    return Paths(some.flow, some.first_qp, some.last_qp, first, arcs), apart


def after(plan: Plan, lost: list[int]) -> tuple[float, float, set[int]]:
    """Worst utilisation, slowest flow and flows with lost QPs after a loss."""
    paths, apart = left_after(plan, lost)
    outcome = Outcome(plan.fabric, whole(plan.flows, paths))
    routed = set(np.unique(plan.paths.flow).tolist()) - apart
    ratios = [float(outcome.ratios[flow]) for flow in routed]
    broken = {flow for flow in routed if outcome.lost[flow]}
    return outcome.max_utilization, min(ratios, default=1.0), broken


def check(plan: Plan) -> None:
    """Assert that the certificate of link and switch losses agrees with brute force."""
    told = {one.kind: one for one in after_losses(plan)}
    losses = {kind: names for kind, names in single_losses(plan.fabric).items() if names}
    assert told.keys() == losses.keys()
    for kind, names in losses.items():
        found = {name: after(plan, links) for name, links in names.items()}
        note(f"{told[kind]}; {found}")
        one = told[kind]
        assert one.worst_utilization == pytest.approx(
            max(u for u, _, _ in found.values()), rel=CLOSE
        )
        slowest = min(ratio for _, ratio, _ in found.values())
        assert one.slowest_flow == pytest.approx(slowest, rel=CLOSE, abs=CLOSE)
        assert found[one.of][1] == pytest.approx(slowest, rel=CLOSE, abs=CLOSE)
        assert one.stranded == len(found[one.of][2])
        assert one.lower_bound <= one.worst_utilization


@pytest.mark.deep
@settings(max_examples=examples(25), deadline=None)
@given(SEEDS)
def test_any_plan_of_any_graph(seed: int) -> None:
    """The certificate is right for random plans, with useless backups and links down."""
    rng = Random(seed)
    check(random_plan(rng, with_failures(rng, random_fabric(rng))))


@pytest.mark.deep
@settings(max_examples=examples(6), deadline=None)
@given(SEEDS, st.booleans())
@example(seed=4657, zones=False)  # the slowest phase is not the one that fills its link
def test_plans_of_jobs_with_phases(seed: int, zones: bool) -> None:  # noqa: FBT001 - hypothesis
    """After a loss, too, loads of phases that never send together are not added up."""
    rng = Random(seed)
    fabric = (
        three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2, taper=2.0)
        if zones
        else clos(leaves=3, spines=rng.randint(2, 4), nics_per_leaf=2)
    )
    check(solve(fabric, any_flows(rng, fabric, 16)))


def _pairs(rng: Random, fabric: Fabric) -> Flows:
    """Draw flows of various rates and QP counts, at most one between any two NICs."""
    nics = nic_ids(fabric)
    pairs = [(a, b) for a in nics for b in nics if a != b]
    return flows_of(
        fabric,
        *(
            (
                *pair,
                rng.choice([400.0, 100.0, 250.0]),
                rng.choice([1, 2, 4]),
                f"j{rng.randrange(2)}",
                "",
            )
            for pair in rng.sample(pairs, min(rng.randint(1, 14), len(pairs)))
        ),
    )


def _agents(plan: Plan, switches: Switches) -> dict[int, Forwarding]:
    """The agents of all switches by switch row, holding the entries of a plan."""
    entries, fabric = entries_of(plan), plan.fabric
    structure = fabric.structure
    ids, links = structure.nodes.ids, structure.links

    def link(row: int) -> Link:
        return Link.between(ids[links.a[row]], ids[links.b[row]], str(links.key[row]))

    wanted: dict[int, list[tuple[tuple[str, str, int, int], GroupKey]]] = {}
    bounds = entries.risk_first.tolist()
    for row, (low, high) in enumerate(pairwise(bounds)):
        risks = entries.risk_links[low:high].tolist()
        key = (
            next_hop(fabric, int(entries.primary[row])),
            None if entries.backup[row] == NONE else next_hop(fabric, int(entries.backup[row])),
            tuple(sorted(link(risk) for risk in risks if risk >= 0)),
            tuple(sorted(link(~risk) for risk in risks if risk < 0)),
        )
        match = (
            ids[entries.source[row]],
            ids[entries.destination[row]],
            int(entries.source_port[row]),
            int(entries.destination_port[row]),
        )
        wanted.setdefault(int(entries.switch[row]), []).append((match, key))
    agents = {}
    for switch, fib in switches.fibs.items():
        first, out = structure.out
        own = out[first[switch] : first[switch + 1]].tolist()
        local = [next_hop(fabric, arc).port for arc in own]
        agents[switch] = Forwarding(ids[switch], fib, local)
        assert not take(agents[switch], push(wanted.get(switch, ()))).failures
    return agents


@pytest.mark.deep
@settings(max_examples=examples(5), deadline=None)
@given(SEEDS, st.integers(2, 4), st.integers(2, 4))
@example(seed=38931, leaves=4, spines=2)  # routing takes a detour because of earlier losses
def test_agents_do_what_the_certificate_says(seed: int, leaves: int, spines: int) -> None:
    """Packets that follow the agents' tables after each loss get what the certificate says.

    The fabric has two tiers and some links are already down. The agents hold the plan's entries and
    learn of the loss. No new plan is made, and routing does not react. A backup that takes a detour
    has no entry (``plan.programs``) and does not count. Where routing happens to take the detour by
    itself because of earlier losses, more packets arrive than the certificate promises; the test
    then compares with the plan alone.
    """
    rng = Random(seed)
    fabric = with_failures(rng, clos(leaves=leaves, spines=spines, nics_per_leaf=2), 0.05)
    plan = solve(fabric, _pairs(rng, fabric))
    told = {one.kind: one for one in after_losses(plan)}
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    for kind, names in single_losses(fabric).items():
        worst, slowest = 0.0, 1.0
        for name, lost in names.items():
            switches = Switches(fabric, seed=1)
            agents = _agents(plan, switches)
            switches.change(dict.fromkeys(lost, State.DOWN))
            gone = {
                Link.between(ids[links.a[row]], ids[links.b[row]], str(links.key[row])): False
                for row in lost
            }
            for agent in agents.values():
                agent.links_changed(gone)
            seen = measure(switches.world, plan.flows, switches)
            routed = np.bincount(plan.paths.flow, minlength=len(plan.flows)) > 0
            down = switches.world.with_links({}).carries
            cut = np.bincount(fabric.structure.head[down], minlength=len(ids)) == 0
            ends = cut[plan.flows.source] | cut[plan.flows.destination]
            ratios = seen.ratios[routed & ~ends]
            used = (seen.loads / fabric.structure.capacity).max(initial=0.0)
            least = float(ratios.min(initial=1.0))
            note(f"{name}: {used} {least}")
            if (_arriving(plan, seen.paths) > _arriving(plan, left_after(plan, lost)[0])).any():
                used, least, _ = after(plan, lost)
            worst, slowest = max(worst, used), min(slowest, least)
        note(str(told.get(kind)))
        if names:
            assert told[kind].worst_utilization == pytest.approx(worst, rel=CLOSE)
            assert told[kind].slowest_flow == pytest.approx(slowest, rel=CLOSE, abs=CLOSE)


def _arriving(plan: Plan, paths: Paths) -> Ints:
    """The number of QPs of each flow that have a path, shape (flows,)."""
    qps = paths.last_qp - paths.first_qp + 1
    return np.bincount(paths.flow, qps, len(plan.flows)).astype(np.int64)


@pytest.mark.deep
@settings(max_examples=examples(4), deadline=None)
@given(SEEDS, st.integers(3, 4))
def test_no_backups_beat_the_bound(seed: int, spines: int) -> None:
    """With any drawn backups for the same paths, the worst link is at the bound or above."""
    rng = Random(seed)
    fabric = clos(leaves=3, spines=spines, nics_per_leaf=2)
    plan = solve(fabric, _pairs(rng, fabric))
    bounds = {one.kind: one.lower_bound for one in after_losses(plan)}
    for _ in range(10):
        other = replace(plan, backups=_drawn_backups(rng, plan))
        for kind, names in single_losses(fabric).items():
            worst = max(after(other, lost)[0] for lost in names.values())
            assert bounds[kind] <= worst + CLOSE


@pytest.mark.deep
@settings(max_examples=examples(5), deadline=None)
@given(SEEDS, st.integers(2, 4))
def test_the_bound_holds_for_every_choice_of_backups(seed: int, spines: int) -> None:
    """The bound holds against all choices of spines for the paths that a loss breaks."""
    rng = Random(seed)
    fabric = clos(leaves=3, spines=spines, nics_per_leaf=2)
    if rng.random() < 0.5:
        fabric = with_failures(rng, fabric, 0.1)
    flows = any_flows(rng, fabric, 8) if rng.random() < 0.5 else _pairs(rng, fabric)
    _hold_against_every_choice(solve(fabric, flows))


@pytest.mark.deep
@settings(max_examples=examples(5), deadline=None)
@given(SEEDS, st.integers(2, 3), st.sampled_from([1.0, 2.0]))
def test_the_bound_holds_between_zones(seed: int, zones: int, taper: float) -> None:
    """The bound holds against all choices of spines and cores, whatever step is lost."""
    rng = Random(seed)
    fabric = three_tier(zones=zones, leaves=2, spines=2, nics_per_leaf=1, cores=4, taper=taper)
    if rng.random() < 0.5:
        fabric = with_failures(rng, fabric, 0.1)
    flows = any_flows(rng, fabric, 6) if rng.random() < 0.5 else _pairs(rng, fabric)
    _hold_against_every_choice(solve(fabric, flows))


@pytest.mark.deep
@settings(max_examples=examples(5), deadline=None)
@given(SEEDS, st.integers(2, 3), st.integers(1, 2))
def test_the_bound_holds_for_nics_with_two_links(seed: int, pairs: int, nics: int) -> None:
    """The bound holds against all choices of spines where a NIC has another switch left."""
    rng = Random(seed)
    fabric = dual_tor(pairs=pairs, spines=2, nics_per_pair=nics, nics_per_host=1)
    if rng.random() < 0.5:
        fabric = with_failures(rng, fabric, 0.1)
    plan = solve(fabric, _pairs(rng, fabric))
    _hold_against_every_choice(plan)


def test_the_bound_counts_what_comes_to_the_other_switch_of_a_nic() -> None:
    """Where a NIC loses one of two switches, all comes over the other and its link to the NIC."""
    fabric = dual_tor(pairs=2, spines=2, nics_per_pair=2, nics_per_host=1)
    nics = nic_ids(fabric)
    for senders, gbps in ((2, 100.0), (1, 400.0)):
        flows = [(nic, nics[2], gbps, 4, "j", "") for nic in nics[:senders]]
        told = {one.kind: one for one in after_losses(solve(fabric, flows_of(fabric, *flows)))}
        assert told["switch"].lower_bound == pytest.approx(told["switch"].worst_utilization)


@pytest.mark.parametrize(("phases", "bound"), [("pp", 2.0), ("pq", 1.0)])
def test_the_bound_counts_phases_that_meet(phases: str, bound: float) -> None:
    """A path that falls on its own phase makes a link fuller; on another phase it does not."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    nics = nic_ids(fabric)
    rows = [(nics[at], nics[at + 2], 400.0, 1, "j", phase) for at, phase in enumerate(phases)]
    for one in after_losses(solve(fabric, flows_of(fabric, *rows))):
        assert one.lower_bound == pytest.approx(bound)
        assert one.worst_utilization == pytest.approx(bound)


def test_what_is_slow_stays_slow_after_losses_that_touch_nothing() -> None:
    """A flow over both switches of a pair is as slow as before after the loss of any spine."""
    fabric = dual_tor(pairs=1, spines=2, nics_per_pair=2, nics_per_host=1)
    source, destination = nic_ids(fabric)
    plan = solve(fabric, flows_of(fabric, (source, destination, 1000.0, 2, "j", "")))
    for one in after_losses(plan):
        assert one.slowest_flow == pytest.approx(0.4)  # 2 x 200 of 1000 Gbit/s
        assert one.of in {"s0", "p0a,s0,0"}


def test_backups_share_the_links_to_the_other_switches_of_nics() -> None:
    """Chosen for lost switches, backups of NICs with two links do as well as any could."""
    fabric = dual_tor(pairs=8, spines=4, nics_per_pair=16)
    plan = solve(fabric, permutations(fabric, Random(1), 1))
    told = {one.kind: one for one in protected(plan, "switch").certificate.after_loss}
    assert told["switch"].worst_utilization == pytest.approx(told["switch"].lower_bound)


def _hold_against_every_choice(plan: Plan) -> None:
    bounds = {one.kind: one.lower_bound for one in after_losses(plan)}
    for kind, names in single_losses(plan.fabric).items():
        if names:
            reached = max(_least_of_all(plan, lost) for lost in names.values())
            note(f"{kind}: bound {bounds[kind]}, reached {reached}")
            assert bounds[kind] <= reached + CLOSE


def test_the_bound_counts_links_out_of_a_zone() -> None:
    """A path that loses its step from a spine to a core shares one of the zone's other steps."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2, taper=2.0)
    nics, half = nic_ids(fabric), 4
    plan = solve(
        fabric,
        flows_of(
            fabric, *((a, nics[(row + half) % 8], 400.0, 1, "j", "") for row, a in enumerate(nics))
        ),
    )
    (link,) = (one for one in after_losses(plan) if one.kind == "link")
    assert link.lower_bound == pytest.approx(link.worst_utilization)


def _least_of_all(plan: Plan, lost: list[int]) -> float:
    """The utilisation of the worst link after a loss, with the best backups of equal length.

    It is infinite if some broken path that is not cut off has no such backup, because the bound
    holds only where each path has one, or if there are too many choices to try.
    """
    paths, structure, carries = plan.paths, plan.fabric.structure, plan.fabric.carries
    ends = [*zip(structure.tail.tolist(), structure.head.tolist(), strict=True)]
    nics, live = structure.nodes.kind == NodeKind.NIC, dict[int, list[int]]()
    for arc, (tail, _) in enumerate(ends):
        if carries[arc] and not nics[tail] and arc >> 1 not in lost:
            live.setdefault(tail, []).append(arc)
    ends_at = {ends[arc][1] for arcs in live.values() for arc in arcs}
    choices: list[list[list[int]]] = []
    for row in range(len(paths)):
        way = paths.of(row).tolist()
        cut = way[0] >> 1 in lost or ends[way[-1]][1] not in ends_at
        if cut or not any(arc >> 1 in lost for arc in way):
            choices.append([[]])
            continue
        grown = [way[:1]]
        for _ in way[1:]:
            grown = [[*one, arc] for one in grown for arc in live.get(ends[one[-1]][1], [])]
        choices.append([one for one in grown if ends[one[-1]][1] == ends[way[-1]][1]])
    if math.prod(map(len, choices)) > MOST_CHOICES:
        return np.inf
    least = np.inf
    for ways in product(*choices):
        first = starts(np.array([len(way) for way in ways], dtype=np.int64))
        arcs = np.array([arc for way in ways for arc in way], dtype=np.int64)
        backups = Paths(paths.flow, paths.first_qp, paths.last_qp, first, arcs)
        used, _, stranded = after(replace(plan, backups=backups), lost)
        least = least if stranded else min(least, used)
    return least


def _drawn_backups(rng: Random, plan: Plan) -> Paths:
    """For each path over a spine, draw a backup over any other spine."""
    structure, paths = plan.fabric.structure, plan.paths
    ways: list[list[int]] = []
    spines = plan.fabric.rows_of_kind(NodeKind.SPINE).tolist()
    for row in range(len(paths)):
        way = paths.of(row).tolist()
        if len(way) < 4:
            ways.append([])
            continue
        low, high = structure.tail[way[1]], structure.head[way[2]]
        spine = rng.choice([one for one in spines if one != structure.head[way[1]]])
        up = int(np.flatnonzero((structure.tail == low) & (structure.head == spine))[0])
        down = int(np.flatnonzero((structure.tail == spine) & (structure.head == high))[0])
        ways.append([way[0], up, down, way[3]])
    first = starts(np.array([len(way) for way in ways], dtype=np.int64))
    arcs = np.array([arc for way in ways for arc in way], dtype=np.int64)
    return Paths(paths.flow, paths.first_qp, paths.last_qp, first, arcs)


def _over_subscribed(rng: Random, *, zones: bool) -> Fabric:
    """A fabric whose leaves or zones ask for more than their uplinks can carry."""
    spines = rng.randint(3, 4)
    if zones:
        taper = rng.choice([2.0, 3.5])
        return three_tier(
            zones=2, leaves=2, spines=spines, nics_per_leaf=4, cores=spines, taper=taper
        )
    return clos(leaves=3, spines=spines, nics_per_leaf=rng.randint(spines, 3 * spines))


@pytest.mark.deep
@settings(max_examples=examples(6), deadline=None)
@given(SEEDS, st.booleans())
def test_over_subscribed_plans_are_told_and_bounded(seed: int, zones: bool) -> None:  # noqa: FBT001
    """Plans with backups moved to where there is room are valid, and their certificate is right."""
    rng = Random(seed)
    fabric = _over_subscribed(rng, zones=zones)
    plan = solve(fabric, permutations(fabric, rng, rng.randint(1, 2)))
    verify_plan(plan)
    check(plan)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("zones", [False, True])
def test_over_subscribed_plans_are_at_the_bound_after_a_loss(
    seed: int,
    zones: bool,  # noqa: FBT001
) -> None:
    """After a loss, no other backups would do better, even if some links are fuller than others.

    Leaves of 32 NICs have 10 uplinks, or zones of 512 NICs have 256 links to cores.
    """
    fabric = (
        three_tier(zones=8, leaves=32, spines=16, nics_per_leaf=16, cores=16, taper=2.0)
        if zones
        else clos(leaves=24, spines=10, nics_per_leaf=32)
    )
    plan = solve(fabric, permutations(fabric, Random(seed), 1))
    for one in after_losses(plan):
        assert one.worst_utilization == pytest.approx(one.lower_bound)


@pytest.mark.deep
@settings(max_examples=examples(6), deadline=None)
@given(SEEDS, st.booleans())
def test_backups_of_repaired_plans_find_room_again(seed: int, zones: bool) -> None:  # noqa: FBT001
    """After losses, backups change only where that helps, and paths stay."""
    rng = Random(seed)
    fabric = _over_subscribed(rng, zones=zones)
    flows = permutations(fabric, rng, rng.randint(1, 2))
    plan = solve(fabric, flows)
    assert better_backups(plan) is None
    repaired = Repairer(plan).repair(with_failures(rng, fabric, 0.1), flows)
    better = better_backups(repaired)
    if better is not None:
        verify_plan(better)
        check(better)
        assert better.paths is repaired.paths
        pairs = [*zip(after_losses(repaired), after_losses(better), strict=True)]
        change = [then.worst_utilization - one.worst_utilization for one, then in pairs]
        change += [one.slowest_flow - then.slowest_flow for one, then in pairs]
        assert min(change) < 0 >= max(change) - CLOSE


@pytest.mark.parametrize("zones", [False, True])
def test_backups_are_at_the_bound_after_jobs_end(zones: bool) -> None:  # noqa: FBT001
    """When one of two jobs has ended, backups of the other are as good as any could be."""
    fabric = (
        three_tier(zones=4, leaves=8, spines=8, nics_per_leaf=16, cores=8, taper=2.0)
        if zones
        else clos(leaves=12, spines=10, nics_per_leaf=32)
    )
    flows = permutations(fabric, Random(0), 2)
    left = flows.take(np.flatnonzero(flows.job == 1))
    better = better_backups(Repairer(solve(fabric, flows)).repair(fabric, left))
    assert better is not None
    for one in better.certificate.after_loss:
        assert one.worst_utilization == pytest.approx(one.lower_bound)
    assert better_backups(better) is None


@pytest.mark.parametrize("zones", [False, True])
def test_a_repair_is_as_good_after_a_loss_as_a_new_plan(
    zones: bool,  # noqa: FBT001
) -> None:
    """After two losses, few backups change, and they are as good as those of a new plan."""
    fabric = (
        three_tier(zones=8, leaves=32, spines=16, nics_per_leaf=16, cores=16, taper=2.0)
        if zones
        else clos(leaves=24, spines=10, nics_per_leaf=32)
    )
    flows = permutations(fabric, Random(1), 1)
    lost = [*fabric.find_links("z0-l00", "z0-s00"), *fabric.find_links("z1-l03", "z1-s05")]
    if not zones:
        lost = [*fabric.find_links("l00", "s0"), *fabric.find_links("l07", "s5")]
    assert len(lost) == 2
    hurt = fabric.with_links(dict.fromkeys(lost, State.DOWN))
    repaired = Repairer(solve(fabric, flows)).repair(hurt, flows)
    better = better_backups(repaired)
    assert better is not None
    fresh = after_losses(solve(hurt, flows))
    for one, other in zip(better.certificate.after_loss, fresh, strict=True):
        assert one.worst_utilization <= other.worst_utilization * (1 + CLOSE)
    assert (better.backups.arcs != repaired.backups.arcs).mean() < 0.1
    assert better_backups(better) is None


@pytest.mark.deep
@settings(max_examples=examples(5), deadline=None)
@given(SEEDS, st.sampled_from(["link", "switch"]))
def test_chosen_backups_are_valid_and_no_worse(seed: int, kind: Kind) -> None:
    """Paths stay, and after the worst loss of the given kind links are no fuller than before."""
    rng = Random(seed)
    fabric = with_failures(rng, clos(leaves=4, spines=4, nics_per_leaf=3), 0.1)
    plan = solve(fabric, any_flows(rng, fabric, examples(12, 30)))
    chosen = protected(plan, kind)
    verify_plan(chosen)
    check(chosen)
    assert chosen.paths is plan.paths
    before, then = (
        [one for one in told if one.kind == kind]
        for told in (after_losses(plan), chosen.certificate.after_loss)
    )
    for one, other in zip(before, then, strict=True):
        assert other.worst_utilization <= one.worst_utilization * (1 + CLOSE)


def test_what_falls_goes_where_there_is_room() -> None:
    """Both flows of a lost uplink turn to the one of two other uplinks that is half empty."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=6, nics_per_host=6)
    nics = nic_ids(fabric)
    pairs = [*zip(nics[:6], nics[6:], strict=True)]
    rates = [400.0, 400.0, 100.0, 100.0, 50.0, 50.0]
    rows = [(*pair, rate, 1, "j", "") for pair, rate in zip(pairs, rates, strict=True)]
    plan = solve(fabric, flows_of(fabric, *rows))
    link, _ = protected(plan, "link").certificate.after_loss
    assert link.worst_utilization == pytest.approx(link.lower_bound)


def test_a_fabric_of_one_switch_has_nothing_to_lose() -> None:
    """With no link between switches, the certificate reports no losses."""
    fabric = clos(leaves=1, spines=1, nics_per_leaf=2)
    (link,) = fabric.find_links("l0", "s0")
    alone = fabric.with_links({link: State.DOWN})
    flows = flows_of(fabric, ("l0-h0-n0", "l0-h0-n1", 400.0, 1, "j", ""))
    assert after_losses(solve(alone, flows)) == ()


def test_a_bridge_is_named() -> None:
    """The loss of a leaf's only uplink stops its flows, and the certificate names that link."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1, nics_per_host=1)
    source, destination = nic_ids(fabric)
    flows = flows_of(fabric, (source, destination, 400.0, 2, "j", ""))
    link, switch = after_losses(solve(fabric, flows))
    assert link.of in {"l0,s0,0", "l1,s0,0"}
    assert switch.of == "s0"
    for one in (link, switch):
        assert (one.slowest_flow, one.stranded) == (0.0, 1)
