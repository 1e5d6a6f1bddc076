"""The fluid simulation against packets: makespans agree within 5 % for any traffic.

The packet simulation has queues, windows and packets of a few hundredths of a message. The fluid
simulation has none of these. Both use the same paths.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.play.nccl import NcclRun, nccl_script
from heddle_emulator.play.play import Setting, play
from heddle_emulator.strategy import Outcome, choose
from heddle_emulator.topology import clos, random_regular, three_tier
from heddle_emulator.traffic import flows_between
from tests.support.packet_twin import Twin

CLOSE = 0.05
PACKETS = 300
"""Packets that a link of 400 Gbit/s carries in a second."""
FABRICS: dict[str, Callable[[], Fabric]] = {
    "leaf-spine": lambda: clos(leaves=5, spines=3, nics_per_leaf=4),
    "tapered": lambda: three_tier(zones=2, leaves=3, spines=2, nics_per_leaf=4, cores=2, taper=2.0),
    "regular": lambda: random_regular(switches=8, degree=3, nics_per_switch=2, seed=4),
}


def _twin(fabric: Fabric, flows: Flows, seed: int, *, fair: bool) -> tuple[float, float]:
    """Return the makespan in the fluid and in the packet simulation, in seconds."""
    carried = choose("ecmp", fabric, flows, seed).carried
    paths = carried.paths
    twin = Twin(
        fabric.structure.capacity.tolist(),
        [paths.of(path).tolist() for path in range(len(paths))],
        paths.gbps(carried.flows).tolist(),
        packet_gbit=400 / PACKETS,
        fair=fair,
    )
    fluid = Outcome(fabric, carried).makespan_seconds
    assert fluid is not None
    return fluid, twin.run()


@pytest.mark.parametrize("fair", [True, False], ids=["in-turns", "as-they-come"])
@pytest.mark.parametrize("pattern", ["permutation", "uniform", "incast"])
@pytest.mark.parametrize("name", FABRICS)
def test_makespan_is_that_of_packets(name: str, pattern: str, fair: bool) -> None:  # noqa: FBT001
    """Hashed flows collide in all tiers. Links serve packets in turns or in order of arrival."""
    fabric = FABRICS[name]()
    for seed in range(2):
        flows = flows_between(fabric, pattern, seed=seed, gbps=400.0)
        fluid, packets = _twin(fabric, flows, seed, fair=fair)
        assert fluid == pytest.approx(packets, rel=CLOSE), f"seed {seed}"


def test_queue_pairs_are_messages_of_their_own() -> None:
    """With four QPs a flow, the last QP sets the makespan in both simulations."""
    fabric = FABRICS["leaf-spine"]()
    for seed in range(2):
        flows = flows_between(fabric, "permutation", seed=seed, qps=4)
        fluid, packets = _twin(fabric, flows, seed, fair=True)
        assert fluid == pytest.approx(packets, rel=CLOSE), f"seed {seed}"


@pytest.mark.parametrize("seed", range(3))
def test_a_ring_goes_at_the_pace_of_its_slowest_hop(seed: int) -> None:
    """Two rings with colliding hops take as long packet by packet as in the fluid simulation."""
    fabric = clos(leaves=4, spines=2, nics_per_leaf=4, nics_per_host=2)
    hosts = [*fabric.structure.nics_of_host]
    trial = NcclRun("all_reduce", (tuple(hosts[::2]), tuple(hosts[1::2])), 2)
    script = nccl_script(fabric, trial).scaled(1e9)
    carried = choose("ecmp", fabric, script.flows, seed).carried
    fluid = play(fabric, script, carried, Setting(nvlink_gbps=1e6)).seconds
    moves = np.flatnonzero(script.flow >= 0)
    before = {int(script.receiver[move]): row for row, move in enumerate(moves)}
    rank, packets = 4, 40
    gbit = float(script.gbit[moves][0])
    twin = Twin(
        fabric.structure.capacity.tolist(),
        [carried.paths.of(int(flow)).tolist() for flow in script.flow[moves]],
        script.gbit[moves].tolist(),
        packet_gbit=gbit / (2 * (rank - 1) * packets),
        behind=[before[int(script.sender[move])] for move in moves],
        lead=packets,
    )
    assert fluid == pytest.approx(twin.run(), rel=CLOSE)
