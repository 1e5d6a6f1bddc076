"""Rings and trees followed message by message, where the time can be calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heddle_emulator.fluid.wire import Wire
from heddle_emulator.play.nccl import NcclRun, nccl_script
from heddle_emulator.play.play import Played, Setting, play, unrolled
from heddle_emulator.strategy import choose
from heddle_emulator.topology import clos

SIZE = 40e6
STARTUP = 1e-5
FABRIC = clos(leaves=4, spines=2, nics_per_leaf=2, nics_per_host=1)
HOSTS = tuple(FABRIC.structure.nics_of_host)


def _played(trial: NcclRun, wire: Wire, followed: int, strategy: str = "ideal") -> Played:
    script = nccl_script(FABRIC, trial).scaled(SIZE)
    carried = choose(strategy, FABRIC, script.flows, 2).carried
    return play(FABRIC, script, carried, Setting(wire, followed=followed))


@pytest.mark.parametrize("followed", [0, 1000])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_alone_is_the_same_either_way(ranks: int, followed: int) -> None:
    """A ring has 2 (n - 1) steps, each a start-up, an n-th of the data at 50 GB/s and two links."""
    wire = Wire(startup_seconds=STARTUP, hop_seconds=1e-6)
    trial = NcclRun("all_reduce", (HOSTS[:ranks],), 1)
    each = STARTUP + SIZE / ranks / 50e9 + 2e-6
    seconds = _played(trial, wire, followed).seconds
    assert seconds == pytest.approx(2 * (ranks - 1) * each)


def test_a_tree_waits_for_its_pieces() -> None:
    """With one piece of all the data, two ranks send it up and then down."""
    wire = Wire(startup_seconds=STARTUP, piece_bytes=int(SIZE))
    trial = NcclRun("all_reduce", (HOSTS[:2],), 1, "tree")
    assert _played(trial, wire, 1000).seconds == pytest.approx(2 * (STARTUP + SIZE / 50e9))


def test_a_chain_passes_on_piece_by_piece() -> None:
    """With four ranks and ten pieces, the last piece comes three start-ups and two pieces later."""
    wire = Wire(startup_seconds=STARTUP, piece_bytes=int(SIZE / 10))
    trial = NcclRun("broadcast", (HOSTS[:4],), 1, "chain")
    seconds = _played(trial, wire, 1000).seconds
    assert seconds == pytest.approx(3 * STARTUP + SIZE / 50e9 * 1.2)


def test_every_byte_is_still_sent() -> None:
    """Followed or not, the same flows carry the same amounts, and nothing waits for ever."""
    wire = Wire(header_bytes=82, startup_seconds=STARTUP, piece_bytes=1 << 20)
    for op, algorithm in (("all_reduce", "ring"), ("all_reduce", "tree"), ("broadcast", "chain")):
        trial = NcclRun(op, (HOSTS[:3], HOSTS[4:7]), 1, algorithm, qps=2)
        script = nccl_script(FABRIC, trial).scaled(SIZE)
        told = unrolled(script, wire)
        assert len(told.sent) == len(told.ready) == len(told.arrived) > len(script)
        sent = [np.bincount(one.flow, one.gbit) for one in (script, told.script)]
        assert sent[0] == pytest.approx(sent[1])
        assert np.isfinite(_played(trial, wire, 10**6, "ecmp").seconds)
        assert unrolled(script, wire, most=1).script is script


def test_ends_are_those_of_the_script() -> None:
    """Ends are those of the script's activities, whether they are followed or not."""
    wire = replace(Wire(), startup_seconds=STARTUP)
    trial = NcclRun("all_gather", (HOSTS[:4], HOSTS[4:]), 1)
    for followed in (0, 1000):
        played = _played(trial, wire, followed, "ecmp")
        assert len(played.run.end) == len(played.script)
        assert [*played.ends()] == ["c0", "c1"]
        assert max(played.ends().values()) == played.seconds
