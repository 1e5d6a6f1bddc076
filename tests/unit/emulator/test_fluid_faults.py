"""Faults during a simulation in virtual time, by hand, and links over time."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from heddle_emulator.cli import run_command_line
from heddle_emulator.fluid.simulation import FluidSimulation, Timeline
from heddle_emulator.fluid.streams import Schedule, Streams
from heddle_emulator.play.play import drawn

NONE = np.empty(0, dtype=np.int64)
TWO = Schedule(
    delay=np.zeros(2),
    lag=np.zeros(2),
    before=NONE,
    after=NONE,
    streams=Streams(
        np.ones(2), np.full(2, np.inf), np.array([0, 1, 2]), np.array([0, 1]), np.ones(2)
    ),
    activity=np.array([0, 1]),
    gbit=np.array([300.0, 300.0]),
)
"""Two messages of 300 Gbit, each over a link of its own with 100 Gbit/s."""


def test_a_link_fails_and_its_stream_moves() -> None:
    """A stream sends for 1 s, waits for 1 s, and then shares the other link."""
    timeline = Timeline(1.0)
    world = FluidSimulation(np.array([100.0, 100.0]), TWO, timeline=timeline)
    world.advance(1.0)
    world.resize(np.array([0]), np.array([0.0]))
    world.advance(2.0)
    assert world.left().tolist() == pytest.approx([200.0, 100.0])
    assert (world.done, len(world.told().stuck)) == (False, 2)
    world.redirect(replace(TWO.streams, arcs=np.array([1, 1])))
    found = world.run()
    assert found.end.tolist() == pytest.approx([5.0, 4.0])
    assert world.done
    assert timeline.loads() == pytest.approx(
        np.array([[100, 100], [0, 100], [0, 100], [0, 100], [0, 100]])
    )


def test_a_stream_without_a_way_is_stuck_and_told() -> None:
    """A stream whose link is gone never ends and is reported.

    The other ends, and so does the run.
    """
    world = FluidSimulation(np.array([100.0, 100.0]), TWO)
    world.advance(1.0)
    world.resize(np.array([0]), np.array([0.0]))
    found = world.run()
    assert found.end.tolist() == [np.inf, pytest.approx(3.0)]
    assert found.stuck.tolist() == [0]
    assert found.makespan == np.inf


def test_half_a_link_takes_twice_as_long() -> None:
    """A link is halved after 1 s, so what would take 2 s more takes 4 s."""
    world = FluidSimulation(np.array([100.0, 100.0]), TWO)
    world.advance(1.0)
    world.resize(np.array([0]), np.array([50.0]))
    assert world.run().end.tolist() == pytest.approx([5.0, 3.0])


def test_links_over_time_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Utilisation comes by step and tier: 0 while GPUs compute, never above 1, drawn as blocks."""
    words = ["iterate", "--job", "recommendation:4", "--strategies", "ecmp", "--step", "0.002"]
    assert run_command_line([*words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["over_time"]["ecmp"]
    most = told["most"]["nic-leaf"]
    assert len(most) == len(told["begins"])
    assert most[:10] == [0.0] * 10
    assert 0.9 < max(most) <= 1 + 1e-9
    assert run_command_line(words) == 0
    assert "█" in capfd.readouterr().out
    assert run_command_line([*words[:-1], "1e-9"]) == 2


def test_values_as_blocks() -> None:
    """There are eight levels. Values that share a place are drawn as their maximum."""
    assert drawn(np.array([0.0, 0.5, 1.0, 2.0])) == " ▄██"
    assert drawn(np.array([0.0, 1.0, 0.0, 0.0]), 2) == "█ "
    assert drawn(np.empty(0)) == ""
