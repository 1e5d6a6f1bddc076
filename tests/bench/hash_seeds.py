"""Heddle against E-ECMP, both with 32 QPs, over a thousand hashes of each damaged fabric.

``hashing`` draws failures, traffic and one hash for each case. Here fewer fabrics, with 0 to 8
links down, are each hashed a thousand times. The slowest flow of the one plan must never be slower
than that of any hash. Rates are computed by the emulator for QPs over the planned paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric
from heddle_controller.solve import solve
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.topology import clos, three_tier
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches, permutations, without
from tests.support.hash_many import hashed_slowest

TITLE = "every hash of a damaged fabric: slowest flow beside E-ECMP, 32 QPs"
QPS = 32
MOST_FAILED = 8
EQUAL = 1e-6
"""Rates that differ by less than this part are equal."""
FABRICS: Mapping[str, Callable[[], Fabric]] = {
    "4 leaves x 12 spines x 12 NICs, 1:1": lambda: clos(leaves=4, spines=12, nics_per_leaf=12),
    "4 leaves x 6 spines x 12 NICs, 2:1": lambda: clos(leaves=4, spines=6, nics_per_leaf=12),
    "2 zones of 3 leaves x 6 spines x 6 NICs, 1:2 to 6 cores": lambda: three_tier(
        zones=2, leaves=3, spines=6, nics_per_leaf=6, cores=6, taper=2.0
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A fabric, damage and traffic."""

    fabric: str
    failed: int
    draw: int
    hashes: int

    def __str__(self) -> str:
        return f"{self.fabric}, {self.failed} links down, draw {self.draw}"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The slowest flow of a plan, and of each hash."""

    case: Case
    planned: float
    hashed: Floats

    @property
    def margins(self) -> Floats:
        """How much faster the plan's slowest flow is than each hash's; below 0 is a loss."""
        return self.planned / np.maximum(self.hashed, np.finfo(float).tiny) - 1

    @property
    def losses(self) -> int:
        """Number of hashes that are better than the plan."""
        return int(np.count_nonzero(self.margins < -EQUAL))


def run(case: Case) -> Found:
    """Plan a case once and hash it many times.

    Every other draw sends two permutations instead of one.
    """
    whole = FABRICS[case.fabric]()
    seed = [[*FABRICS].index(case.fabric), case.failed, case.draw]
    random = np.random.default_rng(seed)
    rows = np.flatnonzero(between_switches(whole))
    fabric = without(whole, random.choice(rows, case.failed, replace=False))
    flows = permutations(fabric, case.draw, 1 + case.draw % 2, QPS)
    plan = solve(fabric, flows)
    planned = flow_ratios(fabric.structure.capacity, flows, plan.paths)
    hashed = hashed_slowest(fabric, flows, case.hashes, case.draw)
    return Found(case, float(planned.min()), hashed)


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for each fabric."""
    draws = 1 if scale.name == "quick" else 8
    cases = [
        Case(name, failed, draw, scale.hash_seeds)
        for name in FABRICS
        for failed in range(MOST_FAILED + 1)
        for draw in range(draws)
    ]
    found = []
    with screen.progress(TITLE, len(cases)) as advance:
        for case in cases:
            found.append(run(case))
            advance(len(found))
    return [_row(name, [one for one in found if one.case.fabric == name]) for name in FABRICS]


def _row(name: str, found: list[Found]) -> Row:
    margins = np.concatenate([one.margins for one in found])
    worst = min(found, key=lambda one: float(one.margins.min()))
    losses = sum(one.losses for one in found)
    return Row(
        TITLE,
        name,
        f"{losses} losses of {len(margins):,}; faster by 1 % below {quantile(margins, 0.01):.1%},"
        f" median {quantile(margins, 0.5):.1%}",
        "0 losses",
        not losses,
        f"{len(found)} plans, 0 to {MOST_FAILED} links down; least margin"
        f" {worst.margins.min():+.2%}: {worst.case}",
        {
            "losses": losses,
            "margin": spread(margins),
            "lost": [str(one.case) for one in found if one.losses],
            "by_failed": {
                str(failed): spread(
                    np.concatenate([one.margins for one in found if one.case.failed == failed])
                )
                for failed in range(MOST_FAILED + 1)
            },
        },
    )
