"""Recommends where a job should run, and in which rank order.

This asks an advisor many short questions, a few at a time, so that questions of others are answered
in between. A caller may be cancelled at any time; no more are asked then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from heddle_controller.model.job import Job
from heddle_controller.model.plan import Plan
from heddle_controller.place.ask import EQUAL, PlacementAsk, Score
from heddle_controller.place.order import Hosts, candidates, places
from heddle_controller.planner.port import Advisor, Trial
from heddle_controller.state.records import Intent
from heddle_controller.traffic.groups import resolve_parallelism

MANY_RANKS = 512
"""Ranks from which a job counts as large: choices that cannot be the best are not fully planned."""
MOST_SETTLED = 2
"""Most orders, besides the alphabetical one, that are compared by the plan after some quiet."""
SETTLED_FLOWS = 500
"""Flows that such a plan may have for each second that there is.

With more it would not be ready in time where links have to be over-full, and a planning process
would go on with it in vain.
"""

QUESTIONS_AT_ONCE = 2
"""Questions that one recommendation asks at a time; an advisor may have several processes."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class RankOrder:
    """The best order of hosts that was found, with its score."""

    hosts: Hosts
    score: Score
    alphabetical: Score
    """Score of the alphabetical order: no better than ``score`` in settled time or worst link.

    ``hosts`` are in alphabetical order if no other order was found to be better.
    """


