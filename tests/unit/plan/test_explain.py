"""Explanations of flows: figures that can be checked by hand, and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan, arc_loads
from heddle_controller.plan.explain import Explanation, explain, explain_index_of
from heddle_controller.plan.shortest_paths import arc_users, cost_of
from tests.support.plan_chance import Draft, Wish, clos, joined, wishes

OVER = "n0 leaf0 spine{} leaf1 n2"
BESIDE = "n1 leaf0 spine{} leaf1 n3"


def two(a: int, b: int, fabric: Fabric | None = None, backup: str = "", way: str = "") -> Plan:
    """Two flows from leaf0 to leaf1, each over a spine; ``way`` is another path of the first."""
    fabric = fabric or clos()
    flows = wishes(fabric, a=Wish("n0", "n2", 60.0), b=Wish("n1", "n3", 30.0))
    ways = {"a": [(0, 0, way or OVER.format(a))], "b": [(0, 0, BESIDE.format(b))]}
    return Draft(fabric, flows, ways, {"a": [(0, 0, backup)]}).plan()


def with_down(fabric: Fabric, *links: tuple[str, str], state: State = State.DOWN) -> Fabric:
    """The fabric with some links in another state, down if not given."""
    return fabric.with_links({fabric.find_links(*ends)[0]: state for ends in links})


def figures(plan: Plan, told: Explanation) -> Mapping[str, tuple[float, list[str]]]:
    """The load in Gbit/s and the sharers of each link, by link name."""
    return {
        plan.fabric.link_name(hop.arc >> 1): (
            hop.load_gbps,
            [plan.flows.ids[row] for row in hop.sharers],
        )
        for hop in told.hops
    }


def test_loads_and_sharers_of_each_link() -> None:
    """Each link of the path is told with its load and the other flows on it."""
    plan = two(0, 0)
    told = explain(plan, 0)
    assert figures(plan, told) == {
        "n0,leaf0,0": (60.0, []),
        "leaf0,spine0,0": (90.0, ["b"]),
        "leaf1,spine0,0": (90.0, ["b"]),
        "n2,leaf1,0": (60.0, []),
    }
    assert [hop.capacity_gbps for hop in told.hops] == [100.0] * 4
    assert told.candidate_count == 2


def test_best_of_many() -> None:
    """If no other shortest path would be less loaded, the reason says so with the figure."""
    told = explain(two(0, 1, backup=OVER.format(1)), 0)
    assert told.reasons == (
        (
            "All QPs take n0 leaf0 spine0 leaf1 n2; the fullest link is n0,leaf0,0, "
            "60 of 100 Gbit/s, which no other flow uses."
        ),
        "It is the best of 2 shortest paths: on none would the worst link be below 0.600.",
        "Should it break, packets turn to n0 leaf0 spine1 leaf1 n2 at once.",
    )


def test_parallel_links_are_told_apart() -> None:
    """Reasons name the parallel links of a path and of its backup by their keys, but for key 0."""
    way, spare = "n0 leaf0 #1 spine0 #0 leaf1 n2", "n0 leaf0 #0 spine0 #1 leaf1 n2"
    told = explain(two(0, 1, clos(parallel=2), backup=spare, way=way), 0)
    assert told.reasons[0].startswith("All QPs take n0 leaf0 [1]spine0 leaf1 n2; ")
    assert (
        told.reasons[2] == "Should it break, packets turn to n0 leaf0 spine0 [1]leaf1 n2 at once."
    )


def test_better_by_itself_is_admitted() -> None:
    """If another path would be less loaded, the reason admits it."""
    told = explain(two(0, 0), 0)
    assert "shared with b" in told.reasons[0]
    assert "would do better on another of 2 shortest paths, worst link 0.600" in told.reasons[1]
    assert "instead of 0.900" in told.reasons[1]
    assert told.reasons[2].startswith("It has no backup of its own")


def test_only_path_and_what_failures_took() -> None:
    """With one spine cut off, its path is the only one, and lost paths are counted."""
    told = explain(two(0, 0, with_down(clos(), ("leaf0", "spine1"))), 0)
    assert told.candidate_count == 1
    assert told.reasons[1] == "It is the only shortest path there is."
    assert told.reasons[-1] == "Links that are down or drained leave 1 of 2 shortest paths."


def test_detour_is_called_one() -> None:
    """The reason for a detour says how much longer it is and what the short paths offer."""
    fabric = clos(leaves=3)
    way = "n0 leaf0 spine0 leaf2 spine1 leaf1 n2"
    plan = Draft(fabric, wishes(fabric, a=Wish("n0", "n2")), {"a": [(0, 0, way)]}).plan()
    assert explain(plan, 0).reasons[1] == (
        "It is 2 links longer than the shortest, of which there are 2; the best of those would "
        "have its worst link at 1.000."
    )


def test_every_short_path_is_cut() -> None:
    """If failures leave only detours, the detour is not blamed on the plan."""
    fabric = with_down(clos(leaves=3), ("leaf0", "spine1"), ("leaf1", "spine0"))
    way = "n0 leaf0 spine0 leaf2 spine1 leaf1 n2"
    plan = Draft(fabric, wishes(fabric, a=Wish("n0", "n2")), {"a": [(0, 0, way)]}).plan()
    told = explain(plan, 0)
    assert told.candidate_count == 1
    assert told.reasons[1] == "It is the only shortest path there is."
    assert told.reasons[-1] == (
        "Every path of 4 links is cut by links that are down or drained; the shortest now has 6."
    )


def test_drained_link_that_is_the_only_way() -> None:
    """A flow kept on a drained link is said to be kept, and on which link."""
    fabric = with_down(clos(), ("n2", "leaf1"), state=State.DRAINED)
    told = explain(two(0, 1, fabric), 0)
    assert told.reasons[1].startswith("No path avoids links that are down or drained")
    assert told.reasons[2] == "It stays on n2,leaf1,0, which is drained, as its only way."
    assert told.reasons[-1] == "With every link up there would be 2 shortest paths."


def backed_up(links: str, way: str, spare: str) -> str:
    """The reason about the backup of a flow from NIC a to NIC b, over links such as "s0-s1"."""
    pairs = [(a, b) for a, b in (link.split("-") for link in links.split())]
    ids = sorted({end for pair in pairs for end in pair})
    nodes = [{"id": node, "kind": "nic" if node in "ab" else "switch"} for node in ids]
    fabric = joined(nodes, pairs)
    flows = wishes(fabric, f=Wish("a", "b"))
    return explain(
        Draft(fabric, flows, {"f": [(0, 0, way)]}, {"f": [(0, 0, spare)]}).plan(), 0
    ).reasons[2]


def test_backup_that_shares_a_link_says_so() -> None:
    """If a backup shares a link with its path, the reason says that it is no help there."""
    links = "a-s0 s0-s1 s1-s2 s1-s3 s2-s4 s3-s4 s4-b"
    assert backed_up(links, "a s0 s1 s2 s4 b", "a s0 s1 s3 s4 b") == (
        "Should it break off s0,s1,0, packets turn to a s0 s1 s3 s4 b at once; the loss of s0,s1,0 "
        "itself is for the underlay."
    )


def test_backup_without_an_entry_says_so() -> None:
    """A switch with a single shortest way has no entry, so it cannot turn packets to a backup."""
    links = "a-s0 s0-s1 s1-s2 s1-s3 s2-s3 s2-b"
    assert backed_up(links, "a s0 s1 s2 b", "a s0 s1 s3 s2 b") == (
        "No switch holds its backup: should the path break, the underlay takes the packets."
    )


def test_unrouted_flow_has_the_plans_reason_first() -> None:
    """A flow without a path has the plan's reason first, and no hops or paths."""
    fabric = with_down(clos(), ("n2", "leaf1"))
    flows = wishes(fabric, a=Wish("n0", "n2"))
    plan = Draft(fabric, flows, {}, unrouted={"a": "n2 has no usable uplink"}).plan()
    told = explain(plan, 0)
    assert told.reasons[0] == "a has no path: n2 has no usable uplink."
    assert (told.hops, told.paths, told.candidate_count) == ((), (), 0)


