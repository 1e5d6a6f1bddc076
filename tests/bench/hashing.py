"""Heddle against E-ECMP, both with 32 QPs, as uplinks fail.

The slowest flow of each is compared by the emulator's fair rates, and the plan's must never be
slower. Uplinks fail either on one leaf, where plans that do not split flows lose to hashing, or
anywhere. Half of the cases send one permutation and half send two, so that capacity far below
demand is covered too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.solve import solve
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy import strategy
from heddle_emulator.topology import clos
from tests.bench.pool import each
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches, permutations, without

TITLE = "equal QPs, 0 to 8 failed uplinks: slowest flow beside E-ECMP, 32 QPs"
LEAVES, WIDTH = 6, 12
QPS = 32
MOST_FAILED = 8
WAYS = ("of one leaf", "anywhere")
BATCH = 25
"""Number of cases that a process is given at a time."""
EQUAL = 1e-6
"""Rates that differ by less than this part are equal."""
TOLD = 20


@dataclass(frozen=True, slots=True)
class Case:
    """Failures and traffic of one case."""

    way: str
    failed: int
    seed: int

    @property
    def sets(self) -> int:
        """Number of permutations sent at once."""
        return 1 + self.seed % 2

    def __str__(self) -> str:
        return f"{self.failed} {self.way}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Found:
    """Fair rate divided by demand of the slowest flow, for the plan and for the hash."""

    case: Case
    heddle: float
    hashed: float

    @property
    def margin(self) -> float:
        """How much faster the plan's slowest flow is than the hash's; below 0 is a loss."""
        if self.hashed > 0:
            return self.heddle / self.hashed - 1
        return float("inf") if self.heddle > 0 else 0.0

    @property
    def lost(self) -> bool:
        """Whether hashing is better."""
        return self.margin < -EQUAL


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for Heddle, one for the hash, and one for each way to fail."""
    cases = [
        Case(way, failed, seed)
        for seed in range(scale.hash_seeds)
        for way in WAYS
        for failed in range(MOST_FAILED + 1)
    ]
    found: list[Found] = []
    with screen.progress(TITLE, len(cases)) as advance:
        for batch in each(run, batches(cases), scale.workers):
            found += batch
            advance(len(found))
    found.sort(key=lambda one: (one.case.way, one.case.failed, one.case.seed))
    ways = [_way(way, [one for one in found if one.case.way == way]) for way in WAYS]
    return [_heddle(found), _hashed(found), *ways]


def batches(cases: Sequence[Case]) -> list[list[Case]]:
    """Split the cases, in order, into lists of at most ``BATCH``."""
    left = iter(cases)
    return [*iter(lambda: [*islice(left, BATCH)], [])]


def run(cases: Sequence[Case]) -> list[Found]:
    """Plan and hash some cases."""
    whole = clos(leaves=LEAVES, spines=WIDTH, nics_per_leaf=WIDTH)
    return [_run(whole, case) for case in cases]


def _run(whole: Fabric, case: Case) -> Found:
    random = np.random.default_rng([WAYS.index(case.way), case.failed, case.seed])
    rows = np.flatnonzero(between_switches(whole))
    if case.way == WAYS[0]:
        leaf = whole.structure.index[f"l{random.integers(LEAVES)}"]
        rows = rows[whole.structure.links.a[rows] == leaf]
    fabric = without(whole, random.choice(rows, case.failed, replace=False))
    flows = permutations(fabric, case.seed, case.sets, QPS)
    plan = solve(fabric, flows)
    ratios = flow_ratios(fabric.structure.capacity, flows, plan.paths)
    return Found(case, float(ratios.min()), strategy("ecmp")(fabric, flows, case.seed).slowest)


def _heddle(found: list[Found]) -> Row:
    losses = [one for one in found if one.lost]
    margins = [one.margin for one in found]
    worst = min(found, key=lambda one: one.margin)
    return Row(
        TITLE,
        "Heddle",
        f"{len(losses)} losses of {len(found):,}; {_margins(found)}",
        "0 losses",
        not losses,
        f"least margin {worst.margin:+.2%}: {worst.case}",
        {
            "cases": len(found),
            "losses": len(losses),
            "margin": spread(margins),
            "slowest": spread([one.heddle for one in found]),
            "lost": [{"case": str(one.case), "margin": one.margin} for one in losses[:TOLD]],
        },
    )


def _margins(found: list[Found]) -> str:
    margins = [one.margin for one in found]
    parts = {"1 % below": 0.01, "median": 0.5, "90 % below": 0.9}
    return "faster by " + ", ".join(
        f"{name} {quantile(margins, part):.1%}" for name, part in parts.items()
    )


def _hashed(found: list[Found]) -> Row:
    slowest = spread([one.hashed for one in found])
    return Row(
        TITLE,
        "E-ECMP, 32 QPs",
        f"slowest flow at median {slowest['median']:.3f} of its demand",
        note=f"Heddle's at {quantile([one.heddle for one in found], 0.5):.3f}",
        data={"slowest": slowest},
    )


def _way(way: str, found: list[Found]) -> Row:
    by_count = {
        failed: [one.margin for one in found if one.case.failed == failed]
        for failed in range(MOST_FAILED + 1)
    }
    return Row(
        TITLE,
        f"  uplinks {way}",
        f"{sum(one.lost for one in found)} losses of {len(found):,}; {_margins(found)}",
        note="median margin by number failed: "
        + " ".join(f"{quantile(margins, 0.5):.0%}" for margins in by_count.values()),
        data={str(failed): spread(margins) for failed, margins in by_count.items()},
    )
