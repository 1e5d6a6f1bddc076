"""Measurements on fabrics small enough to calculate by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_emulator.switches import Switches
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from heddle_emulator.walk import Fate, measure, walk

FABRIC = clos(leaves=2, spines=2, nics_per_leaf=2)


class ByName:
    """Tables by hand: at a switch and for a destination, the neighbour to go to."""

    def __init__(self, fabric: Fabric, ways: dict[tuple[str, str], str]) -> None:
        index = fabric.structure.index
        self._arcs = {}
        for (switch, destination), neighbour in ways.items():
            (link,) = fabric.find_links(switch, neighbour)
            arc = 2 * link + (int(fabric.structure.links.a[link]) != index[switch])
            self._arcs[index[switch], index[destination]] = arc

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Return the arcs by switch and destination alone."""
        assert len(source) == len(source_port)
        pairs = zip(switch.tolist(), destination.tolist(), strict=True)
        return np.array([self._arcs.get(pair, NONE) for pair in pairs], dtype=np.int64)


def _flows(*pairs: tuple[str, str], qps: int = 1) -> Flows:
    """Return flows of 400 Gbit/s between NICs of FABRIC, all of one job and phase."""
    index = FABRIC.structure.index
    model = flows_between(FABRIC, "incast", gbps=400.0, qps=qps)
    rows = np.arange(len(pairs))
    return dataclasses.replace(
        model.take(rows),
        source=np.array([index[a] for a, _ in pairs]),
        destination=np.array([index[b] for _, b in pairs]),
    )


UP = {("l0", "l1-h0-n0"): "s0", ("s0", "l1-h0-n0"): "l1", ("l1", "l1-h0-n0"): "l1-h0-n0"}
UP_TOO = {("l0", "l1-h0-n1"): "s0", ("s0", "l1-h0-n1"): "l1", ("l1", "l1-h0-n1"): "l1-h0-n1"}
BOTH = _flows(("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l1-h0-n1"))


def test_two_flows_on_one_uplink() -> None:
    """Two flows at line rate over one spine: utilisation 2, two collisions, both at half rate."""
    found = measure(FABRIC, BOTH, ByName(FABRIC, UP | UP_TOO))
    assert found.worst == {"nic-leaf": 1.0, "leaf-spine": 2.0}
    assert found.collisions == 2
    assert found.collisions_by_tier == {"nic-leaf": 0, "leaf-spine": 2}
    assert found.ratios.tolist() == pytest.approx([0.5, 0.5])


def test_a_flow_each_to_a_spine() -> None:
    """With a spine each, every link is just full and no flow is slowed down."""
    apart = UP_TOO | {("l0", "l1-h0-n1"): "s1", ("s1", "l1-h0-n1"): "l1"}
    found = measure(FABRIC, BOTH, ByName(FABRIC, UP | apart))
    assert found.worst["leaf-spine"] == 1.0
    assert (found.collisions, found.slowest) == (0, 1.0)


def test_phases_of_one_job_do_not_collide() -> None:
    """Two flows in two phases of one job never collide. In two jobs they do."""
    phased = dataclasses.replace(BOTH, phase=np.array([0, 1]), phase_names=("a", "b"))
    tables = ByName(FABRIC, UP | UP_TOO)
    assert measure(FABRIC, phased, tables).collisions == 0
    assert measure(FABRIC, phased, tables).slowest == 1.0
    jobs = dataclasses.replace(phased, job=np.array([0, 1]), job_names=("a", "b"))
    assert measure(FABRIC, jobs, tables).collisions == 2
    assert measure(FABRIC, jobs, tables).slowest == pytest.approx(0.5)


def test_fates() -> None:
    """No entry makes a black hole, a circle a loop, a wrong NIC a misdelivery."""
    one = _flows(("l0-h0-n0", "l1-h0-n0"))
    hole = {("l0", "l1-h0-n0"): "s0"}
    circle = hole | {("s0", "l1-h0-n0"): "l0"}
    wrong = {("l0", "l1-h0-n0"): "l0-h0-n1"}
    for ways, fate in ((hole, Fate.BLACK_HOLE), (circle, Fate.LOOP), (wrong, Fate.MISDELIVERED)):
        assert walk(FABRIC, one, ByName(FABRIC, ways)).fate.tolist() == [fate]
    cut = FABRIC.with_links(dict.fromkeys(FABRIC.find_links("s0", "l1"), State.DOWN))
    lost = measure(cut, one, ByName(FABRIC, UP))
    assert lost.walk.fate.tolist() == [Fate.DEAD_LINK]
    assert lost.walk.story(cut, one, 0) == "flow f0 QP 0: dead link at s0 (l0 s0)"
    assert (lost.slowest, lost.loads.sum()) == (0.0, 0.0)


def test_a_nic_whose_link_is_down_sends_nothing() -> None:
    """The NIC's packets end where they began."""
    cut = FABRIC.with_links(dict.fromkeys(FABRIC.find_links("l0-h0-n0", "l0"), State.DOWN))
    walked = walk(cut, BOTH, ByName(FABRIC, UP | UP_TOO))
    assert walked.fate.tolist() == [Fate.DEAD_LINK, Fate.DELIVERED]
    assert int(walked.last[0]) == FABRIC.structure.index["l0-h0-n0"]


def test_underlay_before_and_after_bgp_has_heard() -> None:
    """A cut link beyond the leaf loses packets until routes converge, and none afterwards."""
    flows = _flows(("l0-h0-n0", "l1-h0-n0"), qps=64)
    switches = Switches(FABRIC, seed=1)
    switches.change(dict.fromkeys(FABRIC.find_links("s0", "l1"), State.DOWN))
    before = walk(switches.world, flows, switches)
    assert set(before.fate.tolist()) == {Fate.DELIVERED, Fate.DEAD_LINK}
    switches.converge()
    assert set(walk(switches.world, flows, switches).fate.tolist()) == {Fate.DELIVERED}


def test_a_slip_of_the_forwarding_is_not_passed_over() -> None:
    """An answer that names a link of another switch raises an error of the emulator."""

    class Slip:
        def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
            assert len(switch) == len(source) == len(destination) == len(source_port)
            return np.full(len(switch), 2 * FABRIC.find_links("s1", "l1")[0], dtype=np.int64)

    with pytest.raises(ValueError, match="a link of another"):
        walk(FABRIC, BOTH, Slip())
