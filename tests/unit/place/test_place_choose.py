"""Which hosts may be chosen for a job, held against every set of hosts."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.place.ask import PlacementAsk
from heddle_controller.place.choose import choose
from heddle_controller.place.estimate import Surroundings
from heddle_controller.traffic.jobs import flows_of_job
from tests.support.depth import examples, fresh_seeds
from tests.support.solve_flows import flows_of

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
            job = Job("new", tuple(leaves)[:count], 1, Parallelism())
            ask = PlacementAsk(job, tuple(leaves), 5, hosts_per_leaf=most)
            found = choose(ask, around, flows_of_job)
            assert bool(found.refused) == (not fit), (seed, count, found)
            if not found.refused:
                sets = [found.first_fit, *found.others]
                assert all(keeps(hosts) and len({*hosts}) == count for hosts in sets), (seed, found)
