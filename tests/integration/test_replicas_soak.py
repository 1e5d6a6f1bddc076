"""A few events of what ``make soak`` does for half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.soak import soak
from tests.bench.soak_house import COLUMNS, Sample, growth

SEED = 3
EVENTS = 6
"""The least number of events in a run, however long they take."""


@pytest.mark.parametrize("store", ["redis", "sqlite"])
async def test_a_moment_of_the_soak(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All acknowledged state is there in the end, and a fresh controller has nothing to change."""
    monkeypatch.setattr("tests.bench.soak.SAMPLES", 1)  # taking one takes longer than an event
    seen: list[Sample] = []
    done = await soak(tmp_path, 1.0, SEED, seen.append, store, least=EVENTS)
    assert done.events.count.total() >= EVENTS, f"seed {SEED}"
    assert seen
    assert all(getattr(seen[0], column) > 0 for column in COLUMNS)


def test_growth_is_seen() -> None:
    """A column that grows all the time is reported; one that only grows at the start is not."""
    calm = [Sample(t, t, t, 100.0 + min(t, 5), 20, 90, 18, 2.0, 80, 20, 80) for t in range(40)]
    assert growth(calm) == []
    leaking = [Sample(t, t, t, 100.0, 20, 90 + 5 * t, 18, 2.0, 80, 20, 80) for t in range(40)]
    assert [line.split()[0] for line in growth(leaking)] == ["tasks"]
