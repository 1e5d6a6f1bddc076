from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.report.maps import Snapshot, heat_maps
from heddle_emulator.topology.clos import clos, three_tier
from heddle_emulator.topology.flat import random_regular


def _used(fabric: Fabric, **of: float) -> Floats:
    """Return utilisations: 0 except for arcs given as tail__head."""
    ids, structure = fabric.structure.index, fabric.structure
    used = np.zeros(2 * fabric.link_count)
    for name, value in of.items():
        tail, head = (ids[node] for node in name.split("__"))
        used[(structure.tail == tail) & (structure.head == head)] = value
    return used


def test_a_cable_stands_where_its_ends_say_in_both_directions() -> None:
    """One map shows cables upwards, another shows them downwards."""
    fabric = clos(leaves=11, spines=3, nics_per_leaf=1, nics_per_host=1)
    now = Snapshot("before", 0.0, _used(fabric, l10__s2=0.75, s0__l01=1.5), fabric.carries)
    up, down = heat_maps(fabric, [now])
    assert (up.title, down.title) == ("leaf to spine", "spine to leaf")
    assert up.rows == ("s0", "s1", "s2")
    assert up.columns == tuple(f"l{leaf:02}" for leaf in range(11))
    assert up.moments[0].values[2][10] == 0.75
    assert down.moments[0].values[0][1] == 1.5
    assert sum(value or 0 for line in up.moments[0].values for value in line) == 0.75


def test_a_cable_that_is_down_is_dead_at_that_moment_only() -> None:
    """The cell is dead in the snapshot of the broken fabric, not in the one before."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1, nics_per_host=1)
    (row,) = fabric.find_links("l1", "s0")
    broken = fabric.with_links({row: State.DOWN})
    used = _used(fabric)
    up, _ = heat_maps(
        fabric,
        [Snapshot("before", 0, used, fabric.carries), Snapshot("during", 1, used, broken.carries)],
    )
    assert up.moments[0].dead == ()
    assert [(one.row, one.column) for one in up.moments[1].dead] == [(0, 1)]


def test_each_zone_has_maps_and_cores_are_shared() -> None:
    """A cell without a cable is None. Every cable is in at most one cell for each direction."""
    fabric = three_tier(zones=2, leaves=3, spines=2, cores=2, nics_per_leaf=1, nics_per_host=1)
    maps = heat_maps(fabric, [Snapshot("before", 0, _used(fabric), fabric.carries)])
    assert len(maps) == 6
    cells = [value for one in maps for line in one.moments[0].values for value in line]
    between = int((fabric.structure.nodes.kind[fabric.structure.links.a] > 0).sum())
    assert sum(value is not None for value in cells) <= 2 * between


def test_a_fabric_without_tiers_is_switches_by_switches() -> None:
    """A row is the switch at which an arc begins."""
    fabric = random_regular(switches=6, degree=3, nics_per_switch=1, nics_per_host=1, seed=1)
    (only,) = heat_maps(fabric, [Snapshot("before", 0, _used(fabric), fabric.carries)])
    values = only.moments[0].values
    assert only.rows == only.columns
    assert sum(value is not None for line in values for value in line) == 18
