"""The page of a campaign: many trials on one fabric, and the spread of their results.

As with drills, the data is plain and independent of how trials are played. Spreads are given as
numbers and as histograms in which a single trial is still visible, because outliers are the reason
for a campaign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heddle_emulator.report import words
from heddle_emulator.report.evidence import Fact
from heddle_emulator.report.page import environment

_WIDTH, _HEIGHT, _BINS = 240.0, 34.0, 48
LEAST_BAR = 2.0
"""Pixels of the bar of a single trial."""


@dataclass(frozen=True, slots=True)
class SpreadChart:
    """One measure over all trials that were played to their end."""

    title: str
    unit: str
    """"s", "share" (shown in per cent), or the name of what is counted."""
    values: tuple[float, ...]
    lowest_is_worst: bool = False


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A trial that is worth a look."""

    number: int
    words: str
    """What broke."""
    why: str
    """What the result was."""
    bad: bool
    replay: str = ""
    """A drill that plays this trial alone; a path relative to the page."""


@dataclass(frozen=True, slots=True)
class CampaignEvidence:
    """All results of a campaign."""

    name: str
    asked: int
    played: int
    bad: int
    """Number of trials in which something was wrong."""
    good_means: str
    """What all other trials did, as the end of a sentence: "stranded nothing"."""
    spreads: tuple[SpreadChart, ...]
    trials: tuple[TrialLine, ...]
    """The worst trials, the worst one first."""
    facts: tuple[Fact, ...] = ()
    command: str = ""

    @property
    def held(self) -> bool:
        """Whether all trials were played and none was bad."""
        return self.played == self.asked and not self.bad


@dataclass(frozen=True, slots=True)
class SpreadRow:
    """A spread, ready to be drawn."""

    title: str
    numbers: tuple[str, ...]
    """Least, median, 90 %, 99 %, most."""
    path: str
    """SVG path of the histogram; empty if all trials had the same value."""
    low: str
    high: str
    worst_left: bool


def campaign_page(evidence: CampaignEvidence) -> str:
    """Return the HTML of a campaign's report."""
    return (
        environment()
        .get_template("campaign.html")
        .render(
            evidence=evidence,
            sentence=_sentence(evidence),
            rows=[_row(one) for one in evidence.spreads if one.values],
            width=_WIDTH,
            height=_HEIGHT,
        )
    )


def _sentence(evidence: CampaignEvidence) -> str:
    trials = words.count(evidence.played, "trial")
    if evidence.played < evidence.asked:
        return f"Only {trials} of {evidence.asked:,} played, {evidence.bad:,} of them bad"
    if evidence.bad == evidence.played > 0:
        return f"All {trials} bad" if evidence.bad > 1 else f"{trials} bad"
    if evidence.bad:
        return f"{evidence.bad:,} of {trials} bad; the others {evidence.good_means}"
    return f"{trials if evidence.played == 1 else f'All {trials}'} {evidence.good_means}"


def _row(spread: SpreadChart) -> SpreadRow:
    ordered = sorted(spread.values)
    places = [0, *(max(0, math.ceil(part * len(ordered)) - 1) for part in (0.5, 0.9, 0.99)), -1]
    numbers = tuple(words.quantity(ordered[place], spread.unit) for place in places)
    return SpreadRow(
        title=spread.title,
        numbers=numbers,
        path=_histogram(ordered),
        low=numbers[0],
        high=numbers[-1],
        worst_left=spread.lowest_is_worst,
    )


def _histogram(ordered: Sequence[float]) -> str:
    low, high = ordered[0], ordered[-1]
    if low == high:
        return ""
    counts = [0] * _BINS
    for value in ordered:
        counts[min(_BINS - 1, int((value - low) / (high - low) * _BINS))] += 1
    step, most = _WIDTH / _BINS, max(counts)
    bars = (
        (place, LEAST_BAR + (_HEIGHT - LEAST_BAR) * count / most)
        for place, count in enumerate(counts)
        if count
    )
    return "".join(
        f"M{place * step:g} {_HEIGHT:g}v-{tall:.1f}h{step - 0.7:.1f}v{tall:.1f}z"
        for place, tall in bars
    )
