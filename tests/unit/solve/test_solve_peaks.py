"""The greatest of some bounds, found without looking at all of them."""

from __future__ import annotations

import numpy as np
import pytest

from heddle_controller.solve.losses.screen import Peaks

COLUMNS = 2


@pytest.mark.parametrize("arcs", [1, 255, 256, 257, 5000])
def test_greatest_after_any_changes(arcs: int) -> None:
    """After any changes, the greatest values are those of the whole column, the first if equal."""
    random = np.random.default_rng(arcs)
    peaks, plain = Peaks(COLUMNS, arcs), np.zeros((COLUMNS, arcs))
    for step in range(60):
        some = np.flatnonzero(random.random(arcs) < random.choice([0.001, 0.02, 1.0]))
        top = random.choice([1, 4, 10**6])
        values = random.integers(0, top, (COLUMNS, len(some)), endpoint=True) / top
        peaks.put(some, values)
        plain[:, some] = values
        shown = plain.copy()
        if step % 3 == 0:
            hidden = np.flatnonzero(random.random(arcs) < random.choice([0.01, 0.5]))
            assert np.array_equal(peaks.hide(hidden), plain[:, hidden])
            shown[:, hidden] = 0.0
        assert np.array_equal(peaks.values, shown)
        for column, every in enumerate(shown):
            assert peaks.most(column) == every.max()
            for count in (1, 4, 32, 2000):
                found = peaks.greatest(column, count)
                tied = np.flatnonzero((every == every.max()) & (every > 0))
                if len(tied) >= count:
                    assert found.tolist() == tied[:count].tolist()
                wanted = np.sort(every[every > 0])[::-1][:count]
                assert np.sort(every[found])[::-1].tolist() == wanted.tolist()
        peaks.show()
        assert np.array_equal(peaks.values, plain)
