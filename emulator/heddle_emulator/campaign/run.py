"""A campaign from its first trial to its last: what is still to do, who plays it, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.executor import Executor
from heddle_emulator.campaign.journal import Journal
from heddle_emulator.campaign.result import Result

Report = Callable[[int, int], None]
"""Told how many trials are done, and of how many."""


def run(
    campaign: Campaign, executor: Executor, journal: Journal, report: Report
) -> tuple[Result, ...]:
    """Play what the journal has no result of, or none but a fault; all results, of before as well.

    Each is in the journal before it is reported, so what ends this early loses only what is
    under way.

    Raises:
        CampaignError: those who play are gone.
        InputError: the fabric is not one to draw from.
    """
    trials = campaign.trials()
    known = {result.number for result in journal.results.values() if not result.fault}
    left = [trial for trial in trials if trial.number not in known]
    done = len(trials) - len(left)
    report(done, len(trials))
    if left:
        with closing(executor.results(campaign, left)) as results:  # type: ignore[type-var]
            for result in results:
                journal.add(result)
                done += 1
                report(done, len(trials))
    return tuple(journal.results.values())
