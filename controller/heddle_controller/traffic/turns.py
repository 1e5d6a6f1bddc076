"""Turns in time: when jobs begin their iterations, so that their bursts do not meet.

Jobs that alternate between computing and communicating share a link well if one communicates while
the other computes. As in CASSINI (NSDI 2024), iterations of all jobs that meet are laid on one
circle, whose length is a whole number of iterations of each job, and are turned against each other.
Here one shift of a job serves all its links at once, so shifts never contradict each other.

A job that keeps its turn begins an iteration no earlier than ``shift + n * pace``, and at once if
it is late. Turns are given only if they hold: even if every iteration takes ``TURN_SLACK`` longer
than stated, delays from bursts that still meet do not add up, though single iterations may be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, distinct
from heddle_controller.model.errors import refuse
from heddle_controller.model.plan import Turn

TURN_SLACK = 0.02
"""Share by which an iteration may take longer than stated while turns still hold."""
_WORTH = 0.05
"""Least share of an iteration that turns must save, in the mean over jobs.

They must also save each job at least the ``TURN_SLACK`` by which it may be late.
"""
STEPS = 240
"""Number of steps into which a circle is divided."""
_ROUNDS = 4
"""Circles are as long as 1 to this many iterations of one of the jobs.

It is also the most passes over all jobs in search of shifts.
"""
GROWTHS = (0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.4)
"""Shares by which a circle, and so each pace, is made longer until bursts fit."""
DRAWS = 16
"""Number of different starts that are simulated for jobs without turns."""
_FIRST, _LAST = 6, 14
"""Jobs without turns are measured from the first to the second of these iterations of the longest
job."""
_FINEST = 20
"""Least number of simulated steps in the shortest iteration of jobs without turns."""
_EVEN = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Cycle:
    """One iteration of a job that is alone in the fabric."""

    job: str
    seconds: float
    used: Floats
    """Share of each link's capacity that it uses, shape (links, steps of equal length)."""
    qps: float = 1.0
    """QPs of each of its flows. A link that is asked for too much is shared equally by QPs."""


def turns_of(cycles: Sequence[Cycle]) -> dict[str, Turn]:
    """Return the turns of jobs that gain by them, by name.

    Jobs that share no full link, or gain little, have none. The gain is compared with jobs without
    turns. These start at arbitrary times, or all at once if that is better, and are simulated until
    they have drifted apart by holding each other up.

    Args:
        cycles: One iteration of each job, all with the same links.

    Raises:
        InputError: a job has two cycles, an iteration takes no time, the use of links has another
            shape or a value that is not a number of 0 or more, or QPs are not above 0.
    """
    _check(cycles)
    found: dict[str, Turn] = {}
    for rows, links in _meeting(cycles):
        found.update(_together([cycles[row] for row in rows], links))
    return {one.job: found[one.job] for one in cycles if one.job in found}


def _check(cycles: Sequence[Cycle]) -> None:
    names = set()
    for one in cycles:
        if one.job in names:
            raise refuse("job", one.job, "has two iterations; give one")
        names.add(one.job)
        if not (np.isfinite(one.seconds) and one.seconds > 0):
            reason = f"iterates in {one.seconds:g} s; give more than 0"
            raise refuse("job", one.job, reason)
        if one.used.ndim != 2 or not one.used.shape[1] or len(one.used) != len(cycles[0].used):  # noqa: PLR2004
            raise refuse("job", one.job, "does not tell the use of every link in steps; give both")
        if not (np.isfinite(one.used).all() and (one.used >= 0).all()):
            raise refuse("job", one.job, "uses links by less than 0 or by no number; correct it")
        if not (np.isfinite(one.qps) and one.qps > 0):
            raise refuse("job", one.job, f"has {one.qps:g} QPs a flow; give more than 0")


def _meeting(cycles: Sequence[Cycle]) -> list[tuple[list[int], Ints]]:
    """Return sets of jobs that meet on links which cannot carry all of them, and these links."""
    if not cycles:
        return []
    most = np.stack([one.used.max(axis=1) for one in cycles])
    full = (np.count_nonzero(most, axis=0) > 1) & (most.sum(axis=0) > 1 + _EVEN)
    links = np.flatnonzero(full)
    # Of links that the same jobs use alike, one is enough.
    _, first = np.unique(
        np.concatenate([one.used[links].round(6) for one in cycles], axis=1),
        axis=0,
        return_index=True,
    )
    links = links[np.sort(first)]
    member = np.arange(len(cycles))
    for link in links.tolist():
        users = np.flatnonzero(most[:, link])
        member[np.isin(member, member[users])] = member[users].min()
    sets = []
    for name in distinct(member).tolist():
        rows = np.flatnonzero(member == name)
        if len(rows) > 1:
            sets.append((rows.tolist(), links[most[rows][:, links].any(axis=0)]))
    return sets


