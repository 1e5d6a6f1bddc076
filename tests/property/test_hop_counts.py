"""Hop counts of which some columns are kept apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model import hop_counts
from heddle_controller.model.hop_counts import HopCounts

ROWS, PLACES = 5, 12


@given(st.lists(st.sets(st.integers(0, PLACES - 1), max_size=PLACES), max_size=6), st.integers(0))
def test_counts_are_those_of_a_plain_table(changes: list[set[int]], seed: int) -> None:
    """Whatever columns change, however often, every way to read them tells the newest counts.

    What was made of it earlier tells what it told, too.
    """
    random = np.random.default_rng(seed)
    plain = random.integers(0, 9, (ROWS, PLACES)).astype(np.int16)
    made = [(HopCounts(plain), plain)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hop_counts, "MOST_APART", 6)
        for change in changes:
            counts, due = made[-1]
            places = random.permutation(sorted(change)).astype(np.int64)
            fresh = random.integers(0, 9, (ROWS, len(places))).astype(np.int16)
            due = due.copy()
            due[:, places] = fresh
            made.append((counts.with_columns(places, fresh), due))
    for counts, due in made:
        _reads_as(counts, due, random)


def _reads_as(counts: HopCounts, due: np.ndarray, random: np.random.Generator) -> None:
    rows, places = random.integers(0, ROWS, 20), random.integers(-1, PLACES, 20)
    np.testing.assert_array_equal(counts.at(rows, places), due[rows, places])
    np.testing.assert_array_equal(counts.at(rows, int(places[0])), due[rows, places[0]])
    np.testing.assert_array_equal(counts.lines(rows), due[rows])
    np.testing.assert_array_equal(counts.columns(places), due[:, places])
    np.testing.assert_array_equal(counts.whole(), due)
    assert (counts.shape, counts.size) == (due.shape, due.size)
