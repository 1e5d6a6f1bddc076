"""The demo's own checks, on paths made by hand: they must notice what they claim to check."""

from __future__ import annotations

import dataclasses
import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from heddle.v1 import common_pb2, plan_pb2
from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.client import routed
from heddle_emulator.demo.scene import FABRICS, scene_jobs
from heddle_emulator.demo.screen import Screen
from heddle_emulator.demo.story import disagreements, gap, needless, strays
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from heddle_emulator.walk import Fate, Walk, crossing, moved

FABRIC = clos(leaves=2, spines=3, nics_per_leaf=3)
IDS, INDEX = FABRIC.structure.nodes.ids, FABRIC.structure.index


def _flows(count: int = 3, qps: int = 1) -> Flows:
    """Return flows of 400 Gbit/s from NIC i of the first leaf to NIC i of the second."""
    flows = flows_between(FABRIC, "shift", qps=qps).take(np.arange(count))
    return dataclasses.replace(flows, ids=tuple(f"f{row}" for row in range(count)))


def _arcs(*nodes: str) -> list[int]:
    arcs = []
    for a, b in itertools.pairwise(nodes):
        (link,) = FABRIC.find_links(a, b)
        arcs.append(2 * link + int(FABRIC.structure.links.a[link] != INDEX[a]))
    return arcs


def _paths(*spines: str | None) -> Paths:
    """Return paths: flow i goes by the i-th spine in the list. None is no path."""
    ways = {
        row: _arcs(f"l0-h0-n{row}", "l0", spine, "l1", f"l1-h0-n{row}")
        for row, spine in enumerate(spines)
        if spine is not None
    }
    rows = np.array(list(ways), dtype=np.int64)
    return Paths(
        rows,
        np.zeros_like(rows),
        np.zeros_like(rows),
        4 * np.arange(len(rows) + 1),
        np.array([arc for way in ways.values() for arc in way], dtype=np.int64),
    )


def _walk(*spines: str | None) -> Walk:
    """Return a walk: flow i goes by the i-th spine in the list. None is lost at the first leaf."""
    flow = np.arange(len(spines))
    arcs = np.full((len(spines), 4), NONE)
    for row, spine in enumerate(spines):
        way = _arcs(f"l0-h0-n{row}", "l0", *([spine, "l1", f"l1-h0-n{row}"] if spine else []))
        arcs[row, : len(way)] = way
    fate = np.where(arcs[:, -1] == NONE, Fate.BLACK_HOLE, Fate.DELIVERED)
    return Walk(flow, np.zeros_like(flow), fate, FABRIC.structure.head[arcs[:, -1]], arcs)


def _route(flow: int, spine: str, port: int = 49152) -> plan_pb2.Route:
    nodes = [f"l0-h0-n{flow}", "l0", spine, "l1", f"l1-h0-n{flow}"]
    path = common_pb2.Path(nodes=nodes, keys=["0"] * 4, share=1.0)
    return plan_pb2.Route(flow=f"f{flow}", source_port=port, paths=[path])


def test_walk_and_plan_agree_only_if_every_hop_does() -> None:
    """A flow by another spine, lost or without a route is a stray. The order does not matter."""
    flows = _flows()
    told = routed(FABRIC, flows, [_route(2, "s2"), _route(0, "s0"), _route(1, "s1")])
    assert strays(_paths("s0", "s1", "s2"), told).tolist() == []
    assert strays(_paths("s0", "s2", "s2"), told).tolist() == [1]
    assert strays(_paths("s0", None, "s2"), told).tolist() == [1]
    silent = plan_pb2.Route(flow="f1", unrouted_reason="no way")
    part = routed(FABRIC, flows, [_route(0, "s0"), silent, _route(2, "s2")])
    assert strays(_paths("s0", "s1", "s2"), part).tolist() == [1]
    assert part.unrouted == {"f1": "no way"}


def test_routes_must_be_those_of_the_flows() -> None:
    """An extra flow, a missing flow and an unknown link are each refused by name."""
    flows = _flows(2)
    routes = [_route(0, "s0"), _route(1, "s1")]
    with pytest.raises(InputError, match="flow f2"):
        routed(FABRIC, flows, [*routes, _route(2, "s2")])
    with pytest.raises(InputError, match="flow f1: is not listed"):
        routed(FABRIC, flows, routes[:1])
    routes[1].paths[0].keys[1] = "7"
    with pytest.raises(InputError, match="l0,s1,7"):
        routed(FABRIC, flows, routes)


def test_ports_come_with_the_flow_they_are_of() -> None:
    """Ports are by row of flow, in whatever order the routes are listed."""
    routes = [_route(1, "s1", 50001), _route(0, "s0", 50000)]
    assert routed(FABRIC, _flows(2), routes).source_port.tolist() == [50000, 50001]


