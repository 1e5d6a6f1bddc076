"""Rules of jobs and reservations: a GPU runs one job at a time, and nobody takes a reserved one.

``Holds`` describes who holds a host, or which GPUs of it, in one field per host: one kind of field
for jobs, another for reservations. A change that takes or frees a part of a host guards the field
of the whole host. So if two requests want the same GPUs, one of them is refused.

A reservation keeps hosts for a future job, for some time, and is a field of its own. It counts as
gone from the moment it is over. The next request to reserve removes its fields.

Ids of a job's flows belong to it alone. What the leader finds out about a job is in another field
of the job. Facts about an earlier specification are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from heddle_controller.model.errors import MAX_PROBLEMS, Problem
from heddle_controller.model.job import Gpus, Job, besides, common, gpus_words, in_use
from heddle_controller.state.audit import job_text, reservation_text
from heddle_controller.state.codec.container import parser
from heddle_controller.state.codec.intent import parse_facts, parse_record
from heddle_controller.state.demands import SETS, check_job_ids, jobs_meant_by_sets
from heddle_controller.state.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    NotFound,
)
from heddle_controller.state.records import JobFacts, JobRecord, JobState, Reservation
from heddle_controller.state.view import (
    HOST_KIND,
    INTENT,
    JOB_KIND,
    NEITHER,
    Change,
    Guard,
    Stamp,
    View,
    check_known,
    entry_of,
)


def parse_holders(content: bytes) -> Mapping[str, Gpus]:
    """Parse the holders of a host: the GPUs that each holds, by name. () is the whole host."""
    return {name: tuple(gpus) for name, gpus in orjson.loads(content).items()}


class Holds:
    """Who holds hosts: the stored holders of one kind, and changes to them."""

    def __init__(self, view: View, kind: str) -> None:
        """``kind`` is that of the fields: ``HOST_KIND`` for jobs, or ``HELD`` for reservations."""
        self._view, self._kind = view, kind
        self._looked: dict[str, Mapping[str, Gpus]] = {}
        self._wanted: dict[str, dict[str, Gpus]] = {}

    def of(self, host: str) -> Mapping[str, Gpus]:
        """Return the jobs, or reservations, that hold parts of a host, and which GPUs."""
        if host in self._wanted:
            return self._wanted[host]
        if host not in self._looked:
            self._looked[host] = self._view.get(self._kind, host, parse_holders) or {}
        return self._looked[host]

    def put(self, host: str, holder: str, gpus: Gpus | None) -> None:
        """Make ``holder`` hold these GPUs of a host from now on, or nothing if None."""
        known = self.of(host)
        if gpus is None and holder not in known:
            return
        wanted = {name: part for name, part in known.items() if name != holder}
        if gpus is not None:
            wanted[holder] = gpus
        self._wanted[host] = wanted

    def guards(self) -> tuple[Guard, ...]:
        """Return guards that the holders of all hosts that were looked at are unchanged."""
        hosts = dict.fromkeys([*self._looked, *self._wanted])
        return tuple(self._view.guard(f"{self._kind}/{host}") for host in hosts)

    def sets(self) -> dict[str, bytes | None]:
        """Return the new values of the fields that change."""
        fields = {
            f"{self._kind}/{host}": orjson.dumps(wanted, option=orjson.OPT_SORT_KEYS)
            if wanted
            else None
            for host, wanted in self._wanted.items()
        }
        return {field: value for field, value in fields.items() if self._view.raw(field) != value}


_RESERVATION, HELD = "reservation", "held"
RESERVED = "reserved"
"""Field with a token that changes whenever hosts are reserved. A deletion of the fabric guards
it."""


class Taken(NamedTuple):
    """Guards and fields of reservations in the change of a job that takes hosts."""

    guards: tuple[Guard, ...]
    sets: Mapping[str, bytes | None]


def reserve_hosts(view: View, wanted: Reservation, stamp: Stamp) -> tuple[Change, Reservation]:
    """Reserve hosts. Raises what ``Store.reserve`` documents."""
    check_known(view)
    there = _found(view, wanted.name)
    if there is not None and not there.over(stamp.now):
        cure = "release it first, or choose another name"
        raise AlreadyExists(_reservation_name(view.name, wanted.name), cure)
    jobs, held = Holds(view, HOST_KIND), Holds(view, HELD)
    standing = _standing(view, stamp.now)
    problems = [
        Problem(f"host {host!r}", why)
        for host, gpus in wanted.held.items()
        if (why := _job_of(jobs, host, gpus) or _holder(held, host, gpus, standing))
    ]
    if problems:
        raise FailedPrecondition(f"reservation {wanted.name!r}", *problems[:MAX_PROBLEMS])
    over = [one for one in _all(view) if one.over(stamp.now)]
    for one in over:
        _end(held, one)
    for host, gpus in wanted.held.items():
        held.put(host, wanted.name, gpus)
    raw = orjson.dumps(wanted)
    fields = dict.fromkeys(
        [*(_reservation_field(one.name) for one in over), _reservation_field(wanted.name)]
    )
    change = Change(
        fabric=view.name,
        moves=NEITHER,
        time=stamp.now,
        guards=(*(view.guard(field) for field in fields), *held.guards(), *jobs.guards()),
        sets={
            **fields,
            **held.sets(),
            _reservation_field(wanted.name): raw,
            RESERVED: stamp.token.encode(),
        },
        audit=entry_of(
            stamp,
            "reserve",
            _reservation_name(view.name, wanted.name),
            ("", reservation_text(wanted)),
        ),
        answer=raw,
    )
    return change, wanted


def release_hosts(view: View, name: str, stamp: Stamp) -> Change:
    """End a reservation. Raises ``NotFound``, also if it is already over."""
    check_known(view)
    old = _found(view, name)
    if old is None or old.over(stamp.now):
        raise NotFound(
            _reservation_name(view.name, name), "it may be over: see 'heddle job reservations'"
        )
    held = Holds(view, HELD)
    _end(held, old)
    return Change(
        fabric=view.name,
        moves=NEITHER,
        time=stamp.now,
        guards=(view.guard(_reservation_field(name)), *held.guards()),
        sets={_reservation_field(name): None, **held.sets()},
        audit=entry_of(
            stamp, "release", _reservation_name(view.name, name), (reservation_text(old), "")
        ),
    )


def reservations_of(view: View, now: float) -> list[Reservation]:
    """Return the reservations that are not over, by name. Raises ``NotFound``."""
    check_known(view)
    return [one for one in _all(view) if not one.over(now)]


def taken(view: View, job: str, come: Mapping[str, Gpus], redeems: str, stamp: Stamp) -> Taken:
    """Return what to write and guard of reservations when a job takes hosts.

    The reservation that the job redeems ends.

    Args:
        view: The fabric.
        job: Name of the job.
        come: GPUs that it takes of each host and did not have before.
        redeems: Name of the reservation that it redeems; empty for none.
        stamp: Time of the decision.

    Raises:
        FailedPrecondition: another reservation has some of the GPUs; or the reservation to redeem
            does not exist or is over.
    """
    mine = _found(view, redeems) if redeems else None
    if redeems and (mine is None or mine.over(stamp.now)):
        why = "is over or redeemed, or never was"
        if mine is not None:
            why = f"is over since {_clock(mine.end_time)}"
        cure = "reserve hosts again, or submit without it"
        raise FailedPrecondition(
            f"job {job!r}", Problem(f"reservation {redeems!r}", f"{why}; {cure}")
        )
    held, standing = Holds(view, HELD), _standing(view, stamp.now, but=redeems)
    problems = [
        Problem(f"host {host!r}", why)
        for host, gpus in come.items()
        if (why := _holder(held, host, gpus, standing))
    ]
    if problems:
        raise FailedPrecondition(f"job {job!r}", *problems[:MAX_PROBLEMS])
    if mine is None:
        return Taken(held.guards(), {})
    _end(held, mine)
    return Taken(
        (view.guard(_reservation_field(redeems)), *held.guards()),
        {**held.sets(), _reservation_field(redeems): None},
    )


parse_reservation = parser(Reservation, "reservation")


def _all(view: View) -> list[Reservation]:
    return list(view.all(_RESERVATION, parse_reservation).values())


def _found(view: View, name: str) -> Reservation | None:
    return view.get(_RESERVATION, name, parse_reservation)


def _job_of(jobs: Holds, host: str, gpus: Gpus) -> str:
    """Return why GPUs of a host cannot be reserved if a job has some of them, else ""."""
    found = in_use(gpus, jobs.of(host))
    return f"{found[1]} by job {found[0]!r}; choose others" if found else ""


def _holder(held: Holds, host: str, gpus: Gpus, standing: Mapping[str, Reservation]) -> str:
    """Return why GPUs of a host cannot be had if a current reservation has some, else ""."""
    for name, theirs in held.of(host).items():
        shared = common(gpus, theirs)
        if shared is not None and name in standing:
            until = _clock(standing[name].end_time)
            return (
                f"{gpus_words(shared)}reserved by {name!r} until {until}; "
                "redeem that, or choose others"
            )
    return ""


def _standing(view: View, now: float, but: str = "") -> dict[str, Reservation]:
    """Return the reservations that are not over, without ``but``, by name."""
    return {one.name: one for one in _all(view) if one.name != but and not one.over(now)}


def _end(held: Holds, one: Reservation) -> None:
    """Free the hosts of a reservation. Other holders of these hosts keep theirs."""
    for host in one.hosts:
        held.put(host, one.name, None)


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _reservation_field(name: str) -> str:
    return f"{_RESERVATION}/{name}"


def _reservation_name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/reservations/{name}"


FACT = "fact"
"""Kind of the fields with facts about jobs."""


def submit_job(
    view: View, job: Job, stamp: Stamp, *, redeems: str = ""
) -> tuple[Change, JobRecord]:
    """Add a job. Raises what ``Store.submit_job`` documents."""
    check_known(view)
    if view.raw(_job_field(job.name)) is not None:
        cure = "update it ('heddle job submit --replace'), or choose another name"
        raise AlreadyExists(_job_name(view.name, job.name), cure)
    check_job_ids(job.name, jobs_meant_by_sets(view))
    change, record = _save(view, job, None, redeems, stamp)
    return replace(change, guards=(view.guard(SETS), *change.guards)), record


def update_job(
    view: View,
    job: Job,
    etag: str,
    stamp: Stamp,
    *,
    redeems: str = "",
    allow_missing: bool = False,
) -> tuple[Change, JobRecord]:
    """Replace a job's specification. Raises what ``Store.update_job`` documents."""
    check_known(view)
    if allow_missing and not etag and view.raw(_job_field(job.name)) is None:
        return submit_job(view, job, stamp, redeems=redeems)
    old = job_record(view, job.name, etag)
    if old.job == job and not redeems:
        guards = (view.guard(_job_field(job.name)),)
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
        guards=(view.guard(_job_field(job)), *holds.guards()),
        sets={_job_field(job): None, f"{FACT}/{job}": None, **holds.sets()},
        audit=entry_of(stamp, "delete_job", _job_name(view.name, job), (job_text(old.job), "")),
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
        raise NotFound(_job_name(view.name, name), "submit it, or name one of 'heddle job list'")
    if etag and etag != record.etag:
        raise Conflict(_job_name(view.name, name))
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
    was_out = old is not None and (old.job.suspended or old.facts.resumed)
    resumed = was_out and not job.suspended
    facts = JobFacts(stamp.token, JobState.ACCEPTED, state_time=stamp.now, resumed=resumed)
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
            view.guard(_job_field(job.name)),
            *holds.guards(),
            *reserved.guards,
        ),
        sets={
            _job_field(job.name): raw,
            **holds.sets(),
            **reserved.sets,
        },
        audit=entry_of(stamp, action, _job_name(view.name, job.name), texts),
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


def _job_field(job: str) -> str:
    return f"{JOB_KIND}/{job}"


def _job_name(fabric: str, job: str) -> str:
    return f"fabrics/{fabric}/jobs/{job}"
