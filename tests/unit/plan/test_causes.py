"""Causes of a plan: what changed since the plan before it."""

from __future__ import annotations

from dataclasses import replace

from heddle_controller.model.fabric import State
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.plan.diff import NAMES_PER_CAUSE, Cause, CauseKind, causes_between
from heddle_controller.solve import plan_anew
from tests.support.plan_chance import Wish, clos, wishes

FABRIC = clos(spines=3, nics=30)
ONE = wishes(FABRIC, a=Wish("n0", "n30"), b=Wish("n1", "n31", job="other"))
PLAN = plan_anew(FABRIC, ONE)


def test_what_led_to_a_plan_is_told_by_kind() -> None:
    """Causes name links and switches that were lost, came back, were drained and undrained.

    They name jobs that came, went or have other flows. If nothing changed, the plan is just better.
    """
    lost = FABRIC.with_links(dict.fromkeys(FABRIC.find_links("leaf0", "spine1"), State.DOWN))
    drained = FABRIC.with_nodes({FABRIC.structure.index["spine2"]: State.DRAINED})
    kind = CauseKind
    assert causes_between(None, PLAN) == (
        Cause(kind.FABRIC_PUT),
        Cause(kind.JOB_CAME, ("job", "other"), 2),
    )
    after = replace(PLAN, fabric=lost)
    assert causes_between(PLAN, after) == (Cause(kind.LINK_LOST, ("leaf0,spine1,0",), 1),)
    assert causes_between(after, PLAN) == (Cause(kind.LINK_BACK, ("leaf0,spine1,0",), 1),)
    assert causes_between(after, replace(PLAN, fabric=drained)) == (
        Cause(kind.LINK_BACK, ("leaf0,spine1,0",), 1),
        Cause(kind.SWITCH_DRAINED, ("spine2",), 1),
    )
    undrained = causes_between(replace(PLAN, fabric=drained), PLAN)
    assert undrained == (Cause(kind.SWITCH_UNDRAINED, ("spine2",), 1),)
    quiet = FABRIC.with_links(dict.fromkeys(FABRIC.find_links("leaf0", "spine1"), State.DRAINED))
    link = ("leaf0,spine1,0",)
    assert causes_between(PLAN, replace(PLAN, fabric=quiet)) == (Cause(kind.LINK_DRAINED, link, 1),)
    back = causes_between(replace(PLAN, fabric=quiet), PLAN)
    assert back == (Cause(kind.LINK_UNDRAINED, link, 1),)
    less = replace(PLAN, flows=wishes(FABRIC, a=Wish("n0", "n30")))
    assert causes_between(PLAN, less) == (Cause(kind.JOB_GONE, ("other",), 1),)
    slower = wishes(FABRIC, a=Wish("n0", "n30", gbps=50.0), b=Wish("n1", "n31", job="other"))
    changed = Cause(kind.FLOWS_CHANGED, ("job",), 1)
    assert causes_between(PLAN, replace(PLAN, flows=slower)) == (changed,)
    moved = wishes(FABRIC, z=Wish("n2", "n32", job="new"), a=Wish("n0", "n29"))
    assert causes_between(PLAN, replace(PLAN, flows=moved)) == (
        Cause(kind.JOB_CAME, ("new",), 1),
        Cause(kind.JOB_GONE, ("other",), 1),
        changed,
    )
    assert causes_between(PLAN, replace(PLAN)) == (Cause(kind.BETTER_PLAN),)
    other = clos(spines=2, nics=30)
    assert causes_between(PLAN, replace(PLAN, fabric=other)) == (Cause(kind.FABRIC_PUT),)


def test_a_fabric_that_grew_leaves_flows_as_they_are() -> None:
    """NICs have other rows in a fabric with more switches, but their flows have not changed."""
    document = fabric_document(FABRIC)
    document["nodes"].insert(0, {"id": "spine3", "kind": "spine"})
    for leaf in ("leaf0", "leaf1"):
        document["edges"].append({"source": leaf, "target": "spine3", "gbps": 100.0})
    grown = parse_fabric(document, "test")
    asked = {"a": Wish("n0", "n30"), "b": Wish("n1", "n31", job="other")}
    after = plan_anew(grown, wishes(grown, **asked))
    assert after.flows.source.tolist() != PLAN.flows.source.tolist()
    assert causes_between(PLAN, after) == (Cause(CauseKind.FABRIC_PUT),)
    slower = plan_anew(grown, wishes(grown, **asked | {"a": Wish("n0", "n30", gbps=50.0)}))
    put = Cause(CauseKind.FABRIC_PUT)
    assert causes_between(PLAN, slower) == (put, Cause(CauseKind.FLOWS_CHANGED, ("job",), 1))


def test_flows_of_no_job_are_no_job_that_came_or_went() -> None:
    """A demand set may have flows without a job: with them, flows changed, and jobs did not."""
    loose = wishes(FABRIC, a=Wish("n0", "n30"), b=Wish("n1", "n31", job=""))
    none = replace(PLAN, flows=wishes(FABRIC, a=Wish("n0", "n30")))
    some = replace(PLAN, flows=loose)
    assert causes_between(none, some) == (Cause(CauseKind.FLOWS_CHANGED),)
    assert causes_between(some, none) == (Cause(CauseKind.FLOWS_CHANGED),)


def test_many_names_are_counted_and_some_told() -> None:
    """Of many names only the first ``NAMES_PER_CAUSE`` are told, with the count of all."""
    many = wishes(FABRIC, **{f"f{n}": Wish(f"n{n}", f"n{n + 30}", job=f"j{n}") for n in range(30)})
    (_, cause) = causes_between(None, replace(PLAN, flows=many))
    assert (cause.kind, len(cause.names), cause.count) == (CauseKind.JOB_CAME, NAMES_PER_CAUSE, 30)
