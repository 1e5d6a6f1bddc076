"""Heddle against E-ECMP of as many QPs, over a thousand hashes of fabrics drawn at random.

``hash_seeds`` damages three fabrics. Here each case has a fabric, damage and traffic of its own
(``drawn_shapes``). The fabrics are small, since there one hash in a thousand is nearly as good as a
plan can be. The slowest flow of the plan is compared with the best of all hashes. Its fullest link
and its makespan, which take longer to compute, are compared with the best of a few hashes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.plan import Paths, arc_loads, utilization
from heddle_controller.solve import solve
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy import strategy
from heddle_emulator.strategy.makespan import Sending, ends
from tests.bench.drawn_shapes import Drawn, drawn
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.support.hash_many import hashed_slowest

TITLE = "fabrics drawn at random: slowest flow beside E-ECMP of as many QPs"
PER_CASE = 5
"""Hashes per case divided by the number of cases: 1,000 hashes make 200 cases."""
LEAST_CASES = 4
FEW = 5
"""Number of hashes whose links and makespan are computed."""
FIRST = 10_000
"""Seed of the first case."""
EQUAL = 1e-6
"""Figures that differ by less than this are equal."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plan beside the best of its hashes: each figure divided by that of the hash, less 1."""

    name: str
    slowest: float
    """Below 0 is a loss."""
    fullest: float
    """Above 0 is a loss."""
    makespan: float
    """Above 0 is a loss."""


def run(case: Drawn, hashes: int, seed: int) -> Found:
    """Plan a case once and hash it many times."""
    fabric, flows = case.fabric, case.flows
    paths = solve(fabric, flows).paths
    planned = float(flow_ratios(fabric.structure.capacity, flows, paths).min())
    best = float(hashed_slowest(fabric, flows, hashes, seed).max())
    few = [strategy("ecmp")(fabric, flows, seed).paths for seed in range(min(FEW, hashes))]
    return Found(
        case.name,
        planned / best - 1 if best > 0 else 0.0,
        _fullest(case, paths) / min(_fullest(case, one) for one in few) - 1,
        _makespan(case, paths) / min(_makespan(case, one) for one in few) - 1,
    )


def _fullest(case: Drawn, paths: Paths) -> float:
    """Return the worst utilisation of any link, including those of NICs."""
    loads = arc_loads(2 * case.fabric.link_count, case.flows, paths)
    return float(utilization(case.fabric, loads).max())


def _makespan(case: Drawn, paths: Paths) -> float:
    """Return the seconds until the flows whose QPs all have a path are done."""
    flows = case.flows
    placed = np.bincount(paths.flow, weights=paths.qp_count, minlength=len(flows)) == flows.qps
    whole = paths.take(np.flatnonzero(placed[paths.flow]))
    row = np.cumsum(placed) - 1
    own = Paths(row[whole.flow], whole.first_qp, whole.last_qp, whole.first, whole.arcs)
    kept = flows.take(np.flatnonzero(placed))
    capacity, whole_packets = case.fabric.structure.capacity, np.ones(len(own.arcs))
    return float(ends(capacity, kept, own, whole_packets, Sending()).max())


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for each of the three figures."""
    count = max(LEAST_CASES, scale.hash_seeds // PER_CASE)
    found = []
    with screen.progress(TITLE, count) as advance:
        for seed in range(FIRST, FIRST + count):
            found.append(run(drawn(seed), scale.hash_seeds, seed))
            advance(len(found))
    few = f"best of {min(FEW, scale.hash_seeds)} hashes"
    return [
        _row(
            "slowest flow", f"best of {scale.hash_seeds} hashes", found, [-f.slowest for f in found]
        ),
        _row("fullest link", few, found, [f.fullest for f in found]),
        _row("makespan", few, found, [f.makespan for f in found]),
    ]


def _row(who: str, beside: str, found: list[Found], worse: list[float]) -> Row:
    """Return a row for one figure.

    ``worse`` is by how much each plan is worse than the hash. Above 0 is a loss.
    """
    lost = [one.name for one, by in zip(found, worse, strict=True) if by > EQUAL]
    worst = int(np.argmax(worse))
    return Row(
        TITLE,
        who,
        f"{len(lost)} losses of {len(found)}; better by {quantile([-w for w in worse], 0.5):.1%}"
        " at median",
        "0 losses",
        not lost,
        f"beside the {beside}; least margin {-worse[worst]:+.2%}: {found[worst].name}",
        {"losses": len(lost), "lost": lost, "worse": spread(worse)},
    )
