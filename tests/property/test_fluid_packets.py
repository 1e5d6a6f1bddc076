"""The fluid simulation against packets on random cases: makespans within 5 %.

Small fabrics of every kind carry hashed collectives of one or two groups on any hosts. Messages
take time to start and links take time to pass. NICs and switches serve their QPs in turns, as a
fluid model assumes of congestion control.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_emulator.play.nccl import NcclRun, nccl_script
from heddle_emulator.play.play import Setting, play
from heddle_emulator.strategy import choose
from tests.property.packet_fabrics import small_fabrics
from tests.support.depth import examples
from tests.support.packet_steps import twin_of

CLOSE = 0.05
PACKETS = 200, 3200
"""Packets in the largest message. The finer cut is tried where the coarse one disagrees."""
MESSAGE = 1.0
"""Gbit that each rank roughly sends, on links of 400 Gbit/s."""
WAYS = (
    ("all_reduce", "ring"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("all_reduce", "halving-doubling"),
    ("all_reduce", "mesh"),
    ("all_gather", "mesh"),
    ("alltoall", "pairwise"),
    ("alltoall", "skewed"),
    ("sendrecv", "ring"),
)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs as fractions of the time that one rank's part of a message needs on a link."""

    startup: float
    hop: float


costs = st.builds(Costs, st.sampled_from([0.0, 0.02, 0.1]), st.sampled_from([0.0, 0.005, 0.02]))


@st.composite
def trials(draw: st.DrawFn, fabric: Fabric) -> NcclRun:
    """Draw a collective of one or two groups of hosts in any order."""
    op, algorithm = draw(st.sampled_from(WAYS))
    hosts = draw(st.permutations([*fabric.structure.nics_of_host]))
    power = algorithm == "halving-doubling"
    ranks = draw(st.sampled_from([2, 4]) if power else st.integers(2, 6))
    groups = [hosts[:ranks], hosts[ranks : 2 * ranks]][: draw(st.integers(1, 2))]
    qps = draw(st.sampled_from([1, 1, 2, 4]))
    return NcclRun(op, tuple(map(tuple, groups)), 1, algorithm, qps, pxn=False)


@settings(max_examples=examples(30))
@given(st.data(), costs)
def test_collectives_take_as_long_as_their_packets(data: st.DataObject, cost: Costs) -> None:
    """Collectives take as long in both simulations.

    The fluid result is the limit for small packets: turns of whole packets may take longer.
    """
    fabric = data.draw(small_fabrics(least_gbps=200.0, most_taper=4.0))
    trial = data.draw(trials(fabric))
    script = nccl_script(fabric, trial).scaled(MESSAGE * 1e9 / 8)
    carried = choose("ecmp", fabric, script.flows, data.draw(st.integers(0, 99))).carried
    each = MESSAGE / 400 / trial.ranks
    fluid = packets = 0.0
    for count in PACKETS:
        twin, wire = twin_of(
            fabric,
            script,
            carried,
            packets=count,
            startup=cost.startup * each,
            hop=cost.hop * each,
        )
        fluid = play(fabric, script, carried, Setting(wire, nvlink_gbps=1e9)).seconds
        packets = twin.run()
        note(f"{count} packets a message: fluid {fluid:.6f} s, packets {packets:.6f} s")
        if fluid == pytest.approx(packets, rel=CLOSE):
            break
    assert fluid == pytest.approx(packets, rel=CLOSE)
