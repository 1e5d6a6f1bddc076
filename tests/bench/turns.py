"""Turns in time: two jobs over links of half the needed width, with turns and without.

A VGG16 computes for 141 ms of an iteration of 255 ms, and communicates for the rest, after CASSINI
(NSDI 2024). Other pairs of jobs are drawn at random. With drift, one job computes longer than the
turns were made for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.job import Group, Parallelism
from heddle_controller.traffic.turns import TURN_SLACK, turns_of
from heddle_emulator.play.iteration import Placed, cycles_of, iterate, iteration_script, slower
from heddle_emulator.strategy import choose
from heddle_emulator.topology import clos
from heddle_emulator.traffic.workload import Exchange, Workload
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen

TITLE = "turns in time, two jobs over links of half their width"
VGG16 = (0.141, 0.114)
GAIN = 1.4
ITERATIONS = 20
FIRST_SEED = 4200

Pair = tuple[tuple[float, float], tuple[float, float]]
"""Seconds of computing and of communicating alone, for each of two jobs."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Mean seconds of an iteration of each job, without turns and with them."""

    without: list[float]
    turns: list[float]
    given: bool

    @property
    def gain(self) -> float:
        """Mean over both jobs of the iteration without turns divided by that with turns."""
        return float(np.mean(np.divide(self.without, self.turns)))


def paired(pair: Pair, drift: float) -> Paired:
    """Run two jobs of four NICs each over two leaves, 2:1; one computes longer by ``drift``."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=4, nics_per_host=2, uplink_gbps=800.0)
    hosts = [*fabric.structure.nics_of_host]
    placed = []
    for name, (computing, sending), own in zip("ab", pair, (hosts[::2], hosts[1::2]), strict=True):
        reduce = Exchange("all_reduce", Group.DP, sending * 100e9 / (2 * 3 / 4))
        told = Workload("drawn", Parallelism(), computing, (reduce,), slices=1)
        placed.append(Placed(name, told, tuple(own), 2))
    carried = choose("ecmp", fabric, iteration_script(fabric, placed).flows, 0).carried
    turns = turns_of(cycles_of(fabric, placed, carried))
    real = [placed[0], slower(placed[1], drift)]
    without = iterate(fabric, real, carried, iteration_script(fabric, real, ITERATIONS))
    script = iteration_script(fabric, real, ITERATIONS, turns)
    taken = iterate(fabric, real, carried, script, turns=turns)
    return Paired([one.seconds for one in without], [one.seconds for one in taken], bool(turns))


def drawn(seed: int) -> Pair:
    """Draw a pair. Half of all pairs have equal iterations, as copies of a job do."""
    random = np.random.default_rng(seed)
    part = random.uniform(0.1, 0.6, 2)
    length = np.array([1.0, 1.0 if random.random() < 1 / 2 else random.uniform(0.3, 3.0)])
    one, other = np.stack([length * (1 - part), length * part], axis=1).tolist()
    return (one[0], one[1]), (other[0], other[1])


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return rows for a published pair and for drawn ones, without drift and with it."""
    seeds = range(FIRST_SEED, FIRST_SEED + 2 * scale.gap_seeds)
    still, drifting = paired((VGG16, VGG16), 0.0), paired((VGG16, VGG16), TURN_SLACK)
    change = max(a / b for a, b in zip(drifting.turns, still.turns, strict=True))
    rows = [
        Row(
            TITLE,
            "two VGG16",
            f"{still.gain:.2f} x mean iteration",
            f">= {GAIN} x",
            still.gain >= GAIN,
            data={"without": still.without, "turns": still.turns},
        ),
        Row(
            TITLE,
            f"two VGG16, one {TURN_SLACK:.0%} slower than told",
            f"{change:.3f} of the iteration without drift",
            f"<= {1 + TURN_SLACK}",
            change <= 1 + TURN_SLACK,
            data={"without": drifting.without, "turns": drifting.turns},
        ),
    ]
    with screen.progress(TITLE, 2 * len(seeds)) as advance:
        for number, drift in enumerate((0.0, TURN_SLACK)):
            found = []
            for at, seed in enumerate(seeds):
                found.append(paired(drawn(seed), drift))
                advance(number * len(seeds) + at + 1)
            rows.append(_drawn_row(found, drift))
    return rows


def _drawn_row(found: list[Paired], drift: float) -> Row:
    given = [one.gain for one in found if one.given]
    least = min(one.gain for one in found)
    mean = float(np.mean(given)) if given else 1.0
    return Row(
        TITLE,
        f"{len(found)} drawn pairs, one {drift:.0%} slower than told"
        if drift
        else f"{len(found)} drawn pairs",
        f"{least:.2f} x mean iteration at worst, {mean:.2f} x where turns are given",
        ">= 1 x at worst",
        least >= 1,
        f"given to {len(given)}",
        {"gains": [one.gain for one in found]},
    )
