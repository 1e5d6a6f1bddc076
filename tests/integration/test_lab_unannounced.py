"""An elephant over real kernels that nobody announced: found by nftables' counters, and moved."""

from __future__ import annotations

import asyncio

from heddle.v1 import demand_pb2
from heddle.v1.placement_pb2 import JobState
from heddle_controller.model.unannounced import SET, flow_id
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.probes import Pathfinder
from heddle_emulator.netns.probe.handle import Probe, probe_flow
from tests.integration.labbing import small_lab
from tests.support.waiting import until

PAIR, QUIET = ("l0-h0-n0", "l1-h1-n0"), ("l2-h0-n0", "l3-h0-n0")
PORTS = [(50_000 + number, 4791) for number in range(8)]
OPTIONS = ("--counter-interval-seconds=0.5", "--unannounced-share=0.000002")
"""A kernel does not fill a tenth of 400 Gbit/s; some 16 Mbit/s are an elephant here."""


def test_an_elephant_of_a_host_is_found_and_forwarded_as_planned() -> None:
    """One stream of large packets is found, one of few is not; then its ports all go one way.

    With no entry they were hashed over both spines, and they are again when it has ended.
    """
    with small_lab(programs=True, controller=OPTIONS) as (lab, programs):
        assert programs is not None
        few = [probe_flow(lab, PAIR, ports, 1.0) for ports in PORTS]
        large = probe_flow(lab, PAIR, PORTS[0], 2000.0, size=1000)
        small = probe_flow(lab, QUIET, PORTS[0], 20.0)

        def spines() -> set[str]:
            cables = [lab.layout.cables[way[1]] for way in Pathfinder(lab).ways(few)]
            return {({cable.a.node, cable.b.node} - {"l0"}).pop() for cable in cables}

        async def look() -> None:
            async with LabClient(programs) as control:
                with Probe(lab, [large, small]):
                    sets = await until_sets(control, 1)
                    assert (sets[0].name.rpartition("/")[2], sets[0].flow_count) == (SET, 1)
                    (demand,) = await control.api.list_demands(SET)
                    assert demand.flow == flow_id(*PAIR)
                    assert 0.004 < demand.gbps < 0.04
                    _, routes = await control.api.list_routes()
                    planned = routes[0].paths[0].nodes[2]
                    await until(lambda: spines() == {planned}, "all ports on the plan's way")
                await until_sets(control, 0)
            await until(lambda: len(spines()) == 2, "hashing again")

        assert len(spines()) == 2
        asyncio.run(look())


async def until_sets(control: LabClient, count: int) -> list[demand_pb2.DemandSet]:
    """Wait until the controller tells of so many sets, each of them planned."""
    while True:
        sets = await control.api.list_demand_sets()
        if len(sets) == count and all(one.state == JobState.JOB_STATE_PLANNED for one in sets):
            return sets
        await asyncio.sleep(0.05)
