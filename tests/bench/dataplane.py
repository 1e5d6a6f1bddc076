"""Failures and collisions on real packets: Heddle and FRR alone in the same lab, in the same runs.

The drills of tests/drills/netns are played, fewer times where less is asked for; the peer's flows
go over the same cables as ours. Where this machine cannot run a lab, the row says what is lacking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle_emulator.drill.lab_world import play
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.verdict import Key, Values
from heddle_emulator.netns import needs
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen

LIBRARY = Path(__file__).parents[1] / "drills" / "netns"
FRR = "FRR alone"


@dataclass(frozen=True, slots=True)
class Repair:
    """A failure and how fast it is to be repaired."""

    drill: str
    title: str
    most: float
    """Seconds, p99."""


REPAIRS = (
    Repair("local-carrier", "own uplink dies, 10,000 entries", 0.010),
    Repair("remote-link", "spine loses a leaf, controller dead", 0.010),
    Repair("silent", "cable loses all in silence, probes every 20 ms, BFD 3 x 100 ms", 0.070),
)
COLLISIONS = (("collisions-udp", "UDP"), ("collisions-tcp", "TCP"))


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Rows by failure, then by protocol."""
    lacking = needs.missing()
    if lacking:
        return [Row("packets in a lab", "Heddle", "not measured", note=lacking)]
    rows: list[Row] = []
    for repair in REPAIRS:
        rows += _repair_rows(repair, _played(repair.drill, scale, screen))
    for drill, protocol in COLLISIONS:
        rows += _collision_rows(protocol, _played(drill, scale, screen))
    return rows


def _played(drill: str, scale: Scale, screen: Screen) -> Values:
    scenario = load_scenario(LIBRARY / f"{drill}.yaml")
    with screen.progress(f"drill {drill}", scale.lab_runs) as advance:
        values = play(scenario, scale.lab_runs, lambda _: None)
        advance(scale.lab_runs)
    return values


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


def _series(values: Values, key: Key) -> Sequence[float]:
    return values[key]
