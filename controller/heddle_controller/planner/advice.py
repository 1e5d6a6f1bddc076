"""Recommends where a job should run, and in which rank order.

This asks a planner many short questions, so that questions of others are answered in between. A
caller may be cancelled after any of them; no more are asked then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Plan
from heddle_controller.place.ask import EQUAL, PlacementAsk, Score
from heddle_controller.place.order import Hosts, candidates, places
from heddle_controller.planner.port import Planner, Trial
from heddle_controller.state.records import Intent
from heddle_controller.traffic.groups import resolve_parallelism

MANY_RANKS = 512
"""Ranks from which a job counts as large: choices that cannot be the best are not fully planned."""
MOST_SETTLED = 2
"""Most orders, besides the alphabetical one, that are compared by the plan after some quiet."""


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
    planner: Planner, intent: Intent, job: Job, standing: Plan | None
) -> RankOrder:
    """Return the best order found of a job's hosts, beside the other jobs of an intent.

    Alphabetical order is kept if all flows get all they ask for in it, or if no order is better by
    cuts. The few orders that are best by cuts are compared by the plan after some quiet, since
    plans with similar cuts differ much. If flows are too many for that plan, another order must
    also be no worse in the plan that is made at once.
    """

    async def scored(hosts: Hosts, *, settled: bool) -> Score:
        trial = await planner.try_job(intent, job.on(hosts), standing, settled=settled)
        return trial.score

    where = places(job.held, intent.fabric)
    first, *others = candidates(job, resolve_parallelism(job), where)
    alphabetical = await scored(first, settled=False)
    kept = RankOrder(first, alphabetical, alphabetical)
    if not others or alphabetical.slowest_flow >= 1 - EQUAL:
        return kept
    tried = [(await scored(hosts, settled=False), hosts) for hosts in others]
    limit = alphabetical.settled_seconds * (1 - EQUAL)
    liked = [(score, hosts) for score, hosts in tried if score.settled_seconds < limit]
    liked.sort(key=lambda one: (one[0].settled_seconds, one[0].seconds))
    if not liked:
        return kept
    default = await scored(first, settled=True)
    best = RankOrder(first, default, default)
    for _, hosts in liked[:MOST_SETTLED]:
        found = await scored(hosts, settled=True)
        if found.better_than(best.score) and found.no_worse_than(default):
            best = RankOrder(hosts, found, default)
    return best


async def recommend(
    planner: Planner, intent: Intent, ask: PlacementAsk, standing: Plan | None
) -> Recommendation:
    """Return host sets for a job, each scored by the plan that it would have.

    The first free hosts by name are scored too, and no answer is expected to be slower than these.
    Large jobs are first tried while all other flows stay. Whether others would move is found out
    only for choices that may still be the best.
    """
    choices = await planner.choose(intent, ask, standing)
    if choices.refused:
        return Recommendation(refused=choices.refused)

    large = ask.job.rank_count >= MANY_RANKS

    async def tried(hosts: Hosts, *, hasty: bool = large) -> Placement:
        job = ask.on(hosts)
        return Placement(job, await planner.try_job(intent, job, standing, hasty=hasty))

    first_fit = await tried(choices.first_fit)
    found = [first_fit, *[await tried(hosts) for hosts in choices.others]]
    while True:
        default = found[0].trial.score
        best = _ranked(found, default, ask, intent.fabric)
        doubt = _in_doubt(found, best, default, intent.fabric)
        if doubt is None:
            break
        found[doubt] = await tried(found[doubt].job.hosts, hasty=False)
    if not best:
        return Recommendation(
            refused="every choice that was tried shares a link with another job: ask again with "
            "fewer hosts, or without isolation"
        )
    return Recommendation(tuple(best[: ask.most]), found[0])


def _ranked(
    found: Sequence[Placement], default: Score, ask: PlacementAsk, fabric: Fabric
) -> list[Placement]:
    """Return the placements that satisfy the question, best first."""
    limit = default.settled_seconds * (1 + EQUAL)
    kept = [
        one
        for one in found
        if one.trial.score.settled_seconds <= limit
        and not (ask.isolated and one.trial.shares_links)
    ]
    return sorted(kept, key=lambda one: (_rank(one, default, fabric), not one.trial.final))


def _in_doubt(
    found: Sequence[Placement], best: Sequence[Placement], default: Score, fabric: Fabric
) -> int | None:
    """Return the row of a placement to plan fully, because it may then be the best; or None.

    At best, the job takes as long as cuts allow and slows no other.
    """
    known = [one for one in best if one.trial.final]
    limit = _rank(known[0], default, fabric) if known else None
    ranks = []
    for row, one in enumerate(found):
        score = one.trial.score
        hoped = replace(score, seconds=score.settled_seconds, slowest_flow=1.0)
        trial = replace(one.trial, score=hoped, costs=(), slowed_jobs=0)
        rank = _rank(replace(one, trial=trial), default, fabric)
        if not one.trial.final and (limit is None or rank < limit):
            ranks.append((rank, row))
    return min(ranks)[1] if ranks else None


def _rank(
    placement: Placement, default: Score, fabric: Fabric
) -> tuple[int, float, float, float, int, float, float, int]:
    """Return a sort key for placements; less is better.

    It compares, in this order, the job's time beside the ``default``, what other jobs lose, the
    Gbit/s between zones and the slowest flow. Of equal placements, the one below the fewest leaves
    is the best, because it leaves more links to later jobs.
    """
    trial = placement.trial
    leaves = {
        leaf for place in places(placement.job.held, fabric).values() for leaf in place.leaves
    }
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
        len(leaves),
    )
