"""Failures and collisions on real packets: Heddle and FRR alone in the same lab and the same runs.

The drills of tests/drills/netns are played, fewer times at smaller scales. The flows of FRR go over
the same cables as those of Heddle. Drills that are about more than speed are played half as often,
and each of their expectations is a row. Where this machine cannot run a lab, the row says what is
missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heddle_emulator.drill.lab.world import LabWorld
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.report import drill_evidence
from heddle_emulator.drill.runner import DrillRunner
from heddle_emulator.drill.scenario import Scenario
from heddle_emulator.drill.verdict import MeasureKey, Values, Verdict, judge
from heddle_emulator.netns import LabError, tools
from tests.bench import kernel_calls
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen

LIBRARY = Path(__file__).parents[1] / "drills" / "netns"
FRR = "FRR alone"
NETNS = "netns"


@dataclass(frozen=True, slots=True)
class Repair:
    """A failure, and how fast it has to be repaired."""

    drill: str
    title: str
    most: float
    """The p99 of the repair time may be at most this many seconds."""


REPAIRS = (
    Repair("local-carrier", "own uplink dies, 10,000 entries", 0.010),
    Repair("remote-link", "spine loses a leaf, controller dead", 0.010),
    Repair("silent", "cable loses all in silence, probes every 20 ms, BFD 3 x 100 ms", 0.070),
)
IN_IPV6 = "-ipv6"
"""Suffix of the name of a drill that repeats another one with IPv6."""
SLOWER = 1.2
"""With IPv6 a repair may take at most this many times as long as with IPv4."""
OTHERS = (
    "table-size",
    "failures-1",
    "failures-2",
    "failures-4",
    "second-after-1ms",
    "second-after-5ms",
    "second-after-20ms",
    "make-before-break",
    "convergence",
    "large-lab",
)
COLLISIONS = (("collisions-udp", "UDP"), ("collisions-tcp", "TCP"))


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return the rows of failures, of collisions by protocol, of other drills and kernel calls."""
    lacking = tools.missing()
    if lacking:
        return [Row("packets in a lab", "Heddle", "not measured", note=lacking)]
    rows: list[Row] = []
    for repair in REPAIRS:
        played = _played(_scenario(repair.drill), scale.lab_runs, screen)
        rows += _repair_rows(repair, played)
        if (LIBRARY / f"{repair.drill}{IN_IPV6}.yaml").exists():
            by_ipv6 = _played(_scenario(f"{repair.drill}{IN_IPV6}"), scale.lab_runs, screen)
            rows += _repair_rows(replace(repair, title=f"{repair.title}, IPv6"), by_ipv6)
            rows.append(_beside(repair, played, by_ipv6))
    for drill, protocol in COLLISIONS:
        rows += _collision_rows(protocol, _played(_scenario(drill), scale.lab_runs, screen))
    for drill in OTHERS:
        scenario = _scenario(drill)
        runs = min(scenario.runs, max(1, scale.lab_runs // 2))
        rows += _expectation_rows(scenario, _played(scenario, runs, screen))
    return rows + kernel_calls.rows(scale.lab_runs)


def _scenario(drill: str) -> Scenario:
    return load_scenario(LIBRARY / f"{drill}.yaml")


def _played(scenario: Scenario, runs: int, screen: Screen) -> Values:
    with (
        screen.progress(f"drill {scenario.name}", runs) as advance,
        DrillRunner({NETNS: LabWorld()}) as runner,
    ):
        verdict = runner.play(scenario, NETNS, runs)
        advance(runs)
    if verdict.fault:
        raise LabError(verdict.fault)
    return verdict.values


def _expectation_rows(scenario: Scenario, values: Values) -> Iterator[Row]:
    """Yield what a drill expects and what was found, and FRR alone where it was probed."""
    verdict = Verdict(scenario, NETNS, values, judge(scenario, values))
    for finding in verdict.findings:
        told = finding.expectation
        key = (finding.variant, told.measure, told.of)
        yield Row(
            scenario.proves,
            "Heddle",
            f"{finding.what}: {finding.got}",
            finding.wanted,
            finding.held,
            _stages(verdict) if told.measure == "acked" else "",
            {"series": list(values.get(key, ()))},
        )
    for (variant, measure, probe), series in values.items():
        if (measure, probe) == ("recovered", "frr"):
            figure = f"{measure} under {variant}: {max(series) * 1e3:.1f} ms at most"
            yield Row(scenario.proves, FRR, figure, data={"series": list(series)})


def _stages(verdict: Verdict) -> str:
    """Return the median of each stage of convergence, in words."""
    convergence = drill_evidence(verdict).convergence
    if convergence is None:
        return ""
    lasted = zip(*(run.seconds for run in convergence.runs), strict=True)
    medians = [spread(seconds)["median"] * 1e3 for seconds in lasted]
    pairs = zip(convergence.stages, medians, strict=True)
    return ", ".join(f"{stage} {median:.1f} ms" for stage, median in pairs)


def _repair_rows(repair: Repair, values: Values) -> Iterator[Row]:
    for who, probe in (("Heddle", "pinned"), (FRR, "frr")):
        seconds = spread(_series(values, ("", "recovered", probe)))
        lost = spread(_series(values, ("", "lost", probe)))
        ours = probe == "pinned"
        yield Row(
            repair.title,
            who,
            f"p99 {seconds['p99'] * 1e3:.1f} ms, median {seconds['median'] * 1e3:.1f} ms",
            f"p99 <= {repair.most * 1e3:.0f} ms" if ours else "",
            seconds["p99"] <= repair.most if ours else None,
            f"{lost['median']:g} packets lost in the median run, {lost['most']:g} in the worst,"
            " at 2,000/s",
            {"seconds": seconds, "lost": lost},
        )


def _beside(repair: Repair, by_ipv4: Values, by_ipv6: Values) -> Row:
    """Compare the median repair time with IPv6 to the one with IPv4 in the same run."""
    key = ("", "recovered", "pinned")
    medians = [spread(_series(values, key))["median"] for values in (by_ipv6, by_ipv4)]
    ratio = medians[0] / medians[1]
    return Row(
        f"{repair.title}: IPv6 for IPv4",
        "Heddle",
        f"median {ratio:.2f} times as long",
        f"<= {SLOWER}",
        ratio <= SLOWER,
        data={"medians": medians},
    )


def _collision_rows(protocol: str, values: Values) -> Iterator[Row]:
    for who, variant in (("Heddle", "pinned"), (FRR, "ecmp")):
        carried = spread(_series(values, (variant, "carried", "eight")))
        slowest = spread(_series(values, (variant, "slowest", "eight")))
        ours = variant == "pinned"
        yield Row(
            f"8 {protocol} flows over 8 spines of 20 Mbit/s",
            who,
            f"{carried['median']:.1%} of what is offered",
            ">= 97%" if ours else "",
            carried["least"] >= 0.97 if ours else None,
            f"slowest flow {slowest['median']:.1%} of its offer",
            {"carried": carried, "slowest": slowest},
        )


def _series(values: Values, key: MeasureKey) -> Sequence[float]:
    return values[key]
