"""What trials came to: a result each, a line of JSON in a campaign's file, and their summary.

A campaign as its page tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.trials import FaultEvent, FaultKind, Trial
from heddle_emulator.report.campaign import CampaignEvidence, SpreadChart, TrialLine
from heddle_emulator.report.evidence import Fact

NEEDLESS = 1e-6
"""Relative; gaps and utilisations nearer than that are equal."""


@dataclass(frozen=True, slots=True)
class Result:
    """One trial, measured by walking packets of all flows through the agents' tables."""

    number: int
    events: tuple[tuple[str, int], ...]
    """Kind and row of each, see ``FaultEvent``."""
    words: str
    """The same, for people."""
    affected: int = 0
    """Flows that had a QP on what broke."""
    cut_off: int = 0
    """Flows whose ends nothing joins any more; they count in none of the following."""
    stranded_local: int = 0
    """QPs that get nowhere once agents have repaired, before BGP or the controller said a word.

    One lost link leaves none where plans have backups. Where several are lost, a flow may have lost
    its backup too, and falls to the underlay, which knows of far links only from BGP.
    """
    slowest_local: float = 1.0
    """Least max-min fair rate over demand of any flow, at the same moment."""
    stranded_bgp: int = 0
    """The same once BGP has converged, still before the controller has said a word."""
    stranded: int = 0
    """QPs that get nowhere once the new plan is acknowledged."""
    worst: float = 0.0
    """Greatest utilisation of a link between switches, under the new plan."""
    slowest: float = 1.0
    """Least max-min fair rate over demand of any flow, under the new plan."""
    gap: float = 0.0
    """By how much the plan's certificate is above what it proves to be the least."""
    moved: int = 0
    """Flows with a QP that goes another way than before the failure."""
    acked_seconds: float = 0.0
    """From the failure to the last FIB ack of the new plan."""
    mended_seconds: float = 0.0
    """From the end of the failure to the last FIB ack of the plan after it."""
    regained: bool = True
    """Whether, mended, no link is fuller than before and nothing is stranded."""
    seconds: float = 0.0
    """All that the trial took, measuring included."""
    fault: str = ""
    """Why it could not be played to its end; then nothing else counts."""

    @property
    def bad(self) -> bool:
        """Whether somebody should look at it."""
        return bool(self.fault or self.stranded or self.stranded_bgp or not self.regained)

    def record(self) -> dict[str, Any]:
        """As the file has it."""
        return asdict(self)

    def trial(self) -> Trial:
        """The trial that it came of."""
        return Trial(
            self.number, tuple(FaultEvent(FaultKind(kind), row) for kind, row in self.events)
        )


def begun(trial: Trial, fabric: Fabric) -> Result:
    """The result of a trial that nothing is known about yet."""
    events = tuple((event.kind.value, event.row) for event in trial.events)
    words = ", ".join(event.words(fabric) for event in trial.events)
    return Result(trial.number, events, words)


def read_result(record: Mapping[str, Any]) -> Result:
    """A result from a line of the file; ValueError where it is none of this form."""
    known = {field.name for field in fields(Result)}
    if not known >= record.keys() or not {"number", "events", "words"} <= record.keys():
        raise ValueError("not a result of this version")
    events = tuple((str(kind), int(row)) for kind, row in record["events"])
    return Result(**{**record, "events": events})


_SHOWN = 8
"""Worst trials that are named."""


@dataclass(frozen=True, slots=True)
class TrialMeasure:
    """A number of every trial."""

    title: str
    of: Callable[[Result], float]
    unit: str = ""
    lowest_is_worst: bool = False

    def show(self, value: float) -> str:
        """For people."""
        if self.unit == "s":
            return f"{value * 1e3:.0f} ms"
        return f"{value:.1%}" if self.unit == "%" else f"{value:g}"


TRIAL_MEASURES: dict[str, TrialMeasure] = {
    "stranded_local": TrialMeasure("QPs stranded after local repair", lambda r: r.stranded_local),
    "stranded_bgp": TrialMeasure("QPs stranded once BGP has converged", lambda r: r.stranded_bgp),
    "slowest_local": TrialMeasure(
        "slowest flow after local repair", lambda r: r.slowest_local, "%", lowest_is_worst=True
    ),
    "stranded": TrialMeasure("QPs stranded under the new plan", lambda r: r.stranded),
    "worst": TrialMeasure("worst link under the new plan", lambda r: r.worst, "%"),
    "slowest": TrialMeasure(
        "slowest flow under the new plan", lambda r: r.slowest, "%", lowest_is_worst=True
    ),
    "gap": TrialMeasure("certificate's gap", lambda r: r.gap, "%"),
    "affected": TrialMeasure("flows affected", lambda r: r.affected),
    "moved": TrialMeasure("flows moved", lambda r: r.moved),
    "cut_off": TrialMeasure("flows cut off", lambda r: r.cut_off),
    "acked_seconds": TrialMeasure("failure to last ack", lambda r: r.acked_seconds, "s"),
    "mended_seconds": TrialMeasure("mended to last ack", lambda r: r.mended_seconds, "s"),
}


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of one measure over all trials that were played to their end."""

    least: float
    median: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole campaign, or as much of it as was played."""

    asked: int
    played: int
    spreads: dict[str, Spread]
    worst: tuple[Result, ...]
    """The trials to look at first."""
    bad: int
    """Trials with stranded QPs, that did not come back to what was, or that failed."""

    @property
    def held(self) -> bool:
        """Whether all was played and nobody has to look at anything."""
        return self.played == self.asked and not self.bad

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"held": self.held}


def summed_up(results: Sequence[Result], asked: int) -> Summary:
    """Sum up results, in whatever order they came."""
    ordered = sorted(results, key=lambda result: result.number)
    whole = [result for result in ordered if not result.fault]
    spreads = {
        name: _spread([measure.of(result) for result in whole])
        for name, measure in TRIAL_MEASURES.items()
        if whole
    }
    bad = sum(result.bad for result in ordered)
    worst = tuple(sorted(ordered, key=_badness, reverse=True)[:_SHOWN])
    return Summary(asked, len(ordered), spreads, worst, bad)


def _spread(values: Sequence[float]) -> Spread:
    parts = np.quantile(np.asarray(values), [0, 0.5, 0.9, 0.99, 1], method="inverted_cdf")
    return Spread(*(float(part) for part in parts))


def _badness(result: Result) -> tuple[float, ...]:
    """What is worse comes later."""
    return (
        bool(result.fault),
        result.stranded,
        result.stranded_bgp,
        result.stranded_local,
        not result.regained,
        result.gap,
        -result.slowest,
        result.acked_seconds,
    )


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
