"""Whose an id of a flow is: no two flows of a fabric have the same."""

from __future__ import annotations

from collections.abc import Container, Iterable

from heddle_controller.model.demand import PREFIX, SET, Demands
from heddle_controller.model.errors import MAX_PROBLEMS, Problem
from heddle_controller.model.job import job_of_flow
from heddle_controller.state.errors import FailedPrecondition


def jobs_meant(demands: Demands) -> frozenset[str]:
    """Names of the jobs whose flows, were there such jobs, would have ids of this set."""
    return frozenset(filter(None, {job_of_flow(flow) for flow in demands.ids}))


def id_problems(
    set_name: str,
    demands: Demands,
    others: Iterable[tuple[str, Demands]],
    jobs: Container[str],
) -> list[Problem]:
    """The flows of a demand set whose ids others have: sets, by name, or jobs.

    A flow is known by its id in plans and in questions about them, so no two may have the same:
    the one that comes second would never be carried. A store asks this in the step that writes.
    """
    asked = frozenset(demands.ids)
    text = f"ids that begin with {PREFIX!r} are of flows that nobody announced; rename it"
    problems = [
        Problem(f"flow {flow!r}", text)
        for flow in demands.ids
        if flow.startswith(PREFIX) and set_name != SET
    ][:MAX_PROBLEMS]
    for name, other in others:
        if not asked.isdisjoint(other.ids):
            problems += [
                Problem(f"flow {flow!r}", f"demands {name!r} have one of this id; rename it")
                for flow in sorted(asked.intersection(other.ids))[:MAX_PROBLEMS]
            ]
    problems += [
        Problem(f"flow {flow!r}", f"this id is one of job {job!r}; rename it")
        for flow in demands.ids
        if (job := job_of_flow(flow)) and job in jobs
    ][:MAX_PROBLEMS]
    return problems[:MAX_PROBLEMS]


def check_ids(
    name: str, demands: Demands, others: Iterable[tuple[str, Demands]], jobs: Container[str]
) -> None:
    """Nothing, where a demand set's ids are its own; see ``id_problems``.

    Raises:
        FailedPrecondition: names flows whose ids others have.
    """
    if problems := id_problems(name, demands, others, jobs):
        raise FailedPrecondition(f"demands {name!r}", *problems)


def check_job_ids(job: str, sets: Iterable[tuple[str, Container[str]]]) -> None:
    """Nothing, where no demand set has ids of a new job's flows.

    Args:
        job: Its name.
        sets: By name, the jobs whose flows' ids a set has.

    Raises:
        FailedPrecondition: names the sets.
    """
    text = "has flows with ids of this job; give the job another name, or rename them"
    if problems := [Problem(f"demands {name!r}", text) for name, jobs in sets if job in jobs]:
        raise FailedPrecondition(f"job {job!r}", *problems[:MAX_PROBLEMS])