def _together(cycles: list[Cycle], links: Ints) -> dict[str, Turn]:
    """Return the best turns of jobs that meet, over all circles and paces that are tried."""
    seconds = np.array([one.seconds for one in cycles])
    used = [one.used[links] for one in cycles]
    best: dict[str, Turn] = {}
    least = 1 - _WORTH
    without = _without(used, seconds, np.array([one.qps for one in cycles]))
    for round_trip, counts in _circles(seconds):
        for growth in GROWTHS:
            circle = round_trip * (1 + growth)
            pace = circle / counts
            kept = pace / without
            if np.mean(kept) > least - _EVEN or kept.max() > 1 - TURN_SLACK + _EVEN:
                break
            shifts = _holding(used, seconds, circle, counts)
            if shifts is not None:
                least = float(np.mean(kept))
                begin = shifts * (circle / STEPS)
                figures = np.stack([begin, pace, 1 - kept], axis=1).tolist()
                pairs = zip(cycles, figures, strict=True)
                best = {one.job: Turn(one.job, *own) for one, own in pairs}
                break
    return best


def _holding(used: list[Floats], seconds: Floats, circle: float, counts: Floats) -> Ints | None:
    """Return shifts, in steps, that hold on this circle, or None if there are none.

    They hold if all jobs keep their pace even if iterations take ``TURN_SLACK`` longer. ``counts``
    are the iterations of each job on the circle.
    """
    late = seconds * (1 + TURN_SLACK)
    on_time = _on_circle(used, seconds, circle, counts)
    loads = np.maximum(on_time, _on_circle(used, late, circle, counts))
    if loads.sum(axis=0).mean(axis=1).max() > 1 + _EVEN:
        return None
    shifts = _shifts(loads, counts)
    spare = circle / counts - late
    holds = _excess(loads, shifts) * circle / counts <= spare + _EVEN * circle
    return shifts if holds.all() else None


def _on_circle(used: list[Floats], seconds: Floats, circle: float, counts: Floats) -> Floats:
    """Return the use of links on the circle by each job, shape (jobs, links, STEPS)."""
    columns = zip(used, seconds.tolist(), counts.tolist(), strict=True)
    return np.stack([_laid(own, length, circle, round(count)) for own, length, count in columns])


def _circles(seconds: Floats) -> list[tuple[float, Floats]]:
    """Return circles: their length in seconds, and how many iterations of each job fit on them."""
    room = seconds * (1 + TURN_SLACK)
    found: dict[tuple[float, ...], tuple[float, Floats]] = {}
    for circle in np.unique(np.outer(np.arange(1, _ROUNDS + 1), room)).tolist():
        counts = np.floor(circle / room + _EVEN)
        if counts.min() >= 1 and counts.max() <= STEPS // _ROUNDS:
            found.setdefault(tuple((counts / counts.min()).round(6).tolist()), (circle, counts))
    return list(found.values())


def _laid(used: Floats, seconds: float, circle: float, count: int) -> Floats:
    """Return the use of each link on the circle by ``count`` iterations, shape (links, STEPS)."""
    steps = used.shape[1]
    total = np.concatenate([np.zeros((len(used), 1)), np.cumsum(used, axis=1)], axis=1)
    edges = np.arange(STEPS + 1) / STEPS * count
    whole = np.floor(edges + _EVEN)
    part = np.clip((edges - whole) * (circle / count) / seconds, 0, 1) * steps
    low = np.minimum(part.astype(np.int64), steps - 1)
    inside = total[:, low] + (part - low) * (total[:, low + 1] - total[:, low])
    summed = (whole * total[:, -1:] + inside) * (seconds / steps)
    mean: Floats = np.maximum(np.diff(summed, axis=1), 0) * (STEPS / circle)
    return mean


def _shifts(loads: Floats, counts: Floats) -> Ints:
    """Return the shift of each job, in steps, for the least use of links above capacity.

    The search is greedy and then improves one job at a time, so it may miss the least.
    """
    shifts = np.zeros(len(loads), dtype=np.int64)
    order = np.argsort(-loads.sum(axis=(1, 2)), kind="stable")
    placed = [int(order[0])]
    for row in order[1:].tolist():
        shifts[row] = _best_shift(loads, shifts, placed, row, counts)
        placed.append(row)
    for _ in range(_ROUNDS if len(loads) > 2 else 0):  # noqa: PLR2004 - of two, one stands still
        before = shifts.copy()
        for row in order[1:].tolist():
            others = [one for one in placed if one != row]
            shifts[row] = _best_shift(loads, shifts, others, row, counts)
        if (before == shifts).all():
            break
    return shifts


