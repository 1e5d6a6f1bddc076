"""Broken plans are refused, and the check says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.plan import Plan, TierCertificate, no_paths
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import MOST_TOLD, PlanInvalid, verify_plan
from tests.support.plan_chance import Draft, Way, Wish, clos, joined, wishes

ACROSS = "n0 leaf0 spine0 leaf1 n2"
OTHER = "n0 leaf0 spine1 leaf1 n2"


def good(ways: list[Way] | None = None, backups: list[Way] | None = None, **unrouted: str) -> Plan:
    """A plan of a flow of four QPs, over two spines if not given, and of unrouted flows."""
    fabric = clos()
    told = {"a": Wish("n0", "n2", qps=4)} | {name: Wish("n1", "n3") for name in unrouted}
    flows = wishes(fabric, **told)
    ways = ways or [(0, 1, ACROSS), (2, 3, OTHER)]
    spare = {} if backups is None else {"a": backups}
    return Draft(fabric, flows, {"a": ways}, spare, unrouted).plan()


def back() -> Plan:
    """A plan of a flow to the first NIC of the fabric, over spine 1."""
    fabric = clos()
    flows = wishes(fabric, a=Wish("n2", "n0"))
    return Draft(fabric, flows, {"a": [(0, 0, "n2 leaf1 spine1 leaf0 n0")]}).plan()


def changed(plan: Plan, part: str, **columns: Any) -> Plan:
    """A plan with other columns in its paths or backups."""
    paths = replace(getattr(plan, part), **{n: np.array(v) for n, v in columns.items()})
    return replace(plan, **{part: paths})


def figures(plan: Plan, **fields: Any) -> Plan:
    """A plan with other figures in its certificate."""
    return replace(plan, certificate=replace(plan.certificate, **fields))


def tier(plan: Plan, name: str, worst: float, bound: float) -> Plan:
    """A plan whose certificate has other figures for one tier."""
    tiers = [t for t in plan.certificate.tiers if t.tier != name]
    return figures(plan, tiers=(*tiers, TierCertificate(name, worst, bound)))


def with_state(plan: Plan, a: str, b: str, state: State) -> Plan:
    """A plan on its fabric with a link in another state."""
    fabric = plan.fabric
    return replace(plan, fabric=fabric.with_links({fabric.find_links(a, b)[0]: state}))


def test_sound_plans_pass() -> None:
    """A sound plan passes, split or not, with backups or without."""
    verify_plan(good())
    verify_plan(good([(0, 3, ACROSS)], [(0, 3, OTHER)]))
    verify_plan(good(b="no path"))
    fabric = clos()
    empty = wishes(fabric)
    verify_plan(Plan(fabric, empty, no_paths(), no_paths()))


BROKEN: dict[str, tuple[Callable[[], Plan], str]] = {
    "bounds": (lambda: changed(good(), "paths", first=[0, 4, 7]), "bounds do not cut"),
    "columns": (lambda: changed(good(), "paths", last_qp=[3]), "columns differ in length"),
    "arc": (lambda: changed(good(), "paths", arcs=[999] * 8), "paths: an arc is not in the fabric"),
    "flow": (lambda: changed(good(), "paths", flow=[0, 5]), "flows are unknown or out of order"),
    "parallel": (lambda: replace(good(), backups=no_paths()), "backups do not stand in parallel"),
    "unknown unrouted": (lambda: replace(good(), unrouted={7: "x"}), "flows that are not there"),
    "start": (lambda: good([(0, 3, "n1 leaf0 spine0 leaf1 n2")]), "starts at 'n1', not at 'n0'"),
    "end": (lambda: good([(0, 3, "n0 leaf0 spine0 leaf1 n3")]), "ends at 'n3', not at 'n2'"),
    "gap": (
        lambda: changed(good(), "paths", arcs=good().paths.arcs[[0, 1, 6, 3, 4, 5, 6, 7]]),
        "jumps from 'spine0' to 'spine1'",
    ),
    "through a NIC": (
        lambda: good([(0, 3, "n0 leaf0 n1 leaf0 spine0 leaf1 n2")]),
        "passes through the NIC 'n1'",
    ),
    "loop": (
        lambda: good([(0, 3, "n0 leaf0 spine0 leaf0 spine1 leaf1 n2")]),
        "flow 'a', path of QPs 0 to 3: meets 'leaf0' twice",
    ),
    "loop to the start": (
        lambda: good([(0, 3, "n0 leaf0 n0 leaf0 spine1 leaf1 n2")]),
        "meets 'n0' twice",
    ),
    "no links": (lambda: good([(0, 1, ACROSS), (2, 3, "")]), "path of QPs 2 to 3: has no links"),
    "down": (
        lambda: with_state(good(), "leaf0", "spine1", State.DOWN),
        "path of QPs 2 to 3: crosses leaf0,spine1,0, which is down",
    ),
    "drained": (
        lambda: with_state(good(), "leaf0", "spine1", State.DRAINED),
        "crosses leaf0,spine1,0, which is drained, though there is a way round",
    ),
    "drained to the first leaf": (
        lambda: with_state(back(), "leaf0", "spine1", State.DRAINED),
        "crosses leaf0,spine1,0, which is drained, though there is a way round",
    ),
    "QPs missing": (
        lambda: good([(0, 1, ACROSS), (3, 3, OTHER)]),
        "flow 'a': paths carry QPs [(0, 1), (3, 3)], not 0 to 3",
    ),
    "QPs twice": (lambda: good([(0, 2, ACROSS), (2, 3, OTHER)]), "flow 'a': paths carry QPs"),
    "QPs too few": (lambda: good([(0, 1, ACROSS), (2, 2, OTHER)]), "flow 'a': paths carry QPs"),
    "QPs turned": (lambda: good([(0, -1, ACROSS), (0, 3, OTHER)]), "flow 'a': paths carry QPs"),
    "silent": (
        lambda: replace(good(b="x"), unrouted={}),
        "flow 'b': is neither routed nor said to be unrouted",
    ),
    "no reason": (lambda: good(b=" "), "flow 'b': has no path, and no reason is given"),
    "both": (
        lambda: replace(good(), unrouted={0: "x"}),
        "flow 'a': has a path, yet counts as unrouted",
    ),
    "backup end": (
        lambda: good([(0, 3, ACROSS)], [(0, 3, "n0 leaf0 spine1 leaf1 n3")]),
        "flow 'a', backup of QPs 0 to 3: ends at 'n3'",
    ),
    "backup useless": (
        lambda: good([(0, 3, ACROSS)], [(0, 3, ACROSS)]),
        "flow 'a', backup of QPs 0 to 3: is the path itself",
    ),
    "backup down": (
        lambda: with_state(good([(0, 3, ACROSS)], [(0, 3, OTHER)]), "leaf1", "spine1", State.DOWN),
        "backup of QPs 0 to 3: crosses leaf1,spine1,0, which is down",
    ),
    "worst": (
        lambda: figures(good(), max_utilization=0.9),
        "worst utilisation is 1, said to be 0.9",
    ),
    "worst NaN": (lambda: figures(good(), max_utilization=np.nan), "said to be nan"),
    "bound": (lambda: figures(good(), lower_bound=1.5), "lower bound 1.5 is not within 0 and 1"),
    "bound below 0": (lambda: figures(good(), lower_bound=-0.1), "lower bound -0.1 is not within"),
    "bound NaN": (lambda: figures(good(), lower_bound=np.nan), "lower bound nan"),
    "no proof": (lambda: figures(good(), proof="none"), "a lower bound and no proof of it"),
    "tier": (
        lambda: tier(good(), "leaf-spine", 0.75, 0.5),
        "worst utilisation of leaf-spine is 0.5, said to be 0.75",
    ),
    "tier bound": (
        lambda: tier(good(), "leaf-spine", 0.5, 0.75),
        "lower bound of leaf-spine 0.75 is not within 0 and 0.5",
    ),
    "tier unknown": (lambda: tier(good(), "leaf-core", 0, 0), "has no tier 'leaf-core'"),
    "tier missing": (
        lambda: figures(good(), tiers=good().certificate.tiers[:1]),
        "says nothing of the tier 'leaf-spine', which carries load",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_plan_is_told_apart(case: str) -> None:
    """A plan with one fault is refused, and the fault is named."""
    build, expected = BROKEN[case]
    with pytest.raises(PlanInvalid) as caught:
        verify_plan(build())
    assert any(expected in problem for problem in caught.value.problems), caught.value.problems
    assert "\n" not in str(caught.value)


def test_maintenance_keeps_what_cannot_go_round() -> None:
    """A flow may stay on a drained link without alternative, but not on one that is down."""
    plan = with_state(good(), "n2", "leaf1", State.DRAINED)
    verify_plan(plan)
    with pytest.raises(PlanInvalid, match=r"crosses n2,leaf1,0, which is down"):
        verify_plan(with_state(good(), "n2", "leaf1", State.DOWN))


def test_maintenance_of_every_way_round() -> None:
    """With both spines drained, either may still be used."""
    plan = with_state(good(), "leaf0", "spine0", State.DRAINED)
    verify_plan(with_state(plan, "leaf0", "spine1", State.DRAINED))


def test_backup_may_share_what_has_no_other_way() -> None:
    """A backup may share a link with its path if it helps against the loss of another."""
    nodes = [{"id": f"s{i}", "kind": "switch"} for i in range(4)]
    nodes += [{"id": name, "kind": "nic"} for name in ("a", "b")]
    links = [("s0", "s1"), ("s1", "s2"), ("s1", "s3"), ("s2", "s3"), ("a", "s0"), ("b", "s2")]
    fabric = joined(nodes, links)
    flows = wishes(fabric, f=Wish("a", "b"))
    spare = {"f": [(0, 0, "a s0 s1 s3 s2 b")]}
    verify_plan(Draft(fabric, flows, {"f": [(0, 0, "a s0 s1 s2 b")]}, spare).plan())


def test_tables_have_a_size() -> None:
    """More entries than a switch holds make a plan invalid; just as many do not."""
    for size, fits in ((4, True), (3, False)):
        fabric = clos(table_size=size)
        flows = wishes(fabric, a=Wish("n0", "n2", qps=4))
        plan = Draft(fabric, flows, {"a": [(0, 1, ACROSS), (2, 3, OTHER)]}).plan()
        if fits:
            verify_plan(plan)
            continue
        with pytest.raises(PlanInvalid, match=r"'leaf0': needs 4 entries, its table holds 3"):
            verify_plan(plan)


def test_many_problems_are_not_told_endlessly() -> None:
    """Of very many problems only the first ``MOST_TOLD`` are told."""
    nodes = [{"id": "s", "kind": "switch"}, *({"id": f"n{i}", "kind": "nic"} for i in range(50))]
    fabric = joined(nodes, [(f"n{i}", "s") for i in range(50)])
    flows = wishes(fabric, **{f"f{i}": Wish(f"n{i}", f"n{i + 1}") for i in range(49)})
    with pytest.raises(PlanInvalid) as caught:
        verify_plan(Plan(fabric, flows, no_paths(), no_paths()))
    assert len(caught.value.problems) == MOST_TOLD
    assert str(caught.value).endswith("(and more problems)")


@pytest.mark.parametrize("case", BROKEN)
def test_broken_plan_is_told_apart_beside_a_sound_one(case: str) -> None:
    """The same problems are told in the same words beside a sound plan of the same flows."""
    build, _ = BROKEN[case]
    broken = build()
    known = good() if len(broken.flows) == 1 else good(b="no path")
    verify_plan(known)
    states = broken.fabric.link_state, broken.fabric.node_state
    beside = replace(broken, fabric=Fabric(known.fabric.structure, *states), flows=known.flows)
    told = []
    for before in (None, (known, entries_of(known))):
        with pytest.raises(PlanInvalid) as caught:
            verify_plan(replace(beside), before)
        told.append(caught.value.problems)
    assert told[0] == told[1]
