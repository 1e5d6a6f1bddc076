"""Differences recorded from plan to plan equal those found by comparing the plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import Ints
from heddle_controller.model.plan import Paths, changed_places, keep_places
from heddle_controller.model.program import Edit
from tests.support.depth import examples

SEEDS = st.integers(0, 2**32)


def paths(numbers: np.random.Generator, count: int) -> Paths:
    """Draw ``count`` flows of one path each."""
    rows = np.arange(count, dtype=np.int64)
    first = np.append(0, np.cumsum(numbers.integers(0, 4, size=count)))
    arcs = numbers.integers(0, 3, size=int(first[-1]))
    return Paths(rows, 0 * rows, 0 * rows, first.astype(np.int64), arcs.astype(np.int64))


@pytest.mark.deep
@settings(max_examples=examples(50))
@given(SEEDS)
def test_where_paths_differ_is_found_whoever_was_compared_before(seed: int) -> None:
    """``changed_places`` is right for any two plans, whichever were compared before.

    Steps change some arcs or all columns, and some steps are recorded but not compared. Any two
    plans are asked about, in any order and repeatedly.
    """
    numbers = np.random.default_rng(seed)
    every = [paths(numbers, 6)]
    for _ in range(8):
        was = every[-1]
        arcs = was.arcs.copy()
        some = numbers.random(len(arcs)) < numbers.choice([0.0, 0.2, 0.6])
        arcs[some] = numbers.integers(0, 3, size=int(some.sum()))
        now = replace(was, arcs=arcs)
        if numbers.random() < 0.1:
            now = paths(numbers, 6)
        elif numbers.random() < 0.5:
            keep_places(was, now, np.flatnonzero(was.arcs != arcs))
        every.append(now)
        for old, new in numbers.choice(len(every), size=(3, 2)).tolist():
            one, other = every[old], every[new]
            alike = np.array_equal(one.first, other.first)
            expected = np.flatnonzero(one.arcs != other.arcs).tolist() if alike else None
            found = changed_places(one, other)
            assert (None if found is None else found.tolist()) == expected, seed


@pytest.mark.deep
@settings(max_examples=examples(50))
@given(SEEDS)
def test_two_edits_are_one(seed: int) -> None:
    """Two edits joined by ``then`` remove and add what the rows before and after both say."""
    numbers = np.random.default_rng(seed)
    fresh = iter(range(1000))

    def edited(rows: list[int]) -> tuple[list[int], Edit]:
        gone = np.flatnonzero(numbers.random(len(rows)) < numbers.choice([0.0, 0.3, 1.0]))
        after = [row for at, row in enumerate(rows) if at not in gone]
        for _ in range(int(numbers.integers(0, 4))):
            after.insert(int(numbers.integers(0, len(after) + 1)), next(fresh))
        came = [at for at, row in enumerate(after) if row not in rows]
        return after, Edit(gone.astype(np.int64), np.array(came, dtype=np.int64))

    before = [next(fresh) for _ in range(int(numbers.integers(0, 6)))]
    between, one = edited(before)
    after, other = edited(between)
    both = one.then(other)
    assert both.gone.tolist() == _missing(before, after).tolist(), seed
    assert both.came.tolist() == _missing(after, before).tolist(), seed


def _missing(rows: list[int], others: list[int]) -> Ints:
    """The places of the rows that are not among the others."""
    return np.array([at for at, row in enumerate(rows) if row not in others], dtype=np.int64)
