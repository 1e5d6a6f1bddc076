from __future__ import annotations

from functools import partial

from heddle_emulator.campaign.results import Result, campaign_evidence, summed_up
from heddle_emulator.campaign.run import CampaignWorker
from heddle_emulator.report.campaign import campaign_page
from tests.support.campaigns import Player, small
from tests.support.report_evidences import Reader

COMMAND = "heddle-emulator campaign x.yaml"


def _played(*, faults: frozenset[int] = frozenset()) -> list[Result]:
    campaign = small(4)
    results: list[Result] = []
    results.extend(Player(faults).map(partial(CampaignWorker, campaign), campaign.trials()))
    return results


def _text(results: list[Result]) -> str:
    campaign = small(4)
    summary = summed_up(results, campaign.trial_count)
    links = [f"replays/trial-{result.number}.yaml" for result in summary.worst]
    known = campaign_evidence(campaign, summary, results, links, COMMAND)
    assert known.held == summary.held
    return Reader(campaign_page(known)).text


def test_a_campaign_that_held_says_so() -> None:
    """The page names the worst trial, which is the one with the least slowest flow."""
    text = _text(_played())
    assert "All 4 trials stranded no flow and came back to what was before" in text
    assert "slowest flow under the new plan 25 %" in text
    assert "trial-3.yaml" in text
    assert COMMAND in text


def test_a_trial_that_could_not_be_played_is_named_with_its_reason() -> None:
    """A trial that could not be played counts as bad, and not in any spread."""
    text = _text(_played(faults=frozenset({3})))
    assert "1 of 4 trials bad" in text
    assert "could not be played: no plan was held in time" in text
    assert "slowest flow under the new plan 33.3 %" in text


def test_a_campaign_of_which_nothing_could_be_played_has_a_page() -> None:
    """A campaign that was ended at once has a page, too."""
    text = _text(_played(faults=frozenset(range(4))))
    assert "All 4 trials bad" in text
    assert "How the trials are spread" not in text
    assert "Only 0 trials of 4 played" in _text([])
