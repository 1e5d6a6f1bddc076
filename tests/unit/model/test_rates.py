"""The range of rates that is accepted, and why sums of them do not overflow."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.errors import LEAST, MOST, sensible


def test_bounds() -> None:
    """Both bounds are sensible; rates beyond and below them, nan and infinities are not."""
    rates = np.array([LEAST, 400.0, MOST, 0.0, -1.0, 1e-320, 1e300, np.nan, np.inf, -np.inf])
    assert sensible(rates).tolist() == [True] * 3 + [False] * 7


def test_no_sum_overflows() -> None:
    """A million of the largest rates over the least is still a finite number."""
    assert np.isfinite(1e6 * MOST / LEAST)
