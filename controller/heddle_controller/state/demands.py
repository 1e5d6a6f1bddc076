"""Demand sets: put whole, no two with a flow of one id. They are large: a fabric points at them.

Whose an id of a flow is: no two flows of a fabric have the same.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import orjson

from heddle_controller.model.demand import PREFIX, SET, Demands
from heddle_controller.model.errors import MAX_PROBLEMS, Problem
from heddle_controller.model.job import job_of_flow
from heddle_controller.state.admission import check_name
from heddle_controller.state.audit import demands_text
from heddle_controller.state.codec.container import parser
from heddle_controller.state.codec.jobs import pack_demands
from heddle_controller.state.errors import FailedPrecondition, NotFound
from heddle_controller.state.records import DemandRecord
from heddle_controller.state.view import (
    ABSENT,
    INTENT,
    JOB_KIND,
    NEITHER,
    Blob,
    Change,
    Stamp,
    View,
    check_known,
    entry_of,
    fingerprint,
)


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


DEMANDS = "demands"
SETS = "sets"
"""A token that is new whenever a set is put: what is guarded by who looks at all of them."""


@dataclass(frozen=True, slots=True)
class DemandSet:
    """What a fabric has of a set."""

    blob: str
    etag: str
    update_time: float
    text: str
    """For the audit trail; the same for the same content alone."""
    jobs: tuple[str, ...]
    """Names of jobs whose flows would have ids of this set."""


@dataclass(frozen=True, slots=True, eq=False)
class DemandsPut:
    """One request to put a set, packed before anything is decided."""

    fabric: str
    name: str
    demands: Demands
    blob: Blob
    text: str
    meant: frozenset[str]
    """See ``DemandSet.jobs``."""
    fingerprint: str

    def decode(self, answer: bytes) -> DemandRecord:
        """The first answer to this request."""
        return DemandRecord(self.name, self.demands, *orjson.loads(answer))


def demands_put(fabric: str, name: str, demands: Demands, token: str) -> DemandsPut:
    """The request, which takes a while to pack."""
    check_name("demand set", name)
    body = pack_demands(demands)
    return DemandsPut(
        fabric=fabric,
        name=name,
        demands=demands,
        blob=Blob(f"demands-{token}", body),
        text=demands_text(body),
        meant=jobs_meant(demands),
        fingerprint=fingerprint("put_demands", fabric, name, body),
    )


def put_demands(
    view: View, others: Iterable[tuple[str, Demands]], put: DemandsPut, stamp: Stamp
) -> tuple[Change, DemandRecord]:
    """Set a demand set whole; ``others`` are all other sets of the fabric.

    Raises as ``Store.put_demands`` tells.
    """
    check_known(view)
    if put.name == SET:
        reason = "holds what switches count of flows that nobody announced; take another name"
        raise FailedPrecondition(f"demands {SET!r}", Problem("name", reason))
    field, old = _field(put.name), view.get(DEMANDS, put.name, _parse)
    guards = (view.guard(field),)
    if old is not None and old.text == put.text:
        answer = orjson.dumps([old.etag, old.update_time])
        same = Change(put.fabric, NEITHER, stamp.now, guards, answer=answer)
        return same, put.decode(answer)
    jobs = {job for job in put.meant if view.raw(f"{JOB_KIND}/{job}") is not None}
    check_ids(put.name, put.demands, others, jobs)
    new = DemandSet(put.blob.id, stamp.token, stamp.now, put.text, tuple(sorted(put.meant)))
    texts = old.text if old else "", put.text
    answer = orjson.dumps([new.etag, stamp.now])
    change = Change(
        fabric=put.fabric,
        moves=INTENT,
        time=stamp.now,
        guards=(*guards, view.guard(SETS), *((f"{JOB_KIND}/{job}", ABSENT) for job in put.meant)),
        sets={field: orjson.dumps(new), SETS: stamp.token.encode()},
        keep=(put.blob,),
        drop=(old.blob,) if old else (),
        audit=entry_of(stamp, "put_demands", _name(put.fabric, put.name), texts),
        answer=answer,
    )
    return change, put.decode(answer)


def delete_demands(view: View, name: str, stamp: Stamp) -> Change:
    """Take a set away. Raises ``NotFound``."""
    old = demand_set(view, name)
    return Change(
        fabric=view.name,
        moves=INTENT,
        time=stamp.now,
        guards=(view.guard(_field(name)),),
        sets={_field(name): None},
        drop=(old.blob,),
        audit=entry_of(stamp, "delete_demands", _name(view.name, name), (old.text, "")),
    )


def demand_set(view: View, name: str) -> DemandSet:
    """What the fabric has of a set. Raises ``NotFound``."""
    check_known(view)
    found = view.get(DEMANDS, name, _parse)
    if found is None:
        raise NotFound(_name(view.name, name))
    return found


def demand_sets(view: View) -> dict[str, DemandSet]:
    """All of them, by name, in order."""
    return dict(view.all(DEMANDS, _parse))


def jobs_meant_by_sets(view: View) -> list[tuple[str, tuple[str, ...]]]:
    """Names of sets, each with the jobs whose flows' ids it has."""
    return [(name, one.jobs) for name, one in demand_sets(view).items()]


_parse = parser(DemandSet, "demand set")


def _field(name: str) -> str:
    return f"{DEMANDS}/{name}"


def _name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/demands/{name}"
