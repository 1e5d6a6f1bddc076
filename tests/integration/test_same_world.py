"""The same transfers in virtual time and over kernels, compared only where load cannot matter.

How close the two are is a measurement: `make bench` holds both to 5 %.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heddle_controller.model.fabric import Fabric
from heddle_emulator.drill.lab.probes import Way
from heddle_emulator.netns.lab import Lab
from heddle_emulator.traffic import flows_between
from tests.bench.same_world import CLOSE, Case, fabric, lab_of, played
from tests.integration.labbing import fresh_name, require_lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One lab for all cases, without agents, so flows are hashed by the underlay."""
    require_lab()
    with lab_of(fresh_name(), programs=False) as (lab, _):
        yield lab


def ends_at(fabric: Fabric, node: int, way: Way) -> int:
    """Return the node that a way along cables leads to; -1 if the cables do not connect."""
    for link in way:
        ends = {int(fabric.structure.tail[2 * link]), int(fabric.structure.head[2 * link])}
        if node not in ends:
            return -1
        (node,) = ends - {node}
    return node


@pytest.mark.parametrize(
    "case",
    [
        Case("flows that collide, an uplink cut", "permutation", 5, 500_000, down=True),
        Case("everyone to one", "incast", 3, 250_000),
    ],
    ids=lambda case: case.pattern,
)
def test_tcp_over_kernels_is_never_faster_than_the_fluid_world_says(lab: Lab, case: Case) -> None:
    """All bytes arrive over cables that are up, and no sooner than in the fluid simulation.

    A busy machine delays packets, but never the fluid simulation. So only this side of the
    comparison is checked here.
    """
    both, whole = played(lab, case), fabric()
    cut = set(whole.find_links("l0", "s0")) if case.down else set()
    flows = flows_between(whole, case.pattern, seed=case.seed, gbps=400.0)
    ends = zip(flows.source.tolist(), flows.destination.tolist(), strict=True)
    for (source, destination), (on, back) in zip(ends, both.ways, strict=True):
        assert ends_at(whole, source, on) == destination
        assert ends_at(whole, destination, back) == source
        assert not cut & {*on, *back}
    assert both.fluid.seconds <= both.packets.seconds * (1 + CLOSE), both
