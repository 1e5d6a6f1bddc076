"""The value types of the bench: one figure of the table, and how much to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of the table. Figures without a target, such as those of peers, are not judged."""

    measure: str
    who: str
    figure: str
    target: str = ""
    reached: bool | None = None
    note: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same figure as numbers, with more detail, for bench.json."""

    def record(self) -> dict[str, Any]:
        """Return the row as a dictionary, as bench.json stores it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to measure."""

    name: str
    workers: int
    """Number of processes for work that is not timed."""
    zone: tuple[int, int, int]
    """Leaves, spines and NICs per leaf of one zone of the largest fabrics."""
    zones: int
    healthy_seeds: int
    healthy_fabrics: int
    """How many of the healthy fabrics to measure, starting with the smallest."""
    gap_seeds: int
    """Seeds for each family of fabrics and each number of QPs."""
    hash_seeds: int
    """Seeds for each way to fail and each number of failures, or hashes of each case."""
    plan_runs: int
    repair_links: int
    arrival_runs: int
    growth_zones: tuple[int, ...]
    peer_hosts: tuple[int, ...]
    """Numbers of hosts at which OpenSM is timed."""
    lab_runs: int
    """Runs of each failure on real packets."""
    push_leaves: int
    event_links: int
    races: int
    campaign_failures: int
    submits: int


_PUBLISHED = (192, 16, 16)
DEFAULT = Scale(
    "default",
    workers=2,
    zone=_PUBLISHED,
    zones=8,
    healthy_seeds=3,
    healthy_fabrics=10,
    gap_seeds=15,
    hash_seeds=1000,
    plan_runs=7,
    repair_links=1000,
    arrival_runs=5,
    growth_zones=(1, 2, 4, 8, 16, 32),
    peer_hosts=(1024,),
    lab_runs=10,
    push_leaves=2048,
    event_links=20,
    races=1_000,
    campaign_failures=100,
    submits=1_000,
)
FULL = Scale(
    "full",
    workers=2,
    zone=_PUBLISHED,
    zones=8,
    healthy_seeds=10,
    healthy_fabrics=10,
    gap_seeds=50,
    hash_seeds=1000,
    plan_runs=15,
    repair_links=1000,
    arrival_runs=15,
    growth_zones=(1, 2, 4, 8, 16, 32),
    peer_hosts=(1024, 10240, 24576),
    lab_runs=30,
    push_leaves=2048,
    event_links=20,
    races=10_000,
    campaign_failures=1_000,
    submits=1_000,
)
QUICK = Scale(
    "quick",
    workers=1,
    zone=(8, 4, 4),
    zones=3,
    healthy_seeds=1,
    healthy_fabrics=2,
    gap_seeds=1,
    hash_seeds=2,
    plan_runs=2,
    repair_links=8,
    arrival_runs=1,
    growth_zones=(1, 2),
    peer_hosts=(64,),
    lab_runs=1,
    push_leaves=16,
    event_links=3,
    races=10,
    campaign_failures=4,
    submits=64,
)


def quantile(values: npt.ArrayLike, part: float) -> float:
    """Return the smallest value that at least this part of all values does not exceed."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), part, method="inverted_cdf"))


def spread(values: npt.ArrayLike) -> dict[str, float]:
    """Return the median, the 90 % and 99 % quantiles, the least and the most of some values."""
    array = np.asarray(values, dtype=np.float64)
    parts = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: quantile(array, part) for name, part in parts.items()}
    return {"least": float(array.min()), **found, "most": float(array.max())}
