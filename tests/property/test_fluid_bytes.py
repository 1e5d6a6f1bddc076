"""The fluid world against a network of packets by the byte: makespans within 5 %.

Small fabrics of every sort, some with unlike links; patterns and collectives, hashed; messages from
256 KiB for each rank, with headers, a time to start and links that take time to pass. The costs are
told to both as they are: nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.play.nccl import Trial, script_of
from heddle_emulator.play.play import Setting, play
from heddle_emulator.strategy import Outcome, choose
from heddle_emulator.strategy.makespan import Sending
from heddle_emulator.traffic import flows_between
from tests.property.packet_collectives import Collectives
from tests.property.packet_fabrics import small_fabrics
from tests.property.packet_net import Net

CLOSE = 0.05
HEADER = 82
KIB = 1 << 10
WAYS = (
    ("all_reduce", "ring"),
    ("all_gather", "ring"),
    ("all_reduce", "tree"),
    ("all_reduce", "halving-doubling"),
    ("all_reduce", "mesh"),
    ("alltoall", "pairwise"),
    ("alltoall", "rounds"),
    ("sendrecv", "ring"),
)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of packets."""

    payload: int
    startup: float
    hop: float

    def wire(self, piece: int = 0) -> Wire:
        """The same for the fluid world."""
        return Wire(self.payload, HEADER, self.startup, self.hop, True, piece)

    def net(self, fabric: Fabric, *, in_turns: bool) -> Net:
        """The same for packets."""
        capacity = fabric.structure.capacity.tolist()
        return Net(capacity, self.hop, self.payload, HEADER, in_turns=in_turns)


costs = st.builds(
    Costs,
    st.sampled_from([1024, 4096]),
    st.sampled_from([0.0, 4e-6]),
    st.sampled_from([1e-7, 6e-7]),
)


@settings(max_examples=40, derandomize=True)
@given(small_fabrics(least_gbps=100.0, most_taper=7.0), costs, st.booleans(), st.data())
def test_patterns_take_as_long_as_their_bytes(
    fabric: Fabric,
    cost: Costs,
    in_turns: bool,  # noqa: FBT001 - hypothesis gives it by place
    data: st.DataObject,
) -> None:
    """Hashed flows that collide in all tiers; links serve QPs in turns, or packets as they come."""
    pattern = data.draw(st.sampled_from(["permutation", "uniform", "incast", "shift"]))
    qps, seed = data.draw(st.sampled_from([1, 2, 8])), data.draw(st.integers(0, 999))
    size = data.draw(st.sampled_from([256, 512])) * KIB
    flows = flows_between(fabric, pattern, seed=seed, gbps=400.0, qps=qps)
    carried = choose("ecmp", fabric, flows, seed).carried
    net, paths = cost.net(fabric, in_turns=in_turns), carried.paths
    for path in range(len(paths)):
        for _ in range(int(paths.qp_count[path])):
            net.message(net.pair(paths.of(path).tolist()), size / qps, cost.startup)
    fluid = Outcome(fabric, carried, Sending(size, cost.wire())).makespan_seconds
    packets = net.run()
    note(f"fluid {fluid} s, packets {packets:.9f} s")
    assert fluid == pytest.approx(packets, rel=CLOSE)


@settings(max_examples=40, derandomize=True)
@given(small_fabrics(least_gbps=100.0, most_taper=7.0), costs, st.sampled_from(WAYS), st.data())
def test_collectives_take_as_long_as_their_bytes(
    fabric: Fabric, cost: Costs, way: tuple[str, str], data: st.DataObject
) -> None:
    """Rings step by step, trees piece by piece, halves and doubles, everyone to everyone."""
    op, algorithm = way
    hosts = data.draw(st.permutations([*fabric.structure.nics_of_host]))
    power = algorithm == "halving-doubling"
    ranks = data.draw(st.sampled_from([2, 4]) if power else st.integers(2, 6))
    groups = [hosts[:ranks], hosts[ranks : 2 * ranks]][: data.draw(st.integers(1, 2))]
    qps, piece = data.draw(st.sampled_from([1, 2, 4])), 64 * KIB
    trial = Trial(op, tuple(map(tuple, groups)), 1, algorithm, qps, pxn=False)
    size = data.draw(st.sampled_from([256, 512])) * KIB
    whole = size if op == "sendrecv" or algorithm == "tree" else size * ranks
    script = script_of(fabric, trial).scaled(whole)
    carried = choose("ecmp", fabric, script.flows, data.draw(st.integers(0, 99))).carried
    net = cost.net(fabric, in_turns=True)
    Collectives(net, script, carried, cost.startup, piece).write(trees=algorithm == "tree")
    setting = Setting(cost.wire(piece), nvlink_gbps=1e9)
    fluid, packets = play(fabric, script, carried, setting).seconds, net.run()
    note(f"fluid {fluid:.9f} s, packets {packets:.9f} s")
    assert fluid == pytest.approx(packets, rel=CLOSE)
