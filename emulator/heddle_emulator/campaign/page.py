"""A campaign as its page tells it."""

from __future__ import annotations

from collections.abc import Sequence

from heddle_controller.model.fabric import NodeKind
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.results import TRIAL_MEASURES, Result, Summary
from heddle_emulator.report.campaign import CampaignEvidence, SpreadChart, TrialLine
from heddle_emulator.report.evidence import Fact

_UNITS = {"s": "s", "%": "share", "": "flows"}


def campaign_evidence(
    campaign: Campaign,
    summary: Summary,
    results: Sequence[Result],
    replays: Sequence[str],
    command: str,
) -> CampaignEvidence:
    """All that a page needs; ``replays`` are those of the worst trials, relative to the page."""
    whole = [result for result in results if not result.fault]
    spreads = tuple(
        SpreadChart(
            measure.title,
            measure.unit and _UNITS[measure.unit],
            tuple(float(measure.of(result)) for result in whole),
            measure.lowest_is_worst,
        )
        for measure in TRIAL_MEASURES.values()
    )
    return CampaignEvidence(
        name=campaign.name,
        asked=summary.asked,
        played=summary.played,
        bad=summary.bad,
        good_means="stranded no flow and came back to what was before",
        spreads=spreads,
        trials=tuple(
            TrialLine(result.number, result.words, outcome(result), result.bad, replay)
            for result, replay in zip(summary.worst, replays, strict=True)
        ),
        facts=_facts(campaign),
        command=command,
    )


def outcome(result: Result) -> str:
    """What there is to say of a trial, in a line."""
    if result.fault:
        return f"could not be played: {result.fault}"
    parts = [
        f"stranded {result.stranded_local} then {result.stranded} QPs",
        f"slowest flow {result.slowest_local:.0%} then {result.slowest:.0%}",
        f"gap {result.gap:.1%}",
        f"{result.moved} moved of {result.affected} affected",
        f"acknowledged after {result.acked_seconds * 1e3:.0f} ms",
    ]
    return ", ".join(parts + ([] if result.regained else ["not as before once mended"]))


def _facts(campaign: Campaign) -> tuple[Fact, ...]:
    fabric, drawing = campaign.fabric, campaign.drawing
    nics = len(fabric.rows_of_kind(NodeKind.NIC))
    return (
        Fact("fabric", f"{nics:,} NICs, {fabric.node_count - nics:,} switches"),
        Fact("flows", f"{len(campaign.flows):,}, {int(campaign.flows.qps.sum()):,} QPs"),
        Fact("drawn", drawing.draw.value),
        Fact("seed", str(drawing.seed)),
    )
