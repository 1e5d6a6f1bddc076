"""Rules of jobs: a GPU runs one job at a time, and ids of a job's flows belong to it alone.

Which job has which host, or which GPUs of it, is in a field per host (``reservations.Holds``). What
the leader finds out about a job is in another field of the job. Facts about an earlier
specification are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import orjson

from heddle_controller.model.errors import MAX_PROBLEMS, Problem
from heddle_controller.model.job import Gpus, Job, besides, in_use
from heddle_controller.state.audit import job_text
from heddle_controller.state.codec.jobs import parse_facts, parse_record
from heddle_controller.state.demands import SETS, check_job_ids, jobs_meant_by_sets
from heddle_controller.state.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    NotFound,
)
from heddle_controller.state.records import JobFacts, JobRecord, JobState
from heddle_controller.state.reservations import Holds, taken
from heddle_controller.state.view import (
    HOST_KIND,
    INTENT,
    JOB_KIND,
    NEITHER,
    Change,
    Stamp,
    View,
    check_known,
    entry_of,
)

FACT = "fact"
"""Kind of the fields with facts about jobs."""


def submit_job(
    view: View, job: Job, stamp: Stamp, *, redeems: str = ""
) -> tuple[Change, JobRecord]:
    """Add a job. Raises what ``Store.submit_job`` documents."""
    check_known(view)
    if view.raw(_field(job.name)) is not None:
        cure = "update it ('heddle job submit --replace'), or choose another name"
        raise AlreadyExists(_name(view.name, job.name), cure)
    check_job_ids(job.name, jobs_meant_by_sets(view))
    change, record = _save(view, job, None, redeems, stamp)
    return replace(change, guards=(view.guard(SETS), *change.guards)), record


def update_job(
    view: View, job: Job, etag: str, stamp: Stamp, *, redeems: str = ""
) -> tuple[Change, JobRecord]:
    """Replace a job's specification. Raises what ``Store.update_job`` documents."""
    check_known(view)
    old = job_record(view, job.name, etag)
    if old.job == job and not redeems:
        guards = (view.guard(_field(job.name)),)
        return Change(view.name, NEITHER, stamp.now, guards, answer=orjson.dumps(old)), old
    return _save(view, job, old, redeems, stamp)


def delete_job(view: View, job: str, etag: str, stamp: Stamp) -> Change:
    """Delete a job, which frees its hosts. Raises ``NotFound``, ``Conflict``."""
    check_known(view)
    old = job_record(view, job, etag)
    holds = Holds(view, HOST_KIND)
    for host in old.job.hosts:
        holds.put(host, job, None)
    return Change(
        fabric=view.name,
        moves=INTENT,
        time=stamp.now,
        guards=(view.guard(_field(job)), *holds.guards()),
        sets={_field(job): None, f"{FACT}/{job}": None, **holds.sets()},
        audit=entry_of(stamp, "delete_job", _name(view.name, job), (job_text(old.job), "")),
    )


def jobs_of(view: View, after: str = "", limit: int = 0) -> list[JobRecord]:
    """Return jobs with names greater than ``after``, in order, at most ``limit`` (0: all)."""
    names = [name for name in view.names(JOB_KIND) if name > after]
    found = (_record(view, name) for name in names[: limit or None])
    return [record for record in found if record is not None]


def job_record(view: View, name: str, etag: str = "") -> JobRecord:
    """Return a job. Raises ``NotFound``, or ``Conflict`` if an etag is given and differs."""
    record = _record(view, name)
    if record is None:
        raise NotFound(_name(view.name, name), "submit it, or name one of 'heddle job list'")
    if etag and etag != record.etag:
        raise Conflict(_name(view.name, name))
    return record


def job_etag(view: View, name: str) -> str:
    """Return the etag of a job's specification, or "" if there is no such job."""
    record = view.get(JOB_KIND, name, parse_record)
    return record.etag if record else ""


def _record(view: View, name: str) -> JobRecord | None:
    record = view.get(JOB_KIND, name, parse_record)
    facts = view.get(FACT, name, parse_facts)
    if record is None or facts is None or facts.etag != record.etag:
        return record
    return replace(record, facts=facts)


def _save(
    view: View, job: Job, old: JobRecord | None, redeems: str, stamp: Stamp
) -> tuple[Change, JobRecord]:
    """Write a specification as ACCEPTED, and give its hosts to the job.

    Raises ``FailedPrecondition`` if other jobs or reservations have them.
    """
    holds, had = Holds(view, HOST_KIND), old.job.held if old else {}
    _take_hosts(holds, job, had)
    facts = JobFacts(stamp.token, JobState.ACCEPTED, state_time=stamp.now)
    record = JobRecord(job, stamp.token, old.create_time if old else stamp.now, facts)
    raw = orjson.dumps(record)
    come = {
        host: more
        for host, gpus in job.held.items()
        if (more := besides(gpus, had.get(host))) is not None
    }
    reserved = taken(view, job.name, come, redeems, stamp)
    action, before = ("update_job", job_text(old.job)) if old else ("submit_job", "")
    texts = before, job_text(job)
    change = Change(
        fabric=view.name,
        moves=INTENT,
        time=stamp.now,
        guards=(
            view.guard(_field(job.name)),
            *holds.guards(),
            *reserved.guards,
        ),
        sets={
            _field(job.name): raw,
            **({f"{FACT}/{job.name}": None} if old else {}),
            **holds.sets(),
            **reserved.sets,
        },
        audit=entry_of(stamp, action, _name(view.name, job.name), texts),
        answer=raw,
    )
    return change, record


def _take_hosts(holds: Holds, job: Job, had: Mapping[str, Gpus]) -> None:
    """Give a job its hosts, and free those that it had and needs no more.

    Raises ``FailedPrecondition`` if other jobs have them.
    """
    problems = []
    for host, gpus in job.held.items():
        if found := in_use(gpus, holds.of(host), but=job.name):
            owner, words = found
            text = f"{words} by job {owner!r}; delete it, or choose others"
            problems.append(Problem(f"host {host!r}", text))
    if problems:
        raise FailedPrecondition(f"job {job.name!r}", *problems[:MAX_PROBLEMS])
    now = job.held
    for host in {**had, **now}:
        holds.put(host, job.name, now.get(host))


def _field(job: str) -> str:
    return f"{JOB_KIND}/{job}"


def _name(fabric: str, job: str) -> str:
    return f"fabrics/{fabric}/jobs/{job}"
