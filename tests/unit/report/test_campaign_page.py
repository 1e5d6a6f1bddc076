from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_emulator.report.campaign import (
    CampaignEvidence,
    SpreadChart,
    TrialLine,
    _row,
    campaign_page,
)
from heddle_emulator.report.evidence import Fact
from tests.support.report_evidences import Reader

GOOD = CampaignEvidence(
    name="thousand",
    asked=4,
    played=4,
    bad=0,
    good_means="left no flow stranded",
    spreads=(
        SpreadChart("failure to last ack", "s", (0.05, 0.06, 0.07, 0.3)),
        SpreadChart("slowest flow", "share", (1.0, 1.0, 1.0, 0.5), lowest_is_worst=True),
        SpreadChart("QPs stranded", "", (0.0, 0.0, 0.0, 0.0)),
    ),
    trials=(TrialLine(3, "l0-s1 down", "slowest flow 50 %", bad=False, replay="replays/t-3.yaml"),),
    facts=(Fact("seed", "7"),),
    command="heddle-emulator campaign x.yaml",
)


def test_a_campaign_tells_its_spread_and_its_worst() -> None:
    """The worst value is bold, at whichever end it is. Equal values are said to be the same."""
    reader = Reader(campaign_page(GOOD))
    assert (reader.wrong, reader.open) == ([], [])
    assert "All 4 trials left no flow stranded" in reader.text
    assert "<b>300 ms</b>" in campaign_page(GOOD)
    assert "<b>50 %</b>" in campaign_page(GOOD)
    assert reader.text.count("the same in all") == 1
    assert "replays/t-3.yaml" in [attrs.get("href") for tag, attrs in reader.tags if tag == "a"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"played": 3}, "Only 3 trials of 4 played, 0 of them bad"),
        ({"bad": 1}, "1 of 4 trials bad; the others left no flow stranded"),
        ({"bad": 4}, "All 4 trials bad"),
        ({"played": 0, "spreads": (), "trials": ()}, "Only 0 trials of 4 played"),
    ],
)
def test_what_is_not_well_comes_first(change: dict[str, int], sentence: str) -> None:
    """A campaign that was ended or has bad trials has not held."""
    evidence = replace(GOOD, **change)  # type: ignore[arg-type]
    assert not evidence.held
    reader = Reader(campaign_page(evidence))
    assert sentence in reader.text
    assert any(attrs.get("class") == "verdict failed" for _, attrs in reader.tags)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_no_trial_is_left_out_of_a_histogram(values: list[float]) -> None:
    """The first and the last bin are drawn if values differ."""
    row = _row(SpreadChart("x", "", tuple(values)))
    assert (row.path == "") == (min(values) == max(values))
    if row.path:
        assert row.path.startswith("M0 ")
        assert "M235 " in row.path


def test_names_of_a_campaign_are_only_text() -> None:
    """Names come from a user's file."""
    evil = "<script>alert(1)</script>"
    broken = replace(GOOD, name=evil, trials=(TrialLine(1, evil, evil, bad=True, replay=evil),))
    reader = Reader(campaign_page(broken))
    assert (reader.wrong, reader.count("script")) == ([], 1)
