"""Heat maps of a lab, from the counters of its interfaces."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.model.arrays import Bools, Floats
from heddle_controller.model.fabric import State
from heddle_emulator.drill.lab.story import Reading, snapshots
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import lay_out
from heddle_emulator.netns.mark import Claim
from heddle_emulator.topology import clos

SECOND = 10**9
FABRIC = clos(leaves=2, spines=2, nics_per_leaf=1, nics_per_host=1)
ARCS = 2 * FABRIC.link_count


def _lab(rate_mbit: float) -> Lab:
    """Return a lab that is not built."""
    return Lab(Claim("none"), lay_out(FABRIC), LabOptions(rate_mbit=rate_mbit))


def _between() -> int:
    """Return an arc between two switches."""
    structure = FABRIC.structure
    (row,) = FABRIC.find_links("l0", "s1")
    return 2 * row + (0 if structure.nodes.ids[int(structure.tail[2 * row])] == "l0" else 1)


def _sent(arc: int, size: float) -> Floats:
    sent = np.zeros(ARCS)
    sent[arc] = size
    return sent


def _reading(second: int, size: float, carries: Bools | None = None) -> Reading:
    alive = FABRIC.carries if carries is None else carries
    return Reading(second * SECOND, _sent(_between(), size), alive)


def test_load_is_over_the_speed_of_a_cable() -> None:
    """1.25 MB in a second, or 2.5 MB in two, is half of a cable of 20 Mbit/s."""
    readings = [_reading(0, 0), _reading(1, 1.25e6), _reading(2, 1.25e6), _reading(4, 3.75e6)]
    found = list(snapshots(_lab(20.0), readings, SECOND))
    assert [one.title for one in found] == ["before", "during", "after"]
    assert [one.at for one in found] == [0.0, 0.5, 2.0]
    assert [one.utilization[_between()] for one in found] == pytest.approx([0.5, 0.0, 0.5])


def test_without_speeds_the_fullest_cable_at_first_is_the_measure() -> None:
    """The fullest cable of the first map is 100 %, so half as much later is 50 %."""
    readings = [_reading(0, 0), _reading(1, 8e6), _reading(2, 12e6)]
    found = list(snapshots(_lab(0.0), [*readings, _reading(3, 12e6)], 0))
    assert [one.utilization[_between()] for one in found] == pytest.approx([1.0, 0.5, 0.0])


def test_a_cut_cable_is_shown_as_such() -> None:
    """A cable is shown as it is at the end of the period that the map shows."""
    (row,) = FABRIC.find_links("l0", "s1")
    broken = FABRIC.with_links({row: State.DOWN}).carries
    readings = [_reading(0, 0), _reading(1, 8), _reading(2, 8, broken), _reading(3, 8)]
    dead = [int((~one.carries).sum()) for one in snapshots(_lab(0.0), readings, 0)]
    assert dead == [0, 2, 0]


def test_a_run_in_which_nothing_happens_has_one_map() -> None:
    """A run without events has no period before."""
    (only,) = snapshots(_lab(0.0), [_reading(0, 0), _reading(2, 8e6)], 0)
    assert only.title == "all the time"
