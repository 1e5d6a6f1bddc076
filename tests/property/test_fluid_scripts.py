"""Scripts of every collective on any hosts: demands on NICs, and bytes that cross them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.play.latency import same_way
from heddle_emulator.play.nccl import NcclRun, nccl_script
from heddle_emulator.play.play import Setting, play
from heddle_emulator.play.stage import capacities, staged
from heddle_emulator.strategy import choose
from heddle_emulator.topology import clos, rail_optimised
from heddle_emulator.traffic.collective import KINDS
from tests.support.depth import examples

FABRICS = (
    clos(leaves=3, spines=2, nics_per_leaf=4, nics_per_host=2),
    rail_optimised(units=1, servers=6, rails=2, spines=2),
)
WAYS = [(op, name) for op, kind in KINDS.items() for name in kind.algorithms]


@st.composite
def trials(draw: st.DrawFn) -> tuple[Fabric, NcclRun]:
    """Draw one or two communicators of two or four hosts of either fabric."""
    fabric = draw(st.sampled_from(FABRICS))
    op, algorithm = draw(st.sampled_from(WAYS))
    hosts = draw(st.permutations([*fabric.structure.nics_of_host]))
    groups = draw(st.sampled_from([(hosts[:2],), (hosts[:4],), (hosts[:2], hosts[2:4])]))
    pxn, qps = draw(st.booleans()), draw(st.integers(1, 3))
    return fabric, NcclRun(op, tuple(map(tuple, groups)), 2, algorithm, qps, pxn)


@settings(max_examples=examples(8))
@given(trials())
def test_no_nic_is_asked_for_more_than_its_line(case: tuple[Fabric, NcclRun]) -> None:
    """Demands of each communicator fill its busiest NIC to line rate and no NIC beyond it."""
    fabric, trial = case
    flows = nccl_script(fabric, trial).flows
    for job in range(len(flows.job_names)):
        own = flows.take(np.flatnonzero(flows.job == job))
        ends = [np.bincount(end, own.gbps) for end in (own.source, own.destination)]
        assert max(end.max(initial=0.0) for end in ends) == pytest.approx(400.0)


@settings(max_examples=examples(8))
@given(trials(), st.sampled_from(["ecmp", "spray", "ideal", "greedy"]))
def test_every_byte_crosses_its_nics(case: tuple[Fabric, NcclRun], name: str) -> None:
    """Each NIC is crossed by the bytes moved between hosts plus headers, with any strategy.

    A header belongs to a full packet or to the last packet of a message.
    """
    fabric, trial = case
    script, wire = (
        nccl_script(fabric, trial).scaled(1e9),
        Wire(payload_bytes=1000, header_bytes=100),
    )
    schedule = staged(fabric, script, choose(name, fabric, script.flows, 1).carried, wire)
    streams = schedule.streams
    crossed = streams.loads(schedule.gbit, len(capacities(fabric, script)))
    wired = script.flow >= 0
    structure = fabric.structure
    for ends, side in (
        (script.flows.source, structure.tail),
        (script.flows.destination, structure.head),
    ):
        nics = ends[script.flow[wired]]
        least = np.bincount(nics, script.gbit[wired] * 1.1, minlength=fabric.node_count)
        last = script.steps[script.activity[wired]] * trial.qps * 100 * 8e-9
        most = least + np.bincount(nics, last, minlength=fabric.node_count)
        found = np.bincount(side, crossed[: len(side)], minlength=fabric.node_count)
        switch = structure.nodes.kind != 0
        assert (found >= least * (1 - 1e-9))[~switch].all()
        assert (found <= most * (1 + 1e-9))[~switch].all()


@settings(max_examples=examples(8))
@given(trials(), st.sampled_from(["e-ecmp:8", "e-ecmp:32", "spray"]))
def test_queue_pairs_of_one_way_are_one(case: tuple[Fabric, NcclRun], name: str) -> None:
    """``same_way`` joins exactly the paths of a flow that use the same arcs."""
    fabric, trial = case
    carried = choose(name, fabric, nccl_script(fabric, trial).flows, 1).carried
    paths, first = carried.paths, dict[tuple[int, ...], int]()
    expected = [
        first.setdefault((int(paths.flow[path]), *paths.of(path).tolist()), path)
        for path in range(len(paths))
    ]
    assert same_way(carried).tolist() == expected


@settings(max_examples=examples(8))
@given(trials())
def test_nothing_beats_its_busiest_arc(case: tuple[Fabric, NcclRun]) -> None:
    """With any strategy, a collective takes at least the time that its busiest arc needs."""
    fabric, trial = case
    script = nccl_script(fabric, trial).scaled(1e9)
    setting = Setting(nvlink_gbps=500.0)
    for name in ("ecmp", "spray", "greedy", "ideal"):
        carried = choose(name, fabric, script.flows, 1).carried
        schedule = staged(fabric, script, carried, setting.wire)
        capacity = capacities(fabric, script, setting.nvlink_gbps)
        crossed = schedule.streams.loads(schedule.gbit, len(capacity))
        seconds = play(fabric, script, carried, setting).seconds
        assert seconds >= (crossed / capacity).max() * (1 - 1e-9)
