"""Links die while the effects of the first loss are still under way: see tests/race.

One row is for two links at a time. The other is for several links, on more fabrics, with switches
that forget. Reconcile loop, store, planner and agents are real, but time is virtual: an hour of
races passes in minutes, and each race can be repeated by its seed.
"""

from __future__ import annotations

import time
from functools import partial

import structlog

from tests.bench.pool import each
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.race.race import DOUBLE, EPISODES, Course, Told, raced
from tests.race.wild import WILD

COURSES = {"double failures, raced": DOUBLE, "several failures, raced": WILD}


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Run the races of the scale on each course, ten on each scene."""
    return [_measured(title, scale, screen) for title in COURSES]


def _measured(title: str, scale: Scale, screen: Screen) -> Row:
    begin, found = time.perf_counter(), list[Told]()
    seeds = range(-(-scale.races // EPISODES))
    with screen.progress(title, len(seeds) * EPISODES) as advance:
        for told in each(partial(_quietly, COURSES[title]), seeds, scale.workers):
            found.append(told)
            advance(sum(one.races for one in found))
    return _row(title, found, time.perf_counter() - begin)


def _quietly(course: Course, seed: int) -> Told:
    """Run races without the log, which is full of dying controllers and overtaken plans."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return raced(seed, course=course)


def _row(title: str, found: list[Told], seconds: float) -> Row:
    races, bad = sum(told.races for told in found), [told for told in found if told.troubles]
    looks, plans = sum(told.looks for told in found), sum(told.generations for told in found)
    first = f"; first: seed {bad[0].seed}, {bad[0].troubles[0]}" if bad else ""
    return Row(
        title,
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
