"""Differences recorded from plan to plan equal those found by comparing the plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import Ints
from heddle_controller.model.edits import Edit
from heddle_controller.model.plan import Paths, differing, edit_of, edited_paths, join_paths
from tests.support.depth import examples

SEEDS = st.integers(0, 2**32)


def paths(numbers: np.random.Generator, flows: int) -> Paths:
    """Draw paths of some flows of four QPs, each with none to three of them."""
    rows: list[tuple[int, int, int]] = []
    for number in range(flows):
        cuts = np.sort(numbers.choice(np.arange(1, 4), size=numbers.integers(0, 3), replace=False))
        firsts = [0, *cuts.tolist()] if numbers.random() < 0.9 else []
        rows += zip([number] * 3, firsts, [*(one - 1 for one in firsts[1:]), 3], strict=False)
    first = np.append(0, np.cumsum(numbers.integers(0, 4, size=len(rows)))).astype(np.int64)
    flow, first_qp, last_qp = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    arcs = numbers.integers(0, 3, size=int(first[-1]))
    return Paths(flow, first_qp, last_qp, first, arcs)


def mixed(numbers: np.random.Generator, was: Paths, now: Paths) -> Paths:
    """Take the paths of some flows from the first, of all others from the second."""
    kept = numbers.random(1 + max(was.flow.max(initial=0), now.flow.max(initial=0))) < 0.6
    kept &= np.arange(len(kept)) <= was.flow.max(initial=-1)
    parts = [was.take(np.flatnonzero(kept[was.flow])), now.take(np.flatnonzero(~kept[now.flow]))]
    together = join_paths(parts)
    return together.take(np.argsort(together.flow, kind="stable"))


def rows_of(paths: Paths) -> list[tuple[int, ...]]:
    """Return each path as its flow, its QPs and its arcs."""
    columns = zip(paths.flow, paths.first_qp, paths.last_qp, strict=True)
    return [(*map(int, one), *paths.of(row).tolist()) for row, one in enumerate(columns)]


@pytest.mark.deep
@settings(max_examples=examples(50))
@given(SEEDS)
def test_where_paths_differ_is_found_whoever_was_compared_before(seed: int) -> None:
    """``edit_of`` makes the later of any two sets from the earlier, and marks all that differs.

    Steps change some arcs, the paths of some flows, or everything. Later sets may have more flows.
    Some steps are made by an edit, as at the other end of a pipe, and edits may replace paths by
    the same ones. Any two sets are asked about, in any order and repeatedly. Where nothing is known
    of two sets, exactly the flows that differ are marked.
    """
    numbers = np.random.default_rng(seed)
    every = [paths(numbers, 6)]
    for _ in range(8):
        was = every[-1]
        arcs = was.arcs.copy()
        some = numbers.random(len(arcs)) < numbers.choice([0.0, 0.2, 0.6])
        arcs[some] = numbers.integers(0, 3, size=int(some.sum()))
        now = replace(was, arcs=arcs)
        if numbers.random() < 0.4:
            count = int(was.flow.max(initial=5)) + 1 + int(numbers.integers(0, 2))
            now = mixed(numbers, was, paths(numbers, count))
        if numbers.random() < 0.5:
            edit = edit_of(replace(was), replace(now))
            if numbers.random() < 0.3:
                every_row = (np.arange(len(one), dtype=np.int64) for one in (was, now))
                edit = Edit(*every_row)
            made = edited_paths(was, edit, now.take(edit.came))
            assert rows_of(made) == rows_of(now), seed
            now = made
        every.append(now)
        for pair in numbers.choice(len(every), size=(3, 2)).tolist():
            old, new = (every[at] for at in sorted(pair))
            before, after, edit = rows_of(old), rows_of(new), edit_of(old, new)
            stay = [row for at, row in enumerate(before) if at not in edit.gone]
            assert stay == [row for at, row in enumerate(after) if at not in edit.came], seed
            assert rows_of(edited_paths(old, edit, new.take(edit.came))) == after, seed
            differ = sorted({row[0] for row in {*before} ^ {*after}})
            assert {*differ} <= {*np.flatnonzero(differing(old, new, 20)).tolist()}, seed
            anew = differing(replace(old), replace(new), 20)
            assert np.flatnonzero(anew).tolist() == differ, seed


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
