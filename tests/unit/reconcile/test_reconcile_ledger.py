from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE, distinct
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.program import Entries, Program, no_entries
from heddle_controller.plan.diff import partners
from heddle_controller.plan.programs import entries_of
from heddle_controller.reconcile.rollout.answers import (
    first_ledger,
    may_hold,
    next_ledger,
    translated,
)
from heddle_controller.reconcile.rollout.ledger import begin, nothing_known
from heddle_controller.reconcile.rollout.paths import crossings_of, joined_entries
from heddle_controller.state.records import Committed, PlanFacts, Programmed
from tests.support.reconcile_network import plan_on, random_fabric, random_path
from tests.support.reconcile_switches import Match, Way, match_of, way_of


def line() -> Fabric:
    """Return a fabric of switches s0 to s3, all joined, with a NIC at each end."""
    nodes = [{"id": f"s{n}", "kind": "switch"} for n in range(4)]
    nodes += [{"id": "a", "kind": "nic"}, {"id": "b", "kind": "nic"}]
    edges = [{"source": f"s{m}", "target": f"s{n}", "gbps": 1} for n in range(4) for m in range(n)]
    edges += [
        {"source": "a", "target": "s0", "gbps": 1},
        {"source": "b", "target": "s3", "gbps": 1},
    ]
    return parse_fabric({"nodes": nodes, "edges": edges}, "line")


def way(fabric: Fabric, *nodes: str) -> list[int]:
    """Return the arcs from node to node."""
    index, links = fabric.structure.index, fabric.structure.links
    arcs = []
    for here, there in pairwise(nodes):
        (row,) = fabric.find_links(here, there)
        arcs.append(2 * row + int(links.a[row] != index[here]))
    return arcs


def test_depth_is_the_longest_way_that_is_left() -> None:
    """A switch's depth is the longest way that is left, over all paths through it."""
    fabric = line()
    short = way(fabric, "a", "s0", "s2", "s3", "b")
    long = way(fabric, "a", "s0", "s1", "s2", "s3", "b")
    a, b = fabric.structure.index["a"], fabric.structure.index["b"]
    plan = plan_on(fabric, [(a, b)], [[short, long]])
    pair = np.array([a * fabric.node_count + b])
    found = crossings_of(plan, pair)
    switches = np.array([fabric.structure.index[s] for s in ("s0", "s1", "s2", "s3")])
    assert found.lookup(switches, np.repeat(pair, 4)).tolist() == [3, 2, 1, 0]
    assert found.lookup(switches, np.repeat(pair + 1, 4)).tolist() == [NONE] * 4


def test_opposite_orders_are_left_to_the_stages() -> None:
    """Two paths that cross two switches in opposite orders have no depth, but count as crossed."""
    fabric = line()
    one = way(fabric, "a", "s0", "s1", "s2", "s3", "b")
    other = way(fabric, "a", "s0", "s2", "s1", "s3", "b")
    a, b = fabric.structure.index["a"], fabric.structure.index["b"]
    plan = plan_on(fabric, [(a, b)], [[one, other]])
    pair = np.array([a * fabric.node_count + b])
    found = crossings_of(plan, pair)
    assert found.lookup(np.array([0, 1, 2, 3]), np.repeat(pair, 4)).tolist() == [NONE] * 4
    assert found.crossed().tolist() == pair.tolist()
    ledger = begin(plan, 1, entries_of(plan), no_entries(), nothing_known(fabric.node_count))
    assert (ledger.depth == 2 * ledger.desired.stage).all()


def test_what_an_earlier_leader_may_have_set_goes_in_its_turn() -> None:
    """Entries of a plan whose leader died midway are known when a third plan comes.

    Otherwise a switch further on would remove its entries of that plan first, and send packets
    back.
    """
    fabric = line()
    ends = [(fabric.structure.index["a"], fabric.structure.index["b"])]
    first, second, third = (
        plan_on(fabric, ends, [[way(fabric, "a", "s0", *middle, "s3", "b")]])
        for middle in ((), ("s1", "s2"), ("s2",))
    )
    made = [
        Committed(plan, Program(1, at, at, entries_of(plan)), PlanFacts(), Programmed())
        for at, plan in enumerate((first, second, third), 1)
    ]
    ledger = next_ledger(first_ledger(made[1], made[:1]), made[2], [])
    held = named(fabric, ledger.old.take(np.flatnonzero(ledger.present)))
    assert {switch for switch, _ in held} >= {
        switch for switch, _ in named(fabric, entries_of(second))
    }


