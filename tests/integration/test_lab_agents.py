"""Real agents on real kernels: flows go where the plan says, and leave paths that die."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from heddle_controller.model.demand import resolve
from heddle_controller.model.flows import Flows
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.probes import Pathfinder, Way
from heddle_emulator.netns import witness
from heddle_emulator.netns.converge import wait_converged
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.probe.handle import Notes, Probe, probe_flow
from heddle_emulator.netns.probe.spec import ProbeFlow
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.up import wait_links_up
from tests.integration.demanding import demands_of
from tests.integration.labbing import small_lab
from tests.support.waiting import PATIENCE, wait_until

PAIRS = (("l0-h0-n0", "l1-h0-n0"), ("l0-h1-n0", "l1-h1-n0"))
UDP = 4791


@dataclass(frozen=True, slots=True)
class Running:
    """A lab with its programs, and a plan of two flows between the same two leaves."""

    lab: Lab
    programs: Programs
    planned: dict[tuple[str, str], tuple[str, ...]]
    """Switches of each flow's path, as the controller lists them, by its NICs."""

    def flow(self, pair: tuple[str, str]) -> ProbeFlow:
        """Return a probe for one of the flows: 2,000 packets a second."""
        return probe_flow(self.lab, pair, (49152, UDP), 2000.0)

    def way(self, pair: tuple[str, str]) -> Way:
        """Return the cables that a flow's packets take."""
        return Pathfinder(self.lab).ways([self.flow(pair)])[0]

    def nodes(self, way: Way) -> tuple[str, ...]:
        """Return the switches along these cables."""
        cables = [self.lab.layout.cables[row] for row in way]
        ends = [{cable.a.node, cable.b.node} for cable in cables]
        between = [one & other for one, other in itertools.pairwise(ends)]
        return tuple(node for nodes in between for node in nodes)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """A lab shared by all tests here.

    Each test mends the cables that it cuts. Some kill the controller, and none starts it again.
    """
    with small_lab(programs=True) as (lab, programs):
        assert programs is not None
        planned = asyncio.run(_planned(lab, programs))
        yield Running(lab, programs, planned)


async def _planned(lab: Lab, programs: Programs) -> dict[tuple[str, str], tuple[str, ...]]:
    flows: Flows = resolve(demands_of(PAIRS), lab.layout.fabric, origin="test")
    async with LabClient(programs) as control:
        await control.demand(flows, PATIENCE)
        _, routes = await control.api.list_routes()
    return {(r.source, r.destination): tuple(r.paths[0].nodes[1:-1]) for r in routes}


def _cut(running: Running, flow: ProbeFlow, row: int) -> tuple[Notes, witness.Testimony]:
    """Cut a cable of a flow, and wait until the flow leaves its leaf for the other spine.

    Return what the probe noted after that, except for the last packets, which may not have arrived;
    and what switches counted after that.
    """
    lab, other = running.lab, {"s0": "s1", "s1": "s0"}[running.planned[PAIRS[0]][1]]
    with Probe(lab, [flow]) as probe:
        time.sleep(0.3)
        lab.set_link(row, up=False)
        cut = witness.hear(lab)
        wait_until(lambda: witness.hear(lab).since(cut).ways(flow)["l0", other], "the other spine")
        moved, settled = time.time_ns(), witness.hear(lab)
        wait_until(lambda: witness.hear(lab).since(settled).ways(flow)["l0", other] > 400, "more")
        (notes,) = probe.stop()
    return notes.within(moved, int(notes.sent[-200])), witness.hear(lab).since(settled)


def _mend(running: Running, row: int) -> None:
    running.lab.set_link(row, up=True)
    wait_converged(running.lab, PATIENCE)
    wait_links_up(running.programs, PATIENCE)


def _wait_until_as_planned(running: Running, *pairs: tuple[str, str]) -> None:
    """Wait until packets of some flows take their planned paths.

    They leave them for a while if a cable counts as lost, which may also be as the machine is busy.
    """
    wanted = {pair: running.planned[pair] for pair in pairs}
    wait_until(
        lambda: {pair: running.nodes(running.way(pair)) for pair in pairs} == wanted,
        "the planned ways",
    )


def test_packets_go_where_the_plan_says(running: Running) -> None:
    """By the switches' counters each flow takes its planned path, and the two use both spines."""
    _wait_until_as_planned(running, *PAIRS)
    assert {path[1] for path in running.planned.values()} == {"s0", "s1"}


def test_flows_with_no_entry_follow_the_underlay(running: Running) -> None:
    """Packets of other NICs are hashed: 32 source ports use both spines."""
    lab = running.lab
    flows = [probe_flow(lab, ("l2-h0-n0", "l3-h0-n0"), (50000 + i, UDP), 1.0) for i in range(32)]
    ways = Pathfinder(lab).ways(flows)
    assert {running.nodes(way)[1] for way in ways} == {"s0", "s1"}


def test_a_local_failure_is_repaired_without_a_controller(running: Running) -> None:
    """A flow whose uplink dies takes the other spine, though the controller is dead."""
    running.programs.kill(MGMT)
    _wait_until_as_planned(running, PAIRS[0])
    row = running.way(PAIRS[0])[1]
    notes, after = _cut(running, running.flow(PAIRS[0]), row)
    spine = running.planned[PAIRS[0]][1]
    assert after.ways(notes.flow)["l0", spine] == 0
    assert len(notes.sent)
    assert notes.lost_count() == 0
    _mend(running, row)


def test_a_remote_failure_is_repaired_by_notice(running: Running) -> None:
    """If a spine loses the far leaf, the near leaf gets its notice and moves the flow."""
    running.programs.kill(MGMT)
    _wait_until_as_planned(running, PAIRS[0])
    row = running.way(PAIRS[0])[2]
    notes, after = _cut(running, running.flow(PAIRS[0]), row)
    spine = running.planned[PAIRS[0]][1]
    assert after.ways(notes.flow)["l0", spine] == 0
    assert len(notes.sent)
    assert notes.lost_count() == 0
    _mend(running, row)


def test_a_killed_agent_leaves_its_entries_and_takes_them_over_again(running: Running) -> None:
    """Killing a leaf's agent moves no packet; the next one adopts the entries in the kernel."""
    _wait_until_as_planned(running, PAIRS[1])
    before = running.way(PAIRS[1])
    flow = running.flow(PAIRS[1])
    with Probe(running.lab, [flow]) as probe:
        running.programs.signal("l0", signal.SIGKILL)
        time.sleep(0.3)
        running.programs.start_agent("l0")
        wait_links_up(running.programs, PATIENCE)
        (notes,) = probe.stop()
    assert notes.lost_count() == 0
    wait_until(lambda: running.way(PAIRS[1]) == before, "the same way")
