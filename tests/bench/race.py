"""Two links die while everything that follows of the first is still under way: see tests/race.

Reconcile loop, store, planner and agents are the real ones, time is not: an hour of races passes in
minutes, and each can be had again by its seed.
"""

from __future__ import annotations

import time

import structlog

from tests.bench.pool import each
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.race.race import EPISODES, Told, raced

TITLE = "double failures, raced"


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """So many races, ten on each scene."""
    begin, found = time.perf_counter(), list[Told]()
    seeds = range(-(-scale.races // EPISODES))
    with screen.progress(TITLE, len(seeds) * EPISODES) as advance:
        for told in each(_quietly, seeds, scale.workers):
            found.append(told)
            advance(sum(one.races for one in found))
    return [_row(found, time.perf_counter() - begin)]


def _quietly(seed: int) -> Told:
    """A race without the log of what it is about: controllers that die, plans overtaken."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return raced(seed)


def _row(found: list[Told], seconds: float) -> Row:
    races, bad = sum(told.races for told in found), [told for told in found if told.troubles]
    looks, plans = sum(told.looks for told in found), sum(told.generations for told in found)
    first = f"; first: seed {bad[0].seed}, {bad[0].troubles[0]}" if bad else ""
    return Row(
        TITLE,
        "Heddle",
        f"{len(bad)} of {races:,} with a flow on a dead path",
        "none of 10,000",
        not bad,
        f"{looks:,} looks at all packets, {plans:,} plans, {seconds:.0f} s{first}",
        {
            "races": races,
            "looks": looks,
            "plans": plans,
            "pushes": sum(told.pushes for told in found),
            "seconds": seconds,
            "bad_seeds": [told.seed for told in bad],
        },
    )
