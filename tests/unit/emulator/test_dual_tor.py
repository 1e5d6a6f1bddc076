"""Dual-ToR fabrics: how they are wired, and by which link of its NIC a QP leaves."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_emulator.strategy import strategy
from heddle_emulator.strategy.te import te
from heddle_emulator.switches import Switches
from heddle_emulator.topology import dual_tor
from heddle_emulator.walk import Fate, measure, walk
from tests.support.solve_flows import permutations


def of(planes: int) -> tuple[Fabric, Flows]:
    """Return a small fabric and a permutation at line rate in 8 QPs."""
    fabric = dual_tor(pairs=3, spines=4, nics_per_pair=4, nics_per_host=2, planes=planes)
    return fabric, permutations(fabric, Random(1), 1, 8)


@pytest.mark.parametrize("planes", [1, 2])
def test_every_nic_is_on_both_leaves_of_its_pair(planes: int) -> None:
    """Each NIC is connected to both leaves of its pair, and each leaf to the spines of its plane.

    If there is one plane, that is all spines.
    """
    fabric = of(planes)[0]
    structure = fabric.structure
    ids, kind = structure.nodes.ids, structure.nodes.kind
    beside = {
        ids[node]: sorted(ids[head] for head in structure.head[structure.tail == node].tolist())
        for node in range(fabric.node_count)
    }
    assert beside["p0-h0-n0"] == ["p0a", "p0b"]
    assert beside["p2-h1-n1"] == ["p2a", "p2b"]
    spines = [name for name in beside["p1b"] if name.startswith("s")]
    assert spines == (["s2", "s3"] if planes > 1 else ["s0", "s1", "s2", "s3"])
    assert np.count_nonzero(kind == NodeKind.NIC) == 12


def test_planes_need_an_even_number_of_spines() -> None:
    """An odd number is refused by name."""
    with pytest.raises(InputError, match="spines: is 3, odd"):
        dual_tor(pairs=2, spines=3, nics_per_pair=2, planes=2)


@pytest.mark.parametrize("planes", [1, 2])
def test_packets_go_where_the_plan_says(planes: int) -> None:
    """Planned by a controller and forwarded by agents, no link is above the line rate.

    Hosts leave by the links that the plan gives. By ports alone they would fill their own links
    just as well, but not the links of the leaves above.
    """
    fabric, flows = of(planes)
    planned = te(fabric, flows)
    assert planned.routed == len(flows)
    told = strategy("greedy")(fabric, flows, 0)
    assert len(told.walk.lost) == 0
    loads = np.zeros(2 * fabric.link_count)
    np.add.at(loads, planned.paths.arcs, planned.paths.gbps(flows)[planned.paths.owner()])
    assert (loads / fabric.structure.capacity).max() == pytest.approx(planned.lower_bound)
    assert planned.lower_bound == pytest.approx(1.0)


def test_a_host_that_was_told_nothing_spreads_its_qps() -> None:
    """QPs spread evenly over the host's links by port, and over one if the other is down."""
    fabric, flows = of(1)
    switches = Switches(fabric)
    first = walk(fabric, flows, switches).arcs[:, 0].reshape(len(flows), -1)
    assert all(len(np.unique(arcs)) == 2 for arcs in first)
    assert measure(fabric, flows, switches).worst["nic-leaf"] >= 1.0
    cut = fabric.find_links("p0-h0-n0", "p0a")
    switches.change(dict.fromkeys(cut, State.DOWN))
    switches.converge()
    walked = walk(switches.world, flows, switches)
    assert (walked.fate == Fate.DELIVERED).all()