@dataclass(frozen=True, slots=True)
class Placement:
    """A job on hosts in rank order, and how it would fare there."""

    job: Job
    trial: Trial


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Placements, best first, none of them expected to be slower than the first fit."""

    placements: tuple[Placement, ...] = ()
    first_fit: Placement | None = None
    """The first free hosts by name; None if refused."""
    refused: str = ""
    """Why there is no placement; empty if there are some."""


async def order_ranks(
    advisor: Advisor, intent: Intent, job: Job, standing: Plan | None, seconds: float = math.inf
) -> RankOrder:
    """Return the best order found of a job's hosts, beside the other jobs of an intent.

    Orders are first tried while all other flows stay. Alphabetical order is kept if all flows get
    all they ask for in it, or if no order is better by cuts. The few orders that are best by cuts
    are compared by the plan after some quiet, since plans with similar cuts differ much. If that
    comparison would take longer than ``seconds``, an order is taken only if it is surely better by
    cuts (``Score.rank_beside``) and no worse in the plan that is made at once.
    """

    async def scored(hosts: Hosts) -> Score:
        return (await advisor.try_job(intent, job.on(hosts), standing, hasty=True)).score

    known: dict[Hosts, Score] = {}

    async def settled(hosts: Hosts) -> Score:
        if known[hosts].settled:  # it is from a plan that was made from scratch anyway
            return known[hosts]
        return (await advisor.try_job(intent, job.on(hosts), standing, settled=True)).score

    where = places(job.held, intent.fabric)
    first, *others = candidates(job, resolve_parallelism(job), where)
    alphabetical = await scored(first)
    kept = RankOrder(first, alphabetical, alphabetical)
    if not others or alphabetical.slowest_flow >= 1 - EQUAL:
        return kept
    tried = await _all(others, scored)
    known = dict(zip([first, *others], [alphabetical, *tried], strict=True))
    limit = alphabetical.settled_seconds * (1 - EQUAL)
    liked = [(score, hosts) for hosts, score in known.items() if score.settled_seconds < limit]
    liked.sort(key=lambda one: (one[0].settled_seconds, one[0].seconds))
    if not liked:
        return kept
    if standing is not None and len(standing.flows) > seconds * SETTLED_FLOWS:
        return _surely_best(kept, liked)
    best_by_cuts = [hosts for _, hosts in liked[:MOST_SETTLED]]
    try:
        async with asyncio.timeout(seconds):
            default, *settled_scores = await _all([first, *best_by_cuts], settled)
    except TimeoutError:
        return _surely_best(kept, liked)
    best = RankOrder(first, default, default)
    for hosts, found in zip(best_by_cuts, settled_scores, strict=True):
        if found.better_than(best.score) and found.no_worse_than(default):
            best = RankOrder(hosts, found, default)
    return best


def _surely_best(kept: RankOrder, liked: Sequence[tuple[Score, Hosts]]) -> RankOrder:
    """Return the best of some orders as far as cuts can tell, or alphabetical order in doubt."""
    default = kept.alphabetical
    choices = [(default, kept.hosts)]
    choices += [
        one for one in liked if one[0].better_than(default) and one[0].no_worse_than(default)
    ]
    score, hosts = min(choices, key=lambda one: one[0].rank_beside(default))
    return RankOrder(hosts, score, default)


async def recommend(
    advisor: Advisor, intent: Intent, ask: PlacementAsk, standing: Plan | None
) -> Recommendation:
    """Return host sets for a job, each scored by the plan that it would have.

    The first free hosts by name are scored too, and no answer is expected to be slower than these.
    Large jobs are first tried while all other flows stay. Whether others would move is found out
    only for choices that may still be the best. What is most likely the first fit is tried while
    the other choices are still looked for.
    """
    large, count = ask.job.rank_count >= MANY_RANKS, len(ask.job.hosts)

    async def tried(hosts: Hosts, *, hasty: bool = large) -> Placement:
        job = ask.on(hosts)
        return Placement(job, await advisor.try_job(intent, job, standing, hasty=hasty))

    guess = () if ask.is_narrow or count > len(ask.hosts) else ask.hosts[:count]
    begun = asyncio.create_task(tried(guess)) if guess else None
    try:
        choices = await advisor.choose(intent, ask, standing)
        if choices.refused:
            return Recommendation(refused=choices.refused)

        async def tried_once(hosts: Hosts) -> Placement:
            return await (begun if begun is not None and hosts == guess else tried(hosts))

        found = await _all([choices.first_fit, *choices.others], tried_once)
    finally:
        if begun is not None:
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)
    while True:
        default = found[0].trial.score
        best = _ranked(found, default, ask)
        doubt = _in_doubt(found, best, default)
        if doubt is None:
            break
        found[doubt] = await tried(found[doubt].job.hosts, hasty=False)
    if not best:
        return Recommendation(
            refused="every choice that was tried shares a link with another job: ask again with "
            "fewer hosts, or without isolation"
        )
    return Recommendation(tuple(best[: ask.most]), found[0])


async def _all(
    hosts: Sequence[Hosts], question: Callable[[Hosts], Awaitable[_Answer]]
) -> list[_Answer]:
    """Return the answers to a question about several host sets, asked a few at a time."""
    rows, answers = iter(range(len(hosts))), dict[int, _Answer]()

    async def ask() -> None:
        for row in rows:
            answers[row] = await question(hosts[row])

    asking = [asyncio.create_task(ask()) for _ in range(QUESTIONS_AT_ONCE)]
    try:
        await asyncio.gather(*asking)
    finally:
        for task in asking:
            task.cancel()
    return [answers[row] for row in range(len(hosts))]


def _ranked(found: Sequence[Placement], default: Score, ask: PlacementAsk) -> list[Placement]:
    """Return the placements that satisfy the question, best first.

    None is slower than the first fit, the first one found, if that satisfies the question itself.
    """
    kept = [one for one in found if not (ask.isolated and one.trial.shares_links)]
    if kept and kept[0] is found[0]:
        limit = default.settled_seconds * (1 + EQUAL)
        kept = [one for one in kept if one.trial.score.settled_seconds <= limit]
    return sorted(kept, key=lambda one: (_rank(one.trial, default), not one.trial.final))


def _in_doubt(found: Sequence[Placement], best: Sequence[Placement], default: Score) -> int | None:
    """Return the row of a placement to plan fully, because it may then be the best; or None.

    At best, the job takes as long as cuts allow and slows no other.
    """
    known = [one for one in best if one.trial.final]
    limit = _rank(known[0].trial, default) if known else None
    ranks = []
    for row, one in enumerate(found):
        score = one.trial.score
        hoped = replace(score, seconds=score.settled_seconds, slowest_flow=1.0)
        trial = replace(one.trial, score=hoped, costs=(), slowed_jobs=0)
        rank = _rank(trial, default)
        if not one.trial.final and (limit is None or rank < limit):
            ranks.append((rank, row))
    return min(ranks)[1] if ranks else None


def _rank(trial: Trial, default: Score) -> tuple[int, float, float, float, int, float, float, int]:
    """Return a sort key for placements; less is better.

    It compares, in this order, the job's time beside the ``default``, what other jobs lose, the
    Gbit/s between zones and the slowest flow. Of equal placements, the one below the fewest leaves
    is the best, because it leaves more links to later jobs.
    """
    lost = sum(
        cost.after.seconds / cost.before.seconds for cost in trial.costs if cost.before.seconds > 0
    )
    group, settled, at_once, slowest, _ = trial.score.rank_beside(default)
    return (
        group,
        settled,
        at_once,
        round(lost, 6),
        trial.slowed_jobs,
        trial.cross_zone_gbps,
        slowest,
        trial.leaf_count,
    )
