"""Up to a thousand links lost, one after another, on a zone of 3,072 NICs with all its agents.

A real controller runs in a process of its own, with an agent for every switch. After each failure
packets of all flows are walked through the agents' tables three times. Two processes share the
campaign.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.results import Summary, summed_up
from heddle_emulator.campaign.run import Journal, run_campaign
from heddle_emulator.executor import ProcessExecutor
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen

QPS, WORKERS = 4, 2
MOST_SECONDS_A_FAILURE = 0.3
"""Seconds per failure, which is 1,000 failures in 5 minutes."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Lose links at random in one zone of the scale."""
    leaves, spines, nics = scale.zone
    fabric = clos(leaves=leaves, spines=spines, nics_per_leaf=nics)
    flows = flows_between(fabric, "permutation", seed=1, qps=QPS)
    campaign = Campaign("bench", fabric, flows, failures=scale.campaign_failures)
    title = f"campaign of single lost links, {leaves * nics:,} NICs"
    first = begin = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder,
        Journal(Path(folder), campaign, resume=False) as journal,
        screen.progress(title, campaign.trial_count) as advance,
    ):

        def report(done: int, _: int) -> None:
            nonlocal first
            first = time.perf_counter() if done <= 1 else first
            advance(done)

        results = run_campaign(campaign, ProcessExecutor(WORKERS), journal, report)
    seconds = time.perf_counter() - begin
    return _rows(title, summed_up(results, campaign.trial_count), seconds, first - begin)


def _rows(title: str, summary: Summary, seconds: float, opening: float) -> list[Row]:
    each = (seconds - opening) / max(summary.played - 1, 1)
    stranded, acked = summary.spreads["stranded_local"], summary.spreads["acked_seconds"]
    return [
        Row(
            title,
            "Heddle",
            f"{summary.played:,} in {seconds:.0f} s, {each * 1e3:.0f} ms each",
            "1,000 in 300 s",
            opening + 1000 * each < 1000 * MOST_SECONDS_A_FAILURE,
            f"{opening:.0f} s until the first; load of the machine {os.getloadavg()[0]:.1f}",
            {"seconds": seconds, "opening_seconds": opening, "failures": summary.played},
        ),
        Row(
            title,
            "  QPs stranded, at most",
            f"{stranded.most:g} after local repair, {summary.spreads['stranded'].most:g} later",
            "0",
            stranded.most == 0 and not summary.bad,
            f"acknowledged after {acked.median * 1e3:.0f} ms, 99 % {acked.p99 * 1e3:.0f} ms",
            {name: asdict(spread) for name, spread in summary.spreads.items()},
        ),
    ]
