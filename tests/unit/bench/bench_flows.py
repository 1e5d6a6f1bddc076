"""Short ways to write flows and losses, for tests of strategies."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows

Row = tuple[str, str, float] | tuple[str, str, float, str] | tuple[str, str, float, str, str]
"""Source, destination, Gbit/s and, optionally, job (default "j") and phase (default "")."""


def flows_of(fabric: Fabric, *rows: Row, qps: int = 1) -> Flows:
    """Return flows f0, f1, … of a fabric, with this many QPs each."""
    full = [(*row, *("j", "")[len(row) - 3 :]) for row in rows]
    source, destination, gbps, job, phase = zip(*full, strict=True)
    count = len(rows)
    demands = Demands(
        ids=tuple(f"f{row}" for row in range(count)),
        source=source,
        destination=destination,
        gbps=np.array(gbps, dtype=np.float64),
        job=job,
        phase=phase,
        qps=np.full(count, qps, dtype=np.int64),
        traffic_class=np.zeros(count, dtype=np.int64),
    )
    return resolve(demands, fabric, origin="test")


def without(fabric: Fabric, *links: tuple[str, str]) -> Fabric:
    """Return the fabric with all links between these pairs of nodes down."""
    rows = [row for a, b in links for row in fabric.find_links(a, b)]
    return fabric.with_links(dict.fromkeys(rows, State.DOWN))
