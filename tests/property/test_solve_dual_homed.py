"""Plans for NICs with several links, against bounds from cuts and exact optima."""

from __future__ import annotations

from itertools import permutations as permutations_of
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_controller.solve.assignment import Assignment, inner_paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.fairness.sharing import Shares
from heddle_controller.solve.network import Network
from heddle_controller.solve.repair.backups import (
    OF_ALL,
    OF_LINK,
    SharedLinks,
    floors,
    least_shared,
)
from heddle_controller.solve.repair.spare_paths import poor_backups
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.topology import dual_tor
from tests.bench.workloads import between_switches
from tests.support.against import soundness, utilization_of
from tests.support.depth import fresh_seeds
from tests.support.drawn import KINDS, drawn
from tests.support.exact import CLOSE, Exact
from tests.support.solve_flows import permutations

SEVERAL = ("dual-homed", "dual-plane", "multi-homed")


@pytest.mark.deep
def test_no_plan_of_a_healthy_dual_tor_has_a_less_full_worst_link() -> None:
    """On a healthy dual-ToR fabric, the worst link is at line rate or at the bound.

    Where the bound is too low, because flows of one QP may have to share a link of a NIC, the worst
    link is at the exact optimum.
    """
    for seed in fresh_seeds(5):
        random = Random(seed)
        planes = random.choice([1, 2])
        fabric = dual_tor(
            pairs=random.randint(2, 5),
            spines=planes * random.choice([1, 2, 4]),
            nics_per_pair=random.randint(1, 8),
            planes=planes,
        )
        flows = permutations(fabric, random, random.randint(1, 3), random.choice([1, 2, 4, 8, 16]))
        told = solve(fabric, flows).certificate
        least = max(1.0, told.lower_bound)
        if told.max_utilization > least + CLOSE:
            least = Exact(fabric, flows).least().high
        assert told.max_utilization <= least + CLOSE, (seed, told)