def test_who_moved_and_who_was_on_a_link() -> None:
    """A flow has moved if a QP has another path or none. Crossing counts both directions."""
    before, after = _walk("s0", "s1", "s2"), _walk("s0", "s2", None)
    assert moved(before, after).tolist() == [1, 2]
    (link,) = FABRIC.find_links("l1", "s2")
    assert crossing(after, [link]).tolist() == [1]


def test_a_move_that_made_room_was_needed() -> None:
    """s0 is cut, and flow 0 takes s1. Flow 1 has to leave it, or s1 would be too full."""
    cut = FABRIC.with_links(dict.fromkeys(FABRIC.find_links("l0", "s0"), State.DOWN))
    flows = _flows(2)
    before, after = _paths("s0", "s1"), _paths("s1", "s2")
    assert needless(cut, flows, before, after, np.array([1])).tolist() == []


def test_a_move_for_its_own_sake_was_not() -> None:
    """Flow 0 goes to s2, so flow 1 could have stayed on s1."""
    cut = FABRIC.with_links(dict.fromkeys(FABRIC.find_links("l0", "s0"), State.DOWN))
    flows = _flows(2)
    before, after = _paths("s0", "s1"), _paths("s2", "s2")
    assert needless(cut, flows, before, after, np.array([1])).tolist() == [1]


def test_gap_and_disagreement() -> None:
    """The gap is that of the given tier. A worst link that was measured otherwise is reported."""
    certificate = common_pb2.Certificate(
        tiers=[
            common_pb2.TierCertificate(tier="leaf-spine", max_utilization=1.25, lower_bound=1.0),
            common_pb2.TierCertificate(tier="spine-core", max_utilization=0.5, lower_bound=0.5),
        ]
    )
    assert gap(certificate, "leaf-spine") == pytest.approx(0.25)
    assert gap(certificate, "spine-core") == 0
    assert disagreements(certificate, {"leaf-spine": 1.25, "spine-core": 0.5}) == []
    assert disagreements(certificate, {"leaf-spine": 1.5, "spine-core": 0.5}) == [
        "leaf-spine: measured 1.5000, certified 1.2500"
    ]


def test_a_failed_check_is_remembered() -> None:
    """A check that fails is printed and counted, whatever follows."""
    text = io.StringIO()
    screen = Screen(Console(file=text, width=300))
    screen.check(True, "this")
    screen.check(False, "that")
    screen.check(True, "again")
    assert screen.failed == 1
    assert text.getvalue().splitlines() == ["ok     this", "FAILED that", "ok     again"]


def test_plain_where_nobody_watches() -> None:
    """Without a terminal there are no escape codes and no bars, and each row is one line."""
    text = io.StringIO()
    screen = Screen(Console(file=text, width=20))
    screen.title("Step")
    screen.table(("name", "n"), [("x" * 40, "1"), ("y", "1,000")])
    with screen.progress("done") as report:
        report(1, 2)
        report(3, 3)
    assert text.getvalue().splitlines() == [
        "",
        "== Step",
        "name" + " " * 38 + "    n",
        "x" * 40 + "      1",
        "y" + " " * 41 + "1,000",
        "done: 3 of 3",
    ]


def test_colours_where_somebody_does() -> None:
    """A terminal gets escape codes, the same words and a bar."""
    text = io.StringIO()
    screen = Screen(Console(file=text, width=80, force_terminal=True, color_system="standard"))
    screen.check(True, "this held")
    with screen.progress("switches") as report:
        report(2, 2)
    screen.table(("name", "n"), [("x", "1")])
    shown = text.getvalue()
    assert "\x1b[32m" in shown
    assert "this held" in shown
    assert "switches" in shown
    assert "━" in shown


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("seed", range(4))
def test_the_scene(seed: int, name: str) -> None:
    """At least 512 NICs and four jobs, with Llama-65B on 128 GPUs. Jobs share racks but no host."""
    fabric = FABRICS[name]()
    jobs = scene_jobs(fabric, seed)
    assert len(fabric.rows_of_kind(NodeKind.NIC)) >= 512
    assert len(jobs) >= 4
    llama = next(job for job in jobs if job.name == "llama-65b")
    degrees = llama.parallelism
    assert (degrees.tp, degrees.pp, degrees.dp) == (2, 8, 8)
    assert len(llama.hosts) * llama.gpus_per_host == 128
    hosts = [host for job in jobs for host in job.hosts]
    assert len(set(hosts)) == len(hosts)
    racks = {host.rpartition("-")[0] for host in jobs[-1].hosts}
    others = {host.rpartition("-")[0] for job in jobs[:-1] for host in job.hosts}
    assert racks & others
    flows = flows_of_jobs(jobs, fabric)
    zone = fabric.structure.nodes.zone
    between = (zone[flows.source] != zone[flows.destination]).any()
    assert between == (len(fabric.structure.zone_names) > 1)
