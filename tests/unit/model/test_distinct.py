"""``distinct``, ``numbered`` and ``marked`` give what numpy gives, whichever way they take."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.arrays import (
    CELLS_TO_MARK,
    FEW_TO_SORT,
    Ints,
    distinct,
    distinct_floats,
    marked,
    numbered,
)

SIZES = st.sampled_from([0, 1, 2, FEW_TO_SORT - 1, FEW_TO_SORT, 3 * FEW_TO_SORT])
WIDTHS = st.sampled_from([1, 3, FEW_TO_SORT, CELLS_TO_MARK * FEW_TO_SORT, 1 << 20, 1 << 40])
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def drawn(size: int, width: int, seed: int) -> Ints:
    """Numbers from a range of the given width that begins anywhere, also below zero."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, width, size) + int(rng.integers(-width, width))


@given(SIZES, WIDTHS, SEEDS)
def test_each_value_comes_once_in_ascending_order(size: int, width: int, seed: int) -> None:
    """Few and many numbers, close together and far apart, come out as from ``np.unique``."""
    values = drawn(size, width, seed)
    assert distinct(values).tolist() == np.unique(values).tolist()
    halves = values / 2
    assert distinct_floats(halves).tolist() == np.unique(halves).tolist()


@given(SIZES, WIDTHS, SEEDS)
def test_values_are_numbered_in_order_with_where_each_comes_first(
    size: int, width: int, seed: int
) -> None:
    """Numbers and first indices are those of ``np.unique``."""
    values = drawn(size, width, seed)
    _, first, number = np.unique(values, return_index=True, return_inverse=True)
    found = numbered(values)
    assert found[0].tolist() == number.tolist()
    assert found[1].tolist() == first.tolist()


@given(st.integers(0, 20), st.integers(0, 9), SEEDS)
def test_marked_elements_are_found_row_by_row(rows: int, columns: int, seed: int) -> None:
    """Rows and columns are those of ``np.nonzero``, also for tables without either."""
    table = np.random.default_rng(seed).random((rows, columns)) < 0.3
    assert [one.tolist() for one in marked(table)] == [one.tolist() for one in np.nonzero(table)]