def test_split_flow_is_explained_path_by_path() -> None:
    """Each path of a split flow names its QPs; the flow's own paths do not count as sharers."""
    fabric = clos()
    flows = wishes(fabric, a=Wish("n0", "n2", 100.0, 4))
    ways = {"a": [(0, 2, OVER.format(0)), (3, 3, OVER.format(1))]}
    told = explain(Draft(fabric, flows, ways).plan(), 0)
    assert told.paths == (0, 1)
    assert [(hop.path, hop.load_gbps) for hop in told.hops if hop.utilization < 1] == [
        (0, 75.0),
        (0, 75.0),
        (1, 25.0),
        (1, 25.0),
    ]
    assert told.reasons[0].startswith("QPs 0 to 2 take n0 leaf0 spine0")
    assert told.reasons[3].startswith("QPs 3 to 3 take n0 leaf0 spine1")


def test_many_sharers_are_counted() -> None:
    """Of many flows on a link, the first few are named and the others counted."""
    fabric = clos(nics=8)
    flows = wishes(fabric, **{f"f{i}": Wish(f"n{i}", f"n{i + 8}", 10.0) for i in range(8)})
    ways = {f"f{i}": [(0, 0, f"n{i} leaf0 spine0 leaf1 n{i + 8}")] for i in range(8)}
    told = explain(Draft(fabric, flows, ways).plan(), 3)
    assert "shared with f0, f1, f2, f4, f5 and 2 more" in told.reasons[0]