def test_a_leader_knows_what_plans_that_did_not_come_about_have_left() -> None:
    """A new leader knows the entries of an old plan that switches still hold.

    The two plans after it were never completed. Without this, these entries would be swept in any
    order, and packets from switches further up would be sent back.
    """
    fabric = line()
    ends = [(fabric.structure.index["a"], fabric.structure.index["b"])]
    plans = [
        plan_on(fabric, ends, [[way(fabric, "a", "s0", *middle, "s3", "b")]])
        for middle in (("s1", "s2"), (), ("s2",))
    ]
    facts = Programmed(1, {"s3": 3})
    made = [
        Committed(plan, Program(1, at, at, entries_of(plan)), PlanFacts(), facts)
        for at, plan in enumerate(plans, 1)
    ]
    assert [may_hold(made[2], generation) for generation in (2, 1, 0)] == [True, True, False]
    ledger = first_ledger(made[2], made[:2])
    known = named(fabric, ledger.old.take(np.flatnonzero(ledger.present)))
    left = named(fabric, entries_of(plans[0]))
    assert {switch for switch, _ in left} >= {"s1"}
    assert {switch for switch, _ in known} >= {switch for switch, _ in left} - {"s3"}
    assert "s3" not in {switch for switch, _ in known}
    heights = dict(zip(ledger.old.switch.tolist(), ledger.old_height.tolist(), strict=True))
    first, second = fabric.structure.index["s1"], fabric.structure.index["s2"]
    assert heights.get(second, 0) < heights[first], "it goes from the source on"


def random_entries(random: Random, fabric: Fabric) -> Entries:
    """Return the entries of a random plan."""
    nics = np.flatnonzero(fabric.structure.nodes.kind == 0).tolist()
    pairs = [(one, other) for one in nics for other in nics if one != other]
    chosen = random.sample(pairs, min(12, len(pairs)))
    return entries_of(plan_on(fabric, chosen, [[random_path(random, fabric, *p)] for p in chosen]))


def named(fabric: Fabric, entries: Entries) -> dict[tuple[str, Match], Way]:
    """Return entries by the names of their switches, matches and ways."""
    ids = fabric.structure.nodes.ids
    return {
        (ids[entries.switch[row]], match_of(fabric, entries, row)): way_of(fabric, entries, row)
        for row in range(len(entries))
    }


@pytest.mark.parametrize("seed", range(5))
def test_entries_in_the_rows_of_another_fabric(seed: int) -> None:
    """Entries keep their names in the new rows. A switch that loses an entry counts as unknown."""
    random = Random(seed)
    fabric = random_fabric(random, 6, 6)
    entries = random_entries(random, fabric)
    document = fabric_document(fabric)
    random.shuffle(document["nodes"])
    random.shuffle(document["edges"])
    shuffled = parse_fabric(document, "shuffled")
    knowledge = nothing_known(fabric.node_count)
    known = knowledge.noted("unknown", np.arange(fabric.node_count), value=False)
    known = known.noted("generation", fabric.structure.index["s2"], value=7)
    moved, after = translated(entries, known, fabric.structure, shuffled.structure)
    assert named(shuffled, moved) == named(fabric, entries)
    assert (np.diff(moved.switch) >= 0).all()
    assert not after.unknown.any()
    assert after.generation[shuffled.structure.index["s2"]] == 7
    document["nodes"] = [node for node in document["nodes"] if node["id"] != "n0"]
    document["edges"] = [edge for edge in document["edges"] if edge["source"] != "n0"]
    smaller = parse_fabric(document, "smaller")
    moved, after = translated(entries, known, fabric.structure, smaller.structure)
    before = named(fabric, entries)
    kept = {name: content for name, content in before.items() if "n0" not in name[1]}
    assert named(smaller, moved) == kept
    lost = {switch for switch, _ in before.keys() - kept.keys()}
    assert {smaller.structure.nodes.ids[row] for row in np.flatnonzero(after.unknown)} == lost


@pytest.mark.parametrize("seed", range(5))
def test_partners_are_of_one_match(seed: int) -> None:
    """Entries of one switch and match find each other. The others have no partner."""
    random = Random(seed)
    fabric = random_fabric(random, 5, 5)
    old, new = random_entries(random, fabric), random_entries(random, fabric)
    rows = {name: row for row, name in enumerate(named(fabric, old))}
    expected = [rows.get(name, NONE) for name in named(fabric, new)]
    assert partners(old, new).tolist() == expected
    assert partners(no_entries(), new).tolist() == [NONE] * len(new)
    together = joined_entries([old.take(np.arange(len(old))[::-1]), no_entries()])
    assert named(fabric, together) == named(fabric, old)


def test_distinct() -> None:
    """Each value comes once, in ascending order."""
    assert distinct(np.array([3, 1, 3, -1, 1])).tolist() == [-1, 1, 3]
    assert distinct(np.empty(0, dtype=np.int64)).tolist() == []
