"""Which hosts may be chosen for a job, held against every set of hosts."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.place.ask import PlacementAsk
from heddle_controller.place.choose import choose
from heddle_controller.place.estimate import Surroundings
from heddle_controller.traffic.jobs import flows_of_job
from tests.support.depth import examples, fresh_seeds
from tests.support.solve_flows import flows_of
from tests.support.store_samples import job

LEAVES = 5


def drawn(random: Random) -> dict[str, tuple[int, ...]]:
    """Draw the leaves of some hosts."""
    return {
        f"h{row}": tuple(random.sample(range(LEAVES), random.choice([1, 1, 2, 2, 3])))
        for row in range(random.randint(2, 7))
    }


def attached(leaves: dict[str, tuple[int, ...]]) -> Fabric:
    """Return a fabric with a NIC at each of a host's leaves."""
    nodes = [{"id": f"l{row}", "kind": "leaf"} for row in range(LEAVES)]
    nodes.append({"id": "spine", "kind": "spine"})
    edges = [{"source": f"l{row}", "target": "spine", "gbps": 400.0} for row in range(LEAVES)]
    for host, own in leaves.items():
        for row in own:
            nodes.append({"id": f"{host}-n{row}", "kind": "nic", "host": host})
            edges.append({"source": f"{host}-n{row}", "target": f"l{row}", "gbps": 400.0})
    return parse_fabric({"nodes": nodes, "edges": edges}, "a test")


def test_as_many_hosts_are_found_as_fit_below_the_leaves() -> None:
    """With a limit for each leaf, jobs of every size that fits are placed, and no larger ones."""
    for seed in fresh_seeds(40, examples(40)):
        random = Random(seed)
        leaves, most = drawn(random), random.randint(1, 2)
        fabric = attached(leaves)
        around = Surroundings(fabric, flows_of(fabric))

        def keeps(
            hosts: tuple[str, ...], most: int = most, of: dict[str, tuple[int, ...]] = leaves
        ) -> bool:
            below = Counter(leaf for host in hosts for leaf in of[host])
            return max(below.values()) <= most

        for count in range(1, len(leaves) + 1):
            fit = [hosts for hosts in combinations(leaves, count) if keeps(hosts)]
            ranks = Job("new", tuple(leaves)[:count], 1, Parallelism())
            ask = PlacementAsk(ranks, tuple(leaves), 5, hosts_per_leaf=most)
            found = choose(ask, around, flows_of_job)
            assert bool(found.refused) == (not fit), (seed, count, found)
            if not found.refused:
                sets = [found.first_fit, *found.others]
                assert all(keeps(hosts) and len({*hosts}) == count for hosts in sets), (seed, found)


def test_a_refusal_tells_hosts_that_are_cut_off_from_those_that_a_limit_excludes() -> None:
    """Hosts below a leaf that is down are not counted as too many below a leaf."""
    fabric = attached({"h0": (0,), "h1": (0,), "h2": (1,), "h3": (2,), "h4": (2,)})
    fabric = fabric.with_nodes({fabric.structure.index["l2"]: State.DOWN})
    ranks = Job("new", ("h0", "h1", "h2"), 1, Parallelism())

    def refused(most: int) -> str:
        ask = PlacementAsk(ranks, ("h1", "h2", "h3", "h4"), 5, hosts_per_leaf=most)
        return choose(ask, Surroundings(fabric, flows_of(fabric)), flows_of_job).refused

    cut_off = "takes 3 hosts; 4 are free, 2 of which no link leads to"
    assert refused(2) == f"{cut_off}: wait, or give more candidates"
    ask = PlacementAsk(ranks, ("h0", "h1", "h2", "h3"), 5, hosts_per_leaf=1)
    found = choose(ask, Surroundings(fabric, flows_of(fabric)), flows_of_job)
    assert found.refused == (
        "takes 3 hosts; 4 are free, 1 of which no link leads to, and 2 can be had with at most 1 "
        "below a leaf: wait, give more candidates, or allow more below a leaf"
    )


def test_an_isolated_job_meets_nobody() -> None:
    """No flow of it leaves or enters a leaf that another job's traffic leaves or enters."""
    placed = 0
    for seed in fresh_seeds(60, examples(60)):
        random = Random(seed)
        leaves = drawn(random)
        fabric = attached(leaves)
        nics = [f"{host}-n{leaf}" for host, own in leaves.items() for leaf in own]
        source, destination = random.sample(nics, 2)
        others = flows_of(fabric, (source, destination, 100.0, 1, "other", ""))
        busy = {nic.partition("-n")[2] for nic in (source, destination)}
        for count in range(2, len(leaves) + 1):
            wanted = job("new", tuple(leaves)[:count])
            ask = PlacementAsk(wanted, tuple(leaves), 5, isolated=True)
            found = choose(ask, Surroundings(fabric, others), flows_of_job)
            for hosts in [] if found.refused else [found.first_fit, *found.others]:
                placed += 1
                flows, ids = flows_of_job(ask.on(hosts), fabric), fabric.structure.nodes.ids
                for ends in zip(flows.source.tolist(), flows.destination.tolist(), strict=True):
                    met = {ids[end].partition("-n")[2] for end in ends}
                    assert len(met) == 1 or len(busy) == 1 or not met & busy, (seed, hosts)
    assert placed
