"""How fast the fluid world is at 24,576 NICs: fair rates of one phase, and the phase played.

Every rank is in one all-reduce of double binary trees with eight channels side by side: about
86,000 flows, hashed. Only the solving and the playing are timed, not the walking of packets.
"""

from __future__ import annotations

import time

import numpy as np

from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.play.nccl import NcclRun, nccl_script
from heddle_emulator.play.play import play
from heddle_emulator.strategy import choose
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones

MOST_SECONDS = 2.0
RUNS = 5


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return two rows: one for solving the rates, one for playing the phase."""
    fabric = published_zones(scale)
    title = f"one all-reduce in the fluid world, {size_of(fabric)}"
    hosts = tuple(fabric.structure.nics_of_host)
    solving, playing, events = [], [], 0
    with screen.progress(title, RUNS) as advance:
        gpus = len(fabric.structure.nics_of_host[hosts[0]])
        script = nccl_script(fabric, NcclRun("all_reduce", (hosts,), gpus, "tree"))
        carried = choose("ecmp", fabric, script.flows, 0).carried
        for run in range(RUNS):
            begin = time.perf_counter()
            ratios = flow_ratios(fabric.structure.capacity, script.flows, carried.paths)
            solving.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            played = play(fabric, script.scaled(1 << 30), carried)
            playing.append(time.perf_counter() - begin)
            assert ratios.min() > 0
            assert np.isfinite(played.seconds)
            events = played.run.events
            advance(run + 1)
    return [
        Row(
            title,
            "fair rates",
            f"{quantile(solving, 0.5):.3f} s for {len(script.flows):,} flows",
            f"< {MOST_SECONDS:g} s",
            max(solving) < MOST_SECONDS,
            f"{RUNS} runs, slowest {max(solving):.3f} s",
            spread(solving),
        ),
        Row(
            title,
            "played from begin to end",
            f"{quantile(playing, 0.5):.3f} s",
            note=f"{events} events",
            data=spread(playing),
        ),
    ]
