"""Taking some entries, and appending several sets of entries."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.program import COLUMNS, Entries, no_entries
from heddle_controller.reconcile.rollout.paths import appended

RISKS = st.lists(st.lists(st.integers(-5, 5), max_size=3), max_size=6)


def _entries(risks: list[list[int]]) -> Entries:
    """Entries with the given risk links and distinct values in all other columns."""
    rows = np.arange(len(risks), dtype=np.int64)
    lengths = [len(links) for links in risks]
    switch, source, destination, from_port, to_port, primary, backup, stage = (
        rows * 10 + column for column in range(8)
    )
    return Entries(
        switch,
        source,
        destination,
        from_port,
        to_port,
        primary,
        backup,
        stage,
        np.cumsum([0, *lengths], dtype=np.int64),
        np.array([link for links in risks for link in links], dtype=np.int64),
    )


def _links(entries: Entries) -> list[list[int]]:
    first = entries.risk_first.tolist()
    return [entries.risk_links[a:b].tolist() for a, b in pairwise(first)]


@given(RISKS, st.data())
def test_taken_entries_are_whole(risks: list[list[int]], data: st.DataObject) -> None:
    """Taken rows keep all their columns and risk links, in any order and repeatedly."""
    entries = _entries(risks)
    row = st.integers(0, max(len(risks) - 1, 0))
    rows = data.draw(st.lists(row, max_size=8 if risks else 0))
    taken = entries.take(np.array(rows, dtype=np.int64))
    assert (taken.switch // 10).tolist() == rows
    assert (taken.stage - 7 == taken.switch).all()
    assert _links(taken) == [risks[row] for row in rows]


@given(st.lists(RISKS, min_size=1, max_size=4))
def test_appended_entries_are_those_of_each_set(sets: list[list[list[int]]]) -> None:
    """Appended sets follow one another, also if some or all of them are empty."""
    whole = appended([_entries(risks) for risks in sets])
    assert _links(whole) == [links for risks in sets for links in risks]
    assert whole.primary.tolist() == [10 * r + 5 for risks in sets for r in range(len(risks))]
    columns = (*COLUMNS, "risk_first", "risk_links")
    kinds = {getattr(whole, name).dtype for name in columns}
    assert kinds == {np.dtype(np.int64)}


def test_no_sets_are_no_entries() -> None:
    """Appending no sets gives empty entries, from which rows can be taken."""
    none = appended([])
    assert not len(none)
    assert none.risk_first.tolist() == no_entries().risk_first.tolist() == [0]
    assert not len(none.take(np.empty(0, dtype=np.int64)))
