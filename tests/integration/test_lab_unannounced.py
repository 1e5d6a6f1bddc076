"""An unannounced elephant on real kernels is found by nftables' counters, and moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from heddle_controller.model.flows import SET, flow_id
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.probes import Pathfinder
from heddle_emulator.netns.probe.handle import Probe, probe_flow
from tests.integration.labbing import small_lab
from tests.support.waiting import PATIENCE, until

PAIR, QUIET = ("l0-h0-n0", "l1-h1-n0"), ("l2-h0-n0", "l3-h0-n0")
PORTS = [(50_000 + number, 4791) for number in range(8)]
PACKETS, SIZE = 2000.0, 1000
RATE = PACKETS * SIZE * 8e-9
"""Rate of the elephant in Gbit/s."""
OPTIONS = ("--counter-interval-seconds=0.5", "--unannounced-share=0.000002")
"""A low threshold: kernels here cannot fill a tenth of 400 Gbit/s, so 16 Mbit/s must do."""


def test_an_elephant_of_a_host_is_found_and_forwarded_as_planned() -> None:
    """A large stream is found, a small one is not; then all ports of its NICs go one way.

    Before that they are hashed over both spines, and again once the stream has ended.
    """
    with small_lab(programs=True, controller=OPTIONS) as (lab, programs):
        assert programs is not None
        few = [probe_flow(lab, PAIR, ports, 1.0) for ports in PORTS]
        large = probe_flow(lab, PAIR, PORTS[0], PACKETS, size=SIZE)
        small = probe_flow(lab, QUIET, PORTS[0], 20.0)

        def spines() -> set[str]:
            cables = [lab.layout.cables[way[1]] for way in Pathfinder(lab).ways(few)]
            return {({cable.a.node, cable.b.node} - {"l0"}).pop() for cable in cables}

        async def look() -> None:
            async with LabClient(programs) as control:
                with Probe(lab, [large, small]):
                    await eventually(lambda: placed(control), "all ports on the planned way")
                await eventually(lambda: gone(control), "nothing to be found")
            await until(lambda: len(spines()) == 2, "hashing again")

        async def placed(control: LabClient) -> bool:
            """Return whether the plan has only the elephant, at its rate, and packets follow it."""
            names = [one.name for one in await control.api.list_demand_sets()]
            routes = (await control.api.list_routes())[1] if names else []
            if not routes:
                return False
            assert [name.rpartition("/")[2] for name in names] == [SET]
            assert [one.flow for one in routes] == [flow_id(*PAIR)]
            return RATE / 4 < routes[0].gbps < 4 * RATE and spines() == {
                routes[0].paths[0].nodes[2]
            }

        async def gone(control: LabClient) -> bool:
            return not await control.api.list_demand_sets()

        assert len(spines()) == 2
        asyncio.run(look())


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until an async condition holds, even if it was true and false again meanwhile."""
    end = time.monotonic() + PATIENCE
    while not await holds():
        assert time.monotonic() < end, f"waited for {what}"
        await asyncio.sleep(0.05)
