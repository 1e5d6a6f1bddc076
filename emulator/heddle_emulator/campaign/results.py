"""Results of trials: their form in a campaign's journal, their summary, and a report's evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.records import short
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.trials import FaultEvent, FaultKind, Trial
from heddle_emulator.report.campaign import CampaignEvidence, SpreadChart, TrialLine
from heddle_emulator.report.evidence import Fact

NEEDLESS = 1e-6
"""Relative difference below which gaps and utilisations count as equal."""


@dataclass(frozen=True, slots=True)
class Result:
    """One trial, measured by walking packets of all flows through the agents' tables."""

    number: int
    events: tuple[tuple[str, int], ...]
    """Kind and row of each event, see ``FaultEvent``."""
    words: str
    """The events in words."""
    affected: int = 0
    """Flows that had a QP on a link that broke."""
    cut_off: int = 0
    """Flows whose ends are no longer connected. They count neither as stranded nor as slow."""
    stranded_local: int = 0
    """QPs whose packets get lost after local repair by agents, before BGP or the controller react.

    One lost link strands none where plans have backups. If several links are lost, a flow may lose
    its backup too. It then falls to the underlay, which knows of far links only from BGP.
    """
    slowest_local: float = 1.0
    """Least max-min fair rate over demand of any flow that is not cut off, after local repair."""
    stranded_bgp: int = 0
    """QPs whose packets get lost once BGP has converged, before the controller reacts."""
    stranded: int = 0
    """QPs whose packets get lost once the new plan is acknowledged."""
    worst: float = 0.0
    """Greatest utilisation of a link between switches, under the new plan."""
    slowest: float = 1.0
    """Least max-min fair rate over demand of any flow that is not cut off, under the new plan."""
    gap: float = 0.0
    """Relative gap of the plan's worst utilisation above its proven lower bound; 0 is optimal."""
    moved: int = 0
    """Flows with a QP that takes another path than before the failure."""
    acked_seconds: float = 0.0
    """Seconds from the failure to the last FIB ack of the new plan."""
    mended_seconds: float = 0.0
    """Seconds from the repair to the last FIB ack of the next plan; 0 if only flaps were played."""
    regained: bool = True
    """Whether after the repair nothing is stranded, and no link slows flows more than at first."""
    seconds: float = 0.0
    """Seconds that the whole trial took, including measuring."""
    fault: str = ""
    """Why the trial could not be played to its end, or "". With a fault nothing else counts."""

    @property
    def bad(self) -> bool:
        """Whether somebody should look at this trial."""
        return bool(self.fault or self.stranded or self.stranded_bgp or not self.regained)

    def record(self) -> dict[str, Any]:
        """Return the result as the journal writes it."""
        return asdict(self)

    def trial(self) -> Trial:
        """Return the trial of this result."""
        return Trial(
            self.number, tuple(FaultEvent(FaultKind(kind), row) for kind, row in self.events)
        )


def begun(trial: Trial, fabric: Fabric) -> Result:
    """Return the result of a trial before anything is measured."""
    events = tuple((event.kind.value, event.row) for event in trial.events)
    words = ", ".join(event.words(fabric) for event in trial.events)
    return Result(trial.number, events, words)


def read_result(record: Mapping[str, Any]) -> Result:
    """Return the result of a journal's line; ValueError if it has another form."""
    known = {str(field.name): str(field.type) for field in fields(Result)}
    if not known.keys() >= record.keys() or not {"number", "events", "words"} <= record.keys():
        raise ValueError("not a result of this version")
    for name, value in record.items():
        if name != "events" and type(value) not in _KINDS[known[name]]:
            raise ValueError(f"{name} is {short(value)}")
    events = tuple((str(kind), int(row)) for kind, row in record["events"])
    return Result(**{**record, "events": events})


_KINDS: Mapping[str, frozenset[type]] = {
    "int": frozenset({int}),
    "float": frozenset({int, float}),
    "str": frozenset({str}),
    "bool": frozenset({bool}),
}
"""Types of values in a journal, by the type of a result's field."""


_SHOWN = 8
"""How many of the worst trials a summary names."""


@dataclass(frozen=True, slots=True)
class TrialMeasure:
    """A number that every trial yields."""

    title: str
    of: Callable[[Result], float]
    unit: str = ""
    lowest_is_worst: bool = False

    def show(self, value: float) -> str:
        """Return a value as text, with its unit."""
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
    """The spread of one measure over all trials without a fault."""

    least: float
    median: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a campaign, or of the part that was played."""

    asked: int
    played: int
    spreads: dict[str, Spread]
    worst: tuple[Result, ...]
    """The worst trials, worst first."""
    bad: int
    """How many trials are bad, see ``Result.bad``."""

    @property
    def held(self) -> bool:
        """Whether all trials were played and none is bad."""
        return self.played == self.asked and not self.bad

    def record(self) -> dict[str, Any]:
        """Return the summary as data for JSON."""
        return asdict(self) | {"held": self.held}


def summed_up(results: Sequence[Result], asked: int) -> Summary:
    """Sum up results, given in any order, of a campaign of ``asked`` trials."""
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
    """Return a sort key that is greater for a worse result."""
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
    """Return all that a report needs; ``replays`` are paths for the worst trials, from its page."""
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
    """Return a line that sums up a trial."""
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