def test_links_out_of_use_have_an_index_of_their_own() -> None:
    """Explanations from a shared index equal those made without one, in any state of a link."""
    for state in (State.UP, State.DOWN, State.DRAINED):
        plan = two(0, 0, with_down(clos(), ("leaf0", "spine1"), state=state))
        index = explain_index_of(plan)
        assert (index.now is index.whole) is (state == State.UP)
        assert [explain(plan, row, index) for row in (0, 1)] == [explain(plan, r) for r in (0, 1)]


@pytest.mark.parametrize("phases", [("", ""), ("x", "y"), ("x", "x"), ("x", "")])
def test_the_cost_of_another_link_is_that_of_a_plan_with_the_path_there(
    phases: tuple[str, str],
) -> None:
    """The cost of an arc is its utilisation in the plan with this one path moved to it."""
    plan = two(0, 0)
    flows = replace(
        plan.flows,
        phase=np.array([{"": ANY_PHASE, "x": 0, "y": 1}[name] for name in phases]),
        phase_names=("x", "y"),
        job=np.zeros(2, dtype=np.int64),
    )
    plan = replace(plan, flows=flows)
    arcs = len(plan.fabric.structure.tail)
    uses = arc_users(plan)
    for path in range(len(plan.paths)):
        costs = cost_of(plan, path, uses)(np.arange(arcs))
        ways = [plan.paths.of(row) for row in range(len(plan.paths))]
        for arc in range(arcs):
            moved = [*ways[:path], np.array([arc]), *ways[path + 1 :]]
            first = np.concatenate([[0], np.cumsum([len(way) for way in moved])])
            other = replace(plan.paths, arcs=np.concatenate(moved), first=first)
            expected = arc_loads(arcs, flows, other)[arc] / plan.fabric.structure.capacity[arc]
            assert costs[arc] == pytest.approx(expected)


def test_what_a_flow_sends_is_told_where_it_is_known() -> None:
    """The first reason says how many bytes a flow sends at a time and its rate, if known."""
    plan = two(0, 0)
    assert not any("at a time" in reason for reason in explain(plan, 0).reasons)
    flows = replace(plan.flows, bytes=np.array([1536.0, 1 << 40]))
    plan = replace(plan, flows=flows)
    assert explain(plan, 0).reasons[0] == "It sends 1.5 KiB at a time and asks for 60 Gbit/s."
    assert explain(plan, 1).reasons[0] == "It sends 1 TiB at a time and asks for 30 Gbit/s."
