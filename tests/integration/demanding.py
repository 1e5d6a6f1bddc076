"""Demands for tests, from pairs of NICs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle_controller.model.demand import Demands


def demands_of(pairs: Sequence[tuple[str, str]], gbps: float = 400.0) -> Demands:
    """Return one flow of one QP for each pair (source, destination)."""
    count = len(pairs)
    return Demands(
        ids=tuple(f"f{row}" for row in range(count)),
        source=tuple(source for source, _ in pairs),
        destination=tuple(destination for _, destination in pairs),
        gbps=np.full(count, gbps),
        job=("test",) * count,
        phase=("",) * count,
        qps=np.ones(count, dtype=np.int64),
        traffic_class=np.zeros(count, dtype=np.int64),
    )