def _best_shift(loads: Floats, shifts: Ints, others: list[int], row: int, counts: Floats) -> int:
    """Return the middle of the widest range of shifts that are best for a job beside others."""
    rest = sum(
        (np.roll(loads[one], shifts[one], axis=1) for one in others), np.zeros(loads[0].shape)
    )
    tried = int(np.ceil(STEPS / counts[row]))
    places = (np.arange(STEPS)[None, :] - np.arange(tried)[:, None]) % STEPS
    cost = np.zeros(tried)
    for link in np.flatnonzero(loads[row].any(axis=1)).tolist():
        cost += np.maximum(loads[row, link][places] + rest[link] - 1, 0).sum(axis=1)
    best = np.flatnonzero(cost <= cost.min() + _EVEN)
    runs = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
    if len(runs) > 1 and runs[0][0] == 0 and runs[-1][-1] == tried - 1:
        runs = [np.concatenate([runs[-1], runs[0] + tried]), *runs[1:-1]]
    widest = max(runs, key=len)
    return int(widest[len(widest) // 2]) % tried


def _excess(loads: Floats, shifts: Ints) -> Floats:
    """Return the share of the circle by which each job is held up, by the worst link for it."""
    turned = np.stack([np.roll(own, by, axis=1) for own, by in zip(loads, shifts, strict=True)])
    over = np.maximum(turned.sum(axis=0) - np.maximum(turned.max(axis=0), 1), 0)
    most = turned.max(axis=2, keepdims=True)
    busy = np.divide(turned, most, out=np.zeros_like(turned), where=most > 0)
    held: Floats = (busy * over).max(axis=1).mean(axis=1)
    return held


def _without(used: list[Floats], seconds: Floats, qps: Floats) -> Floats:
    """Return the mean iteration time of each job without turns, in seconds.

    Jobs start all at once, or at arbitrary times (the mean over ``DRAWS`` starts), and the better
    of the two counts. Each link is simulated by itself, because it does not hold up flows over
    other links: they are done earlier, and leave room. A job is as slow as the link that is worst
    for it. This is rather too fast than too slow, so that no turns are given that cost time. All
    starts and links are simulated side by side.
    """
    jobs, links = np.arange(len(used))[:, None], np.arange(used[0].shape[0])
    laid = [_laid(own, 1.0, 1.0, 1).T for own in used]
    table = np.stack(laid)  # shape (jobs, STEPS, links)
    seconds = seconds[:, None]
    # Multiples of roots of primes spread evenly and need no seed.
    roots = np.sqrt(_primes(len(used)))
    done = np.concatenate([np.zeros((1, len(jobs))), np.arange(DRAWS)[:, None] * roots % 1])
    done = np.repeat(done[:, :, None], len(links), axis=2)
    step = min(seconds.max() / STEPS, seconds.min() / _FINEST)
    first, last = (round(count * seconds.max() / step) for count in (_FIRST, _LAST))
    begun = done
    for number in range(last):
        if number == first:
            begun = done.copy()
        asked = table[jobs, (done % 1 * STEPS).astype(np.int64), links]
        done = done + step / seconds / _held_up(asked, qps)
    taken = ((last - first) * step / (done - begun)).max(axis=2)
    at_once, drawn = taken[0], taken[1:].mean(axis=0)
    alone = seconds[:, 0]
    less: Floats = drawn if (drawn / alone).sum() <= (at_once / alone).sum() else at_once
    return less


def _held_up(asked: Floats, qps: Floats) -> Floats:
    """Return the factor by which each full link slows jobs down, shape (starts, jobs, links).

    Args:
        asked: Shares of capacities that jobs ask for, shape (starts, jobs, links).
        qps: QPs of a flow of each job. Jobs that ask for less than their QPs' share get what they
            ask for.
    """
    held = np.ones(asked.shape)
    way, link = np.nonzero(asked.sum(axis=1) > 1 + _EVEN)
    wanted = asked[way, :, link]
    wants = wanted > 0
    weight = wanted * qps
    while True:
        spare = 1 - np.where(wants, 0, wanted).sum(axis=1)
        sharing = np.maximum(np.where(wants, weight, 0).sum(axis=1), _EVEN)
        share = (spare / sharing)[:, None] * weight
        enough = wants & (wanted <= share + _EVEN)
        if not enough.any():
            break
        wants &= ~enough
    held[way, :, link] = np.divide(wanted, share, out=np.ones_like(wanted), where=wants)
    return held


def _primes(count: int) -> Floats:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % one for one in found):
            found.append(number)
        number += 1
    return np.array(found, dtype=np.float64)
