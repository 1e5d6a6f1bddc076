"""Writing plan.json, and reading it back for a repair."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import (
    fabric_document,
    load_fabric_file,
    parse_fabric,
)
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.model.files.plan_file import (
    NEW,
    ROUTE_CHANGED,
    load_plan,
    parse_plan,
    save_plan,
)
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan, no_paths
from tests.support.plan_chance import Draft

GOLDEN = Path(__file__).parents[2] / "golden"


def fabric() -> Fabric:
    """The golden fabric."""
    return load_fabric_file(GOLDEN / "fabric.json")


def flows() -> Flows:
    """The golden flows."""
    return resolve(load_demands(GOLDEN / "flows.csv"), fabric(), origin="flows.csv")


def golden_plan() -> Plan:
    """A plan with a split flow over parallel links, a backup, and a flow without a path."""
    return Draft(
        fabric(),
        flows(),
        ways={
            "f1": [
                (0, 0, "h1n0 leaf1 #7 spine1 leaf2 h3n0"),
                (1, 3, "h1n0 leaf1 #b spine1 leaf2 h3n0"),
            ],
            "f3": [(0, 1, "h2n0 leaf1 #0 spine1 leaf2 h4n0")],
        },
        backups={"f1": [(0, 0, "h1n0 leaf1 #0 spine1 leaf2 h3n0"), (1, 3, "")]},
        unrouted={"f2": "every path crosses a link that is down"},
    ).plan()


def same(a: Paths, b: Paths) -> bool:
    """Whether two sets of paths are equal."""
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("flow", "first_qp", "last_qp", "first", "arcs")
    )


def without_timing(path: Path) -> dict[str, Any]:
    """A plan document without its timing, which differs from run to run."""
    document: dict[str, Any] = json.loads(path.read_bytes())
    assert document.pop("timing").keys() == {"load_seconds", "solve_seconds", "write_seconds"}
    return document


def test_written_plan_is_the_golden_plan(tmp_path: Path) -> None:
    """A written plan has the fields, order, shares, QPs and keys that outside tools rely on."""
    path = tmp_path / "out.json"
    timing = {"load_seconds": 0.5, "solve_seconds": 0.25}
    took = save_plan(golden_plan(), path, timing=timing, changed=2)
    told = json.loads(path.read_bytes())["timing"]
    assert {name: told[name] for name in timing} == timing
    assert 0 < told["write_seconds"] <= took
    document = without_timing(path)
    golden = json.loads((GOLDEN / "golden_plan.json").read_bytes())
    assert document == golden
    assert [*document] == [*golden]


def test_golden_plan_comes_back(tmp_path: Path) -> None:
    """Paths, backups, certificate and reasons are read back, plain and packed."""
    plan = golden_plan()
    for name in ("p.json", "p.json.gz"):
        save_plan(plan, tmp_path / name)
        again = load_plan(tmp_path / name, plan.fabric, plan.flows)
        assert same(again.paths, plan.paths)
        assert same(again.backups, plan.backups)
        assert again.certificate == plan.certificate
        assert again.unrouted == plan.unrouted
    assert gzip.decompress((tmp_path / "p.json.gz").read_bytes()).startswith(b'{"certificate":')


def test_a_plan_is_read_on_the_fabric_it_was_made_for() -> None:
    """States of links and nodes are the plan's, or the fabric's if the plan has none.

    States of unknown nodes and links are ignored.
    """
    whole, as_is = fabric(), fabric()
    whole = replace(
        whole,
        link_state=np.zeros_like(whole.link_state),
        node_state=np.zeros_like(whole.node_state),
    )
    then = parse_plan(document(), whole, flows(), "p").fabric
    assert then.structure is whole.structure
    assert np.array_equal(then.link_state, as_is.link_state)
    assert np.array_equal(then.node_state, as_is.node_state)
    told = document()
    del told["states"]
    assert parse_plan(told, whole, flows(), "p").fabric is whole
    told["states"] = [{"node": "gone", "state": "down"}]
    told["states"] += [{"source": "leaf1", "target": "gone", "key": 0, "state": "down"}]
    assert not parse_plan(told, as_is, flows(), "p").fabric.link_state.any()


def test_plan_of_nothing(tmp_path: Path) -> None:
    """A plan without flows is written and read like any other."""
    none = flows().take(np.empty(0, dtype=np.int64))
    plan = Plan(fabric(), none, no_paths(), no_paths())
    save_plan(plan, tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_bytes())["routes"] == []
    assert len(load_plan(tmp_path / "p.json", plan.fabric, none).paths) == 0


def document() -> dict[str, Any]:
    """The golden plan as a document."""
    found: dict[str, Any] = json.loads((GOLDEN / "golden_plan.json").read_bytes())
    return found


def test_order_of_routes_and_paths_does_not_matter() -> None:
    """Routes, and the paths of a flow, may come in any order."""
    turned = document()
    turned["routes"].reverse()
    turned["routes"][1]["paths"].reverse()
    turned["routes"][1]["backups"].reverse()
    plan = parse_plan(turned, fabric(), flows(), "p")
    assert same(plan.paths, golden_plan().paths)
    assert same(plan.backups, golden_plan().backups)


def test_flows_that_are_gone_are_dropped() -> None:
    """Routes of flows that no longer exist are dropped; other flows keep theirs under new rows."""
    left = flows().take(np.array([2]))
    plan = parse_plan(document(), fabric(), left, "p")
    assert plan.paths.flow.tolist() == [0]
    assert plan.unrouted == {}


def test_new_and_changed_flows_have_no_path_yet() -> None:
    """A new flow, or one with other QPs or ends, has no path and a reason that says why."""
    wanted = flows()
    changed = wanted.source.copy()
    changed[2] = wanted.source[0]
    now = replace(wanted.with_qps(2), ids=("f1", "new", "f3"), source=changed)
    plan = parse_plan(document(), fabric(), now, "p")
    assert plan.unrouted == {0: ROUTE_CHANGED, 1: NEW, 2: ROUTE_CHANGED}
    assert len(plan.paths) == len(plan.backups) == 0


def test_keys_match_as_strings() -> None:
    """A plan with keys as strings, as on the wire, fits a fabric with integer keys."""
    told = document()
    for route in told["routes"]:
        for way in route["paths"]:
            way["keys"] = [str(key) for key in way["keys"]]
    assert same(parse_plan(told, fabric(), flows(), "p").paths, golden_plan().paths)


def first_way(**fields: object) -> Callable[[dict[str, Any]], object]:
    """A change that replaces fields of the first path of the first route."""
    return lambda told: told["routes"][0]["paths"][0].update(fields)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no routes": (lambda d: d.pop("routes"), "routes: missing; give a plan.json"),
    "no flow": (lambda d: d["routes"][0].pop("flow"), r"routes[0]: names no flow"),
    "no object": (lambda d: d["routes"].append("f1"), r"routes[2]: names no flow"),
    "twice": (lambda d: d["routes"].append(d["routes"][0]), "route 'f1': is there twice"),
    "no paths": (lambda d: d["routes"][0].update(paths=[]), "route 'f1': has no paths"),
    "backups": (lambda d: d["routes"][0]["backups"].pop(), "has 2 paths and 1 backups"),
    "no keys": (first_way(keys=None), "route 'f1': needs lists nodes and keys"),
    "too few keys": (first_way(keys=[0]), "route 'f1': needs lists nodes and keys"),
    "no qps": (first_way(qps=None), "route 'f1': qps is None; give the first and the last"),
    "qps turned": (first_way(qps=[3, 0]), "route 'f1': qps is [3, 0]"),
    "qps endless": (first_way(qps=[0, 2**63]), "route 'f1': qps is [0, 9223"),
    "share": (first_way(share=0.5), "route 'f1': share is 0.5, but its QPs are 0.25 of the flow"),
    "no number": (first_way(share="1/4"), "route 'f1': share is '1/4', but its QPs are 0.25"),
    "node": (first_way(nodes=["h1n0", "x"], keys=[0]), "route 'f1': node 'x' is not in the fabric"),
    "node a list": (first_way(nodes=["h1n0", []], keys=[0]), "nodes must be lists of node ids"),
    "no link": (
        first_way(nodes=["h1n0", "leaf2"], keys=[0]),
        "route 'f1': link 'h1n0,leaf2,0' is not in the fabric",
    ),
    "key": (
        lambda d: d["routes"][1]["paths"][0]["keys"].__setitem__(1, 9),
        "route 'f3': link 'leaf1,spine1,9' is not in the fabric",
    ),
    "backup": (
        lambda d: d["routes"][0]["backups"][0].update(nodes=["h1n0", "h2n0"], keys=[0]),
        "route 'f1': link 'h1n0,h2n0,0' is not in the fabric",
    ),
    "states": (lambda d: d.update(states={}), "states: give a list of nodes and links"),
    "state": (
        lambda d: d["states"].append({"node": "leaf1"}),
        "states[2]: needs a state: up, down",
    ),
    "unrouted": (lambda d: d.update(unrouted=[{"flow": "f2"}]), "unrouted: give a list of objects"),
    "certificate": (lambda d: d.update(certificate=3), "certificate: is not an object"),
    "figure": (
        lambda d: d["certificate"].update(lower_bound="low"),
        "certificate: lower_bound is 'low'; give a finite number",
    ),
    "tiers": (lambda d: d["certificate"].update(tiers=[1]), "certificate: tiers and tier_bounds"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_plan_that_does_not_belong_is_refused(case: str) -> None:
    """A malformed plan, or one of another fabric, is refused in one line that names the route."""
    change, expected = REFUSED[case]
    told = document()
    change(told)
    with pytest.raises(InputError) as caught:
        parse_plan(told, fabric(), flows(), "plan.json")
    assert str(caught.value).startswith("plan.json: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shares_may_be_rounded_or_left_out() -> None:
    """A share of two digits and a path without a share are read like the exact share."""
    told = document()
    one, other = told["routes"][0]["paths"]
    one["share"] = 0.254
    other.pop("share")
    assert same(parse_plan(told, fabric(), flows(), "p").paths, golden_plan().paths)


def test_plan_that_is_no_object_is_refused(tmp_path: Path) -> None:
    """A file that holds a list is refused."""
    path = tmp_path / "p.json"
    path.write_bytes(b"[]")
    with pytest.raises(InputError, match="not a JSON object"):
        load_plan(path, fabric(), flows())


def test_plan_survives_a_link_that_went_down() -> None:
    """A plan is read although its links are down, so that a repair can begin with it."""
    sick = fabric_document(fabric())
    for edge in sick["edges"]:
        edge["state"] = "down"
    plan = parse_plan(document(), parse_fabric(sick, "x"), flows(), "p")
    assert len(plan.paths) == 3


def test_nowhere_to_write(tmp_path: Path) -> None:
    """A missing folder is told in one clear line, and nothing is left behind."""
    with pytest.raises(InputError, match=r"none/p\.json: cannot be written: No such file"):
        save_plan(golden_plan(), tmp_path / "none" / "p.json")
    assert [*tmp_path.iterdir()] == []


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """A failed write keeps the old file."""
    path = tmp_path / "p.json"
    path.write_bytes(b"old")
    (tmp_path / "blocked").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        save_plan(golden_plan(), path / "p.json")
    assert path.read_bytes() == b"old"


def test_document_is_one_object(tmp_path: Path) -> None:
    """The two halves that are written one after the other make one JSON object."""
    save_plan(golden_plan(), tmp_path / "p.json")
    fields = [*orjson.loads((tmp_path / "p.json").read_bytes())]
    assert fields == ["certificate", "timing", "changed", "states", "routes", "unrouted"]


def test_each_path_names_the_source_port_of_each_of_its_qps(tmp_path: Path) -> None:
    """Ports come in the order of QPs, flows of one pair share none, and the range wraps round."""
    drawn = flows()
    f1 = drawn.ids.index("f1")
    pair = drawn.take(np.array([f1, f1]))
    many = replace(pair, ids=("big", "f1"), qps=np.array([16382, 4], dtype=np.int64))
    whole, low, high = (f"h1n0 leaf1 #{key} spine1 leaf2 h3n0" for key in ("7", "7", "b"))
    ways = {"big": [(0, 16381, whole)], "f1": [(0, 0, low), (1, 3, high)]}
    save_plan(Draft(fabric(), many, ways=ways).plan(), tmp_path / "plan.json")
    routes = json.loads((tmp_path / "plan.json").read_bytes())["routes"]
    big, f1_paths = ([way["ports"] for way in route["paths"]] for route in routes)
    assert big == [list(range(49152, 65534))]
    assert f1_paths == [[65534], [65535, 49152, 49153]]