@pytest.mark.deep
def test_plans_are_within_a_qp_of_the_optimum() -> None:
    """Plans for NICs with several links are within one QP of the exact optimum.

    That is one QP of the largest flow on the slowest link. The small fabrics may be damaged. Plans
    are valid, and their certificates are true.
    """
    kinds = [number for number, kind in enumerate(KINDS) if kind in SEVERAL]
    for number in fresh_seeds(6):
        case = drawn(len(KINDS) * (number // len(kinds)) + kinds[number % len(kinds)])
        plan = solve(case.fabric, case.flows)
        assert not [*soundness(case, plan)], case
        best = Exact(case.fabric, case.flows).least()
        step = (case.flows.gbps / case.flows.qps).max(initial=0.0)
        step /= case.fabric.structure.capacity.min()
        worst = float(utilization_of(plan).max(initial=0.0))
        assert worst <= max(best.high, 1.0) + step + CLOSE, case


def test_no_way_shares_less_than_the_links_of_the_nics_allow() -> None:
    """No way shares less with a path than its floor says, and no backup shares more than a way.

    Links of the small fabrics are down. Some floors say that there is
    no other way, and some ways reach their floor.
    """
    alone = reached = 0
    for seed in range(6):
        random = Random(seed)
        planes = 1 + seed % 2
        fabric = dual_tor(pairs=2, spines=2 * planes, nics_per_pair=3, planes=planes)
        links = random.sample(range(fabric.link_count), 4)
        network = Network(fabric.with_links(dict.fromkeys(links, State.DOWN)))
        candidates, idle = Candidates(network, 64), np.zeros(network.arc_count + 1)
        nics = fabric.rows_of_kind(NodeKind.NIC)
        for ends in permutations_of(nics[network.terminal[nics] != NONE].tolist(), 2):
            known, ways = candidates.between(*ends), candidates.with_detours(*ends)
            for row in known[:3]:
                path = row[row != network.pad]
                direct = ~np.isin(path, network.inner).any()
                own = np.array([path[:1], path[-1:] ^ 1])
                of_all = floors(network, np.array(ends)[:, None], own, np.array([direct]))
                floor, shared = int(of_all[0]), SharedLinks(network, ends, path)
                least = int(shared.of_paths(ways).min())
                assert least >= floor, (seed, ends)
                backup = least_shared(candidates, ends, path, idle)
                cost = int(shared.of_paths(backup[None])[0]) if len(backup) else OF_ALL
                assert cost // OF_LINK <= least // OF_LINK, (seed, ends)
                alone += floor == OF_ALL
                reached += 0 < floor == least
    assert alone
    assert reached


@pytest.mark.deep
def test_a_dead_leaf_slows_only_who_loses_a_link() -> None:
    """With a dead leaf, flows of NICs at it get half, and all others their full rate.

    The links of NICs that lost one cannot be below twice their rate. That must not let the planner
    put other flows whole on one of two links.
    """
    for seed in fresh_seeds(2):
        random = Random(seed)
        pairs, nics = random.randint(14, 18), 2 * random.randint(14, 18)
        fabric = dual_tor(pairs=pairs, spines=nics // 2, nics_per_pair=nics, nics_per_host=2)
        flows = permutations(fabric, random, 1, random.choice([2, 4, 8]))
        dead = random.choice(fabric.rows_of_kind(NodeKind.LEAF).tolist())
        plan = solve(fabric.with_nodes({dead: State.DOWN}), flows)
        uplinks = Network(plan.fabric).uplinks
        fewest = np.minimum(uplinks[flows.source], uplinks[flows.destination])
        served = flow_ratios(fabric.structure.capacity, flows, plan.paths)
        assert served == pytest.approx(fewest / 2), seed


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("lost", ["links", "leaf"])
def test_what_nics_lost_slows_nobody_else(planes: int, lost: str) -> None:
    """With NIC links or a leaf down, NICs with both links still send at full rate.

    Those that lost a link send half, or nothing if the two ends share no plane.
    """
    for seed in range(4):
        random = Random(seed)
        fabric = dual_tor(
            pairs=6, spines=8 * planes, nics_per_pair=16, nics_per_host=2, planes=planes
        )
        flows = permutations(fabric, random, random.randint(1, 2), random.choice([2, 4, 8]))
        links = np.flatnonzero(~between_switches(fabric)).tolist()
        dead = random.choice(fabric.rows_of_kind(NodeKind.LEAF).tolist())
        if lost == "leaf":
            fabric = fabric.with_nodes({dead: State.DOWN})
        else:
            fabric = fabric.with_links(dict.fromkeys(random.sample(links, 5), State.DOWN))
        plan = solve(fabric, flows)
        network = Network(fabric)
        fewest = np.minimum(network.uplinks[flows.source], network.uplinks[flows.destination])
        routed = np.isin(np.arange(len(flows)), [*plan.unrouted], invert=True)
        served = flow_ratios(fabric.structure.capacity, flows, plan.paths)
        ends = (flows.source, flows.destination)
        beside = np.max([np.bincount(end)[end] for end in ends], axis=0)
        assert (served * beside * 2 >= fewest - CLOSE)[routed].all(), (seed, served)


@pytest.mark.deep
def test_the_ceiling_of_a_flow_is_the_best_link_of_its_nics() -> None:
    """No path gives a QP of a flow more than the flow's ceiling.

    If a NIC has one link left and that link is full, the ceiling is no higher than what it gives.
    Links of NICs are down at random, and traffic is at line rate.
    """
    held = 0
    for seed in fresh_seeds(4):
        random = Random(seed)
        fabric = dual_tor(pairs=3, spines=2, nics_per_pair=4, nics_per_host=2)
        flows = permutations(fabric, random, random.randint(1, 2), random.choice([2, 4]))
        lost = random.sample(np.flatnonzero(~between_switches(fabric)).tolist(), 3)
        network = Network(fabric.with_links(dict.fromkeys(lost, State.DOWN)))
        assignment = Assignment(network, flows)
        assignment.load_chunks(inner_paths(network, solve(network.fabric, flows).paths))
        shares, candidates = Shares(assignment), Candidates(network, 64)
        for flow in np.unique(shares.flow).tolist():
            source, destination = int(flows.source[flow]), int(flows.destination[flow])
            paths = candidates.between(source, destination)
            best = shares.level[paths].min(axis=1).max()
            assert min(best, assignment.unit[flow]) <= shares.ceiling[flow] * (1 + CLOSE), seed
            for arcs in (network.out(source), network.out(destination) ^ 1):
                if len(arcs) == 1 and shares.level[arcs[0]] < assignment.unit[flow]:
                    assert shares.ceiling[flow] <= shares.level[arcs[0]], seed
                    held += 1
    assert held


def test_both_links_of_a_nic_are_used() -> None:
    """A flow of two QPs, at the rate of both links of its NIC, puts one QP on each."""
    fabric = dual_tor(pairs=2, spines=2, nics_per_pair=2, nics_per_host=1)
    flows = permutations(fabric, Random(1), 1, 2)
    used = utilization_of(solve(fabric, flows))
    first, arcs = fabric.structure.out
    for nic in np.unique(flows.source).tolist():
        assert used[arcs[first[nic] : first[nic + 1]]].tolist() == [1.0, 1.0]


def test_repairs_keep_their_indexes_when_nics_lose_links() -> None:
    """When NICs or leaves lose links, plans are valid and the next repair is ready at once.

    Once all links are back, each backup shares with its path only what it must.
    """
    for seed in range(6):
        random, planes = Random(seed), 1 + seed % 2
        healthy = dual_tor(pairs=3, spines=2 * planes, nics_per_pair=4, planes=planes)
        flows = permutations(healthy, random, 2, random.choice([1, 2, 4]))
        repairer, fabric = Repairer(solve(healthy, flows)), healthy
        links = np.flatnonzero(~between_switches(healthy)).tolist()
        steps = []
        for link in random.sample(links, 4):
            fabric = fabric.with_links({link: State.DOWN})
            steps.append(fabric)
        leaf = random.choice(healthy.structure.switches.tolist())
        plan = repairer.plan
        for after in (*steps, fabric.with_nodes({leaf: State.DOWN}), fabric, healthy):
            plan = repairer.repair(after, flows)
            verify_plan(plan)
            assert repairer.is_ready_for(plan), seed
        assert not plan.unrouted, seed
        assert poor_backups(Network(healthy), flows, plan.paths, plan.backups) == {}, seed
