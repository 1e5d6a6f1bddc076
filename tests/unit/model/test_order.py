"""``stable_order`` gives numpy's stable order, whichever way it computes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.arrays import FEW_TO_SORT, MOST_BITS, stable_order

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.lists(st.integers(0, 5) | INT64, max_size=40)


@given(VALUES | st.lists(st.integers(0, 9), max_size=200))
def test_any_numbers(values: list[int]) -> None:
    """Equal numbers keep their order, with small, huge and negative ones among them."""
    array = np.array(values, dtype=np.int64)
    assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("count", [2, FEW_TO_SORT - 1, FEW_TO_SORT, 3000])
@pytest.mark.parametrize("bits", [1, 15, 16, 17, 32, 33, *range(MOST_BITS - 12, MOST_BITS + 1)])
def test_any_width(count: int, bits: int) -> None:
    """The order is right for numbers of any width and offset, with equal ones among them."""
    random = np.random.default_rng(bits)
    values = random.integers(0, 2**bits - 1, count, endpoint=True)
    values[random.integers(0, count, count // 2)] = values[0]
    for least in (0, -(2**bits), -(2**62)):
        moved = values + least
        assert np.array_equal(stable_order(moved), np.argsort(moved, kind="stable"))
