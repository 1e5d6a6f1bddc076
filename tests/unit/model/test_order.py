"""The order of codes is numpy's stable one, whichever way it is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.arrays import stable_order

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.lists(st.integers(0, 5) | INT64, max_size=40)


@given(VALUES | st.lists(st.integers(0, 9), max_size=200))
def test_any_numbers(values: list[int]) -> None:
    """Equal numbers stay as they stand, with small, huge and negative ones among them."""
    array = np.array(values, dtype=np.int64)
    assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("bits", [16, 52, 53, 54, 62, 63])
def test_around_the_widest_that_has_room_for_places(bits: int) -> None:
    """The order is the same just below and just above where places no longer fit."""
    random = np.random.default_rng(bits)
    values = (2**bits - 1) - random.integers(0, 50, 1000)
    assert np.array_equal(stable_order(values), np.argsort(values, kind="stable"))
