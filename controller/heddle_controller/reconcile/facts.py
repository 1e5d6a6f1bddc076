"""What is reported of jobs: pure, from what was asked for, planned and acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heddle_controller.reconcile.rollout.progress import NO_FLOWS, SUSPENDED, JobProgress
from heddle_controller.reconcile.rollout.target import Account
from heddle_controller.state.records import JobFacts, JobRecord, JobState


def job_facts(
    account: Account,
    progress: Mapping[str, JobProgress],
    told: Mapping[str, JobFacts],
    now: float,
) -> dict[str, JobFacts]:
    """The facts of jobs that differ from those told last, by name.

    ``told`` gives what was told since the account's records were read. A job that
    stays in a state keeps the time when that was reached.
    """
    refused = dict(account.refused)
    facts = {}
    for record in account.jobs:
        name = record.job.name
        before = _before(record, told)
        done = SUSPENDED if record.job.suspended else progress.get(name, NO_FLOWS)
        facts[name] = _news(before, _planned(before, done, account), now)
    for record in account.others:
        before = _before(record, told)
        if reason := refused.get(record.job.name) or account.trouble:
            fact = replace(before, state=JobState.DEGRADED, reason=f"not planned: {reason}")
            facts[record.job.name] = _news(before, fact, now)
    return {name: fact for name, fact in facts.items() if fact is not None}


def _before(record: JobRecord, told: Mapping[str, JobFacts]) -> JobFacts:
    before = told.get(record.job.name, record.facts)
    return before if before.etag == record.etag else record.facts


def _planned(before: JobFacts, done: JobProgress, account: Account) -> JobFacts:
    generation = account.generation
    state, reasons = done.state, [done.reason] if done.reason else []
    if account.trouble:
        state = JobState.DEGRADED
        reasons.append(
            f"planning failed: {account.trouble}; the plan of generation {generation} stays"
        )
    return JobFacts(
        etag=before.etag,
        state=state,
        reason="; ".join(reasons),
        flow_count=done.flow_count,
        unrouted_count=done.unrouted_count,
        generation=before.generation or generation,
        state_time=before.state_time,
    )


def _news(before: JobFacts, fact: JobFacts, now: float) -> JobFacts | None:
    """The fact with the time of its state; None where there is nothing new."""
    if fact == before:
        return None
    return fact if fact.state == before.state else replace(fact, state_time=now)
